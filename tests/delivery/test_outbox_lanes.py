"""What one endpoint lets through: fairness, caps, rates, breaker, pause, disabling, removal, and what is told of it."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pytest
import redis.asyncio

from channels.delivery.backoff import LONGEST_WAIT_S, Backoff
from channels.delivery.lane import Limits, Rules
from channels.delivery.model import Delivered, Delivery, Evidence, Failed, Hopeless, Withdrawn
from channels.outbox import lanes, reading, replaying, reviewing
from channels.outbox import outbox as outbox_module
from channels.outbox.attempted import Known
from channels.outbox.log import RelayLog
from channels.outbox.outbox import Outbox
from tests.delivery.outboxes import (
    BUSY,
    GONE,
    MISSING,
    ONE_TRY,
    KnownRules,
    box,
    insert,
    inserted,
    known,
    limited,
    made,
)
from tests.delivery.passing_time import let_pass
from worker import ids
from worker.errors import ConfigurationError
from worker.store.log import LogEntry, read_log

REMOVED = Withdrawn("endpoint_removed", "endpoint was removed")
ALL = {"crm": limited(concurrency=1000)}


async def claimed(client: Any, limit: int = 100, rules: Mapping[str, Known] | None = None) -> list[Delivery]:
    return await box(client, rules).claim(ids.new_nonce(), limit)


async def notices(client: redis.asyncio.Redis, partition: int = 0) -> list[tuple[str, Any]]:
    """Type and content of every event in a partition's log."""
    entries = await read_log(client, partition, "0-0", 1000, 1)
    return [(each.event_type, orjson.loads(each.data)) for each in entries if isinstance(each, LogEntry)]


async def settle(client: Any, batch: list[Delivery], outcome: Any, rules: Any = None) -> list[Delivery]:
    after = await box(client, rules).settle([(held, outcome) for held in batch])
    return [one for one in after if one is not None]


@pytest.mark.requirement("outbox:fair")
async def test_ten_thousand_that_are_due_in_one_lane_do_not_delay_the_first_of_another(real_redis: Any) -> None:
    for start in range(0, 10_000, 1000):
        await insert(real_redis, [made(f"evt_{start + number}") for number in range(1000)])
    later = await insert(real_redis, [made("evt_late", "audit", due_ms=2)])
    batch = await claimed(real_redis, 4, ALL)
    assert later[0].id in {one.id for one in batch}
    assert len(batch) == 4


@pytest.mark.requirement("outbox:fair")
async def test_more_lanes_than_a_claim_takes_have_their_turns_one_after_the_other(any_redis: Any) -> None:
    lanes = [f"lane{number}" for number in range(9)]
    for lane in lanes:
        await inserted(any_redis, *(f"evt_{lane}_{number}" for number in range(5)), destination=lane)
    turns: list[str] = []
    for _ in range(6):
        await let_pass(any_redis, 0.01)
        turns += [one.lane for one in await claimed(any_redis, 3)]
    assert Counter(turns[:9]) == Counter(lanes)
    assert Counter(turns[9:]) == Counter(lanes)


@pytest.mark.requirement("outbox:claimed-once")
async def test_four_that_claim_ten_thousand_due_deliveries_get_each_once(real_redis: Any) -> None:
    for start in range(0, 10_000, 1000):
        await insert(real_redis, [made(f"evt_{start + number}", f"lane{number % 7}") for number in range(1000)])
    rules = {f"lane{number}": limited(concurrency=10_000) for number in range(7)}
    got: Counter[str] = Counter()

    async def claimer() -> None:
        while batch := await claimed(real_redis, 200, rules):
            got.update(one.id for one in batch)

    while sum(got.values()) < 10_000:
        await asyncio.gather(*(claimer() for _ in range(4)))
    assert len(got) == 10_000
    assert set(got.values()) == {1}


@pytest.mark.requirement("outbox:cap")
async def test_claims_at_the_same_time_do_not_exceed_the_cap_together(any_redis: Any) -> None:
    await inserted(any_redis, *(f"evt_{number}" for number in range(20)))
    capped = {"crm": limited(concurrency=3)}
    batches = await asyncio.gather(*(claimed(any_redis, 20, capped) for _ in range(6)))
    assert sum(map(len, batches)) == 3
    assert await claimed(any_redis, 20, capped) == []
    [held, *_] = [one for batch in batches for one in batch]
    await settle(any_redis, [held], Delivered(200), capped)
    assert len(await claimed(any_redis, 20, capped)) == 1


