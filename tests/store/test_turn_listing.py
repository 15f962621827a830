"""Finding turns that go on and turns that have ended, and counting them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.store.turns import Redis, ask, driven, driver_of, granted, new_turn, taken, with_tools
from worker import ids
from worker.output.events import Outcome, TurnCompletedOutput
from worker.store import keys, listing
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import submit
from worker.store.lease import claim
from worker.store.listing import LIVE, OUTCOMES, Found, Wanted, find
from worker.store.records import RECORD_VERSION
from worker.store.survey import TurnsSurvey, survey
from worker.turn.usage import NO_USAGE

ENDED = Wanted(states=(), outcomes=OUTCOMES)
PARTITIONS = 3
LATELY_S = 3600.0


async def now_ms(client: Redis) -> int:
    seconds, microseconds = await client.time()
    return int(seconds * 1000 + microseconds // 1000)


async def submitted(client: Redis, session: str, *, partitions: int = 1, **changes: Any) -> str:
    partition = ids.partition_of_session(session, partitions)
    new = replace(new_turn(session=session), turn=ids.new_turn(partition), **changes)
    await submit(client, new, partitions)
    return new.turn


async def ended(client: Redis, session: str, outcome: Outcome, *, partitions: int = 1, **changes: Any) -> str:
    turn = await submitted(client, session, partitions=partitions, **changes)
    grant = await claim(client, session, ids.new_nonce(), 8, partitions)
    assert grant is not None
    await seal(driver_of(client, grant), outcome)
    return turn


async def seal(accumulator: ExecutionOutputAccumulator, outcome: Outcome) -> None:
    await accumulator.seal(outcome, None, None, "", NO_USAGE, [TurnCompletedOutput(outcome=outcome)])


def turns(found: Found) -> list[str]:
    return [record.turn for record in found.turns]


async def counted(client: Redis, **bounds: Any) -> TurnsSurvey:
    return await survey(client, 0, LATELY_S, **bounds)


@pytest.mark.requirement("status:list:filters")
async def test_turns_are_found_by_state_outcome_labels_agent_and_time_all_at_once(any_redis: Redis) -> None:
    old = await ended(any_redis, "a", "failed", labels={"team": "ops", "job": "1"})
    hour_ago = await now_ms(any_redis) - 3_600_000
    await any_redis.zadd(keys.ended(0, "failed"), {old: hour_ago})
    await any_redis.hset(keys.turn_record(old), "sealed_ms", hour_ago)
    ours = await ended(any_redis, "b", "failed", labels={"team": "ops", "job": "2"})
    other = await ended(any_redis, "c", "failed", labels={"team": "web"}, agent="other")
    done = await ended(any_redis, "d", "completed", labels={"team": "ops"})
    waits = await submitted(any_redis, "e", labels={"team": "ops"})
    running = (await granted(any_redis, session="f")).turn
    since = await now_ms(any_redis) - 600_000
    failed = Wanted(states=(), outcomes=("failed",))
    for wanted, found in (
        (Wanted(), [waits, running]),
        (Wanted(states=("queued",)), [waits]),
        (Wanted(states=("running",)), [running]),
        (ENDED, [done, other, ours, old]),
        (failed, [other, ours, old]),
        (replace(failed, since_ms=since), [other, ours]),
        (replace(failed, labels={"team": "ops"}), [ours, old]),
        (replace(failed, labels={"team": "ops", "job": "2"}), [ours]),
        (replace(failed, labels={"team": "ops", "job": "3"}), []),
        (replace(failed, agent="other"), [other]),
        (replace(failed, agent="other", labels={"team": "ops"}), []),
        (Wanted(states=LIVE, outcomes=OUTCOMES, labels={"team": "ops"}), [waits, done, ours, old]),
        (Wanted(since_ms=since + 10_000_000), []),
    ):
        assert sorted(turns(await find(any_redis, 1, wanted, 50))) == sorted(found), wanted


@pytest.mark.requirement("status:list:order")
async def test_turns_of_all_partitions_and_outcomes_come_in_one_order(any_redis: Redis) -> None:
    sessions = [f"chat/{number}" for number in range(12)]
    kinds: list[Outcome] = ["completed", "failed", "dead"]
    sealed = [
        await ended(any_redis, session, kinds[number % 3], partitions=PARTITIONS)
        for number, session in enumerate(sessions)
    ]
    for number, turn in enumerate(sealed):  # faster than the clock ticks
        name = keys.ended(keys.partition_of_turn(turn), kinds[number % 3])
        await any_redis.zadd(name, {turn: 10_000 + number})
    alive = [await submitted(any_redis, session, partitions=PARTITIONS) for session in sessions]
    for number, turn in enumerate(alive):
        await any_redis.zadd(keys.live(keys.partition_of_turn(turn)), {turn: 10_000 + number})
    assert len({keys.partition_of_turn(turn) for turn in alive}) == PARTITIONS
    assert turns(await find(any_redis, PARTITIONS, ENDED, 50)) == sealed[::-1]
    assert turns(await find(any_redis, PARTITIONS, ENDED, 5)) == sealed[:-6:-1]
    assert turns(await find(any_redis, PARTITIONS, Wanted(), 50)) == alive


@pytest.mark.requirement("status:list:order")
async def test_more_turns_than_a_page_are_found_in_order(any_redis: Redis) -> None:
    """A page is 200 turns; two sets with 450 and 130, mixed."""
    pipeline = any_redis.pipeline(transaction=False)
    made: list[tuple[int, str]] = []
    for number in range(580):
        turn, outcome = ids.new_turn(0), "failed" if number % 58 < 45 else "dead"
        made.append((number, turn))
        record = {"state": "sealed", "outcome": outcome, "agent": "a", "labels": "{}", "created_ms": 1, "sealed_ms": 9}
        rest = dict.fromkeys(("session", "message", "source", "failure"), "")
        counts = dict.fromkeys(("marker", "discards", "calls", "crashes"), 0)
        pipeline.hset(
            keys.turn_record(turn), mapping={**rest, **counts, **record, "totals": "{}", "destinations": "[]"}
        )
        pipeline.zadd(keys.ended(0, outcome), {turn: number})
    await pipeline.execute()
    wanted = [turn for _, turn in sorted(made, reverse=True)]
    assert turns(await find(any_redis, 1, ENDED, 10_000)) == wanted


@pytest.mark.requirement("status:list:while-turns-end")
async def test_a_turn_that_ends_while_it_is_looked_for_is_told_once_as_what_it_is(
    any_redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulator = await driven(any_redis)
    look = listing.peek

    async def peek_and_end(*args: Any) -> Any:
        seen = await look(*args)
        if (await any_redis.hget(keys.turn_record(accumulator.turn), "state")) == b"running":
            await seal(accumulator, "completed")
        return seen

    monkeypatch.setattr(listing, "peek", peek_and_end)
    both = await find(any_redis, 1, Wanted(states=LIVE, outcomes=OUTCOMES), 50)
    assert [(record.turn, record.state) for record in both.turns] == [(accumulator.turn, "sealed")]
    monkeypatch.undo()
    accumulator = await driven(any_redis, session="chat/2")
    monkeypatch.setattr(listing, "peek", peek_and_end)
    assert turns(await find(any_redis, 1, Wanted(), 50)) == []


@pytest.mark.requirement("status:list:while-turns-end")
@pytest.mark.parametrize("at_once", [False, True])
async def test_turns_that_end_between_two_pages_hide_no_other(
    any_redis: Redis, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """A page is 200 turns. `at_once`: all were submitted in the same millisecond."""
    made = [ids.new_turn(0) for _ in range(450)]
    made.sort()
    pipeline = any_redis.pipeline(transaction=False)
    for number, turn in enumerate(made):
        record = {
            "state": "queued",
            "agent": "a",
            "labels": "{}",
            "created_ms": 1,
            "totals": "{}",
            "destinations": "[]",
        }
        rest = dict.fromkeys(("session", "message", "source", "failure"), "")
        counts = dict.fromkeys(("marker", "discards", "calls", "crashes"), 0)
        pipeline.hset(keys.turn_record(turn), mapping={**rest, **counts, **record})
        pipeline.zadd(keys.live(0), {turn: 5 if at_once else number})
    await pipeline.execute()
    look = listing.peek

    async def peek_and_end(*args: Any) -> Any:
        await any_redis.zrem(keys.live(0), *made[:100])
        return await look(*args)

    monkeypatch.setattr(listing, "peek", peek_and_end)
    assert turns(await find(any_redis, 1, Wanted(), 1000)) == made


@pytest.mark.requirement("status:list:bounded")
async def test_a_search_that_stops_at_its_bound_says_so(any_redis: Redis) -> None:
    for number in range(6):
        await submitted(any_redis, f"chat/{number}", labels={"n": str(number)})
    order = await find(any_redis, 1, Wanted(), 50)  # two of one millisecond come in any order
    last = Wanted(labels=order.turns[-1].labels)
    found = await find(any_redis, 1, last, 50, most=5)
    assert (turns(found), found.looked_at, found.stopped) == ([], 5, True)
    found = await find(any_redis, 1, last, 50, most=6)
    assert (len(found.turns), found.looked_at, found.stopped) == (1, 6, False)


@pytest.mark.requirement("web:list:all-of-it")
@pytest.mark.parametrize(("limit", "more"), [(1, True), (2, True), (3, True), (4, False), (5, False)])
async def test_whether_there_are_more_is_known_at_every_limit(
    any_redis: Redis, monkeypatch: pytest.MonkeyPatch, limit: int, more: bool
) -> None:
    monkeypatch.setattr(listing, "_PAGE", 2)
    made = [await submitted(any_redis, f"crm/{number}") for number in range(4)]
    for number in range(3):
        await submitted(any_redis, f"erp/{number}")
    found = await find(any_redis, 1, Wanted(sessions="crm/"), limit)
    assert (len(set(turns(found))), found.more, found.stopped) == (min(limit, 4), more, False)
    assert set(turns(found)) <= set(made)  # two of one millisecond come in any order
    assert {record.message for record in found.turns} == {""}


@pytest.mark.requirement("status:ended:kept")
async def test_an_ended_turn_is_in_the_index_of_its_outcome_until_its_retention_is_over(any_redis: Redis) -> None:
    old = [await ended(any_redis, f"old/{number}", "dead") for number in range(3)]
    index = keys.ended(0, "dead")
    assert await any_redis.zcard(index) == 3
    week_ms = 7 * 86_400_000
    first, *rest = old
    await any_redis.zadd(index, {first: await now_ms(any_redis) - week_ms - 1000})
    fresh = await ended(any_redis, "fresh", "dead")
    assert {turn.decode() for turn in await any_redis.zrange(index, 0, -1)} == {*rest, fresh}
    assert 0 < await any_redis.ttl(index) <= week_ms / 1000
    sealed_ms = int(await any_redis.hget(keys.turn_record(fresh), "sealed_ms"))
    assert await any_redis.zscore(index, fresh) == sealed_ms
    assert await any_redis.zscore(keys.live(0), fresh) is None


@pytest.mark.requirement("status:ended:kept")
async def test_a_turn_whose_record_has_expired_is_passed_over(any_redis: Redis) -> None:
    gone, there = await ended(any_redis, "a", "failed"), await ended(any_redis, "b", "failed")
    await any_redis.delete(keys.turn_record(gone))
    assert turns(await find(any_redis, 1, ENDED, 50)) == [there]


@pytest.mark.requirement("status:counts:waiting")
async def test_a_turn_waits_for_a_process_only_where_nobody_drives_its_session(any_redis: Redis) -> None:
    assert (await counted(any_redis)).waiting == 0
    driver = await driven(any_redis, session="driven")
    await submitted(any_redis, "driven")
    asking = await driven(any_redis, session="parked")
    await with_tools(asking, "mail")
    await ask(asking)
    await asking.park()
    await submitted(any_redis, "parked")
    seen = await counted(any_redis)
    assert seen.states == {"queued": 2, "running": 1, "parked": 1}
    assert (seen.waiting, seen.waiting_oldest_s, seen.approvals) == (0, 0.0, 1)
    assert seen.approval_expires_s == pytest.approx(3600, abs=30)
    alone = await submitted(any_redis, "alone")
    await any_redis.hset(keys.turn_record(alone), "created_ms", await now_ms(any_redis) - 50_000)
    await submitted(any_redis, "alone")
    seen = await counted(any_redis)
    assert seen.waiting == 1
    assert seen.waiting_oldest_s == pytest.approx(50, abs=5)
    await any_redis.hset(keys.turn_record(driver.turn), "lease_ms", await now_ms(any_redis) - 9_000)
    seen = await counted(any_redis)
    assert (seen.waiting, seen.states["running"], seen.unsealed) == (2, 1, 6)


@pytest.mark.requirement("status:counts:waiting")
async def test_a_turn_that_was_handed_over_waits_since_then(any_redis: Redis) -> None:
    driver = await driven(any_redis, session="handed")
    await any_redis.hset(keys.turn_record(driver.turn), "created_ms", await now_ms(any_redis) - 50_000)
    await driver.release()
    seen = await counted(any_redis)
    assert seen.waiting == 1
    assert seen.waiting_oldest_s < 10


@pytest.mark.requirement("status:counts:bounded")
async def test_no_more_records_are_read_than_the_bound(any_redis: Redis) -> None:
    for number in range(7):
        await submitted(any_redis, f"chat/{number}")
    seen = await counted(any_redis, most=4)
    assert (seen.unsealed, seen.looked_at, seen.states["queued"], seen.waiting) == (7, 4, 4, 4)


@pytest.mark.requirement("status:shows:all")
async def test_ended_turns_are_counted_by_outcome_all_and_lately(any_redis: Redis) -> None:
    for session, outcome in (("a", "dead"), ("b", "failed")):
        await ended(any_redis, session, outcome)  # type: ignore[arg-type]
    turn = await ended(any_redis, "c", "failed")
    await any_redis.zadd(keys.ended(0, "failed"), {turn: await now_ms(any_redis) - 2 * LATELY_S * 1000})
    seen = await counted(any_redis)
    assert {name: count for name, count in seen.kept.items() if count} == {"dead": 1, "failed": 2}
    assert {name: count for name, count in seen.lately.items() if count} == {"dead": 1, "failed": 1}


@pytest.mark.requirement("status:shows:all")
async def test_what_is_due_and_how_late_it_is_is_counted(any_redis: Redis) -> None:
    await submitted(any_redis, "late")
    await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + "late": await now_ms(any_redis) - 7_000})
    seen = await counted(any_redis)
    assert seen.due == 1
    assert seen.due_oldest_s == pytest.approx(7, abs=2)
    await taken(any_redis, "late")
    assert (await counted(any_redis)).due == 0


CHANGES: tuple[tuple[str, str | None], ...] = (
    ("totals", "[1,2]"),
    ("discards", None),
    ("failure", '{"kind":"new"}'),
    ("labels", "[]"),
)


async def of_a_newer_release(client: Redis, turn: str, field: str = "discards", value: str | None = None) -> None:
    """Its record is of a newer version, in which a field is another, or is no more."""
    record = keys.turn_record(turn)
    await client.hset(record, "v", RECORD_VERSION + 1)
    if value is None:
        await client.hdel(record, field)
    else:
        await client.hset(record, field, value)


@pytest.mark.requirement("survive:newer:listed")
@pytest.mark.parametrize(("field", "value"), CHANGES)
async def test_turns_of_a_newer_release_are_listed_apart_by_id_and_state(
    any_redis: Redis, field: str, value: str | None
) -> None:
    ours, theirs = [await submitted(any_redis, session, labels={"team": "ops"}) for session in ("a", "b")]
    done, gone = [await ended(any_redis, session, "failed", labels={"team": "ops"}) for session in ("c", "d")]
    for turn in (theirs, gone):
        await of_a_newer_release(any_redis, turn, field, value)
    every = Wanted(LIVE, OUTCOMES)
    found = await find(any_redis, 1, every, 50)
    assert turns(found) == [ours, done]
    assert [(each.turn, each.state) for each in found.newer] == [(theirs, "queued"), (gone, "failed")]
    found = await find(any_redis, 1, replace(every, sessions="d"), 50)
    assert (turns(found), [each.turn for each in found.newer]) == ([], [gone])
    found = await find(any_redis, 1, replace(every, labels={"team": "ops"}), 50)
    assert (turns(found), found.newer) == ([ours, done], [])
