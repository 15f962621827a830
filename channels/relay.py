"""The relay: reads a partition's output log in order and makes deliveries of it.

What belongs here: which entries become deliveries, and to whom. What must not be known here: Redis, senders, what a
delivery says: it refers to the turn, and its sender renders it.

The relay of one process holds a lease on the log, reads from the cursor that is stored beside it, and moves the cursor
in the step that inserts the deliveries and trims the log. So a crash anywhere repeats a step that changes nothing, and
a relay that lost its lease changes nothing at all. At the end of a turn that a newer release wrote it stops before that
entry and leaves the log to a process of that release. A turn ends once: a server that forgot an end after it was told
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
from worker.store.log import LogEntry, Unreadable
from worker.store.repeat import is_unanswered

LEASE_S = 8.0
BLOCK_S = 1.0
"""How long a read waits for the first entry: far shorter than the lease, which is renewed before each read."""

_RETRY_S = 2.0
_NEWER_S = 2 * _RETRY_S + 1
"""Who leaves the log to a newer release looks again after so long: every other relay has asked for it meanwhile."""
_BATCH = 100

ReadLog = Callable[[str, int, int], Awaitable[list[LogEntry | Unreadable]]]
"""Reads the log: after this id, at most so many entries, waiting so many milliseconds for the first."""


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
        destinations: Callable[[str], Awaitable[Sequence[str] | None]],
        wake: Callable[[], Awaitable[None]],
    ) -> None:
        self._outbox = outbox
        self._read = read
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
        """Deal with the next entries of the log, if it is ours. Gives the seconds to wait before the next step."""
        place = await self._outbox.take_log(self._nonce, LEASE_S)
        if place is None:
            return _RETRY_S
        entries = await self._read(place.cursor, _BATCH, round(BLOCK_S * 1000))
        if not entries:
            return 0.0
        deliveries: list[Delivery] = []
        for number, entry in enumerate(entries):
            try:
                deliveries += await self._made_of(entry, place.now_ms)
            except NewerRecord:
                warn("relay_left_to_newer_release", partition=self._outbox.partition, entry=entry.id)
                if number == 0:
                    await self._outbox.leave_log(self._nonce)
                    return _NEWER_S
                entries = entries[:number]
                break
        try:
            inserted = await self._outbox.insert(self._nonce, place.cursor, entries[-1].id, deliveries)
        except RelayFenced:
            warn("relay_fenced", partition=self._outbox.partition)
            return _RETRY_S
        for entry in entries:
            metrics.relayed("unreadable" if isinstance(entry, Unreadable) else entry.kind)
        metrics.made(inserted)
        if inserted:
            info("deliveries_made", partition=self._outbox.partition, count=inserted)
            await self._wake()
        return 0.0

    async def _made_of(self, entry: LogEntry | Unreadable, now_ms: int) -> list[Delivery]:
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
        return [
            Delivery(
                id=ids.delivery_of(self._outbox.partition, ids.end_of(entry.turn), destination),
                event_id=entry.event_id,
                turn=entry.turn,
                event_type=event_type,
                destination=destination,
                created_ms=entry.at_ms,
                due_ms=entry.at_ms,
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


def event_of(entry: LogEntry) -> str | None:
    """The type of the event that is delivered for an entry, or None: every outcome but `merged` is delivered."""
    if entry.kind != "seal" or entry.outcome == "merged":
        return None
    return f"turn.{entry.outcome}"
