"""The live outputs of all turns that are read along in this process: one reading connection, however many readers.

What belongs here: reading on, handing out, going on watching. What must not be known here: HTTP, filters, what a reader
does with an output.

Each reader has a queue of its own, with a bound. One that is full is emptied and its reader told that it has missed
something; it then starts afresh with a snapshot. So a slow reader costs itself its place, and nobody else anything.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import redis
import redis.asyncio

from worker.observability import fault, warn
from worker.output.events import Output, encode
from worker.output.snapshot import NOWHERE, Place, shown_place
from worker.store.readers import Watched, read_on, watch_all

WATCH_S = 20.0
"""How long a turn stays watched after the last word of a reader's process."""

REFRESH_S = 5.0
READ_BLOCK_MS = 100
"""A turn that is newly read along waits at most so long for the read under way to end."""

_GATHER_S = 0.015
"""Between two reads, so that what one tick of a turns process writes is read at once."""

_MOST_FRAMES = 1_000
_MOST_BYTES = 1_000_000
_AGAIN_S = 0.5


@dataclass(frozen=True)
class Frame:
    """An output on its way to readers; `output` None: this version does not know it. Written out once for all."""

    place: Place
    output: Output | None

    @cached_property
    def event(self) -> bytes:
        """The server-sent event."""
        assert self.output is not None
        name: str = getattr(self.output, "type")  # noqa: B009 - every kind of output has it, their common class has not
        data = encode(self.output)
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (shown_place(self.place).encode(), name.encode(), data)


Missed = Literal["missed", "rewound"]


class Tail:
    """The queue of one reader. `take` waits for what comes; `missed` says that something was lost on the way."""

    def __init__(self, turn: str, *, deltas: bool) -> None:
        self.turn = turn
        self.deltas = deltas
        self.missed: Missed | None = None
        self.known: Place = NOWHERE
        """As far as that, the reader has what there is."""
        self.is_gone = False
        """The turn is no more."""
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._news = asyncio.Event()

    def offer(self, frame: Frame, size: int) -> None:
        """Queue a frame, or lose all of them."""
        if self.missed is not None or frame.place <= self.known:
            return
        self._frames.append(frame)
        self._bytes += size
        if len(self._frames) > _MOST_FRAMES or self._bytes > _MOST_BYTES:
            self.lose("missed")
        self._news.set()

    def lose(self, why: Missed) -> None:
        """Empty the queue: its reader must start afresh."""
        self._frames.clear()
        self._bytes = 0
        self.missed = why
        self._news.set()

    def wake(self) -> None:
        """End a wait."""
        self._news.set()

    def begin(self) -> None:
        """Collect everything from now on, for a reader that starts afresh."""
        self.known = NOWHERE
        self._frames.clear()
        self._bytes = 0
        self.missed = None

    def take(self) -> list[Frame]:
        """What has come."""
        frames = list(self._frames)
        self._frames.clear()
        self._bytes = 0
        self._news.clear()
        return frames

    async def news(self, within_s: float) -> None:
        """Wait for something new, at most so long."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            pass


@dataclass
class _Turn:
    """A turn that is read along: how far this process has read, and for whom."""

    at: Place
    tails: set[Tail] = field(default_factory=set)


class LiveOutputs:
    """All readers of this process. `client`: for short commands; `reading`: for the one read that waits."""

    def __init__(self, client: redis.asyncio.Redis, reading: redis.asyncio.Redis) -> None:
        self._client = client
        self._reading = reading
        self._turns: dict[str, _Turn] = {}
        self._any = asyncio.Event()
        self._run_id = ""
        self.closing = False

    @property
    def turns(self) -> int:
        """How many turns are read along."""
        return len(self._turns)

    def join(self, tail: Tail, at: Place) -> Place:
        """Collect for a reader that has come to `at`. Gives the place from which on it gets everything.

        Where that is behind `at`, the reader must read what lies between by itself.
        """
        turn = self._turns.setdefault(tail.turn, _Turn(at))
        turn.tails.add(tail)
        tail.known = at
        self._any.set()
        return turn.at

    def leave(self, tail: Tail) -> None:
        """Collect no more for this reader. A turn that nobody reads here is watched no longer by this process."""
        turn = self._turns.get(tail.turn)
        if turn is None:
            return
        turn.tails.discard(tail)
        if not turn.tails:
            del self._turns[tail.turn]
        if not self._turns:
            self._any.clear()

    def close(self) -> None:
        """Send all readers away: this process ends."""
        self.closing = True
        for turn in self._turns.values():
            for tail in turn.tails:
                tail.wake()

    async def run(self) -> None:
        """Read and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_going(self._read, "live_outputs_not_read"))
            group.create_task(self._keep_going(self._refresh, "live_turns_not_watched"))

    async def read_once(self, block_ms: int = READ_BLOCK_MS) -> int:
        """Read what has come and hand it out; gives how many outputs."""
        before = {name: turn.at for name, turn in self._turns.items()}
        if not before:
            return 0
        count = 0
        for name, entries in (await read_on(self._reading, before, block_ms)).items():
            turn = self._turns.get(name)
            if turn is None or turn.at != before[name]:
                continue  # left meanwhile, and perhaps joined anew elsewhere
            turn.at = entries[-1][0]
            count += len(entries)
            for place, output in entries:
                frame = Frame(place, output)
                size = 0 if output is None else len(frame.event)
                for tail in turn.tails:
                    tail.offer(frame, size)
        return count

    async def refresh_once(self) -> None:
        """Go on watching in one pipeline; learn which turns the store has put back, or forgotten."""
        asked = {name: turn.at for name, turn in self._turns.items()}
        if not asked:
            return
        watch_s = {name: WATCH_S if self._wants_deltas(name) else 0.0 for name in asked}
        for name, watched in (await watch_all(self._client, watch_s)).items():
            turn = self._turns.get(name)
            if turn is not None:
                self._take(turn, asked[name], watched)

    async def look_at_server(self) -> None:
        """Another server, or the same one started again, may have lost what was read, and said other things since."""
        run_id = str((await self._client.info("server")).get("run_id", ""))
        if self._run_id not in ("", run_id):
            for turn in self._turns.values():
                for tail in turn.tails:
                    tail.lose("rewound")
        self._run_id = run_id

    def _wants_deltas(self, name: str) -> bool:
        return any(tail.deltas for tail in self._turns[name].tails)

    @staticmethod
    def _take(turn: _Turn, asked_at: Place, watched: Watched | None) -> None:
        if watched is None:
            for tail in turn.tails:
                tail.is_gone = True
                tail.wake()
        elif watched.last < asked_at:  # what was read before is no more: a failover, or a file that lost its end
            turn.at = watched.last
            for tail in turn.tails:
                tail.lose("rewound")

    async def _read(self) -> None:
        await self._any.wait()
        await self.read_once()
        await asyncio.sleep(_GATHER_S)

    async def _refresh(self) -> None:
        await self._any.wait()
        await self.look_at_server()
        await self.refresh_once()
        await asyncio.sleep(REFRESH_S)

    @staticmethod
    async def _keep_going(step: Callable[[], Coroutine[Any, Any, None]], event: str) -> None:
        while True:
            try:
                await step()
            except (redis.RedisError, OSError) as error:
                warn(event, error=type(error).__name__)
                await asyncio.sleep(_AGAIN_S)
            except Exception as error:  # noqa: BLE001 - a loop that ended would leave every reader without a word
                fault(event, error)
                await asyncio.sleep(_AGAIN_S)
