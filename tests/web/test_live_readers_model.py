"""Readers that join late, leave, come back with any id and read slowly: what each ends with is the turn's text."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import fakeredis
import pytest
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from channels.embedded import EmbeddedServer
from channels.web import tail
from channels.web.live import LiveOutputs
from channels.web.reader import DELTAS, KEEPALIVE, Reader
from channels.web.tail import Held, Tail
from tests.support.web import EventSource, Fold
from tests.support.written_turn import WrittenTurn
from worker.output.filters import OutputFilter
from worker.output.snapshot import parse_place

STREAMING = OutputFilter.TEXT_STREAMING
FILTERS = (
    OutputFilter.FULL,
    STREAMING,
    STREAMING | OutputFilter.TOOL_CALLS,
    OutputFilter.TEXT,
    OutputFilter.TEXT | OutputFilter.USAGE,
)
READERS = len(FILTERS)
A_READER = st.integers(0, READERS - 1)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("say"), st.integers(1, 12)),
        st.tuples(st.just("die"), st.just(0)),
        st.tuples(st.just("complete"), st.sampled_from([0, 1])),
        st.tuples(st.just("take_over"), st.just(0)),
        st.tuples(st.just("trim"), st.integers(1, 30)),
        st.tuples(st.just("save"), st.just(0)),
        st.tuples(st.just("put_back"), st.just(0)),
        st.tuples(st.just("said_and_trimmed"), st.tuples(st.integers(2, 12), st.integers(1, 30))),
        st.tuples(st.just("read_and_lost"), st.tuples(st.integers(0, 5), st.booleans())),
        st.tuples(st.just("pump"), st.just(0)),
        st.tuples(st.just("all_read"), st.just(0)),
        st.tuples(st.just("all_read"), st.just(0)),
        st.tuples(st.just("refresh"), st.just(0)),
        st.tuples(st.just("join"), A_READER),
        st.tuples(st.just("read"), A_READER),
        st.tuples(st.just("leave"), A_READER),
        st.tuples(st.just("forget"), st.tuples(A_READER, st.integers(0, 40))),
        st.tuples(
            st.just("foreign"), st.tuples(A_READER, st.sampled_from(["1-1", "9999999999999-3", "-1", "x", "0-0"]))
        ),
    ),
    max_size=40,
)


async def all_count(admissions: Iterable[str]) -> set[str]:
    return set(admissions)


class OneReader:
    """A client: its connection, if it has one, and its fold."""

    def __init__(self, written: WrittenTurn, outputs: LiveOutputs, wanted: OutputFilter) -> None:
        self.wanted = wanted
        self.fold = Fold()
        self._written = written
        self._outputs = outputs
        self._events: Any = None
        self._source = EventSource()

    def join(self, named: str | None = None) -> None:
        """Connect, with the id that was seen last or another one."""
        if self._events is not None:
            return
        last_id = self.fold.last_id if named is None else named
        queue = Tail(self._written.turn, self._outputs.held, admission="one", deltas=bool(self.wanted & DELTAS))
        reader = Reader(self._written.client, self._outputs, queue, self.wanted)
        self._events = reader.events(parse_place(last_id), is_anew=not last_id, keepalive_s=0)

    async def read(self) -> None:
        """Take what there is."""
        if self._events is None:
            return
        async for data in self._events:
            if data == KEEPALIVE:
                return
            for event in self._source.feed(data):
                self.fold.take(event)
        self._events = None

    async def leave(self) -> None:
        if self._events is not None:
            await self._events.aclose()
            self._events = None

    async def forget(self, count: int) -> None:
        """Lose what came last, and come back with the id before."""
        await self.leave()
        kept, self.fold = self.fold.events[:count], Fold()
        for event in kept:
            self.fold.take(event)
        self.join()

    async def come_with(self, named: str) -> None:
        """Come back with an id that was never sent: what is known counts for nothing."""
        await self.leave()
        self.fold = Fold()
        self.join(named)
        await self.read()
        assert self.fold.names[:1] == ["reset"]


class World:
    def __init__(self, written: WrittenTurn, outputs: LiveOutputs) -> None:
        self.written = written
        self.outputs = outputs
        self.readers = [OneReader(written, outputs, wanted) for wanted in FILTERS]
        self.saved: Any = None

    async def do(self, step: str, what: Any) -> None:  # noqa: C901, PLR0912 - one arm a step
        match step:
            case "say":
                await self.written.say(what)
            case "die":
                await self.written.die()
            case "complete":
                await self.written.complete(self.written.piece() if what else "")
            case "take_over":
                await self.written.be_taken_over()
            case "trim":
                await self.written.trim(what)
            case "save":
                self.saved = await self.written.save()
            case "put_back":
                if self.saved is not None:
                    await self.written.be_put_back(self.saved)
                    await self.outputs.refresh_once()
            case "said_and_trimmed":
                await self.written.say(what[0])
                await self.written.trim(what[1])
            case "read_and_lost":
                await self.lose(*what)
            case "pump":
                await self.outputs.read_once(0)
            case "all_read":
                await self.outputs.read_once(0)
                for reader in self.readers:
                    await reader.read()
            case "refresh":
                await self.outputs.refresh_once()
            case "join":
                self.readers[what].join()
            case "read":
                await self.readers[what].read()
            case "leave":
                await self.readers[what].leave()
            case "forget":
                await self.readers[what[0]].forget(what[1])
            case "foreign":
                await self.readers[what[0]].come_with(what[1])

    async def lose(self, pieces: int, completes: bool) -> None:
        """Everybody reads what the store then loses."""
        saved = await self.written.save()
        await self.written.say(pieces)
        if completes:
            await self.written.complete()
        await self.do("all_read", 0)
        await self.written.be_put_back(saved)
        await self.outputs.refresh_once()

    async def settle(self) -> None:
        """Everybody reads until nothing is new."""
        for reader in self.readers:
            reader.join()
        for _ in range(3):
            for reader in self.readers:
                await reader.read()
            while await self.outputs.read_once(0):
                pass

    def check(self) -> None:
        """Each has the turn's text, and of the open attempt what its filter shows."""
        for reader in self.readers:
            buffer = reader.fold.buffer
            assert buffer.committed == self.written.committed
            shown = self.written.open_text if reader.wanted & STREAMING else ""
            assert buffer.staged == shown