@pytest.mark.requirement("outbox:rate")
async def test_a_rate_is_waited_for_to_the_exact_slot(any_redis: Any) -> None:
    await inserted(any_redis, *(f"evt_{number}" for number in range(5)))
    rated = {"crm": limited(rate_per_s=0.1, burst=2)}
    assert len(await claimed(any_redis, 10, rated)) == 2
    due_in = await box(any_redis, rated).due_in()
    assert due_in is not None
    assert 9.0 < due_in <= 10.0
    assert await claimed(any_redis, 10, rated) == []
    await let_pass(any_redis, 10)
    assert len(await claimed(any_redis, 10, rated)) == 1
    await let_pass(any_redis, 10)
    assert len(await claimed(any_redis, 10, rated)) == 1


@pytest.mark.requirement("outbox:rate")
async def test_what_is_given_back_unsent_gives_its_slots_back_once_however_often_that_is_said(any_redis: Any) -> None:
    rated: Mapping[str, Known] = {"crm": limited(rate_per_s=0.1, burst=3)}
    await inserted(any_redis, *(f"evt_{number}" for number in range(5)))
    batch = await claimed(any_redis, 5, rated)
    assert len(batch) == 3
    for _ in range(3):
        assert None not in await box(any_redis, rated).release([(one, 0) for one in batch[:2]])
    assert await box(any_redis, rated).due_in() == 0
    assert len(await claimed(any_redis, 5, rated)) == 2


