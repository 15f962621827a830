"""The live outputs of all turns that are read along in this process: one reading connection, however many readers.

What belongs here: reading on, handing out, going on watching. What must not be known here: HTTP, filters, what a reader
does with an output.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio

from channels.web.openings import Openings
from channels.web.tail import Frame, Held, Tail
from worker.observability import fault, warn
from worker.output.snapshot import Place
from worker.store.outputs import count_unknown
from worker.store.readers import Watched, read_on, watch_all

WATCH_S = 20.0
"""How long a turn stays watched after the last word of a reader's process."""

REFRESH_S = 5.0
READ_BLOCK_MS = 100
"""A turn that is newly read along waits at most so long for the read under way to end."""

_GATHER_S = 0.015
"""Between two reads, so that what one tick of a turns process writes is read at once."""

_AGAIN_S = 0.5


@dataclass
class _Turn:
    """A turn that is read along: how far this process has read, and for whom."""

    at: Place
    tails: set[Tail] = field(default_factory=set)
    has_unknown: bool = False


StillAdmitted = Callable[[Iterable[str]], Awaitable[set[str]]]
"""Of some admissions those that count still."""


class LiveOutputs:
    """All readers of this process. `client`: for short commands; `reading`: for the one read that waits.

    `held`: what waits for readers to take it. `openings`: what they begin with. `still`: who of them may read on.
    """

    def __init__(
        self, client: redis.asyncio.Redis, reading: redis.asyncio.Redis, held: Held, still: StillAdmitted
    ) -> None:
        self.held = held
        self.openings = Openings(client)
        self._still = still
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

        One that joins while the process ends is sent away at once.

        Where that is behind `at`, the reader must read what lies between by itself.
        """
        turn = self._turns.setdefault(tail.turn, _Turn(at))
        turn.tails.add(tail)
        tail.known = at
        self._any.set()
        if self.closing:
            tail.wake()
        return turn.at

    def leave(self, tail: Tail) -> None:
        """Collect no more for this reader. A turn that nobody reads here is watched no longer by this process."""
        tail.close()
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
            if not turn.has_unknown:  # told once: in a rolling deploy there may be many
                turn.has_unknown = count_unknown(name, entries) > 0
            for place, output in entries:
                frame = Frame(place, output)
                for tail in turn.tails:
                    tail.offer(frame)
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

    async def bar_once(self) -> None:
        """Send those readers away whose admission counts no more."""
        tails = [tail for turn in self._turns.values() for tail in turn.tails]
        still = await self._still({tail.admission for tail in tails})
        for tail in tails:
            if tail.admission not in still:
                tail.is_barred = True
                tail.wake()

    def _wants_deltas(self, name: str) -> bool:
        return any(tail.deltas for tail in self._turns[name].tails)

    @staticmethod
    def _take(turn: _Turn, asked_at: Place, watched: Watched | None) -> None:
        if watched is None:
            for tail in turn.tails:
                tail.is_gone = True
                tail.wake()
            return
        for tail in turn.tails:
            tail.ended_at = None if watched.going_on else watched.last
            if tail.ended_at is not None:  # and its last output may be one that no reader here can be sent
                tail.wake()
        if watched.last < asked_at:  # what was read before is no more: a failover, or a file that lost its end
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
        await self.bar_once()
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
