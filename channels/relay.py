"""The relay: reads a partition's output log in order and makes deliveries of it.

What belongs here: which entries become deliveries, and to whom. What must not be known here: Redis, senders, what a
delivery says: it refers to the turn, and its sender renders it.

The relay of one process holds a lease on the log, reads from the cursor that is stored beside it, and moves the cursor
in the step that inserts the deliveries and trims the log. So a crash anywhere repeats a step that changes nothing, and
a relay that lost its lease changes nothing at all. What a newer release wrote, an entry or the turn that has ended, is
put aside in that step, for as long as it takes: the relays of every process look there now and then, and the first that
can read it makes its deliveries, whoever has the log. A turn ends once: a server that forgot an end after it was told
gives the next one the same delivery ids. An entry that cannot be read, or whose turn cannot, becomes a dead letter with
its reason, and the cursor moves on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from channels import metrics
from channels.delivery.model import Delivery, well_formed
from channels.loops import keep_going
from channels.outbox import Outbox, RelayFenced
from worker import ids
from worker.errors import NewerRecord
from worker.observability import fault, info, warn
from worker.store.log import Aside, Entry, LogEntry, Newer, Unreadable
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

    `destinations`: where the outcome of a turn goes, by the turn's id; None when the turn is not known any more.
    `wake`: says that something is due.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        read: ReadLog,
        read_aside: ReadAside,
        destinations: Callable[[str], Awaitable[Sequence[str] | None]],
        wake: Callable[[], Awaitable[None]],
    ) -> None:
        self._outbox = outbox
        self._read = read
        self._read_aside = read_aside
        self._look_aside_at = 0.0
        self._destinations = destinations
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
        place = await self._outbox.take_log(self._nonce, LEASE_S)
        if place is None:
            return _RETRY_S
        entries = await self._read(place.cursor, _BATCH, round(BLOCK_S * 1000))
        if not entries:
            return 0.0
        deliveries: list[Delivery] = []
        aside: list[str] = []
        for entry in entries:
            try:
                deliveries += await self._made_of(entry, place.now_ms)
            except NewerRecord:
                aside.append(entry.id)
        try:
            inserted = await self._outbox.insert(self._nonce, place.cursor, entries[-1].id, deliveries, aside)
        except RelayFenced:
            warn("relay_fenced", partition=self._outbox.partition)
            return _RETRY_S
        for place_in_log in aside:
            warn("log_entry_left_to_newer_release", partition=self._outbox.partition, entry=place_in_log)
        for entry in entries:
            metrics.relayed("newer" if entry.id in aside else _kind(entry))
        await self._told(inserted)
        return 0.0

    async def _readmit(self) -> None:
        """Make the deliveries of what was put aside and can be read here."""
        after = "0-0"
        while lying := await self._read_aside(after, _BATCH):
            after = lying[-1].id
            for each in lying:
                try:
                    deliveries = await self._made_of(each.entry, each.now_ms)
                except NewerRecord:
                    continue
                made = await self._outbox.readmit(each.id, deliveries)
                info("log_entry_readmitted", partition=self._outbox.partition, entry=each.entry.id)
                metrics.relayed(_kind(each.entry))
                await self._told(made)

    async def _told(self, made: int) -> None:
        metrics.made(made)
        if made:
            info("deliveries_made", partition=self._outbox.partition, count=made)
            await self._wake()

    async def _made_of(self, entry: Entry, now_ms: int) -> list[Delivery]:
        """Raises `NewerRecord` for what is to be put aside."""
        if isinstance(entry, Newer):
            raise NewerRecord(f"log entry {entry.id} has version {entry.version}")
        if isinstance(entry, Unreadable):
            return [self._dead_letter(entry.id, "unreadable_entry", entry.why, now_ms)]
        event_type = event_of(entry)
        if event_type is None:
            return []
        try:
            destinations = await self._destinations(entry.turn)
            why = "its turn is not stored any more"
        except Exception as error:
            if is_unanswered(error) or isinstance(error, NewerRecord):
                raise
            # One entry must not stop all that come after it.
            fault("log_entry_unusable", error, turn=entry.turn)
            destinations, why = None, f"the record of its turn cannot be read: {type(error).__name__}"
        if destinations is None:
            return [self._dead_letter(entry.id, "unusable_turn", why, now_ms, turn=entry.turn, event_type=event_type)]
        # The ids of a log never go back, so after the clock was put back its entries bear the time that was.
        at_ms = min(entry.at_ms, now_ms)
        return [
            Delivery(
                id=ids.delivery_of(self._outbox.partition, ids.end_of(entry.turn), destination),
                event_id=entry.event_id,
                turn=entry.turn,
                event_type=event_type,
                destination=destination,
                created_ms=at_ms,
                due_ms=at_ms,
            )
            for destination in dict.fromkeys(map(well_formed, destinations))
        ]

    def _dead_letter(  # noqa: PLR0913 - what is known of an entry
        self, place: str, code: str, why: str, now_ms: int, *, turn: str = "", event_type: str = "unknown"
    ) -> Delivery:
        warn("log_entry_dead", partition=self._outbox.partition, entry=place, code=code)
        return Delivery(
            id=ids.delivery_of(self._outbox.partition, place, ""),
            event_id=place,
            turn=turn,
            event_type=event_type,
            destination="",
            created_ms=int(place.partition("-")[0]),
            due_ms=0,
            state="dead",
            ended_ms=now_ms,
            code=code,
            message=f"log entry {place}: {why}",
        )


def _kind(entry: Entry) -> str:
    return entry.kind if isinstance(entry, LogEntry) else "unreadable"


def event_of(entry: LogEntry) -> str | None:
    """The type of the event that is delivered for an entry, or None: every outcome but `merged` is delivered."""
    if entry.kind != "seal" or entry.outcome == "merged":
        return None
    return f"turn.{entry.outcome}"
