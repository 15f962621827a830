"""The heartbeat on a real server: it renews whatever happens around it, and wakes what nobody drives, within bounds."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio

from tests.support.forwarder import Forwarder
from tests.support.stack import eventually
from worker import ids
from worker.engine import heartbeat as heartbeat_module
from worker.engine.heartbeat import Heartbeat, HeartbeatLimits
from worker.store import connect, keys
from worker.store.cancels import cancel
from worker.store.inbox import NewTurn, submit
from worker.store.lease import Grant, claim

LIMITS = HeartbeatLimits(ttl_s=0.8, renew_s=0.1, sweep_s=0.05)
WITHIN_S = 10.0


class Told:
    """A holder that remembers what it was told."""

    def __init__(self) -> None:
        self.renewals = 0
        self.is_lost = False
        self.cancel_reasons: list[str] = []

    def renewed(self, *, watched: bool) -> None:
        del watched
        self.renewals += 1

    def lost(self) -> None:
        self.is_lost = True

    def cancelled(self, reason: str) -> None:
        self.cancel_reasons.append(reason)


class Woken:
    """Wake-ups as a broker takes them."""

    def __init__(self) -> None:
        self.sessions: list[str] = []

    def __call__(self, session: str) -> None:
        self.sessions.append(session)


async def submitted(client: redis.asyncio.Redis, session: str) -> None:
    turn = ids.new_turn(0)
    await submit(client, NewTurn(turn, session, "hello", "default", "test", {}, (), None, deadline_s=60), 1)


async def granted(client: redis.asyncio.Redis, session: str) -> Grant:
    await submitted(client, session)
    grant = await claim(client, session, ids.new_nonce(), LIMITS.ttl_s, 1)
    assert grant is not None
    return grant


@contextlib.asynccontextmanager
async def beating(
    url: str, wake: Callable[[str], None] | None, free: Callable[[], int] = lambda: 100
) -> AsyncIterator[Heartbeat]:
    client = connect.open_redis_sync(url)
    heartbeat = Heartbeat(client, LIMITS, 1, wake, free)
    heartbeat.start(asyncio.get_running_loop())
    try:
        yield heartbeat
    finally:
        await asyncio.to_thread(heartbeat.stop)
        client.close()


def more_renewals(told: Told, than: int) -> bool:
    return told.renewals > than


async def until(holds: Callable[[], bool], awaited: str) -> None:
    async def look() -> bool:
        return holds()

    await eventually(look, bool, awaited, WITHIN_S)


def hold(heartbeat: Heartbeat, grant: Grant) -> Told:
    told = Told()
    heartbeat.hold(grant, 0, told, asyncio.get_running_loop().time())
    return told


@pytest.mark.requirement("lease:heartbeat:wake-fails")
async def test_a_wake_up_that_fails_ends_neither_the_renewals_nor_the_next_wake_ups(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    woken: list[str] = []

    def refuse_the_first(session: str) -> None:
        woken.append(session)
        if len(woken) == 1:
            raise RuntimeError("the broker is away")

    grant = await granted(real_redis, "driven")
    await submitted(real_redis, "a")
    await submitted(real_redis, "b")
    async with beating(real_url, refuse_the_first) as heartbeat:
        told = hold(heartbeat, grant)
        await until(lambda: {"a", "b"} <= set(woken), "both sessions to be woken")
        seen = told.renewals
        await until(lambda: told.renewals > seen + 2, "renewals to go on")


@pytest.mark.requirement("lease:heartbeat:wake-hangs")
async def test_a_broker_that_hangs_costs_no_lease(real_redis: redis.asyncio.Redis, real_url: str) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang(_session: str) -> None:
        begun.set()
        released.wait(WITHIN_S)

    grant = await granted(real_redis, "driven")
    await submitted(real_redis, "waiting")
    async with beating(real_url, hang) as heartbeat:
        told = hold(heartbeat, grant)
        await until(begun.is_set, "the wake-up to hang")
        seen = told.renewals
        more_than_a_lease = round(LIMITS.ttl_s / LIMITS.renew_s) + 2
        await until(lambda: told.renewals > seen + more_than_a_lease, "renewals for a whole lease")
        assert heartbeat.is_valid(grant.turn, grant.nonce)
        released.set()


@pytest.mark.requirement("lease:heartbeat:wake-hangs")
async def test_a_process_whose_broker_hangs_leaves_the_sweeping_to_others(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    begun, released = threading.Event(), threading.Event()

    def hang(_session: str) -> None:
        begun.set()
        released.wait(WITHIN_S)

    await submitted(real_redis, "first")
    async with beating(real_url, hang) as hanging:
        await until(begun.is_set, "the wake-up to hang")
        told = hold(hanging, await granted(real_redis, "driven"))
        await submitted(real_redis, "second")
        await until(partial(more_renewals, told, 5), "some rounds to pass")
        woken = Woken()
        async with beating(real_url, woken):
            await until(lambda: "second" in woken.sessions, "the healthy process to wake it")
        released.set()


@pytest.mark.requirement("lease:heartbeat:room")
async def test_a_process_wakes_no_more_sessions_than_it_has_room_for(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    for number in range(20):
        await submitted(real_redis, f"s{number}")
    woken, rooms = Woken(), list[int]()
    async with beating(real_url, woken, lambda: rooms.pop() if rooms else 0) as heartbeat:
        told = hold(heartbeat, await granted(real_redis, "driven"))
        await until(lambda: told.renewals > 3, "some rounds to pass")
        assert woken.sessions == []
        rooms.extend([3, 3])  # for two rounds, and none afterwards
        await until(lambda: len(woken.sessions) >= 3, "three sessions to be woken")
        await until(partial(more_renewals, told, told.renewals + 3), "some rounds to pass")
        assert len(woken.sessions) == 3


@pytest.mark.requirement("lease:heartbeat:ramp")
async def test_a_place_that_was_just_left_is_for_what_the_broker_holds_already(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    """Else each turn that ends in a long queue would have another of its sessions woken once more."""
    for number in range(20):
        await submitted(real_redis, f"s{number}")
    woken, looks, stays = Woken(), list[int](), threading.Event()

    def free() -> int:
        looks.append(3 if stays.is_set() else 3 * (len(looks) % 2))
        return looks[-1]

    async with beating(real_url, woken, free):
        await until(lambda: len(looks) >= 20, "a process that is full at each second look to look 20 times")
        assert woken.sessions == []
        stays.set()
        await until(lambda: len(woken.sessions) >= 3, "what waits to be woken once there is room")


@pytest.mark.requirement("lease:heartbeat:own-turns")
async def test_a_process_never_wakes_a_session_that_it_drives(real_redis: redis.asyncio.Redis, real_url: str) -> None:
    woken = Woken()
    grant = await granted(real_redis, "driven")
    async with beating(real_url, woken) as heartbeat:
        told = hold(heartbeat, grant)
        for _ in range(5):
            await real_redis.zadd(keys.due(0), {keys.DUE_LEASE + "driven": 1})
            seen = told.renewals
            await until(partial(more_renewals, told, seen + 1), "a round to pass")
        await submitted(real_redis, "other")
        await until(lambda: "other" in woken.sessions, "the other session to be woken")
    assert "driven" not in woken.sessions


@pytest.mark.requirement("lease:heartbeat:own-turns")
async def test_a_driver_whose_turn_is_claimed_anew_by_its_own_process_is_told(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    grant = await granted(real_redis, "driven")
    async with beating(real_url, None) as heartbeat:
        first = hold(heartbeat, grant)
        second = hold(heartbeat, grant)
        assert (first.is_lost, second.is_lost) == (True, False)


@pytest.mark.requirement("lease:heartbeat:stuck-loop")
async def test_a_loop_that_is_stuck_renews_nothing_and_takes_nothing(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    grant = await granted(real_redis, "driven")
    client = connect.open_redis_sync(real_url)
    stuck = asyncio.new_event_loop()  # never run: no callback of it is ever called
    heartbeat = Heartbeat(client, LIMITS, 1, None, lambda: 100)
    heartbeat.start(stuck)
    heartbeat.hold(grant, 0, Told(), asyncio.get_running_loop().time())
    await until(lambda: not heartbeat.is_valid(grant.turn, grant.nonce), "the lease to run out")
    assert not heartbeat.may_claim()
    await eventually(
        lambda: claim(real_redis, "driven", ids.new_nonce(), LIMITS.ttl_s, 1),
        bool,
        "another process to claim it",
        WITHIN_S,
    )
    await asyncio.to_thread(heartbeat.stop)
    stuck.close()
    client.close()


@pytest.mark.requirement("lease:heartbeat:after-an-outage")
async def test_after_an_outage_living_drivers_renew_before_anyone_sweeps_or_claims(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    port = urlsplit(real_url).port
    assert port is not None
    grant = await granted(real_redis, "driven")
    await submitted(real_redis, "waiting")
    woken = Woken()
    async with Forwarder(port) as network:
        through = real_url.replace(str(port), str(network.port))
        async with beating(through, woken) as heartbeat:
            told = hold(heartbeat, grant)
            await until(lambda: "waiting" in woken.sessions, "a first sweep")
            async with network.away():
                await until(lambda: not heartbeat.may_claim(), "the outage to be noticed")
                await until(lambda: not heartbeat.is_valid(grant.turn, grant.nonce), "the lease to run out")
                await real_redis.zadd(keys.due(0), {keys.DUE_LEASE + "waiting": 1})
            woken.sessions.clear()
            seen = told.renewals
            await until(lambda: told.renewals > seen, "a renewal after the outage")
            assert woken.sessions == []
            assert heartbeat.is_valid(grant.turn, grant.nonce)
            await until(lambda: "waiting" in woken.sessions, "the next sweep")
            assert heartbeat.may_claim()
    assert not told.is_lost


@pytest.mark.requirement("lease:heartbeat:refused")
async def test_a_server_that_may_not_be_asked_for_its_run_is_swept_all_the_same(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    await submitted(real_redis, "waiting")
    execute: Any = real_redis.execute_command
    await execute("ACL", "SETUSER", "default", "-info")
    try:
        woken = Woken()
        async with beating(real_url, woken) as heartbeat:
            await until(lambda: "waiting" in woken.sessions, "a sweep")
            assert heartbeat.may_claim()
    finally:
        await execute("ACL", "SETUSER", "default", "+info")


@pytest.mark.requirement("lease:heartbeat:refused")
async def test_a_step_that_the_server_refuses_is_no_outage(real_redis: redis.asyncio.Redis, real_url: str) -> None:
    faults: list[str] = []
    logged = logging.getLogger("lastword")
    catch = logging.Handler()
    catch.emit = lambda record: faults.append(record.getMessage())  # type: ignore[method-assign]
    logged.addHandler(catch)
    await real_redis.set(keys.due(0), "no sorted set")
    try:
        async with beating(real_url, Woken()) as heartbeat:
            await until(lambda: "heartbeat_failed" in faults, "the refusal to be told")
            assert heartbeat.may_claim()
    finally:
        logged.removeHandler(catch)
    assert "heartbeat_lost_redis" not in faults


@pytest.mark.requirement("cancel:told")
async def test_a_driver_is_told_once_that_its_turn_is_to_end_and_others_are_not(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    grants = [await granted(real_redis, session) for session in ("a", "b")]
    async with beating(real_url, None) as heartbeat:
        wanted, other = [hold(heartbeat, grant) for grant in grants]
        await cancel(real_redis, grants[0].turn, "jo", 60)
        await until(lambda: bool(wanted.cancel_reasons), "the driver to be told")
        seen = wanted.renewals
        looks = round(heartbeat_module._LOOK_S / LIMITS.renew_s)
        await until(lambda: wanted.renewals > seen + 3 * looks, "three more looks")
        assert (wanted.cancel_reasons, other.cancel_reasons) == (["requested"], [])
        assert not wanted.is_lost


@pytest.mark.requirement("cancel:told")
async def test_a_cancel_during_an_outage_of_the_heartbeat_is_told_after_it(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    port = urlsplit(real_url).port or 0
    grant = await granted(real_redis, "a")
    async with Forwarder(port) as network, beating(real_url.replace(str(port), str(network.port)), None) as heartbeat:
        told = hold(heartbeat, grant)
        await until(lambda: more_renewals(told, 1), "renewals")
        async with network.away():
            await until(lambda: not heartbeat.may_claim(), "the outage to be noticed")
            await cancel(real_redis, grant.turn, "jo", 60)
        await until(lambda: bool(told.cancel_reasons), "the driver to be told")
        assert told.cancel_reasons == ["requested"]