@pytest.mark.requirement("outbox:rate")
async def test_slots_are_given_back_also_where_others_change_the_lane_meanwhile(
    any_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rated: Mapping[str, Known] = {"crm": limited(rate_per_s=0.1, burst=3)}
    await inserted(any_redis, *(f"evt_{number}" for number in range(5)))
    batch = await claimed(any_redis, 2, rated)
    changes = 0

    async def read_and_be_overtaken(client: Any, names: Any) -> Any:
        nonlocal changes
        found = await read_lanes(client, names)
        if changes < 3:
            changes += 1
            await lanes.look_again(client, "crm")
        return found

    read_lanes = lanes.read_lanes
    monkeypatch.setattr(outbox_module, "read_lanes", read_and_be_overtaken)
    assert None not in await box(any_redis, rated).release([(one, 0) for one in batch])
    assert len(await claimed(any_redis, 5, rated)) == 3


@pytest.mark.requirement("outbox:breaker")
async def test_after_five_failures_one_attempt_probes_and_what_waits_spends_no_attempt(any_redis: Any) -> None:
    await inserted(any_redis, *(f"evt_{number}" for number in range(8)))
    batch = await claimed(any_redis, 5)
    await settle(any_redis, batch, BUSY)
    assert await claimed(any_redis) == []
    await let_pass(any_redis, 31)
    [probe] = await claimed(any_redis)
    assert await claimed(any_redis) == []
    await settle(any_redis, [probe], Delivered(200))
    rest = await claimed(any_redis)
    assert len(rest) == 7
    assert {one.attempts for one in rest if one.id not in {held.id for held in batch}} == {1}


@pytest.mark.requirement("outbox:throttled")
async def test_five_limited_attempts_leave_all_attempts_for_the_failures_after_them(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1")
    rules = {"crm": Rules(Limits(), Backoff((1.0, 1.0)))}
    limited_ = Failed("throttled", "http_429", "slow", "yes", retry_after=5.0)
    after: Delivery | None = None
    for outcome in (*(limited_,) * 5, *(BUSY,) * 3):
        await let_pass(any_redis, 10)
        [held] = await claimed(any_redis, 1, rules)
        [after] = await settle(any_redis, [held], outcome, rules)
    assert after is not None
    assert (after.state, after.code, after.attempts) == ("dead", "attempts_spent", 3)


@pytest.mark.requirement("outbox:many-attempts")
async def test_a_schedule_of_forty_attempts_makes_forty(fake_redis: Any) -> None:
    await inserted(fake_redis, "evt_1")
    rules = {"crm": Rules(Limits(may_disable=False), Backoff((1.0,) * 39))}
    made_: list[int] = []
    state = "queued"
    while state != "dead":
        await let_pass(fake_redis, 700)
        [held] = await claimed(fake_redis, 1, rules)
        made_.append(held.attempts)
        [after] = await settle(fake_redis, [held], BUSY, rules)
        state = after.state
    assert made_ == list(range(1, 41))


@pytest.mark.requirement("outbox:two-endpoints")
async def test_one_event_for_two_endpoints_that_fail_is_tried_again_for_both(any_redis: Any) -> None:
    await insert(any_redis, [made("evt_1", "crm"), made("evt_1", "audit")])
    await settle(any_redis, await claimed(any_redis), BUSY)
    await let_pass(any_redis, 10)
    assert sorted(one.lane for one in await claimed(any_redis)) == ["audit", "crm"]


@pytest.mark.requirement("outbox:lease")
async def test_while_an_attempt_is_under_way_nobody_else_makes_one(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1")
    [held] = await claimed(any_redis)
    await let_pass(any_redis, 39)
    assert await claimed(any_redis) == []
    [after] = await settle(any_redis, [held], Delivered(200))
    assert after.state == "delivered"


@pytest.mark.requirement("outbox:released-once")
async def test_what_was_given_back_by_a_process_that_then_dies_is_attempted_once(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1")
    [held] = await claimed(any_redis)
    assert None not in await box(any_redis).release([(held, 0)])
    assert None not in await box(any_redis).release([(held, 0)])
    assert len(await claimed(any_redis)) == 1
    await let_pass(any_redis, 30)
    assert await claimed(any_redis) == []


@pytest.mark.requirement("outbox:removed")
async def test_deliveries_of_an_endpoint_that_was_removed_are_cancelled_and_poison_nothing(any_redis: Any) -> None:
    gone = await inserted(any_redis, "evt_1", "evt_2", destination="gone")
    crm = await inserted(any_redis, "evt_3")
    batch = await claimed(any_redis, 10, {"gone": REMOVED})
    assert [one.id for one in batch] == [crm[0].id]
    there = [await reading.show(any_redis, one.id) for one in gone]
    assert [(one.state, one.code, one.attempts) for one in there] == [("cancelled", "endpoint_removed", 0)] * 2


@pytest.mark.requirement("outbox:removed")
async def test_an_attempt_under_way_when_its_endpoint_is_removed_is_settled_as_it_ended(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    first, second = await claimed(any_redis)
    [taken] = await settle(any_redis, [first], Delivered(200), {"crm": REMOVED})
    [failed] = await settle(any_redis, [second], BUSY, {"crm": REMOVED})
    assert (taken.state, failed.state) == ("delivered", "waiting")
    await let_pass(any_redis, 10)
    assert await claimed(any_redis, 10, {"crm": REMOVED}) == []
    assert (await reading.show(any_redis, second.id)).state == "cancelled"


@pytest.mark.requirement("outbox:rules-of-now")
async def test_a_rate_or_cap_that_was_raised_in_the_settings_counts_at_the_next_review(any_redis: Any) -> None:
    """What waits for other reasons goes on waiting."""
    old: Mapping[str, Known] = {"crm": limited(rate_per_s=0.001), "audit": limited(concurrency=1), "away": None}
    now: Mapping[str, Known] = {"crm": limited(rate_per_s=100), "audit": limited(concurrency=2), "away": limited()}
    for lane in ("crm", "audit", "busy"):
        await inserted(any_redis, "evt_1", "evt_2", destination=lane)
    await insert(any_redis, [made("evt_1", "away", created_ms=await now_ms(any_redis))])
    batch = await claimed(any_redis, 10, old)
    assert sorted(one.lane for one in batch) == ["audit", "busy", "busy", "crm"]
    await settle(any_redis, [one for one in batch if one.lane == "crm"], Delivered(200), old)
    await settle(any_redis, [one for one in batch if one.lane == "busy"], BUSY)
    await let_pass(any_redis, 2)
    assert await claimed(any_redis, 10, now) == []
    assert await reviewing.review(any_redis, KnownRules(old)) == 0
    assert await reviewing.review(any_redis, KnownRules(now)) == 3
    assert await box(any_redis, now).due_in() == 0
    assert sorted(one.lane for one in await claimed(any_redis, 10, now)) == ["audit", "away", "crm"]
    assert await reviewing.review(any_redis, KnownRules(now)) == 0


async def now_ms(client: Any) -> int:
    return int((await client.time())[0]) * 1000


@pytest.mark.requirement("outbox:unknown")
async def test_what_a_process_does_not_know_it_leaves_to_those_who_do_and_to_nobody_for_ever(any_redis: Any) -> None:
    """New ones, and one in flight whose sender has died; others are not held up by that."""
    unknown: Mapping[str, Known] = {"new": None}
    at_ms = await now_ms(any_redis)
    await insert(any_redis, [made(f"evt_{number}", "new", created_ms=at_ms) for number in range(2)])
    [held] = await claimed(any_redis, 1)
    await let_pass(any_redis, 41)
    assert await claimed(any_redis, 10, unknown) == []
    assert (await reading.counts(any_redis))["new"] == {"queued": 1, "in_flight": 1}
    assert await claimed(any_redis, 10, unknown) == []
    due_in = await box(any_redis).due_in()
    assert due_in is not None
    assert 9 < due_in <= 10
    await inserted(any_redis, "evt_crm")
    assert [one.lane for one in await claimed(any_redis, 10, unknown)] == ["crm"]
    await let_pass(any_redis, 10)
    assert [one.event_id for one in await claimed(any_redis)] == [{"evt_0": "evt_1", "evt_1": "evt_0"}[held.event_id]]
    await insert(any_redis, [made("evt_old", "new", created_ms=at_ms - 6 * 86_400_000)])
    await let_pass(any_redis, 10)
    assert await claimed(any_redis, 10, unknown) == []
    [old] = (await reading.listed(any_redis, 5, state="cancelled")).deliveries
    assert (old.event_id, old.code) == ("evt_old", "endpoint_removed")


@pytest.mark.requirement("outbox:unknown")
async def test_what_somebody_replayed_of_late_is_left_to_those_who_know_its_endpoint_however_old_it_is(
    any_redis: Any,
) -> None:
    at_ms = await now_ms(any_redis) - 6 * 86_400_000
    dead = made("evt_old", "new", created_ms=at_ms, due_ms=0, state="dead", ended_ms=at_ms)
    await insert(any_redis, [dead])
    await known(any_redis, dead)
    await replaying.replay(any_redis, dead.id)
    assert await claimed(any_redis, 10, {"new": None}) == []
    await let_pass(any_redis, 11)
    assert [one.id for one in await claimed(any_redis)] == [dead.id]


@pytest.mark.requirement("outbox:newer-in-flight")
async def test_what_a_newer_release_has_in_flight_for_too_long_keeps_nobody_busy_and_no_other_waiting(
    any_redis: Any,
) -> None:
    for number in range(5):
        await inserted(any_redis, "evt_1", destination=f"lane{number}")
    for held in await claimed(any_redis):
        await any_redis.set(f"lw:{{p00}}:dlv:{held.id}", b'7:tok - 1 -\n[99,"of tomorrow"]')
    await let_pass(any_redis, 60)
    await insert(any_redis, [made("evt_good", "good", due_ms=await now_ms(any_redis))])
    assert [one.event_id for one in await claimed(any_redis, 5)] == ["evt_good"]
    due_in = await box(any_redis).due_in()
    assert due_in is not None
    assert 1 < due_in <= 2


@pytest.mark.requirement("outbox:held")
@pytest.mark.parametrize("stopped", [lanes.pause, lanes.disable])
async def test_what_comes_for_an_endpoint_that_lets_nothing_through_is_held_listed_and_replayed(
    any_redis: Any, stopped: Any
) -> None:
    """More than a claim takes at once."""
    await stopped(any_redis, "crm", "an operator said so")
    there = await inserted(any_redis, *(f"evt_{number}" for number in range(30)))
    assert await claimed(any_redis, 4) == []
    held = await reading.held(any_redis, "crm", 100)
    assert {one.id for one in held} == {one.id for one in there}
    assert {one.attempts for one in held} == {0}
    assert "an operator said so" in held[0].message
    assert (await reading.counts(any_redis))["crm"] == {"held": 30}
    await known(any_redis, there[0])
    await lanes.resume(any_redis, "crm")
    assert await claimed(any_redis) == []
    replayed = await replaying.replay_some(any_redis, [one.id for one in held[:5]])
    assert [one.id for one in replayed] == [one.id for one in held[:5]]
    assert await replaying.replay_some(any_redis, [one.id for one in held[:5]]) == []
    assert {one.id for one in await claimed(any_redis)} == {one.id for one in held[:5]}
    assert len(await reading.held(any_redis, "crm", 100)) == 25


async def test_a_step_of_an_endpoint_that_changes_nothing_stores_nothing(any_redis: Any) -> None:
    first = await lanes.pause(any_redis, "crm", "for now")
    assert await lanes.pause(any_redis, "crm", "again") == first
    assert (await lanes.standings(any_redis, ["crm", "audit"]))["crm"] == first
    assert (await lanes.disable(any_redis, "crm", "for good")).standing == "disabled"
    assert (await lanes.resume(any_redis, "crm")).standing == "active"


@pytest.mark.requirement("outbox:told-once")
async def test_an_endpoint_that_is_gone_is_disabled_and_that_is_told_once_however_many_see_it(any_redis: Any) -> None:
    await inserted(any_redis, *(f"evt_{number}" for number in range(9)))
    batch = await claimed(any_redis, 8)
    await asyncio.gather(*(settle(any_redis, [held], GONE) for held in batch))
    await settle(any_redis, batch, GONE)  # again, as after lost replies
    told = [data for kind, data in await notices(any_redis) if kind == "delivery.endpoint_disabled"]
    assert [(data["endpoint"], data["code"]) for data in told] == [("crm", "gone")]
    assert told[0]["delivery"] in {held.id for held in batch}
    [lane] = (await lanes.standings(any_redis, ["crm"])).values()
    assert (lane.standing, lane.failed) == ("disabled", 8)
    assert await claimed(any_redis) == []
    assert (await reading.counts(any_redis))["crm"] == {"held": 1}


@pytest.mark.requirement("outbox:told-once")
async def test_five_hundred_that_die_within_a_minute_are_told_once_for_each_endpoint(fake_redis: Any) -> None:
    """An endpoint of that name in another partition's log counts as the same; another endpoint by itself."""
    tries = {"crm": ONE_TRY, "audit": ONE_TRY}
    tries = {name: replace(each, limits=Limits(concurrency=500)) for name, each in tries.items()}
    for lane in tries:
        await inserted(fake_redis, *(f"evt_{number}" for number in range(250)), destination=lane)
    for _ in range(5):
        batch = await claimed(fake_redis, 100, tries)
        assert batch
        await settle(fake_redis, batch, MISSING, tries)
    told = [data["endpoint"] for kind, data in await notices(fake_redis) if kind == "delivery.dead"]
    assert sorted(told) == ["audit", "crm"]


@pytest.mark.requirement("outbox:told-once")
async def test_failing_and_recovering_are_told_in_the_log_of_the_deliverys_partition(any_redis: Any) -> None:
    await insert(any_redis, [made("evt_1", partition=1)], 1)
    for _ in range(4):
        [held] = await claimed(any_redis)
        await settle(any_redis, [held], BUSY)
        await let_pass(any_redis, 90_000)
    [held] = await claimed(any_redis)
    await settle(any_redis, [held], Delivered(200))
    told = await notices(any_redis, 1)
    assert [kind for kind, _ in told] == ["delivery.failing", "delivery.recovered"]
    assert told[0][1]["failed"] == 4
    assert await notices(any_redis) == []


@pytest.mark.requirement("outbox:told-neutrally")
async def test_what_subscribers_are_told_does_not_say_what_is_where_in_the_network(any_redis: Any) -> None:
    codes = ("blocked", "dns", "connect_refused", "connect_timeout")
    for code in codes:
        await insert(any_redis, [made(f"evt_{code}", code)])
    rules = dict.fromkeys(codes, ONE_TRY)
    for held in await claimed(any_redis, len(codes), rules):
        await settle(any_redis, [held], Failed("transient", held.destination, "10.0.0.1 port 25", "no"), rules)
    told = [data for kind, data in await notices(any_redis) if kind == "delivery.dead"]
    assert {data["endpoint"] for data in told} == set(codes)
    assert {data["code"] for data in told} == {"unreachable"}
    dead = (await reading.listed(any_redis, 10, state="dead")).deliveries
    assert {one.log[-1].code for one in dead} == set(codes), "an operator is told what it was"


@pytest.mark.requirement("outbox:told-once")
async def test_what_tells_of_deliveries_does_not_tell_of_itself(any_redis: Any) -> None:
    await insert(any_redis, [made("evt_1", event_type="delivery.dead")])
    await settle(any_redis, await claimed(any_redis, 1, {"crm": ONE_TRY}), MISSING, {"crm": ONE_TRY})
    assert await notices(any_redis) == []


@pytest.mark.requirement("outbox:lease")
async def test_senders_that_vanish_are_no_failures_of_the_endpoint(any_redis: Any) -> None:
    await inserted(any_redis, *(f"evt_{number}" for number in range(6)))
    assert len(await claimed(any_redis, 5)) == 5
    await let_pass(any_redis, 41)
    assert len(await claimed(any_redis)) == 1
    [lane] = (await lanes.standings(any_redis, ["crm"])).values()
    assert (lane.failures, lane.openings) == (0, 0)


@pytest.mark.requirement("outbox:lease-of-each")
async def test_a_claim_holds_each_delivery_as_long_as_its_endpoint_lets_an_attempt_last(any_redis: Any) -> None:
    rules = {"crm": Rules(timeout_s=60.0), "audit": Rules()}
    await insert(any_redis, [made("evt_1"), made("evt_1", destination="audit")])
    held = {one.destination: one for one in await claimed(any_redis, 5, rules)}
    assert (held["crm"].lease_ms, held["audit"].lease_ms) == (130_000, 40_000)
    await let_pass(any_redis, 41)
    assert await claimed(any_redis, 5, rules) == []
    waiting = (await reading.listed(any_redis, 5, state="waiting")).deliveries
    assert [one.destination for one in waiting] == ["audit"]


async def test_faults_of_ours_and_what_cannot_be_told_are_not_charged_to_the_endpoint(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    first, second = await claimed(any_redis)
    await settle(any_redis, [first], Failed("ours", "internal_error", "a bug", "perhaps"))
    await settle(any_redis, [second], Hopeless("turn_expired", "it is not stored any more"))
    [lane] = (await lanes.standings(any_redis, ["crm"])).values()
    assert (lane.failed, lane.window_all) == (0, 0)


@pytest.mark.requirement("outbox:evidence")
async def test_what_attempts_showed_is_kept_of_the_first_and_of_the_last_four_once_each(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1")
    rules = {"crm": Rules(Limits(may_disable=False), Backoff((1.0,) * 30))}
    delivery = ""
    for number in range(1, 8):
        await let_pass(any_redis, 700)
        [held] = await claimed(any_redis, 1, rules)
        shown = Evidence(503, number, head_ms=0, body=b"\xff\x00" if number == 7 else f"body {number}".encode())
        again, after = [  # the second, as after a lost reply, doubles nothing
            (await settle(any_redis, [held], replace(BUSY, evidence=shown), rules))[0] for _ in range(2)
        ]
        assert again == after
        delivery = after.id
        assert [each.number for each in after.log] == list(range(1, number + 1))
    kept = await reading.evidence(any_redis, delivery)
    assert list(kept) == [1, 4, 5, 6, 7]
    assert (kept[1].body, kept[7].body, kept[7].head_ms) == (b"body 1", b"\xff\x00", 0)


@pytest.mark.requirement("outbox:replayed-twice")
async def test_a_delivery_that_is_replayed_twice_is_attempted_twice_and_a_repeated_answer_once(any_redis: Any) -> None:
    [one] = await inserted(any_redis, "evt_1")
    await known(any_redis, one)
    tries = {"crm": ONE_TRY}
    for number in (1, 2, 3):
        [held] = await claimed(any_redis, 1, tries)
        [after] = await settle(any_redis, [held], MISSING, tries)
        assert (after.state, len(after.log)) == ("dead", number)
        assert (await replaying.replay(any_redis, one.id)).id == one.id
    assert len(await claimed(any_redis, 10, tries)) == 1
    assert await claimed(any_redis, 10, tries) == []


@pytest.mark.requirement("outbox:cancelled")
async def test_a_delivery_that_is_cancelled_is_sent_no_more(any_redis: Any) -> None:
    first, second = await inserted(any_redis, "evt_1", "evt_2")
    assert (await replaying.cancel(any_redis, first.id, "not wanted")).state == "cancelled"
    assert [one.id for one in await claimed(any_redis)] == [second.id]
    with pytest.raises(ConfigurationError, match="is in_flight: only one that is queued, waiting or held"):
        await replaying.cancel(any_redis, second.id, "not wanted")


@pytest.mark.requirement("outbox:mailbox")
async def test_the_next_of_a_mailbox_goes_when_the_one_before_has_ended_and_a_replayed_one_comes_first(
    any_redis: Any,
) -> None:
    rows = [made(f"evt_{number}", mailbox="room/1") for number in range(3)]
    await insert(any_redis, [*rows, made("evt_other", mailbox="room/2")])
    await known(any_redis, rows[0])
    tries = {"crm": ONE_TRY}
    batch = await claimed(any_redis, 10, tries)
    assert {one.event_id for one in batch} == {"evt_0", "evt_other"}
    [head] = [one for one in batch if one.event_id == "evt_0"]
    await settle(any_redis, [head], MISSING, tries)
    [second] = await claimed(any_redis, 10, tries)
    assert second.event_id == "evt_1"
    await replaying.replay(any_redis, head.id)
    assert await claimed(any_redis, 10, tries) == []
    assert None not in await box(any_redis).release([(second, 0)])
    assert [one.event_id for one in await claimed(any_redis, 10, tries)] == ["evt_0"]


@pytest.mark.requirement("outbox:mailbox")
async def test_a_head_that_waits_for_its_next_attempt_is_not_overtaken_until_it_is_dead(any_redis: Any) -> None:
    await insert(any_redis, [made(f"evt_{number}", mailbox="room/1") for number in range(2)])
    rules = {"crm": Rules(Limits(), Backoff((60.0, 3600.0), head_wait_s=900.0))}
    [head] = await claimed(any_redis, 10, rules)
    await settle(any_redis, [head], BUSY, rules)
    assert await claimed(any_redis, 10, rules) == []
    await let_pass(any_redis, 100)
    [head] = await claimed(any_redis, 10, rules)
    [after] = await settle(any_redis, [head], BUSY, rules)
    assert (after.state, after.code) == ("dead", "head_wait")
    assert [one.event_id for one in await claimed(any_redis, 10, rules)] == ["evt_1"]


@pytest.mark.requirement("outbox:contents")
async def test_what_an_event_tells_is_stored_once_for_all_who_get_it_and_outlives_a_dead_letter(any_redis: Any) -> None:
    log = RelayLog(any_redis, 0)
    await log.take_log("relay", 60)
    there = [made("evt_1", lane, turn="") for lane in ("crm", "audit")]
    await log.insert("relay", "0-0", "1-0", there, contents={"evt_1": b'{"a":1}'})
    assert await reading.contents(any_redis, there) == [b'{"a":1}'] * 2
    assert 60 * 86400 < await any_redis.ttl("lw:{p00}:content:evt_1") <= 61 * 86400


@pytest.mark.requirement("outbox:clock")
async def test_a_lane_that_waits_for_a_time_of_a_clock_that_was_put_back_waits_no_more(any_redis: Any) -> None:
    await inserted(any_redis, *(f"evt_{number}" for number in range(8)))
    rated = {"crm": limited(rate_per_s=0.1)}
    await settle(any_redis, await claimed(any_redis, 1, rated), Delivered(200), rated)
    await let_pass(any_redis, -86_400 * 4)
    assert len(await claimed(any_redis, 10, rated)) == 1


@pytest.mark.requirement("outbox:clock")
async def test_a_lane_that_was_served_an_hour_ahead_is_served_again_when_the_clock_was_put_back(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1")
    await settle(any_redis, await claimed(any_redis), Delivered(200))
    await let_pass(any_redis, -3600)
    assert await claimed(any_redis) == []  # it is empty when all lanes are looked at
    await inserted(any_redis, "evt_2")
    assert await box(any_redis).due_in() == 0
    assert [one.event_id for one in await claimed(any_redis)] == ["evt_2"]


@pytest.mark.requirement("outbox:clock")
@pytest.mark.parametrize("back_s", [100, 3600])
async def test_when_the_clock_was_put_back_dead_senders_hold_up_a_lane_for_two_leases_at_most(
    any_redis: Any, back_s: float
) -> None:
    """However many there are, also where the endpoint lets an attempt last for less than it did."""
    slow, fast = {"crm": Rules(Limits(concurrency=30), timeout_s=60.0)}, {"crm": Rules(Limits(concurrency=30))}
    await inserted(any_redis, *(f"evt_{number}" for number in range(31)))
    assert len(await claimed(any_redis, 30, slow)) == 30
    await let_pass(any_redis, -back_s)
    for _ in range(10):
        assert await claimed(any_redis, 2, fast) == []
    due_in = await box(any_redis).due_in()
    assert due_in is not None
    assert 120 < due_in <= 260
    ends_ms = [at for _, at in await any_redis.zrange("lw:{dlv}:flight:crm", 0, -1, withscores=True)]
    assert len(ends_ms) == 30
    assert max(ends_ms) < await now_ms(any_redis) + 261_000


@pytest.mark.requirement("outbox:clock")
async def test_a_clock_that_is_put_back_makes_every_lane_looked_at_once_and_no_look_without_need(
    any_redis: Any,
) -> None:
    await inserted(any_redis, "evt_1")
    await settle(any_redis, await claimed(any_redis), BUSY)
    await let_pass(any_redis, -3600)
    assert await box(any_redis).due_in() == 0
    assert await claimed(any_redis) == []
    due_in = await box(any_redis).due_in()
    assert due_in is not None
    assert due_in > 3600


@pytest.mark.requirement("outbox:long-waits")
@pytest.mark.parametrize("wait_s", [259_200.0, LONGEST_WAIT_S])
async def test_the_longest_wait_that_settings_take_is_waited_for(any_redis: Any, wait_s: float) -> None:
    rules = {"crm": Rules(backoff=Backoff((wait_s,), give_up_s=30 * 86_400))}
    await inserted(any_redis, "evt_1")
    await settle(any_redis, await claimed(any_redis, 1, rules), BUSY, rules)
    assert await claimed(any_redis, 1, rules) == []
    await let_pass(any_redis, wait_s - 10)
    assert await claimed(any_redis, 1, rules) == []
    await let_pass(any_redis, 11)
    assert len(await claimed(any_redis, 1, rules)) == 1


def test_an_outbox_is_one_for_all_partitions() -> None:
    assert "partition" not in Outbox.__init__.__annotations__


@pytest.mark.requirement("outbox:mailbox")
async def test_one_that_is_replayed_comes_before_the_one_that_was_first_meanwhile(any_redis: Any) -> None:
    rows = await insert(any_redis, [made(f"evt_{number}", mailbox="room/1") for number in range(2)])
    await known(any_redis, rows[0])
    tries = {"crm": ONE_TRY}
    [head] = await claimed(any_redis, 10, tries)
    await settle(any_redis, [head], MISSING, tries)
    await replaying.replay(any_redis, head.id)
    assert [one.event_id for one in await claimed(any_redis, 10, tries)] == ["evt_0"]


async def overtaken(client: Any, rules: Mapping[str, Known], meanwhile: Callable[[], Awaitable[Any]]) -> Any:
    """What a claim gets that is held up between its look and its script."""
    slow = box(client, rules)
    look = slow._look
    done: list[Any] = []

    async def look_and_wait(token: str, limit: int) -> Any:
        found = await look(token, limit)
        if not done:
            done.append(await meanwhile())
        return found

    slow._look = look_and_wait  # type: ignore[method-assign]
    return await slow.claim("slow", 10)


@pytest.mark.requirement("outbox:cap")
async def test_a_claim_that_others_have_overtaken_does_not_exceed_the_cap_with_what_it_saw(any_redis: Any) -> None:
    capped = {"crm": limited(concurrency=2)}
    await insert(any_redis, [made(f"evt_{number}", due_ms=5) for number in range(2)])
    await settle(any_redis, await claimed(any_redis, 2, capped), replace(BUSY, kind="ours"), capped)
    await let_pass(any_redis, 10)

    async def others_are_faster() -> None:
        await insert(any_redis, [made(f"evt_new_{number}", due_ms=1) for number in range(2)])
        assert {one.event_id for one in await claimed(any_redis, 2, capped)} == {"evt_new_0", "evt_new_1"}

    assert await overtaken(any_redis, capped, others_are_faster) == []


@pytest.mark.requirement("outbox:held")
async def test_a_claim_during_which_the_endpoint_is_paused_sends_nothing(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1")
    batch = await overtaken(any_redis, {}, lambda: lanes.pause(any_redis, "crm", "now"))
    assert batch == []
    assert len(await reading.held(any_redis, "crm", 10)) == 1
