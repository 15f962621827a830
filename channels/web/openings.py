"""What live readers begin with: how a turn stands, read and written out once for all who begin at the same moment.

What belongs here: sharing one look at a turn among those who asked for it. What must not be known here: what comes
after it, HTTP.

A look is shared by those who asked before it began, so each is given what stood after it had asked. Those who ask while
a turn is being looked at get the next look. A long text takes the event loop some milliseconds to read and to write
out: few looks go on at the same time, however many readers of however many turns there are.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

import redis.asyncio

from worker.output.filters import OutputFilter
from worker.output.snapshot import Place, Reason, Snapshot, State, shown_place
from worker.store import outputs
from worker.store.readers import Entry, read_ending

_LOOKS = 4
"""Looks that go on at the same time."""


@dataclass(frozen=True, slots=True)
class Written:
    """The event of a snapshot, and the digest of it."""

    event: bytes = field(repr=False)
    digest: bytes


class Moment:
    """How a turn stood. `ending`: how it ended; None: it goes on."""

    def __init__(self, turn: str, found: outputs.Snapshot, ending: Sequence[Entry] | None) -> None:
        at_ms, _, seq = found.last_id.partition("-")
        self.last: Place = (int(at_ms), int(seq))
        self.ending = ending
        self._snapshot = Snapshot(
            turn=turn,
            reason="joined",
            seq=ending[0][0][1] - 1 if ending else int(seq),  # how it ended follows, and is not known yet
            at_ms=int(at_ms),
            epoch=found.epoch,
            state=cast("State", found.state),
            outcome=found.outcome,
            marker=found.marker,
            text=found.text,
            call=found.call,
            attempt=found.attempt,
            open_text=found.open_text,
        )
        self.place: Place = (self._snapshot.at_ms, self._snapshot.seq)
        self._written: dict[tuple[Reason, bool, bool], Written] = {}

    def written(self, reason: Reason, wanted: OutputFilter) -> Written:
        """The snapshot as it is told to readers of this filter, who begin for this reason."""
        snapshot = self._snapshot.through(wanted).model_copy(update={"reason": reason})
        key = (reason, bool(snapshot.text), bool(snapshot.open_text))
        if key not in self._written:
            event = _event_of(snapshot, "snapshot" if reason == "joined" else "reset")
            self._written[key] = Written(event, blake2b(event, digest_size=32).digest())
        return self._written[key]


@dataclass
class _Asked:
    """A look that has not begun. `watch_s`: the longest time for which one who waits for it will watch."""

    look: asyncio.Task[Moment | None] = field(init=False)
    watch_s: float = 0.0


class Openings:
    """Looks at turns through `client`."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._asked: dict[str, _Asked] = {}
        self._going_on: dict[str, asyncio.Task[Moment | None]] = {}
        self._room = asyncio.Semaphore(_LOOKS)

    async def look(self, turn: str, watch_s: float) -> Moment | None:
        """How the turn stands now; None: it is no more. Has it watched for so long. Raises what redis-py raises."""
        asked = self._asked.get(turn)
        if asked is None:
            asked = self._asked[turn] = _Asked()
            # Ends by itself, when Redis has answered or been too long about it.
            asked.look = asyncio.get_running_loop().create_task(self._look(turn, asked))
            asked.look.add_done_callback(_heard)
        asked.watch_s = max(asked.watch_s, watch_s)
        return await asyncio.shield(asked.look)  # who hangs up ends it for nobody else

    async def _look(self, turn: str, asked: _Asked) -> Moment | None:
        if turn in self._going_on:
            await asyncio.wait({self._going_on[turn]})
        async with self._room:
            del self._asked[turn]
            self._going_on[turn] = asked.look
            try:
                found = await outputs.attach(self._client, turn, asked.watch_s)
                if found is None:
                    return None
                ending = await read_ending(self._client, turn) if found.state == "sealed" else None
                return Moment(turn, found, ending)
            finally:
                del self._going_on[turn]


def _heard(look: asyncio.Task[Moment | None]) -> None:
    """Where all who waited have gone, nobody else asks how it ended."""
    if not look.cancelled():
        look.exception()


def _event_of(snapshot: Snapshot, name: str) -> bytes:
    """The event of a snapshot. It has an id only where one may go on from it."""
    place = (snapshot.at_ms, snapshot.seq)
    has_id = snapshot.seq > 0 and snapshot.state != "sealed"
    head = b"id: %s\n" % shown_place(place).encode() if has_id else b""
    return b"%sevent: %s\ndata: %s\n\n" % (head, name.encode(), snapshot.model_dump_json().encode())
