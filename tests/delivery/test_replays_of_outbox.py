"""Bulk replays of what lies in the outbox: nothing is passed over, nothing is replayed twice, whoever dies."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from channels.delivery.model import Delivery
from channels.delivery.replay import Bounds, Filters, Job
from channels.outbox import lanes, oldest, reading, replaying
from channels.outbox.keys import DEAD, INDEX
from channels.outbox.reading import places
from channels.replays import starting
from channels.replays import stored as replays
from channels.replays.taking import Replays
from tests.delivery.outboxes import GONE, ONE_TRY, box, insert, known, made
from worker.errors import ConfigurationError
from worker.store import clock

BOUNDS = Bounds(14, 100_000)


class Killed(BaseException):
    """The process is no more."""


async def wake() -> None:
    """Nobody is there."""


def process(client: Any) -> Replays:
    return Replays(client, partial(oldest.page_of, client), partial(replay_some, client), wake)


async def replay_some(client: Any, ids: Sequence[str]) -> int:
    return len(await replaying.replay_some(client, ids))


async def started(client: Any, filters: Filters, *, rate_per_s: float = 1_000) -> Job:
    now_ms = await clock.now_ms(client)
    return await starting.start(client, filters, rate_per_s, now_ms, by="anna", bounds=BOUNDS)


async def free(client: Any) -> None:
    """Let the rate of each replay have all its slots again, and its lease be over."""
    async for key in client.scan_iter("lw:{replays}:of:*"):
        record = await client.hget(key, "record")
        begin = record.index(b'"rate_ms":')
        end = record.index(b",", begin)
        await client.hset(key, mapping={"record": record[:begin] + b'"rate_ms":0.0' + record[end:], "exp": 1})


async def until_done(client: Any, job: Job, process: Replays) -> Job:
    for _ in range(400):
        await free(client)
        await process.step()
        now = await replays.show(client, job.id)
        if now.state == "done":
            return now
    pytest.fail("the replay is not done after 400 steps")


async def dead(client: Any, count: int, *, at_ms: int, destination: str = "crm", first: int = 0) -> list[Delivery]:
    """Dead deliveries that were made, and died, in one millisecond."""
    end: dict[str, Any] = {"created_ms": at_ms, "due_ms": 0, "state": "dead", "ended_ms": at_ms + 5, "code": "http_410"}
    there = [made(f"evt_{number}", destination, **end) for number in range(first, first + count)]
    await known(client, there[0])
    return await inserted(client, there)


async def held(client: Any, count: int, *, at_ms: int, destination: str = "crm") -> list[Delivery]:
    there = [
        made(f"evt_h{number}", destination, created_ms=at_ms + number, due_ms=0, state="held")
        for number in range(count)
    ]
    await known(client, there[0])
    return await inserted(client, there)


async def inserted(client: Any, there: Sequence[Delivery]) -> list[Delivery]:
    for begin in range(0, len(there), 500):
        await insert(client, there[begin : begin + 500])
    return list(there)


@pytest.mark.requirement("operating:pages")
@pytest.mark.parametrize("down", [False, True])
async def test_places_follow_each_other_also_where_thousands_are_of_one_millisecond(any_redis: Any, down: bool) -> None:
    names = [f"dlv_00{number:020x}" for number in range(1_100)]
    scores = {name: 7_000 if 100 <= number < 1_000 else 6_000 + number for number, name in enumerate(names)}
    await any_redis.zadd("set", scores)
    ordered = sorted(names, key=lambda name: (scores[name], name), reverse=down)
    found: list[str] = []
    score, last = (float("inf") if down else 0.0), ""
    while page := await places(any_redis, "set", score, last, down=down):
        await any_redis.zrem("set", *(name for name, _ in page[::2]))  # what was replayed stands there no more
        found += [name for name, _ in page]
        last, score = page[-1]
    assert found == ordered


@pytest.mark.requirement("operating:replays:whole")
async def test_five_thousand_that_died_in_one_millisecond_are_replayed_once_each(real_redis: Any) -> None:
    at_ms = await clock.now_ms(real_redis) - 60_000
    there = await dead(real_redis, 5_000, at_ms=at_ms)
    job = await started(real_redis, Filters(("dead",), at_ms, 0))
    ended = await until_done(real_redis, job, process(real_redis))
    assert (ended.found, ended.replayed, ended.skipped) == (5_000, 5_000, 0)
    assert await real_redis.zcard(DEAD) == 0
    assert (await reading.counts(real_redis))["crm"] == {"queued": 5_000}
    assert {(await reading.show(real_redis, one.id)).version for one in there[::500]} == {2}


@pytest.mark.requirement("operating:replays:whole")
async def test_the_held_ones_of_all_endpoints_are_found_behind_thousands_of_one_millisecond(real_redis: Any) -> None:
    at_ms = await clock.now_ms(real_redis) - 60_000
    await dead(real_redis, 4_500, at_ms=at_ms)
    there = [*await held(real_redis, 3, at_ms=at_ms, destination="crm")]
    there += await held(real_redis, 2, at_ms=at_ms + 1, destination="billing")
    job = await started(real_redis, Filters(("held",), at_ms - 1, 0))
    ended = await until_done(real_redis, job, process(real_redis))
    assert ended.replayed == 5
    assert {(await reading.show(real_redis, one.id)).state for one in there} == {"queued"}
    assert await real_redis.zcard(DEAD) == 4_500


@pytest.mark.requirement("operating:replays:whole")
async def test_a_step_looks_at_so_many_and_goes_on_behind_them(
    real_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oldest, "_SEEN_MOST", 400)
    at_ms = await clock.now_ms(real_redis) - 60_000
    await dead(real_redis, 900, at_ms=at_ms)
    [one] = await held(real_redis, 1, at_ms=at_ms)
    job = await started(real_redis, Filters(("held",), at_ms - 1, 0))
    found = []
    for _ in range(3):
        page = await oldest.page_of(real_redis, job, 100)
        found.append(([each.id for each in page.deliveries], page.after is None))
        job = replace(job, cursor=page.after or "")
    assert found == [([], False), ([], False), ([one.id], True)]


@pytest.mark.requirement("operating:replays:whole")
@pytest.mark.parametrize("rate_per_s", [1, 1_000])
async def test_of_one_millisecond_all_are_met_once_also_those_with_nothing_left_to_tell(
    real_redis: Any, rate_per_s: float
) -> None:
    at_ms = await clock.now_ms(real_redis) - 60_000
    there = [
        made(f"evt_{number}", created_ms=at_ms, due_ms=0, state="held", turn=f"turn_00{number % 2:020x}")
        for number in range(12)
    ]
    await known(real_redis, there[0])
    await inserted(real_redis, there)
    ended = await until_done(
        real_redis, await started(real_redis, Filters(("held",), at_ms, 0), rate_per_s=rate_per_s), process(real_redis)
    )
    assert (ended.found, ended.replayed, ended.skipped) == (12, 6, 6)


@pytest.mark.requirement("operating:replays:whole")
async def test_of_one_endpoint_only_its_own_are_replayed(any_redis: Any) -> None:
    at_ms = await clock.now_ms(any_redis) - 60_000
    own = await held(any_redis, 4, at_ms=at_ms) + await dead(any_redis, 2, at_ms=at_ms)
    others = await held(any_redis, 4, at_ms=at_ms, destination="billing")
    others += await dead(any_redis, 2, at_ms=at_ms, destination="billing")
    job = await started(any_redis, Filters(("dead", "held"), at_ms, 0, "crm"))
    ended = await until_done(any_redis, job, process(any_redis))
    assert (ended.found, ended.replayed) == (6, 6)
    assert {(await reading.show(any_redis, one.id)).state for one in own} == {"queued"}
    assert {(await reading.show(any_redis, one.id)).state for one in others} == {"held", "dead"}


@pytest.mark.requirement("operating:replays:whole")
async def test_only_those_of_its_time_its_types_and_its_turn_are_replayed(any_redis: Any) -> None:
    now_ms = await clock.now_ms(any_redis)
    end: dict[str, Any] = {"due_ms": 0, "state": "dead", "ended_ms": now_ms}
    turn = "turn_00" + "c" * 20
    there = [
        made("evt_early", created_ms=now_ms - 5_001, **end),
        made("evt_first", created_ms=now_ms - 5_000, **end),
        made("evt_other", created_ms=now_ms - 4_000, **end | {"event_type": "call.completed"}),
        made("evt_turn", created_ms=now_ms - 3_000, **end | {"turn": turn}),
        made("evt_late", created_ms=now_ms - 2_000, **end),
    ]
    for one in there:
        await known(any_redis, one)
    await inserted(any_redis, there)
    filters = Filters(("dead",), now_ms - 5_000, now_ms - 2_000, event_types=("turn.completed",), turn=there[0].turn)
    await until_done(any_redis, await started(any_redis, filters), process(any_redis))
    states = {one.event_id: (await reading.show(any_redis, one.id)).state for one in there}
    assert [event for event, state in states.items() if state == "queued"] == ["evt_first"]


@pytest.mark.requirement("operating:replays:once")
async def test_what_dies_again_while_the_replay_runs_is_not_replayed_twice(any_redis: Any) -> None:
    at_ms = await clock.now_ms(any_redis) - 60_000
    there = await dead(any_redis, 30, at_ms=at_ms)
    job = await started(any_redis, Filters(("dead",), at_ms, 0), rate_per_s=10)
    goes_on, attempts = process(any_redis), 0
    receiver = box(any_redis, {"crm": ONE_TRY})
    for step in range(60):
        await free(any_redis)
        await goes_on.step()
        batch = await receiver.claim(f"claim-{step}", 100)
        attempts += len(batch)
        await receiver.settle([(one, GONE) for one in batch])
        await lanes.resume(any_redis, "crm")  # 410 disables it
    ended = await replays.show(any_redis, job.id)
    assert (ended.state, ended.replayed, attempts) == ("done", 30, 30)
    assert {(await reading.show(any_redis, one.id)).state for one in there} == {"dead"}


@pytest.mark.requirement("operating:replays:once")
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_process_that_dies_between_its_steps_is_followed_by_one_that_goes_on(
    any_redis: Any, moment: str
) -> None:
    at_ms = await clock.now_ms(any_redis) - 60_000
    there = await dead(any_redis, 120, at_ms=at_ms)
    job = await started(any_redis, Filters(("dead",), at_ms, 0), rate_per_s=50)

    kills = 0

    async def dies(ids: Sequence[str]) -> int:
        if moment == "after":
            await replay_some(any_redis, ids)
        raise Killed

    for _ in range(4):
        await free(any_redis)
        try:
            await Replays(any_redis, partial(oldest.page_of, any_redis), dies, wake).step()
        except Killed:
            kills += 1
    assert kills >= 2
    ended = await until_done(any_redis, job, process(any_redis))
    assert (ended.found, ended.replayed) == (120, 120)
    assert {(await reading.show(any_redis, one.id)).version for one in there} == {2}


@pytest.mark.requirement("operating:replays:once")
async def test_one_that_somebody_cancelled_meanwhile_is_skipped(any_redis: Any) -> None:
    at_ms = await clock.now_ms(any_redis) - 60_000
    there = await held(any_redis, 3, at_ms=at_ms)
    job = await started(any_redis, Filters(("held",), at_ms, 0, "crm"))

    async def late(ids: Sequence[str]) -> int:
        await replaying.cancel(any_redis, there[1].id, "not wanted")
        return await replay_some(any_redis, ids)

    await Replays(any_redis, partial(oldest.page_of, any_redis), late, wake).step()
    ended = await replays.show(any_redis, job.id)
    assert (ended.found, ended.replayed, ended.skipped) == (3, 2, 1)
    assert (await reading.show(any_redis, there[1].id)).state == "cancelled"


@pytest.mark.requirement("operating:held")
async def test_what_a_paused_endpoint_holds_stays_held_until_it_is_resumed(any_redis: Any) -> None:
    at_ms = await clock.now_ms(any_redis) - 60_000
    [one] = await held(any_redis, 1, at_ms=at_ms)
    await lanes.pause(any_redis, "crm", "maintenance")
    with pytest.raises(ConfigurationError, match=r"crm is paused.*resume or enable"):
        await replaying.replay(any_redis, one.id)
    with pytest.raises(ConfigurationError, match="endpoint crm is paused"):
        await started(any_redis, Filters(("held",), at_ms, 0, "crm"))
    job = await started(any_redis, Filters(("held",), at_ms - 1, 0))
    ended = await until_done(any_redis, job, process(any_redis))
    assert (ended.replayed, ended.skipped) == (0, 1)
    assert (await reading.show(any_redis, one.id)).version == one.version
    await lanes.resume(any_redis, "crm")
    assert (await replaying.replay(any_redis, one.id)).state == "queued"


@pytest.mark.requirement("operating:held")
async def test_a_release_takes_all_that_was_held_however_long_ago(any_redis: Any) -> None:
    now_ms = await clock.now_ms(any_redis)
    there = await held(any_redis, 2, at_ms=now_ms - 40 * 86_400_000)
    there += await inserted(any_redis, [made("evt_now", created_ms=now_ms, due_ms=0, state="held")])
    assert await reading.held_count(any_redis, "crm") == 3
    job = await starting.release(any_redis, "crm", now_ms, by="anna", bounds=BOUNDS)
    assert job is not None
    ended = await until_done(any_redis, job, process(any_redis))
    assert (ended.replayed, ended.by) == (3, "anna")
    assert await starting.release(any_redis, "crm", now_ms, by="anna", bounds=BOUNDS) is None


@pytest.mark.requirement("operating:replays:whole")
async def test_as_far_back_as_one_may_reach_is_where_nothing_is_said(any_redis: Any) -> None:
    now_ms = await clock.now_ms(any_redis)
    job = await started(any_redis, Filters(("dead",), 0, 0))
    assert now_ms - 14 * 86_400_000 <= job.filters.since_ms <= await clock.now_ms(any_redis) - 14 * 86_400_000


@pytest.mark.requirement("operating:pages")
async def test_a_search_that_finds_nothing_ends_page_by_page(real_redis: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("channels.outbox.reading.SEEN_MOST", 400)
    at_ms = await clock.now_ms(real_redis)
    await dead(real_redis, 1_000, at_ms=at_ms)
    found: list[int] = []
    after = ""
    while True:
        page = await reading.listed(real_redis, 10, destination="billing", after=after)
        found.append(len(page.deliveries))
        after = page.after
        if not after:
            break
    assert found == [0, 0, 0]


@pytest.mark.requirement("operating:pages")
async def test_a_list_goes_on_behind_the_page_before_though_new_ones_came(any_redis: Any) -> None:
    at_ms = await clock.now_ms(any_redis)
    there = await dead(any_redis, 450, at_ms=at_ms)
    found: list[str] = []
    after = ""
    for step in range(5):
        page = await reading.listed(any_redis, 100, after=after)
        found += [one.id for one in page.deliveries]
        after = page.after
        await dead(any_redis, 10, at_ms=at_ms + 1 + step, first=1_000 + step * 10)
    assert after == ""
    assert found == [one.id for one in reversed(there)]
    assert await any_redis.zcard(INDEX) == 500