async def play(client: Any, steps: list[tuple[str, Any]], *, all_join: bool) -> None:
    written = await WrittenTurn.begun(client)
    world = World(written, LiveOutputs(client, client, Held(10**9), all_count))
    if all_join:
        await world.settle()
    for step, what in steps:
        await world.do(step, what)
    await world.settle()
    world.check()
    await written.say(2)
    await written.complete("the end")
    await world.settle()
    world.check()
    await written.end()
    await world.settle()
    world.check()
    latest = [OneReader(written, world.outputs, wanted) for wanted in FILTERS]
    for reader in latest:
        reader.join()
        await reader.read()
    world.readers += latest
    world.check()
    for reader in world.readers:
        assert reader.fold.buffer.outcome == "completed"
        assert reader.fold.names[-1] == "turn_completed"
        assert reader.fold.names.count("turn_completed") == 1
    assert world.outputs.turns == 0  # those who have read the end are gone


@pytest.fixture(autouse=True)
def _short_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_MOST_FRAMES", 20)


@asynccontextmanager
async def fake() -> AsyncIterator[Any]:
    client = fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(version=(7,)))
    yield client
    await client.aclose()


@pytest.mark.requirement("readers:property")
@settings(max_examples=60)
@given(steps=STEPS, all_join=st.booleans())
def test_whatever_happens_on_the_way_a_reader_ends_with_the_text_of_the_turn(
    steps: list[tuple[str, Any]], all_join: bool
) -> None:
    async def run() -> None:
        async with fake() as client:
            await play(client, steps, all_join=all_join)

    asyncio.run(run())


@pytest.mark.requirement("readers:property")
@settings(max_examples=60)
@given(steps=STEPS, all_join=st.booleans())
def test_on_a_real_server_too(server: EmbeddedServer, steps: list[tuple[str, Any]], all_join: bool) -> None:
    async def run() -> None:
        async with redis.asyncio.Redis.from_url(server.url) as client:
            await client.flushall()
            await play(client, steps, all_join=all_join)

    asyncio.run(run())
