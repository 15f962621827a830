"""Bulk replays in Redis: taken on a page at a time, by one process, whatever is lost on the way."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import redis

from channels.delivery import machine
from channels.delivery import replay as replaying
from channels.delivery.backoff import Backoff
from channels.delivery.model import Delivery, Failed
from channels.delivery.replay import FAILED_MOST, Bounds, Filters, Job, Page
from channels.replays import stored as replays
from channels.replays.taking import Replays
from tests.store.lossy import Fault, Lossy, dump
from worker.errors import ConfigurationError, StoreFull
from worker.store import clock

GONE = Failed("permanent", "http_410", "gone", "yes", gone=True)


class Killed(BaseException):
    """The process is no more."""


class House:
    """Deliveries of an endpoint that refuses everything at once, and the processes that replay them."""

    def __init__(self, client: Any, count: int = 0) -> None:
        self.client = client
        self.made: dict[str, Delivery] = {}
        self.count = count
        self.replayed: list[str] = []
        self.woken = 0
        self.before: Callable[[], Awaitable[None] | None] = lambda: None
        self.after: Callable[[], Awaitable[None] | None] = lambda: None

    async def job(self, *, rate_per_s: float = 1_000, most: int = 1_000) -> Job:
        now_ms = await clock.now_ms(self.client)
        if not self.made:
            self.made = {one.id: one for one in (dead(number, now_ms) for number in range(self.count))}
        filters = Filters(("dead",), now_ms - 60_000, 0, destination="crm")
        job = replaying.new(replays.new_id(), filters, rate_per_s, now_ms, bounds=Bounds(14, most))
        return await replays.create(self.client, job)

    def process(self) -> Replays:
        return Replays(self.client, self.find, self.replay_some, self.wake)

    async def find(self, job: Job, limit: int) -> Page:
        found = [one for one in self.made.values() if one.state == job.reading and one.id > job.cursor]
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def replay_some(self, ids: Sequence[str]) -> int:
        await told(self.before)
        now_ms = await clock.now_ms(self.client)
        for each in ids:
            claimed = machine.claim(machine.replay(self.made[each], now_ms), "claim", now_ms, 1)
            self.made[each] = machine.settle(claimed, GONE, now_ms, 0.5, Backoff())
        self.replayed += ids
        await told(self.after)
        return len(ids)

    async def wake(self) -> None:
        self.woken += 1

    async def lease_ends(self) -> None:
        async for key in self.client.scan_iter("lw:{replays}:of:*"):
            await self.client.hset(key, "exp", 1)


def dead(number: int, now_ms: int) -> Delivery:
    made = Delivery(f"dlv_{number:03}", "evt_1", "turn_1", "turn.completed", "crm", now_ms - 1_000, 0)
    return replace(made, state="dead", ended_ms=now_ms - 500)


async def taught(client: Any) -> None:
    """The server knows the scripts: what is lost from now on is a step and not how it is learnt."""
    job = await House(client, 1).job()
    await House(client).process().step()
    await client.delete(f"lw:{{replays}}:of:{job.id}", "lw:{replays}:index", "lw:{replays}:running")


async def told(hook: Callable[[], Awaitable[None] | None]) -> None:
    waiting = hook()
    if waiting is not None:
        await waiting


def kill() -> None:
    raise Killed


def told_in(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    return [(record.message, vars(record)["lastword"]) for record in caplog.records if "lastword" in vars(record)]


async def a_second_later(client: Any) -> None:
    """Time passes for the rates by moving what is stored into the past."""
    async for key in client.scan_iter("lw:{replays}:of:*"):
        stored = json.loads(await client.hget(key, "record"))
        stored["job"]["rate_ms"] -= 1_000
        await client.hset(key, "record", json.dumps(stored))


async def until_done(process: Replays, client: Any, job: Job) -> Job:
    for _ in range(50):
        await a_second_later(client)
        await process.step()
        now = await replays.show(client, job.id)
        if now.state != "running":
            return now
    pytest.fail("the replay still runs after 50 steps")


@pytest.mark.requirement("replays:progress")
async def test_everything_is_replayed_page_by_page_and_those_who_deliver_are_woken(
    any_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lastword")
    house = House(any_redis, 250)
    job = await house.job()
    process = house.process()
    assert await process.step() == 0
    half = await replays.show(any_redis, job.id)
    assert (half.state, half.found, half.replayed) == ("running", 100, 100)
    done = await until_done(process, any_redis, job)
    assert (done.state, done.found, done.replayed, done.skipped) == ("done", 250, 250, 0)
    assert house.replayed == sorted(house.made)
    assert house.woken == 3
    assert await process.step() == 1
    assert told_in(caplog) == [("replay_done", {"replay": job.id, "found": 250, "replayed": 250, "skipped": 0})]


@pytest.mark.requirement("replays:ends")
async def test_a_replay_that_reads_the_same_page_for_ever_is_paused_and_that_is_told(
    any_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lastword")
    house = House(any_redis, 20)
    job = await house.job(rate_per_s=1)

    async def stands(job: Job, limit: int) -> Page:
        return replace(await House.find(house, replace(job, cursor=""), limit), after="dlv_000")

    house.find = stands  # type: ignore[method-assign]
    paused = await until_done(house.process(), any_redis, job)
    assert (paused.state, paused.why) == ("paused", replaying.STANDS_STILL)
    assert [event for event, _ in told_in(caplog)] == ["replay_paused"]


@pytest.mark.requirement("replays:ends")
async def test_a_replay_of_nothing_is_done_at_once_and_wakes_nobody(any_redis: Any) -> None:
    house = House(any_redis)
    job = await house.job()
    await house.process().step()
    assert (await replays.show(any_redis, job.id)).state == "done"
    assert house.woken == 0


@pytest.mark.requirement("replays:rate")
async def test_a_process_comes_again_when_the_rate_has_a_slot(any_redis: Any) -> None:
    house = House(any_redis, 3)
    job = await house.job(rate_per_s=2)
    process = house.process()
    await process.step()
    assert len(house.replayed) == 2
    assert 0 < await process.step() <= 0.5
    assert 0 < await house.process().step() <= 0.5  # nobody keeps what nobody may go on with
    assert len(house.replayed) == 2
    await a_second_later(any_redis)
    await process.step()
    assert len(house.replayed) == 3
    assert (await replays.show(any_redis, job.id)).state == "done"


@pytest.mark.requirement("replays:each-once")
@pytest.mark.parametrize("hook", ["before", "after"])
async def test_a_process_that_dies_before_or_after_it_replayed_a_page_loses_and_doubles_nothing(
    any_redis: Any, hook: str
) -> None:
    house = House(any_redis, 250)
    job = await house.job()
    for _ in range(2):  # one process after the other dies, each in the first page that it replays
        setattr(house, hook, kill)
        process = house.process()
        with pytest.raises(Killed):
            await until_done(process, any_redis, job)
        await house.lease_ends()
    setattr(house, hook, lambda: None)
    done = await until_done(house.process(), any_redis, job)
    assert sorted(house.replayed) == sorted(house.made)
    assert (done.found, done.replayed, done.skipped) == (250, 250, 0)


@pytest.mark.requirement("replays:each-once")
@pytest.mark.parametrize("fault", ["request lost", "reply lost"])
@pytest.mark.parametrize("script", range(7))
async def test_whichever_script_is_lost_each_is_replayed_once(any_redis: Any, fault: Fault, script: int) -> None:
    house = House(any_redis, 150)
    await taught(any_redis)
    job = await house.job()
    line = Lossy(any_redis)
    unharmed: list[Fault] = ["none"] * script
    line.faults.extend([*unharmed, fault])
    process = house.process()
    lost = 0
    for _ in range(10):
        await a_second_later(any_redis)
        try:
            await process.step()
        except redis.ConnectionError:
            lost += 1
    assert (lost, sorted(house.replayed)) == (1 if script < 6 else 0, sorted(house.made))
    done = await replays.show(any_redis, job.id)
    assert (done.state, done.found, done.replayed) == ("done", 150, 150)


@pytest.mark.requirement("replays:each-once")
@pytest.mark.parametrize("ran", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", range(1, 15))
async def test_a_process_that_dies_at_any_command_is_succeeded_by_one_that_goes_on(
    any_redis: Any, nth: int, ran: bool
) -> None:
    house = House(any_redis, 150)
    await taught(any_redis)
    job = await house.job()
    execute, left = any_redis.execute_command, nth

    async def die_at_the_nth(*command: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0 and not ran:
            raise Killed
        reply = await execute(*command, **options)
        if left == 0:
            raise Killed
        return reply

    process = house.process()

    async def go_on() -> None:
        for _ in range(2):
            any_redis.execute_command = execute
            await a_second_later(any_redis)
            any_redis.execute_command = die_at_the_nth
            await process.step()

    with pytest.raises(Killed):
        await go_on()
    any_redis.execute_command = execute
    await house.lease_ends()
    done = await until_done(house.process(), any_redis, job)
    assert sorted(house.replayed) == sorted(house.made)
    assert (done.state, done.found, done.replayed, done.skipped) == ("done", 150, 150, 0)


@pytest.mark.requirement("replays:each-once")
async def test_an_answer_about_the_replayed_ones_that_was_lost_replays_none_of_them_again(any_redis: Any) -> None:
    house = House(any_redis, 30)
    job = await house.job()

    def lose() -> None:
        house.after = lambda: None
        raise redis.ConnectionError("reply lost")

    house.after = lose
    process = house.process()
    with pytest.raises(redis.ConnectionError):
        await process.step()
    done = await until_done(process, any_redis, job)
    assert (sorted(house.replayed), done.replayed) == (sorted(house.made), 30)


@pytest.mark.requirement("replays:held-up")
async def test_a_page_that_takes_half_a_lease_is_a_step_that_failed_and_keeps_no_other_from_its_turn(
    any_redis: Any,
) -> None:
    house = House(any_redis, 20)
    jobs = [await house.job() for _ in range(2)]
    slow = min(job.id for job in jobs)
    left_ms: list[int] = []

    async def find(job: Job, limit: int) -> Page:
        if job.id == slow:
            try:
                await asyncio.Event().wait()
            finally:
                ends = int(await any_redis.hget(f"lw:{{replays}}:of:{slow}", "exp"))
                left_ms.append(ends - await clock.now_ms(any_redis))
        return await house.find(job, limit)

    await Replays(any_redis, find, house.replay_some, house.wake, lease_s=1.6).step()
    assert left_ms[0] > 0  # nobody else could have taken it over
    assert (await replays.show(any_redis, slow)).failed == 1
    assert len(house.replayed) == 20


@pytest.mark.requirement("replays:held-up")
async def test_a_replay_that_redis_does_not_answer_about_keeps_no_other_from_its_turn(any_redis: Any) -> None:
    house = House(any_redis, 20)
    jobs = [await house.job() for _ in range(2)]
    first = min(job.id for job in jobs)

    async def find(job: Job, limit: int) -> Page:
        if job.id == first:
            raise redis.ConnectionError("away")
        return await house.find(job, limit)

    with pytest.raises(redis.ConnectionError):
        await Replays(any_redis, find, house.replay_some, house.wake).step()
    assert (await replays.show(any_redis, first)).failed == 0
    assert len(house.replayed) == 20


@pytest.mark.requirement("replays:held-up")
async def test_replays_are_taken_on_until_the_process_stops(any_redis: Any) -> None:
    house, stop = House(any_redis, 20), asyncio.Event()
    job = await house.job()
    house.after = stop.set
    await asyncio.wait_for(house.process().run(stop), 10)
    assert (await replays.show(any_redis, job.id)).replayed == 20


@pytest.mark.requirement("replays:one-takes-it")
async def test_while_one_process_has_a_replay_no_other_takes_it_on(any_redis: Any) -> None:
    house = House(any_redis, 20)
    job = await house.job()
    other = house.process()

    async def another_comes() -> None:
        assert await other.step() == 1

    house.before = house.after = another_comes
    await house.process().step()
    assert len(house.replayed) == 20
    assert (await replays.show(any_redis, job.id)).state == "done"


@pytest.mark.requirement("replays:one-takes-it")
async def test_a_process_whose_lease_has_ended_stores_nothing_when_another_has_taken_over(any_redis: Any) -> None:
    house = House(any_redis, 150)
    job = await house.job()
    successor = house.process()

    async def lease_ends_and_another_goes_on() -> None:
        house.after = lambda: None
        await house.lease_ends()
        await a_second_later(any_redis)
        await successor.step()

    house.after = lease_ends_and_another_goes_on
    sleeper = house.process()
    await sleeper.step()
    assert await sleeper.step() == 1
    done = await until_done(successor, any_redis, job)
    assert sorted(house.replayed) == sorted(house.made)
    assert (done.found, done.replayed, done.skipped) == (150, 150, 0)


@pytest.mark.requirement("replays:one-takes-it")
async def test_a_lease_of_a_clock_that_was_put_back_keeps_a_replay_from_nobody(any_redis: Any) -> None:
    house = House(any_redis, 20)
    job = await house.job()
    house.before = kill
    with pytest.raises(Killed):
        await house.process().step()
    house.before = lambda: None
    await any_redis.hincrby(f"lw:{{replays}}:of:{job.id}", "exp", 86_400_000)
    await house.process().step()
    assert len(house.replayed) == 20


@pytest.mark.requirement("replays:held-up")
async def test_a_replay_that_is_paused_or_cancelled_in_mid_page_stops_behind_it(any_redis: Any) -> None:
    house = House(any_redis, 250)
    job = await house.job()

    async def pause() -> None:
        await replays.pause(any_redis, job.id, "by ops")

    house.after = pause
    process = house.process()
    await process.step()
    paused = await replays.show(any_redis, job.id)
    assert (paused.state, paused.why, paused.replayed, paused.begun) == ("paused", "by ops", 100, ())
    assert await process.step() == 1
    assert len(house.replayed) == 100

    async def cancel() -> None:
        await replays.cancel(any_redis, job.id, "wrong endpoint")

    house.after = cancel
    assert (await replays.resume(any_redis, job.id)).state == "running"
    await a_second_later(any_redis)
    await process.step()
    cancelled = await replays.show(any_redis, job.id)
    assert (cancelled.state, cancelled.why, cancelled.replayed) == ("cancelled", "wrong endpoint", 200)
    assert (await replays.resume(any_redis, job.id)).state == "cancelled"
    await process.step()
    assert len(house.replayed) == 200


@pytest.mark.requirement("replays:held-up")
async def test_a_step_that_fails_is_taken_again_and_after_eight_in_a_row_it_is_paused_with_the_reason(
    any_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lastword")
    house = House(any_redis, 20)
    job = await house.job()

    def fail() -> None:
        raise StoreFull("Redis is at its maxmemory")

    house.before = fail
    process = house.process()
    for number in range(1, FAILED_MOST):
        assert await process.step() == 1
        assert (await replays.show(any_redis, job.id)).failed == number
    await process.step()
    paused = await replays.show(any_redis, job.id)
    assert (paused.state, paused.why) == ("paused", "8 steps in a row failed, the last with StoreFull")
    assert house.replayed == []
    *steps, last = [event for event, _ in told_in(caplog)]
    assert (steps, last) == (["replay_step_failed"] * FAILED_MOST, "replay_paused")
    house.before = lambda: None
    await replays.resume(any_redis, job.id)
    assert (await until_done(process, any_redis, job)).replayed == 20


@pytest.mark.requirement("replays:ends")
async def test_a_replay_is_forgotten_thirty_days_after_its_end_and_listed_until_then(any_redis: Any) -> None:
    house = House(any_redis, 1)
    first = await house.job()
    second = await house.job()
    assert [job.id for job in await replays.listed(any_redis, 10)] in ([first.id, second.id], [second.id, first.id])
    key = f"lw:{{replays}}:of:{first.id}"
    assert await any_redis.pttl(key) == -1
    await replays.cancel(any_redis, first.id, "")
    left_ms = await any_redis.pttl(key)
    assert 30 * 86_400_000 - 60_000 < left_ms <= 30 * 86_400_000
    await any_redis.delete(key)  # it has expired
    await replays.cancel(any_redis, second.id, "")
    assert [job.id for job in await replays.listed(any_redis, 10)] == [second.id]
    assert await any_redis.zcard("lw:{replays}:index") == 1
    with pytest.raises(ConfigurationError, match=f"replay {first.id} is not known: it was never made, or ended more"):
        await replays.show(any_redis, first.id)


@pytest.mark.requirement("replays:ends")
async def test_a_replay_that_is_lost_while_it_runs_is_not_looked_at_for_ever(any_redis: Any) -> None:
    house = House(any_redis, 1)
    lost, other = await house.job(), await house.job()
    await any_redis.delete(f"lw:{{replays}}:of:{lost.id}")
    await replays.pause(any_redis, other.id, "for now")
    await replays.resume(any_redis, other.id)
    assert await replays.running(any_redis) == [other.id]


@pytest.mark.requirement("replays:ends")
async def test_to_make_a_replay_again_whose_answer_was_lost_makes_no_second(any_redis: Any) -> None:
    house = House(any_redis, 20)
    await taught(any_redis)
    line = Lossy(any_redis)
    line.faults.append("reply lost")
    with pytest.raises(redis.ConnectionError):
        await house.job()
    [job] = await replays.listed(any_redis, 10)
    await house.process().step()
    assert (await replays.create(any_redis, job)).state == "done"
    assert len(house.replayed) == 20


@pytest.mark.requirement("replays:each-once")
async def test_a_script_that_is_sent_again_changes_nothing_and_gives_its_first_answer(any_redis: Any) -> None:
    house = House(any_redis, 20)
    await taught(any_redis)
    line = Lossy(any_redis)
    job = await house.job()
    await again_changes_nothing(any_redis, line)
    house.after = lambda: again_changes_nothing(any_redis, line)
    await house.process().step()
    await again_changes_nothing(any_redis, line)
    ended = await dump(any_redis)
    assert (await replays.cancel(any_redis, job.id, "too late")).state == "done"
    assert await dump(any_redis) == ended


async def again_changes_nothing(client: Any, line: Lossy) -> None:
    before = await dump(client, leave_out=["exp"])
    assert (await line.execute(*line.sent[-1]))[0] == 1
    assert await dump(client, leave_out=["exp"]) == before


@pytest.mark.requirement("replays:ends")
async def test_a_replay_that_has_expired_is_not_made_again_by_who_would_take_it_on(any_redis: Any) -> None:
    job = await House(any_redis, 1).job()
    await any_redis.delete(f"lw:{{replays}}:of:{job.id}")
    assert await House(any_redis).process().step() == 1
    assert not await any_redis.exists(f"lw:{{replays}}:of:{job.id}")


@pytest.mark.requirement("replays:record")
async def test_a_replay_of_a_newer_release_is_left_to_it(any_redis: Any) -> None:
    house = House(any_redis, 20)
    job = await house.job()
    key = f"lw:{{replays}}:of:{job.id}"
    newer = b'{"v":99,"job":{}}'
    await any_redis.hset(key, "record", newer)
    assert await house.process().step() == 1
    assert await any_redis.hget(key, "record") == newer
    assert await replays.listed(any_redis, 10) == []
    with pytest.raises(ConfigurationError, match="a newer release made it"):
        await replays.show(any_redis, job.id)
