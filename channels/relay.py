"""The relay: reads a partition's output log in order and has deliveries made of it.

What belongs here: the lease, the cursor, what is put aside. What must not be known here: Redis, senders, who gets what
(`channels.addressing` knows that).

The relay of one process holds a lease on the log, reads from the cursor that is stored beside it, and moves the cursor
in the step that inserts the deliveries and trims the log. So a crash anywhere repeats a step that changes nothing, and
a relay that lost its lease changes nothing at all. What a newer release wrote, an entry or the turn that has ended, is
put aside in that step, for as long as it takes: the relays of every process look there now and then, and the first that
can read it makes its deliveries, whoever has the log. A turn ends once: a server that forgot an end after it was told
gives the next one the same delivery ids. An entry that cannot be read, or whose turn cannot, becomes a dead letter with
its reason, and the cursor moves on. However many deliveries there are, a step stores a portion of them and renews the
lease before the next.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable

from channels import metrics
from channels.addressing import Addressing
from channels.loops import keep_going
from channels.outbox.log import RelayFenced, RelayLog
from channels.portions import Portion, portions
from worker import ids
from worker.observability import info, warn
from worker.store.log import Aside, Entry, LogEntry
from worker.store.repeat import is_unanswered

LEASE_S = 8.0
BLOCK_S = 1.0
"""How long a read waits for the first entry: far shorter than the lease, which is renewed before each read."""

_RETRY_S = 2.0
ASIDE_S = 5.0
"""Between two looks at what was put aside."""
_BATCH = 100

ReadLog = Callable[[str, int, int], Awaitable[list[Entry]]]
"""Reads the log: after this id, at most so many entries, waiting so many milliseconds for the first."""

ReadAside = Callable[[str, int], Awaitable[list[Aside]]]
"""Reads what was put aside: after this id, at most so many entries."""


class Relay:
    """The relay of one partition in one process.

    `addressing`: makes the deliveries. `wake`: says that something is due.
    """

    def __init__(
        self,
        outbox: RelayLog,
        *,
        read: ReadLog,
        read_aside: ReadAside,
        addressing: Addressing,
        wake: Callable[[], Awaitable[None]],
    ) -> None:
        self._outbox = outbox
        self._read = read
        self._read_aside = read_aside
        self._look_aside_at = 0.0
        self._addressing = addressing
        self._wake = wake
        self._nonce = ids.new_nonce()

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop` is set; then let another process take over at once."""
        await keep_going("relay", self.step, stop)
        try:
            await self._outbox.leave_log(self._nonce)
        except Exception as error:
            if not is_unanswered(error):
                raise
            warn("relay_did_not_leave", partition=self._outbox.partition, error=type(error).__name__)

    async def step(self) -> float:
        """Deal with what lies aside now and then, and with the next entries of the log, if it is ours.

        Gives the seconds to wait before the next step.
        """
        now = asyncio.get_running_loop().time()
        if now >= self._look_aside_at:
            await self._readmit()
            self._look_aside_at = now + ASIDE_S
        asked_at = asyncio.get_running_loop().time()
        place = await self._outbox.take_log(self._nonce, LEASE_S)
        if place is None:
            return _RETRY_S
        entries = await self._read(place.cursor, _BATCH, round(BLOCK_S * 1000))
        if not entries:
            return 0.0
        # The read may have waited: what came meanwhile came by now.
        now_ms = place.now_ms + math.ceil((asyncio.get_running_loop().time() - asked_at) * 1000)
        made = await self._addressing.made_of(entries, now_ms)
        start = place.cursor
        for number, portion in enumerate(portions(entries[: len(made)], made, start)):
            if not await self._inserted(start, portion, renews=number > 0):
                warn("relay_fenced", partition=self._outbox.partition)
                return _RETRY_S
            start = portion.end
        return 0.0

    async def _inserted(self, start: str, portion: Portion, *, renews: bool) -> bool:
        """Store a portion; whether the log was still ours."""
        if renews and await self._outbox.take_log(self._nonce, LEASE_S) is None:
            return False
        try:
            inserted = await self._outbox.insert(
                self._nonce, start, portion.end, portion.deliveries, aside=portion.aside, contents=portion.contents
            )
        except RelayFenced:
            return False
        for place_in_log in portion.aside:
            warn("log_entry_left_to_newer_release", partition=self._outbox.partition, entry=place_in_log)
        for entry in portion.entries:
            metrics.relayed("newer" if entry.id in portion.aside else _kind(entry))
        await self._told(inserted)
        return True

    async def _readmit(self) -> None:
        """Make the deliveries of what was put aside and can be read here."""
        after = "0-0"
        while lying := await self._read_aside(after, _BATCH):
            each_made = await self._addressing.made_of([each.entry for each in lying], lying[-1].now_ms)
            for each, of_each in zip(lying, each_made, strict=False):  # the others come with the next look
                after = each.id
                if of_each is None:
                    continue
                for portion in portions([each.entry], [of_each], ""):
                    made = await self._outbox.readmit(
                        each.id, portion.deliveries, contents=portion.contents, more_follow=not portion.entries
                    )
                    await self._told(made)
                info("log_entry_readmitted", partition=self._outbox.partition, entry=each.entry.id)
                metrics.relayed(_kind(each.entry))

    async def _told(self, made: int) -> None:
        metrics.made(made)
        if made:
            info("deliveries_made", partition=self._outbox.partition, count=made)
            await self._wake()


def _kind(entry: Entry) -> str:
    return entry.kind if isinstance(entry, LogEntry) else "unreadable"
