"""The relay and the log entries of approvals: until a channel renders them, they are passed over and lost on nobody."""

import asyncio

import pytest

from channels.delivery.backoff import Backoff
from channels.outbox import Outbox
from channels.relay import Relay
from tests.store.turns import Redis, ask, driver_of, granted, log_of, seal, taken, with_tools
from worker.store.approvals import resolve
from worker.store.log import read_aside, read_log


@pytest.mark.requirement("approvals:relay:passed-over")
async def test_requests_and_answers_are_passed_over_and_the_end_behind_them_is_delivered(any_redis: Redis) -> None:
    accumulator = driver_of(any_redis, await granted(any_redis))
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    await accumulator.park()
    await resolve(any_redis, approval, "deny", "Jo")
    await seal(driver_of(any_redis, await taken(any_redis)))
    entries = await log_of(any_redis)
    assert [entry.kind for entry in entries] == ["commit", "approval", "decision", "seal"]
    assert len({entry.event_id for entry in entries}) == 4

    async def there(turn: str) -> list[str]:
        assert turn == accumulator.turn
        return ["there"]

    relay = Relay(
        Outbox(any_redis, 0, lease_s=40.0, backoff=Backoff(), chance=lambda: 0.5),
        read=lambda after, count, block_ms: read_log(any_redis, 0, after, count, min(block_ms, 50)),
        read_aside=lambda after, count: read_aside(any_redis, 0, after, count),
        destinations=there,
        wake=lambda: asyncio.sleep(0),
    )
    assert await relay.step() == 0
    (delivery,) = await any_redis.zrange("lw:{p00}:dlv-index", 0, -1)
    assert delivery.startswith(b"dlv_")
    assert await any_redis.hget("lw:{p00}:relay", "cursor") == entries[-1].id.encode()
