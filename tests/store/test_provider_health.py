"""What all processes know together of their providers, against a plain reading of the rules, over a bad line."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from channels.embedded import EmbeddedServer
from tests.store.lossy import dump
from tests.store.turns import Redis
from worker.sections import ProviderHealthSettings
from worker.store import keys
from worker.store.health import FURTHEST_MS, Answer, Counts, HealthRules, Report, Standing, exchange, standings

STEP_S = 100
"""Time in the model goes in steps; what an example really takes is far less than one."""
WINDOW, SLICE = 36, 6
RULES = HealthRules(deaths=3, window_s=WINDOW * STEP_S, skip_s=10 * STEP_S)
PROVIDERS = ("main", "spare", "third")
PROCESSES = ("one", "two")
COUNTS = st.dictionaries(
    st.sampled_from(PROVIDERS), st.builds(Counts, st.integers(0, 4), st.integers(0, 2)), min_size=1
)


def pass_time(client: Redis, seconds: float) -> None:
    """Make everything that is stored about health so much older."""
    ms = round(seconds * 1000)
    for key in client.scan_iter("lw:health*"):
        left = client.pttl(key)
        match client.type(key):
            case b"hash":
                stored = client.hgetall(key)
                older = {
                    str(int(name) - ms).encode() if name.isdigit() else name: value for name, value in stored.items()
                }
                if b"until" in older:
                    older[b"until"] = str(int(older[b"until"]) - ms).encode()
                client.hdel(key, *stored)
                client.hset(key, mapping=older)
            case b"zset":
                for member in client.zrange(key, 0, -1):
                    client.zincrby(key, -ms, member)
            case _:
                pass
        if left > ms:
            client.pexpire(key, left - ms)
        else:
            client.delete(key)


@dataclass
class Provider:
    """One provider, as the rules read. Each count has its time and the time at which its slice began."""

    counts: list[tuple[int, int, Counts]] = field(default_factory=list)
    skipped_until: int | None = None
    led_to_skip: Counts = field(default_factory=Counts)

    def within(self, now: int, window: int = WINDOW) -> Counts:
        kept = [counts for _, began, counts in self.counts if now - began < window]
        return Counts(sum(one.deaths for one in kept), sum(one.completions for one in kept))

    def exactly(self, now: int, window: int) -> Counts:
        kept = [counts for at, _, counts in self.counts if now - at < window]
        return Counts(sum(one.deaths for one in kept), sum(one.completions for one in kept))

    def look(self, now: int) -> None:
        if self.skipped_until is not None and self.skipped_until <= now:
            self.counts, self.skipped_until = [], None

    def take(self, now: int, counts: Counts, skip: int) -> bool:
        """Count it; whether that leads to a skip of so many steps."""
        if self.skipped_until is not None:
            return False
        began = self.counts[-1][1] if self.counts and now - self.counts[-1][1] < SLICE else now
        self.counts.append((now, began, counts))
        seen = self.within(now)
        if seen.deaths >= RULES.deaths and seen.deaths > seen.completions:
            self.skipped_until, self.led_to_skip = now + skip, seen
            return True
        return False


class HealthMachine(RuleBasedStateMachine):
    client: Any
    reading: Any
    skip: int
    settled: HealthRules

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.connect()
        self.now = 0
        self.numbers = dict.fromkeys(PROCESSES, 0)
        self.old: list[Report] = []
        self.providers = {name: Provider() for name in PROVIDERS}

    def connect(self) -> None:
        raise NotImplementedError

    @initialize(skip=st.sampled_from([10, 50]))
    def skips_shorter_or_longer_than_the_window(self, skip: int) -> None:
        self.skip = skip
        self.settled = replace(RULES, skip_s=skip * STEP_S)

    def teardown(self) -> None:
        self.loop.run_until_complete(self.reading.aclose())
        self.client.close()
        self.loop.close()

    def dump(self) -> dict[str, Any]:
        return self.loop.run_until_complete(dump(self.reading))

    def skipped(self) -> dict[str, int]:
        return {
            name: provider.skipped_until - self.now
            for name, provider in self.providers.items()
            if provider.skipped_until is not None
        }

    def check(self, answer: Answer, fresh: Mapping[str, Counts]) -> None:
        assert dict(answer.fresh) == fresh
        left = self.skipped()
        assert answer.left_s.keys() == left.keys()
        for name, steps in left.items():
            assert (steps - 1) * STEP_S < answer.left_s[name] <= steps * STEP_S

    @rule(process=st.sampled_from(PROCESSES), counts=COUNTS, sendings=st.integers(1, 3))
    def tell(self, process: str, counts: dict[str, Counts], sendings: int) -> None:
        """Sent again and again until a reply is not lost."""
        self.numbers[process] += 1
        report = Report(process, self.numbers[process], counts)
        fresh = {
            name: self.providers[name].led_to_skip
            for name, one in counts.items()
            if self.providers[name].take(self.now, one, self.skip)
        }
        for _ in range(sendings):
            self.check(exchange(self.client, report, self.settled), fresh)
        self.old.append(report)

    @rule(process=st.sampled_from(PROCESSES))
    def ask(self, process: str) -> None:
        before = self.dump()
        self.check(exchange(self.client, Report(process, self.numbers[process], {}), self.settled), {})
        assert self.dump() == before

    @precondition(lambda self: self.old)
    @rule(data=st.data())
    def a_request_comes_late(self, data: st.DataObject) -> None:
        report = data.draw(st.sampled_from(self.old))
        if report.number == self.numbers[report.process]:
            return
        before = self.dump()
        self.check(exchange(self.client, report, self.settled), {})
        assert self.dump() == before

    @rule(steps=st.sampled_from([1, 5, 6, 10, 11, 29, 30, 36]))
    def time_passes(self, steps: int) -> None:
        pass_time(self.client, steps * STEP_S)
        self.now += steps
        for provider in self.providers.values():
            provider.look(self.now)

    @invariant()
    def every_provider_stands_as_the_rules_say(self) -> None:
        found = self.loop.run_until_complete(standings(self.reading, PROVIDERS, self.settled))
        for name, provider in self.providers.items():
            standing = found[name]
            if provider.skipped_until is not None:
                assert standing.left_s is not None
                assert standing.left_s <= (provider.skipped_until - self.now) * STEP_S
                assert standing.counts == provider.led_to_skip
                continue
            assert standing == Standing(provider.within(self.now))
            least, most = (provider.exactly(self.now, window) for window in (WINDOW - SLICE, WINDOW))
            assert least.deaths <= standing.counts.deaths <= most.deaths
            assert least.completions <= standing.counts.completions <= most.completions

    @invariant()
    def nothing_stays_for_ever(self) -> None:
        for kind, content, expires in self.dump().values():
            assert expires
            assert kind != "hash" or len(content) <= WINDOW / SLICE + 2


class FakeMachine(HealthMachine):
    def connect(self) -> None:
        server = fakeredis.FakeServer(version=(7,))
        self.client = fakeredis.FakeRedis(server=server)
        self.reading = fakeredis.FakeAsyncRedis(server=server)


def machine_on(url: str) -> type[HealthMachine]:
    class RealMachine(HealthMachine):
        def connect(self) -> None:
            self.client = redis.Redis.from_url(url)
            self.reading = redis.asyncio.Redis.from_url(url)
            self.client.flushall()

    return RealMachine


LIMITS = settings(max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.requirement("health:model:fake")
@pytest.mark.timeout(180)
def test_on_the_fake_the_health_of_providers_is_what_the_rules_say() -> None:
    run_state_machine_as_test(FakeMachine, settings=LIMITS)


@pytest.mark.requirement("health:model:real")
@pytest.mark.timeout(180)
def test_on_the_server_the_health_of_providers_is_what_the_rules_say(real_url: str) -> None:
    run_state_machine_as_test(machine_on(real_url), settings=LIMITS)


@pytest.fixture(params=["fake", "real"])
def blocking(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A blocking client of the fake, then of the real server."""
    if request.param == "fake":
        client: redis.Redis = fakeredis.FakeRedis(server=fakeredis.FakeServer(version=(7,)))
    else:
        client = redis.Redis.from_url(request.getfixturevalue("real_url"))
    yield client
    client.close()


