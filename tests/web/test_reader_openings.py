"""What many readers begin with: one look at a turn for all of them, and a process that answers others meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
import redis

from channels.web import openings
from channels.web.event_stream import EventStream
from channels.web.openings import Moment, Openings
from tests.store.turns import Redis
from tests.support.stack import eventually
from tests.support.web import Fold, Served, read_along
from tests.support.written_turn import WrittenTurn
from worker.output.filters import OutputFilter
from worker.store import outputs

FULL = OutputFilter.FULL


class Attaching:
    """Counts the looks that are under way, and lets each go on when it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self.watched_s: list[float] = []
        self.under_way = self.most = 0
        self.go_on = asyncio.Semaphore(0)
        self._attach = outputs.attach
        monkeypatch.setattr(outputs, "attach", self._counted)

    async def _counted(self, client: Any, turn: str, watch_s: float) -> Any:
        self.begun.append(turn)
        self.watched_s.append(watch_s)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await self.go_on.acquire()
            return await self._attach(client, turn, watch_s)
        finally:
            self.under_way -= 1

    async def has_begun(self, count: int) -> None:
        async def begun() -> int:
            return len(self.begun)

        await eventually(begun, lambda now: now == count, f"{count} looks to have begun")

    def let(self, count: int = 1_000_000) -> None:
        for _ in range(min(count, 1_000)):
            self.go_on.release()


@pytest.mark.requirement("readers:openings:shared")
async def test_who_asks_while_a_turn_is_looked_at_gets_the_next_look_with_all_the_others(
    real_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await WrittenTurn.begun(real_redis)
    await written.complete("One.")
    looks, attaching = Openings(real_redis), Attaching(monkeypatch)
    async with asyncio.TaskGroup() as group:
        first = group.create_task(looks.look(written.turn, 0))
        await attaching.has_begun(1)
        others = [group.create_task(looks.look(written.turn, watch_s)) for watch_s in (0, 5, 20, 0)]
        attaching.let(1)
        await first
        await written.complete("Two.")  # before the second look, which they share, reads the store
        await attaching.has_begun(2)
        attaching.let(1)
    moments = {await other for other in others}
    assert len(attaching.begun) == 2
    assert attaching.watched_s == [0, 20]
    (moment,) = moments
    assert moment is not None
    assert moment is not first.result()
    assert b"One.Two." in moment.written("joined", FULL).event
    assert moment.written("joined", FULL) is moment.written("joined", FULL)
    assert b"One." not in moment.written("joined", OutputFilter.TOOL_CALLS).event
    reset = moment.written("missed", FULL).event
    assert b"event: reset" in reset
    assert b'"reason":"missed"' in reset


@pytest.mark.requirement("readers:openings:shared")
async def test_who_hangs_up_ends_a_look_for_nobody_else(real_redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    written = await WrittenTurn.begun(real_redis)
    looks, attaching = Openings(real_redis), Attaching(monkeypatch)
    async with asyncio.TaskGroup() as group:
        gone, stays = [group.create_task(looks.look(written.turn, 0)) for _ in range(2)]
        await attaching.has_begun(1)
        gone.cancel()
        attaching.let(1)
        moment = await stays
    assert isinstance(moment, Moment)
    assert len(attaching.begun) == 1


@pytest.mark.requirement("readers:openings:shared")
async def test_a_look_that_fails_fails_for_all_who_wait_for_it_and_for_none_after(
    real_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await WrittenTurn.begun(real_redis)
    looks, attach = Openings(real_redis), outputs.attach

    async def away(*_: Any) -> Any:
        raise redis.ConnectionError

    monkeypatch.setattr(outputs, "attach", away)
    failed = await asyncio.gather(*(looks.look(written.turn, 0) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in failed] == [redis.ConnectionError] * 3
    monkeypatch.setattr(outputs, "attach", attach)
    assert isinstance(await looks.look(written.turn, 0), Moment)
    assert await looks.look("turn_" + "0" * 22, 0) is None


@pytest.mark.requirement("readers:openings:bounded")
async def test_of_many_turns_few_are_looked_at_at_the_same_time(
    real_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [(await WrittenTurn.begun(real_redis, f"chat/{number}")).turn for number in range(12)]
    looks, attaching = Openings(real_redis), Attaching(monkeypatch)
    async with asyncio.TaskGroup() as group:
        looking = [group.create_task(looks.look(turn, 0)) for turn in turns for _ in range(3)]
        await attaching.has_begun(openings._LOOKS)
        attaching.let()
    assert all(isinstance(one.result(), Moment) for one in looking)
    assert (sorted(attaching.begun), attaching.most) == (sorted(turns), openings._LOOKS)


@pytest.mark.requirement("readers:openings:shared")
async def test_readers_over_http_share_looks_and_all_of_them_have_the_whole_text(
    web: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = await WrittenTurn.begun(web.redis)
    await written.complete("z" * 300_000)
    await written.say(1)
    attaching = Attaching(monkeypatch)
    folds = [Fold() for _ in range(20)]
    async with await web.client("events:read") as client:
        readers = [read_along(client, written.turn, fold) for fold in folds]
        async with asyncio.TaskGroup() as group:
            first = [group.create_task(anext(reader)) for reader in readers]
            live = web.process._live.openings

            async def waiting() -> int:
                return len(live._asked)

            await eventually(waiting, lambda count: count == 1, "readers that wait for the next look")
            attaching.let()
        assert {(await one).name for one in first} == {"snapshot"}
        for reader in readers:
            await reader.aclose()
    assert {(fold.buffer.committed, fold.buffer.staged) for fold in folds} == {(written.committed, written.open_text)}
    assert len(attaching.begun) < len(folds)


@pytest.mark.requirement("readers:openings:probe")
async def test_others_have_their_turn_between_the_pieces_of_a_long_event() -> None:
    pieces, turns_of_others = 0, 0

    async def events() -> AsyncGenerator[bytes, None]:
        yield b"x" * 1_000_000

    async def send(message: Any) -> None:  # takes all of it at once
        nonlocal pieces
        pieces += bool(message.get("body"))

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def others() -> None:
        nonlocal turns_of_others
        while True:
            await asyncio.sleep(0)
            turns_of_others += 1

    async with asyncio.TaskGroup() as group:
        beside = group.create_task(others())
        await EventStream(events(), 5, lambda: None)({"type": "http"}, receive, send)
        beside.cancel()
    assert pieces == 16
    assert turns_of_others >= pieces
