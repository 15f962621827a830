"""The queue of one live reader, and what all readers of a process together keep it holding.

What belongs here: bounds, and what is lost beyond them. What must not be known here: HTTP, Redis, what a reader does
with an output.

Each reader has a queue of its own, with a bound. One that is full is emptied and its reader told that it has missed
something; it then starts afresh with a snapshot. So a slow reader costs itself its place, and nobody else anything.
What all of them hold has a bound, too: beyond it, queues longer than a little are lost, and a long snapshot is not
begun.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from worker.output.events import Output, encode
from worker.output.snapshot import NOWHERE, Place, shown_place

_MOST_FRAMES = 1_000
_MOST_BYTES = 1_000_000
LITTLE_BYTES = 65_536
"""A reader may always hold so much."""


class Crowded(Exception):
    """The readers of this process hold as much as they may."""


@dataclass
class _Shared:
    """What several readers are being sent, kept once. `users`: how many."""

    data: bytes = field(repr=False)
    users: int = 0


class Held:
    """The bytes that wait for readers to take them; at most `most`, and a little for each reader."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._shared: dict[bytes, _Shared] = {}
        self.total = 0

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more than a little."""
        return self.total >= self._most

    def hold(self, frame: "Frame") -> None:
        """One reader more waits for this frame, which is kept once for all of them."""
        if not frame.readers:
            self.total += frame.size
        frame.readers += 1

    def let_go(self, frame: "Frame") -> None:
        """One reader fewer waits for it."""
        frame.readers -= 1
        if not frame.readers:
            self.total -= frame.size

    @contextmanager
    def holding(self, count: int) -> Iterator[None]:
        """So many bytes for one reader alone, which are not more than a little."""
        self.total += count
        try:
            yield
        finally:
            self.total -= count

    @contextmanager
    def sharing(self, data: bytes, key: bytes) -> Iterator[bytes]:
        """The same bytes, kept once for all who are sent them just now. `key`: their digest. Raises `Crowded`."""
        if key not in self._shared:
            if len(data) > LITTLE_BYTES and self.total + len(data) > self._most:
                raise Crowded
            self._shared[key] = _Shared(data)
            self.total += len(data)
        shared = self._shared[key]
        del data
        shared.users += 1
        try:
            yield shared.data
        finally:
            shared.users -= 1
            if not shared.users:
                del self._shared[key]
                self.total -= len(shared.data)


@dataclass(eq=False)
class Frame:
    """An output on its way to readers; `output` None: this version does not know it. Written out once for all.

    `readers`: how many wait for it.
    """

    place: Place
    output: Output | None
    readers: int = 0

    @property
    def size(self) -> int:
        """Bytes of the event."""
        return 0 if self.output is None else len(self.event)

    @cached_property
    def event(self) -> bytes:
        """The server-sent event."""
        assert self.output is not None
        name: str = getattr(self.output, "type")  # noqa: B009 - every kind of output has it, their common class has not
        data = encode(self.output)
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (shown_place(self.place).encode(), name.encode(), data)


Missed = Literal["missed", "rewound"]


class Tail:
    """The queue of one reader. `missed` says that something was lost on the way. `admission`: by what he may read."""

    def __init__(self, turn: str, held: Held, *, admission: str, deltas: bool) -> None:
        self.turn = turn
        self.admission = admission
        self.deltas = deltas
        self._held = held
        self.missed: Missed | None = None
        self.known: Place = NOWHERE
        """As far as that, the reader has what there is."""
        self.is_gone = False
        """The turn is no more."""
        self.ended_at: Place | None = None
        """Where the turn ended, if it has."""
        self.is_barred = False
        """Its admission counts no more."""
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._taken: list[Frame] = []
        self._news = asyncio.Event()

    def offer(self, frame: Frame) -> None:
        """Queue a frame, or lose all of them."""
        if self.missed is not None or frame.place <= self.known:
            return
        self._frames.append(frame)
        self._bytes += frame.size
        self._held.hold(frame)
        is_crowded = self._held.is_full and self._bytes > LITTLE_BYTES
        if len(self._frames) > _MOST_FRAMES or self._bytes > _MOST_BYTES or is_crowded:
            self.lose("missed")
        self._news.set()

    def lose(self, why: Missed) -> None:
        """Empty the queue: its reader must start afresh."""
        self._empty()
        self.missed = why
        self._news.set()

    def wake(self) -> None:
        """End a wait."""
        self._news.set()

    def begin(self) -> None:
        """Collect everything from now on, for a reader that starts afresh."""
        self.known = NOWHERE
        self._empty()
        self.missed = None

    def take(self) -> list[Frame]:
        """What has come. It counts as held until `passed_on`."""
        self.passed_on()
        self._taken = list(self._frames)
        self._frames.clear()
        self._bytes = 0
        self._news.clear()
        return self._taken

    def passed_on(self) -> None:
        """What was taken has gone to the reader, or is not wanted any more."""
        for frame in self._taken:
            self._held.let_go(frame)
        self._taken = []

    def close(self) -> None:
        """The reader is gone: it holds nothing any more."""
        self._empty()
        self.passed_on()

    def _empty(self) -> None:
        for frame in self._frames:
            self._held.let_go(frame)
        self._frames.clear()
        self._bytes = 0

    async def news(self, within_s: float) -> None:
        """Wait for something new, at most so long."""
        try:
            async with asyncio.timeout(within_s):
                await self._news.wait()
        except TimeoutError:
            pass