def told(
    client: redis.Redis,
    number: int,
    deaths: int,
    completions: int = 0,
    *,
    process: str = "one",
    name: str = "main",
    rules: HealthRules = RULES,
) -> Answer:
    return exchange(client, Report(process, number, {name: Counts(deaths, completions)}), rules)


def skipped(answer: Answer) -> set[str]:
    return set(answer.left_s)


@pytest.mark.requirement("health:skip:by-all")
def test_deaths_that_several_processes_saw_lead_to_one_skip_for_all(blocking: redis.Redis) -> None:
    assert skipped(told(blocking, 1, 2)) == set()
    answer = told(blocking, 1, 1, process="two")
    assert dict(answer.fresh) == {"main": Counts(3, 0)}
    asked = exchange(blocking, Report("three", 0, {}), RULES)
    assert (skipped(asked), dict(asked.fresh)) == ({"main"}, {})
    assert 0 < asked.left_s["main"] <= RULES.skip_s


@pytest.mark.requirement("health:skip:not-the-busy")
def test_a_provider_that_completes_as_often_as_it_dies_is_not_skipped(blocking: redis.Redis) -> None:
    assert skipped(told(blocking, 1, 40, 40)) == set()
    assert skipped(told(blocking, 2, 1, 0)) == {"main"}


