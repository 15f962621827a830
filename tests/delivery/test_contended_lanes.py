"""A lane that others change all the time hears of every attempt all the same, and of what people do to it."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import redis.asyncio

from channels.delivery.model import Delivered, Failed
from channels.outbox import lanes
from channels.outbox import outbox as boxes
from tests.delivery.outboxes import BUSY, GONE, box, inserted, limited
from tests.store.lossy import Lossy

SLOW = Failed("throttled", "http_429", "too many", "yes", retry_after=120.0)
Read = Callable[[redis.asyncio.Redis, Sequence[str]], Awaitable[Any]]


@pytest.fixture
def contended(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets another change each lane behind every reader's back, so many times."""

    def contend(times: int) -> None:
        left = [times]
        for module in (boxes, lanes):
            monkeypatch.setattr(module, "read_lanes", changing_after(module.read_lanes, left))

    return contend


def changing_after(read: Read, left: list[int]) -> Read:
    async def read_and_change(client: redis.asyncio.Redis, names: Sequence[str]) -> Any:
        seen = await read(client, names)
        if left[0] > 0:
            left[0] -= 1
            for name in names:
                key = f"lw:{{dlv}}:lane:{name}"
                await client.hset(key, "mark", f"another:{left[0]}")
        return seen

    return read_and_change


@pytest.mark.requirement("outbox:contended")
@pytest.mark.parametrize(("outcome", "expected"), [(GONE, ("disabled", False)), (SLOW, ("active", True))])
async def test_a_lane_that_others_change_again_and_again_misses_no_410_and_no_wait_that_was_asked_for(
    any_redis: Any, contended: Callable[[int], None], outcome: Failed, expected: tuple[str, bool]
) -> None:
    await inserted(any_redis, "evt_1")
    batch = await box(any_redis).claim("claim", 10)
    contended(25)
    await box(any_redis).settle([(held, outcome) for held in batch])
    [lane] = (await lanes.standings(any_redis, ["crm"])).values()
    assert (lane.standing, lane.not_before_ms > 0) == expected


@pytest.mark.requirement("outbox:contended")
async def test_a_lane_that_others_change_again_and_again_can_be_paused_and_resumed(
    any_redis: Any, contended: Callable[[int], None]
) -> None:
    contended(25)
    assert (await lanes.pause(any_redis, "crm", "for now")).standing == "paused"
    contended(25)
    assert (await lanes.resume(any_redis, "crm")).standing == "active"


@pytest.mark.requirement("outbox:contended")
async def test_what_a_lane_is_told_without_an_answer_counts_once(
    any_redis: Any, contended: Callable[[int], None]
) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    first, *batch = await box(any_redis).claim("claim", 10)
    await box(any_redis).settle([(first, Delivered(200))])
    contended(1)
    lossy = Lossy(any_redis)
    lossy.faults.extend(["none", "reply lost", "request lost"])
    await box(any_redis).settle([(held, BUSY) for held in batch])
    assert not lossy.faults
    [lane] = (await lanes.standings(any_redis, ["crm"])).values()
    assert (lane.failed, lane.window_all) == (1, 2)


@pytest.mark.requirement("outbox:contended")
async def test_what_a_lane_is_told_without_an_answer_counts_once_also_where_others_change_it_before_it_is_told_again(
    any_redis: Any, contended: Callable[[int], None]
) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    batch = await box(any_redis).claim("claim", 10)
    contended(1)
    execute, steps = any_redis.execute_command, 0

    async def lose_the_second_answer(*command: Any, **options: Any) -> Any:
        nonlocal steps
        reply = await execute(*command, **options)
        steps += command[0] in {"EVALSHA", "EVAL"}
        if steps == 2:
            any_redis.execute_command = execute
            for _ in range(40):
                await lanes.look_again(any_redis, "crm")
            raise redis.ConnectionError("reply lost")
        return reply

    any_redis.execute_command = lose_the_second_answer
    await box(any_redis).settle([(held, BUSY) for held in batch])
    assert steps == 2
    [lane] = (await lanes.standings(any_redis, ["crm"])).values()
    assert (lane.failed, lane.window_all) == (2, 2)


@pytest.mark.requirement("outbox:contended")
async def test_of_however_many_steps_a_lane_remembers_the_last_fifty(any_redis: Any) -> None:
    for _ in range(60):
        await lanes.look_again(any_redis, "crm")
    nonces = await any_redis.hget("lw:{dlv}:lane:crm", "nonces")
    assert len(set(nonces.split())) == 50
    assert len(nonces) == 450


@pytest.mark.requirement("outbox:contended")
async def test_a_lane_that_is_never_left_alone_is_given_up_and_that_is_said(
    fake_redis: Any, contended: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await inserted(fake_redis, "evt_1", "evt_2")
    batch = await box(fake_redis).claim("claim", 10)
    contended(1000)
    monkeypatch.setattr(boxes, "tries", lambda: iter([0.0] * 5))
    logger = logging.getLogger("lastword")
    logger.addHandler(caplog.handler)
    after = await box(fake_redis).settle([(held, BUSY) for held in batch])
    logger.removeHandler(caplog.handler)
    assert [one.state for one in after if one] == ["waiting"] * 2
    [told] = [vars(record)["lastword"] for record in caplog.records]
    assert told == {"lane": "crm", "attempts": 2}


async def test_tries_end_after_a_time_and_wait_longer_and_longer() -> None:
    assert list(lanes.tries(0)) == []
    waits: Iterator[float] = lanes.tries(60)
    most = [max(next(waits) for _ in range(8)) for _ in range(4)]
    assert 0 < most[0] <= 0.05
    assert 0.02 < max(most) <= 0.05


@pytest.mark.requirement("outbox:contended")
async def test_ten_that_settle_one_lane_at_the_same_time_lose_it_none_of_their_attempts(real_url: str) -> None:
    client = redis.asyncio.Redis.from_url(real_url)
    await inserted(client, *(f"evt_{number}" for number in range(60)))
    rules = {"crm": limited(concurrency=100)}
    held = await box(client, rules).claim("claim", 60)

    async def settle(number: int) -> None:
        mine = redis.asyncio.Redis.from_url(real_url)
        for each in held[number::10]:
            await box(mine, rules).settle([(each, Delivered(200))])
        await mine.aclose()

    await asyncio.gather(*(settle(number) for number in range(10)))
    [lane] = (await lanes.standings(client, ["crm"])).values()
    await client.aclose()
    assert lane.window_all == 60
