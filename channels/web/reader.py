"""One live reader: what it is sent, from the moment it joins to the end of its turn.

What belongs here: snapshot, catching up, going on, starting afresh. What must not be known here: HTTP, other readers.

    joins                      `snapshot`, then what comes
    names the last id it saw   what came after it; where that cannot be known, `reset` and then what comes
    misses something           `reset`, then what comes
    its turn has ended         how it ended, and no more; a comment, where a newer release has said it

A `snapshot` and a `reset` look alike and mean: forget what you have, this is what stands. So the reader's text is
always what the turn's is, whatever was trimmed, lost or put back. Ids grow strictly, but a `reset` because the store
was put back begins at a lower one.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from time import monotonic

import redis.asyncio

from channels.web.live import WATCH_S, LiveOutputs
from channels.web.tail import LITTLE_BYTES, Crowded, Frame, Tail
from worker.errors import NewerRecord
from worker.output.events import TurnCompletedOutput
from worker.output.filters import OutputFilter, admits
from worker.output.snapshot import NOWHERE, Cursor, Place, Reason
from worker.store import outputs
from worker.store.readers import ended_at, find_page, is_known, read_page
from worker.store.repeat import is_unanswered

DELTAS = OutputFilter.TEXT_STREAMING | OutputFilter.THINKING
KEEPALIVE = b": keepalive\n\n"
_STORE_AWAY = b": the store does not answer, come back later\nretry: 2000\n\n"
_FAREWELL = b": this process ends, go on at another one\nretry: 1000\n\n"
_CROWDED = b": the readers of this process hold too much, come back later\nretry: 5000\n\n"
_NEWER = b": a newer release writes this turn: go on at a process of that release\nretry: 5000\n\n"
_UNREADABLE = b": the turn has ended, and this release cannot read how: ask a process of a newer one\nretry: 5000\n\n"
_BARRED = b": the token counts no more\n\n"


class Reader:
    """A reader of one turn, whose queue is `tail`. It gets what the filter `wanted` admits."""

    def __init__(self, client: redis.asyncio.Redis, live: LiveOutputs, tail: Tail, wanted: OutputFilter) -> None:
        self._client = client
        self._live = live
        self._tail = tail
        self._wanted = wanted
        self._cursor = Cursor(NOWHERE)
        self._is_over = False
        self._named: Place = NOWHERE

    async def starts_after_end(self, last: Place) -> bool:
        """Whether the place is that of the last output of a turn that has ended: there is nothing more to read."""
        return await ended_at(self._client, self._tail.turn) == last

    async def events(self, last: Place | None, *, is_anew: bool, keepalive_s: float) -> AsyncGenerator[bytes, None]:
        """The events, each whole; ends with the turn, with the process, and when the turn is no more.

        `last`: the place that the reader names, None when it names none that can be read. `is_anew`: it named none.
        """
        self._named = last or NOWHERE
        try:
            async for event in self._events(last, is_anew=is_anew, keepalive_s=keepalive_s):
                yield event
                del event  # here and below: who waits for the next one keeps none that was taken
        except Crowded:
            yield _CROWDED
        except NewerRecord:
            yield _NEWER
        except Exception as error:
            if not is_unanswered(error):
                raise
            yield _STORE_AWAY
        finally:
            self._live.leave(self._tail)

    async def _events(self, last: Place | None, *, is_anew: bool, keepalive_s: float) -> AsyncIterator[bytes]:
        if last is not None and await is_known(self._client, self._tail.turn, last):
            coming = self._continue(last)
        else:
            coming = self._start("joined" if is_anew else "unknown_id")
        async for event in coming:
            yield event
            del event
        spoke = monotonic()
        while not self._is_over:
            await self._tail.news(max(0.0, spoke + keepalive_s - monotonic()))
            async for event in self._go_on():
                yield event
                del event
                spoke = monotonic()
            if monotonic() >= spoke + keepalive_s:
                yield KEEPALIVE
                spoke = monotonic()

    async def _go_on(self) -> AsyncIterator[bytes]:
        if self._live.closing or self._tail.is_barred:
            self._is_over = True
            yield _BARRED if self._tail.is_barred else _FAREWELL
            return
        missed, frames = self._tail.missed, self._tail.take()
        if not frames and missed is None:
            ended_at = self._tail.ended_at
            has_read_all = ended_at is not None and self._cursor.at >= ended_at
            self._is_over = self._tail.is_gone or has_read_all
            if has_read_all:
                yield _UNREADABLE
            return
        async for event in self._pass_on(frames) if missed is None else self._start(missed):
            yield event
            del event
        self._tail.passed_on()

    async def _continue(self, last: Place) -> AsyncIterator[bytes]:
        """What has come since the reader went away."""
        self._cursor = Cursor(last)
        if self._tail.deltas:
            await outputs.watch(self._client, self._tail.turn, WATCH_S)
        async for event in self._catch_up():
            yield event
        async for event in self._join():
            yield event

    async def _join(self) -> AsyncIterator[bytes]:
        if not self._is_over and self._live.join(self._tail, self._cursor.at) > self._cursor.at:
            async for event in self._catch_up():
                yield event

    async def _start(self, reason: Reason) -> AsyncIterator[bytes]:
        """A snapshot, and what has come since."""
        self._tail.begin()
        moment = await self._live.openings.look(self._tail.turn, WATCH_S if self._tail.deltas else 0)
        if moment is None:
            self._is_over = True
            return
        if reason == "unknown_id" and self._named > moment.last:
            reason = "rewound"  # an id of what the store has lost since: what comes may have a lower one
        place, ending = moment.place, moment.ending
        has_all = reason == "missed" and place == self._cursor.at  # its queue was too short for what it had already
        written = None if has_all else moment.written(reason, self._wanted)
        del moment  # here and below: whoever takes it slowly holds it once
        if written is not None:
            with self._live.held.sharing(written.event, written.digest) as shared:
                del written
                yield shared
                del shared
        self._cursor = Cursor(place)
        if ending is not None:
            self._is_over = True
            for place, output in ending:
                yield Frame(place, output).event
            return
        async for event in self._join():
            yield event

    async def _catch_up(self) -> AsyncIterator[bytes]:
        """What has come between the reader's place and what its queue begins with.

        A little at a time. A longer output is not read for one reader alone: a snapshot is kept once for all.
        """
        while not self._is_over and self._tail.missed is None:
            page = await find_page(self._client, self._tail.turn, self._cursor.at, LITTLE_BYTES)
            if page.size > LITTLE_BYTES:
                self._tail.lose("missed")
            if not page.stored or self._tail.missed is not None:
                return
            with self._live.held.holding(page.size):
                entries = await read_page(self._client, self._tail.turn, page)
                async for event in self._pass_on([Frame(*entry) for entry in entries]):
                    yield event
                    del event

    async def _pass_on(self, frames: Sequence[Frame]) -> AsyncIterator[bytes]:
        for frame in frames:
            met = self._cursor.meets(frame.place)
            if met == "gap":
                self._tail.lose("missed")
                return
            if met == "seen" or frame.output is None:
                continue
            if admits(self._wanted, frame.output):
                yield frame.event
            if isinstance(frame.output, TurnCompletedOutput):
                self._is_over = True
                return
