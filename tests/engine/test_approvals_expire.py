"""The end of the time to answer comes with the heartbeat of any process, busy or not."""

import asyncio
import logging
from collections.abc import Callable

import pytest
import redis.asyncio

from tests.store.turns import SESSION, ask, driven, record_of, with_tools
from tests.support.stack import eventually
from worker.engine.heartbeat import Heartbeat, HeartbeatLimits
from worker.store import connect, keys

LIMITS = HeartbeatLimits(ttl_s=0.8, renew_s=0.1, sweep_s=0.05)
WITHIN_S = 10.0


async def parked(client: redis.asyncio.Redis, session: str = SESSION) -> str:
    """A turn that waits for a person whose time is over."""
    accumulator = await driven(client, session=session)
    await with_tools(accumulator, "mail")
    await ask(accumulator)
    await client.hset(keys.approvals(accumulator.turn), "1_0:expires", 1)
    await client.zadd(keys.due(0), {keys.DUE_APPROVAL + accumulator.turn: 1})
    assert await accumulator.park() == ()
    return accumulator.turn


@pytest.mark.requirement("lease:heartbeat:expires")
@pytest.mark.parametrize("wakes", [True, False], ids=["wakes", "wakes nobody"])
@pytest.mark.parametrize("room", [0, 5])
async def test_a_request_expires_by_the_heartbeat_of_any_process_and_its_session_is_woken_by_one_with_room(
    real_redis: redis.asyncio.Redis, real_url: str, wakes: bool, room: int
) -> None:
    turn = await parked(real_redis)
    woken: list[str] = []
    wake: Callable[[str], None] | None = woken.append if wakes else None
    client = connect.open_redis_sync(real_url)
    heartbeat = Heartbeat(client, LIMITS, 1, wake, lambda: room)
    heartbeat.start(asyncio.get_running_loop())

    async def look() -> bool:
        return (await record_of(real_redis, turn)).state == "queued" and (woken == [SESSION] or not (wakes and room))

    await eventually(look, bool, "the turn to be queued, and its session to be woken", WITHIN_S)
    await asyncio.to_thread(heartbeat.stop)
    client.close()
    assert woken == ([SESSION] if wakes and room else [])


@pytest.mark.requirement("approvals:expire:broken")
@pytest.mark.parametrize("broken", ["a name", "a type", "a turn"])
async def test_a_broken_request_keeps_no_other_turn_from_its_expiry_and_is_logged(
    real_redis: redis.asyncio.Redis, real_url: str, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    first, last = sorted([await parked(real_redis), await parked(real_redis, "chat/2")])
    named = first
    if broken == "a name":
        await real_redis.hset(keys.approvals(first), "pending", "garbage")
    elif broken == "a type":
        await real_redis.set(keys.approvals(first), "garbage")
    else:
        named = "garbage"
        await real_redis.zadd(keys.due(0), {keys.DUE_APPROVAL + named: 1})
    client = connect.open_redis_sync(real_url)
    logged = logging.getLogger("lastword")
    logged.addHandler(caplog.handler)
    heartbeat = Heartbeat(client, LIMITS, 1, None, lambda: 0)
    heartbeat.start(asyncio.get_running_loop())

    async def look() -> bool:
        return (await record_of(real_redis, last)).state == "queued"

    try:
        await eventually(look, bool, "the turn behind the broken one to be queued", WITHIN_S)
        await asyncio.to_thread(heartbeat.stop)
    finally:
        logged.removeHandler(caplog.handler)
        client.close()
    event = "approval_not_readable" if broken == "a name" else "approval_not_expired"
    told = [line for line in caplog.records if line.getMessage() == event]
    assert {getattr(line, "lastword", {})["turn"] for line in told} == {named}
    assert "heartbeat_lost_redis" not in [line.getMessage() for line in caplog.records]
    assert "garbage" not in str([getattr(line, "lastword", {}) | {"turn": ""} for line in told])