@pytest.mark.requirement("health:skip:window")
def test_deaths_older_than_the_window_lead_to_nothing(blocking: redis.Redis) -> None:
    told(blocking, 1, 2)
    pass_time(blocking, RULES.window_s)
    assert skipped(told(blocking, 2, 2)) == set()
    pass_time(blocking, RULES.window_s / 2)
    assert skipped(told(blocking, 3, 1)) == {"main"}


@pytest.mark.requirement("health:skip:clock-put-back")
def test_a_skip_that_a_clock_began_which_was_put_back_since_is_over(blocking: redis.Redis) -> None:
    assert skipped(told(blocking, 1, 3)) == {"main"}
    pass_time(blocking, -30 * 365 * 86_400)
    assert skipped(exchange(blocking, Report("two", 1, {}), RULES)) == set()
    assert skipped(told(blocking, 2, 2)) == set()
    again = told(blocking, 3, 1)
    assert dict(again.fresh) == {"main": Counts(3, 0)}
    assert 0 < again.left_s["main"] <= RULES.skip_s
    assert b"until" in blocking.hgetall(keys.health("main"))


@pytest.mark.requirement("health:skip:clock-put-back")
async def test_nobody_is_told_of_a_skip_that_another_clock_began(any_redis: Redis) -> None:
    ahead_ms = (await any_redis.time())[0] * 1000 + 3 * 86_400_000
    await any_redis.hset(keys.health("main"), mapping={"v": 1, "until": ahead_ms, str(ahead_ms - 1): "3 0"})
    assert await standings(any_redis, ["main"], RULES) == {"main": Standing()}


@pytest.mark.requirement("health:skip:clock-put-back")
def test_no_skip_that_can_be_set_is_taken_for_one_of_another_clock() -> None:
    longest = next(each.le for each in ProviderHealthSettings.model_fields["skip_s"].metadata if hasattr(each, "le"))
    assert longest * 1000 < FURTHEST_MS


@pytest.mark.requirement("health:skip:ends")
def test_a_skip_ends_and_the_counting_begins_anew(blocking: redis.Redis) -> None:
    assert skipped(told(blocking, 1, 3)) == {"main"}
    assert skipped(told(blocking, 2, 50, name="main")) == {"main"}  # of those who had nobody else to ask
    pass_time(blocking, RULES.skip_s)
    assert skipped(told(blocking, 3, 2)) == set()
    assert skipped(told(blocking, 4, 1)) == {"main"}


