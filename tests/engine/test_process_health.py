"""What a process knows of its providers, and how its heartbeat shares it with the others on a real server."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.stack import eventually
from worker import ids
from worker.engine.health import ProviderHealth
from worker.engine.heartbeat import Heartbeat, HeartbeatLimits
from worker.store import connect, keys
from worker.store.health import Answer, Counts, HealthRules, standings
from worker.store.inbox import NewTurn, submit
from worker.store.lease import Grant, claim

LIMITS = HeartbeatLimits(ttl_s=8, renew_s=0.1, sweep_s=0.05)
RULES = HealthRules(deaths=3, window_s=60, skip_s=60)
WITHIN_S = 10.0


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def health_of(
    process: str = "one",
    rules: HealthRules = RULES,
    *,
    watching: bool = True,
    clock: Callable[[], float] | None = None,
) -> ProviderHealth:
    return ProviderHealth(process, rules, watching=watching, clock=clock or Clock())


def nobody(**left_s: float) -> Answer:
    return Answer({}, left_s)


@pytest.mark.requirement("health:process:tells-once")
def test_what_was_not_answered_is_told_again_and_what_came_since_is_told_after_it() -> None:
    health = health_of()
    health.died("main")
    first = health.take()
    assert first is not None
    health.died("main")
    health.completed("spare")
    assert health.take() == first
    health.answered(nobody())
    second = health.take()
    assert second is not None
    assert (first.number, dict(first.counts)) == (1, {"main": Counts(1, 0)})
    assert (second.number, dict(second.counts)) == (2, {"main": Counts(1, 0), "spare": Counts(0, 1)})


@pytest.mark.requirement("health:process:quiet")
def test_a_process_asks_only_where_there_is_something_to_tell_or_to_gain() -> None:
    alone = health_of(watching=False)
    assert alone.take() is None
    alone.died("main")
    assert alone.take() is not None
    alone.answered(nobody())
    assert alone.take() is None
    asking = health_of().take()
    assert asking is not None
    assert not asking.counts


@pytest.mark.requirement("health:off")
def test_with_zero_deaths_nothing_is_told_and_nobody_skipped() -> None:
    health = health_of(rules=HealthRules(deaths=0, window_s=60, skip_s=60))
    for _ in range(100):
        health.died("main")
    assert health.take() is None
    assert health.skipped == frozenset()


@pytest.mark.requirement("health:process:own-clock")
def test_a_skip_ends_by_the_clock_of_the_process_though_nobody_answers_any_more() -> None:
    clock = Clock()
    health = health_of(clock=clock)
    health.answered(nobody(main=10, spare=30))
    assert health.skipped == {"main", "spare"}
    clock.now += 10
    assert health.skipped == {"spare"}
    clock.now += 20
    assert health.skipped == frozenset()


def test_an_answer_replaces_what_was_known_before() -> None:
    health = health_of()
    health.answered(nobody(main=10))
    health.answered(nobody(spare=10))
    assert health.skipped == {"spare"}


def test_the_end_of_a_skip_is_given_once_and_only_to_whom_it_was_told_first() -> None:
    clock = Clock()
    health, other = health_of(clock=clock), health_of("two", clock=clock)
    health.answered(Answer({"main": Counts(3, 0)}, {"main": 10.0}))
    other.answered(nobody(main=10))
    assert health.take_ended() == []
    clock.now += 10
    assert (health.take_ended(), health.take_ended(), other.take_ended()) == (["main"], [], [])


def test_no_count_is_lost_between_the_loop_and_the_heartbeat() -> None:
    health, told, ended = health_of(), [0, 0], threading.Event()

    def turn() -> None:
        for _ in range(2_000):
            health.died("main")
            health.completed("main")

    def beat() -> None:
        over = False
        while not over:
            over = ended.is_set()
            report = health.take()
            assert report is not None
            for counts in report.counts.values():
                told[0] += counts.deaths
                told[1] += counts.completions
            health.answered(nobody())

    beating, turns = threading.Thread(target=beat), [threading.Thread(target=turn) for _ in range(3)]
    beating.start()
    for thread in turns:
        thread.start()
    for thread in turns:
        thread.join()
    ended.set()
    beating.join()
    assert told == [6_000, 6_000]


# The heartbeat.


class Line:
    """A blocking client that can lose replies, and counts the health scripts that it sent."""

    def __init__(self, url: str) -> None:
        self.client = connect.open_redis_sync(url)
        self.sent = 0
        self.lost = 0
        self.error: Exception = redis.ConnectionError("reply lost")
        client: Any = self.client
        self._execute = client.execute_command
        client.execute_command = self._execute_command

    def _execute_command(self, *command: Any, **options: Any) -> Any:
        reply = self._execute(*command, **options)
        if keys.HEALTH in command:
            self.sent += 1
            if self.lost > 0:
                self.lost -= 1
                raise self.error
        return reply


class Told:
    """A holder that remembers what it was told."""

    def __init__(self) -> None:
        self.renewals = 0
        self.is_lost = False

    def renewed(self, *, watched: bool) -> None:
        del watched
        self.renewals += 1

    def lost(self) -> None:
        self.is_lost = True

    def cancelled(self, reason: str) -> None:
        raise AssertionError(f"nobody has cancelled anything, but: {reason}")


@contextlib.asynccontextmanager
async def beating(url: str, health: ProviderHealth) -> AsyncIterator[tuple[Heartbeat, Line]]:
    line = Line(url)
    heartbeat = Heartbeat(line.client, LIMITS, 1, None, lambda: 100, health)
    heartbeat.start(asyncio.get_running_loop())
    try:
        yield heartbeat, line
    finally:
        await asyncio.to_thread(heartbeat.stop)
        line.client.close()


async def granted(client: redis.asyncio.Redis) -> Grant:
    new = NewTurn(ids.new_turn(0), "driven", "hello", "default", "test", {}, (), None, deadline_s=60)
    await submit(client, new, 1)
    grant = await claim(client, "driven", ids.new_nonce(), LIMITS.ttl_s, 1)
    assert grant is not None
    return grant


async def until(holds: Callable[[], bool], awaited: str) -> None:
    async def look() -> bool:
        return holds()

    await eventually(look, bool, awaited, WITHIN_S)


@pytest.fixture
def said() -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """Gives the fields of the lines that were logged under a name."""
    lines: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    log, keep = logging.getLogger("lastword"), Keep()
    before = log.level
    log.setLevel("INFO")
    log.addHandler(keep)
    yield lambda event: [getattr(line, "lastword", {}) for line in lines if line.getMessage() == event]
    log.removeHandler(keep)
    log.setLevel(before)


@pytest.mark.requirement("health:heartbeat:shared")
async def test_two_processes_leave_the_same_provider_alone_and_say_so_once(
    real_redis: redis.asyncio.Redis, real_url: str, said: Callable[[str], list[dict[str, Any]]]
) -> None:
    one, two = (ProviderHealth(process, RULES, watching=True) for process in ("one", "two"))
    async with beating(real_url, one), beating(real_url, two):
        one.died("main")
        two.died("main")
        two.died("main")
        await until(lambda: one.skipped == two.skipped == {"main"}, "both to leave it alone")
        await real_redis.zadd(keys.HEALTH, {"main": 1})  # the time is over
        await until(lambda: not one.skipped and not two.skipped, "the skip to end in both")
        await until(lambda: bool(said("provider_asked_again")), "the end to be told")
    assert said("provider_skipped") == [{"provider": "main", "deaths": 3, "completions": 0, "for_s": 60}]
    assert said("provider_asked_again") == [{"provider": "main"}]


@pytest.mark.requirement("health:heartbeat:costs-no-lease")
@pytest.mark.parametrize("error", [redis.ConnectionError("reply lost"), RuntimeError("broken")])
async def test_an_exchange_that_fails_costs_no_lease_and_no_count(
    real_redis: redis.asyncio.Redis,
    real_url: str,
    error: Exception,
    said: Callable[[str], list[dict[str, Any]]],
) -> None:
    health = ProviderHealth("one", RULES, watching=False)
    grant, told = await granted(real_redis), Told()
    async with beating(real_url, health) as (heartbeat, line):
        line.error, line.lost = error, 5
        heartbeat.hold(grant, 0, told, asyncio.get_running_loop().time())
        health.died("main")
        await until(lambda: line.lost == 0, "all replies to be lost that shall be")
        seen = told.renewals
        health.died("main")
        await until(lambda: told.renewals > seen + 2, "renewals to go on")
        assert heartbeat.is_valid(grant.turn, grant.nonce)
        assert said("heartbeat_lost_redis") == []
        assert not told.is_lost
    assert (await standings(real_redis, ["main"], RULES))["main"].counts == Counts(2, 0)


@pytest.mark.requirement("health:process:quiet")
async def test_where_no_provider_has_another_in_its_place_a_heartbeat_sends_nothing_more(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    grant, told = await granted(real_redis), Told()
    async with beating(real_url, ProviderHealth("one", RULES, watching=False)) as (heartbeat, line):
        heartbeat.hold(grant, 0, told, asyncio.get_running_loop().time())
        await until(lambda: told.renewals > 5, "some renewals")
        assert line.sent == 0
