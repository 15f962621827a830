"""The relay and the log entries of approvals: told to who subscribes, passed over where nobody does."""

import asyncio
from typing import Any

import pytest

from channels.endpoints.model import Endpoint
from channels.outbox import reading
from channels.outbox.log import RelayLog
from channels.relay import Relay
from tests.delivery.subscribers import addressing_of, endpoint
from tests.store.turns import Redis, ask, driver_of, granted, log_of, seal, taken, with_tools
from worker.store.approvals import resolve
from worker.store.log import read_aside, read_log


async def relayed(client: Redis, *endpoints: Endpoint) -> list[tuple[str, str]]:
    """Type and destination of what a relay makes of a turn that asked a person and ended."""
    accumulator = driver_of(client, await granted(client))
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    await accumulator.park()
    await resolve(client, approval, "deny", "Jo")
    await seal(driver_of(client, await taken(client)))
    relay = Relay(
        RelayLog(client, 0),
        read=lambda after, count, block_ms: read_log(client, 0, after, count, min(block_ms, 50)),
        read_aside=lambda after, count: read_aside(client, 0, after, count),
        addressing=addressing_of(client, *endpoints),
        wake=lambda: asyncio.sleep(0),
    )
    assert await relay.step() == 0
    entries = await log_of(client)
    assert [entry.kind for entry in entries] == ["commit", "approval", "decision", "seal"]
    assert len({entry.event_id for entry in entries}) == 4
    assert await client.hget("lw:{p00}:relay", "cursor") == entries[-1].id.encode()
    return sorted((one.event_type, one.destination) for one in (await reading.listed(client, 10)).deliveries)


@pytest.mark.requirement("approvals:relay:passed-over")
async def test_where_nobody_subscribes_requests_and_answers_are_passed_over_and_the_end_behind_them_is_delivered(
    any_redis: Redis,
) -> None:
    assert await relayed(any_redis) == [("turn.completed", "there")]


@pytest.mark.requirement("approvals:relay:told")
async def test_requests_and_answers_go_to_who_subscribes_with_what_they_refer_to(any_redis: Any) -> None:
    assert await relayed(any_redis, endpoint("desk", "approval.*")) == [
        ("approval.decided", "desk"),
        ("approval.requested", "desk"),
        ("turn.completed", "there"),
    ]
    assert sum([1 async for _ in any_redis.scan_iter("lw:{p00}:content:*")]) == 2