@pytest.mark.requirement("health:skip:ends")
def test_of_two_skips_each_ends_by_itself(blocking: redis.Redis) -> None:
    told(blocking, 1, 3)
    pass_time(blocking, RULES.skip_s / 2)
    assert skipped(told(blocking, 2, 3, name="spare")) == {"main", "spare"}
    pass_time(blocking, RULES.skip_s / 2)
    assert skipped(exchange(blocking, Report("one", 2, {}), RULES)) == {"spare"}


@pytest.mark.requirement("health:skip:ends")
def test_a_short_skip_does_not_end_a_longer_one(blocking: redis.Redis) -> None:
    """While processes with other settings take the place of old ones, both kinds run."""
    told(blocking, 1, 3, rules=replace(RULES, skip_s=RULES.skip_s * 2))
    told(blocking, 2, 3, name="spare")
    pass_time(blocking, RULES.skip_s)
    assert skipped(exchange(blocking, Report("one", 2, {}), RULES)) == {"main"}


@pytest.mark.requirement("health:skip:window")
def test_deaths_from_before_the_servers_clock_was_set_back_lead_to_nothing(blocking: redis.Redis) -> None:
    told(blocking, 1, 2)
    pass_time(blocking, -RULES.window_s / 2)
    assert skipped(told(blocking, 2, 2)) == set()


@pytest.mark.requirement("health:repeat:counts-once")
def test_a_report_that_is_told_again_counts_once_and_gets_its_first_answer(blocking: redis.Redis) -> None:
    first = told(blocking, 1, 3)
    again = told(blocking, 1, 3)
    assert dict(again.fresh) == dict(first.fresh) == {"main": Counts(3, 0)}
    told(blocking, 2, 1, name="spare")
    assert dict(told(blocking, 1, 3).fresh) == {}  # older than the last one: nobody waits for its answer any more
    for _ in range(3):
        told(blocking, 3, 1, name="third")
    assert skipped(told(blocking, 3, 1, name="third")) == {"main"}


@pytest.mark.requirement("health:store:newer-version")
async def test_the_record_of_a_newer_version_is_left_alone(any_redis: Redis, request: pytest.FixtureRequest) -> None:
    await any_redis.hset(keys.health("main"), mapping={"v": 2, "deaths": "many"})
    before = await any_redis.hgetall(keys.health("main"))
    client: redis.Redis = (
        fakeredis.FakeRedis(server=any_redis.connection_pool.connection_kwargs["server"])
        if isinstance(any_redis, fakeredis.FakeAsyncRedis)
        else redis.Redis.from_url(request.getfixturevalue("real_url"))
    )
    with client:
        assert skipped(told(client, 1, 9)) == set()
    assert await any_redis.hgetall(keys.health("main")) == before
    assert await standings(any_redis, ["main"], RULES) == {"main": Standing()}


@pytest.mark.requirement("health:store:full")
def test_a_full_redis_still_learns_who_dies(real_url: str) -> None:
    with redis.Redis.from_url(real_url) as client:
        client.config_set("maxmemory", 1)
        try:
            assert skipped(told(client, 1, 3)) == {"main"}
        finally:
            client.config_set("maxmemory", 0)


@pytest.mark.requirement("health:store:restart")
async def test_a_server_that_restarts_knows_its_skips_and_its_reports(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "valkey")
    counts = {"main": Counts(3, 0), "spare": Counts(2, 0)}
    try:
        for _ in ("before", "after"):
            url = server.start()
            with redis.Redis.from_url(url) as client:
                assert dict(exchange(client, Report("one", 1, counts), RULES).fresh) == {"main": Counts(3, 0)}
            async with redis.asyncio.Redis.from_url(url) as reading:
                found = await standings(reading, counts, RULES)
            assert found["main"].left_s is not None
            assert found["spare"] == Standing(Counts(2, 0))
            server.stop()
    finally:
        server.stop()
