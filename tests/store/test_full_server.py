"""A Redis at its maxmemory takes no new work, and lets the work it has end well."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import redis
import redis.asyncio

from tests.store.lossy import Fault, Lossy, dump
from tests.store.turns import (
    SESSION,
    TTL_S,
    Redis,
    commit,
    discard,
    driven,
    granted,
    new_turn,
    outputs_of,
    seal,
    snapshot_of,
    taken,
)
from worker.errors import StoreFull
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import submit
from worker.store.lease import renew, sweep
from worker.store.tick import StagingTick
from worker.turn.facts import ToolEnded

Fill = Callable[[], Awaitable[None]]


@pytest.fixture
async def fill(real_redis: Redis) -> AsyncIterator[Fill]:
    """Fills the real server until the test ends."""

    async def now() -> None:
        await real_redis.config_set("maxmemory", 1)

    yield now
    await real_redis.config_set("maxmemory", 0)


@pytest.mark.requirement("store:full:new-work-refused")
async def test_a_full_redis_refuses_new_work_with_an_error_that_says_what_to_do(real_redis: Redis, fill: Fill) -> None:
    accumulator = await driven(real_redis)
    await fill()
    before = await dump(real_redis)
    with pytest.raises(StoreFull, match="raise maxmemory"):
        await submit(real_redis, new_turn(), 1)
    with pytest.raises(StoreFull, match="raise maxmemory"):
        await accumulator.open_call(1, 1, 0, True)
    with pytest.raises(StoreFull, match="raise maxmemory"):
        await accumulator.tool_start(1, 0, [])
    assert await dump(real_redis) == before


@pytest.mark.requirement("store:full:ends-well")
async def test_a_call_that_completes_in_a_full_redis_is_committed_and_its_turn_sealed(
    real_redis: Redis, fill: Fill
) -> None:
    accumulator = await driven(real_redis)
    await accumulator.open_call(1, 1, 0, True)
    await fill()
    await commit(accumulator, 1, 1, "not lost")
    await accumulator.record(ToolEnded(1, 0, "result", None), [])
    await seal(accumulator)
    assert await real_redis.get(keys.text(accumulator.turn)) == b"not lost"
    assert await real_redis.hget(keys.turn_record(accumulator.turn), "outcome") == b"completed"


@pytest.mark.requirement("store:full:ends-well")
async def test_a_call_that_dies_in_a_full_redis_is_discarded_and_its_turn_handed_over(
    real_redis: Redis, real_url: str, fill: Fill
) -> None:
    grant = await granted(real_redis)
    accumulator = ExecutionOutputAccumulator(real_redis, grant, lambda: True)
    await accumulator.open_call(1, 1, 0, True)
    await fill()
    with redis.Redis.from_url(real_url) as blocking:
        assert renew(blocking, 0, [(grant.turn, grant.nonce)], TTL_S)[0].held
        await discard(accumulator, 1, 1)
        await accumulator.release()
        assert sweep(blocking, 0) == [SESSION]
    await taken(real_redis)


@pytest.mark.requirement("store:full:view-only")
@pytest.mark.parametrize("fault", ["none", "request lost", "reply lost"])
async def test_a_view_that_finds_no_room_does_not_stand_in_a_commits_way(
    real_redis: Redis, fill: Fill, fault: Fault
) -> None:
    accumulator = await driven(real_redis, watch_s=60)
    tick = StagingTick(real_redis)
    tick.add(accumulator)
    await accumulator.open_call(1, 1, 0, True)
    accumulator.stage_text("seen ")
    await tick.flush()
    lossy = Lossy(real_redis)
    accumulator.stage_text("perhaps seen ")
    if fault != "none":
        lossy.faults.append(fault)
        await tick.flush()
    await fill()
    await tick.flush()
    await commit(accumulator, 1, 1, "seen perhaps seen and whole")
    outputs = await outputs_of(real_redis, accumulator.turn)
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
    assert await real_redis.get(keys.text(accumulator.turn)) == b"seen perhaps seen and whole"


@pytest.mark.requirement("store:full:view-only")
async def test_a_view_that_found_no_room_goes_on_when_there_is_room_again(real_redis: Redis, fill: Fill) -> None:
    accumulator = await driven(real_redis, watch_s=60)
    tick = StagingTick(real_redis)
    tick.add(accumulator)
    await accumulator.open_call(1, 1, 0, True)
    await fill()
    accumulator.stage_text("one ")
    await tick.flush()
    await real_redis.config_set("maxmemory", 0)
    accumulator.stage_text("two")
    await tick.flush()
    await tick.flush()
    assert (await snapshot_of(real_redis, accumulator.turn, 0)).open_text == "one two"
