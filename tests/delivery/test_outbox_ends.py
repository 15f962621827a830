"""What nobody attempts ends, too: behind a receiver that takes nothing, and before those of its mailbox."""

import asyncio
import logging
from typing import Any

import pytest

from channels.delivery.backoff import Backoff
from channels.delivery.lane import Limits, Rules
from channels.delivery.model import Delivered, Delivery, Unsent
from channels.outbox import lanes, reading
from channels.outbox import outbox as outbox_module
from channels.outbox.outbox import Outbox
from channels.settler import Settler
from tests.delivery.outboxes import BUSY, LEASE_S, box, insert, inserted, made
from tests.delivery.passing_time import let_pass
from worker.store import clock

URL = "https://dead.example/hook"
LANE = made("evt_1", URL).lane
DAY_S = 86_400.0
USUAL = Rules(Limits(may_disable=False), Backoff())
HASTY = Rules(Limits(may_disable=False), Backoff((5.0,), give_up_s=7200.0))
OLD_MS = 30 * 86_400_000


async def behind(client: Any, count: int, **fields: Any) -> list[Delivery]:
    """So many of a plain URL, all due; they were made a month ago if nothing else is said."""
    now_ms = await clock.now_ms(client)
    fields = {"created_ms": now_ms - OLD_MS, "due_ms": now_ms - OLD_MS} | fields
    return await insert(client, [made(f"evt_{number}", URL, **fields) for number in range(count)])


async def probed(client: Any, rules: Rules, outcome: Any = BUSY) -> int:
    """What may be attempted now is, and ends so. Gives how many."""
    outbox = box(client, {LANE: rules})
    batch = await outbox.claim(f"claim-{await clock.now_ms(client)}", 10)
    await outbox.settle([(one, outcome) for one in batch])
    return len(batch)


async def refused_for(client: Any, rules: Rules, seconds: float) -> None:
    """The receiver fails whatever it is sent for so long, as often as its breaker lets it be asked."""
    await probed(client, rules)
    for _ in range(round(seconds / 600)):
        await let_pass(client, 600)
        await probed(client, rules)


async def states(client: Any, there: list[Delivery]) -> dict[str, int]:
    found = [(await reading.show(client, one.id)).state for one in there]
    return {state: found.count(state) for state in dict.fromkeys(found)}


@pytest.mark.requirement("outbox:breaker:ends")
async def test_what_waits_behind_a_receiver_that_takes_nothing_ends_as_what_was_attempted(any_redis: Any) -> None:
    there = await behind(any_redis, 60)
    await refused_for(any_redis, HASTY, 6600)
    before = await states(any_redis, there)
    assert before["queued"] > 30
    await refused_for(any_redis, HASTY, 1200)
    assert await states(any_redis, there) == {"dead": 60}
    one = await reading.show(any_redis, there[-1].id)
    assert (one.code, one.attempts, one.log) == ("gave_up", 0, ())
    assert one.message == "while it waited, nothing was taken for more than 7200 s"
    assert await any_redis.zcard("lw:{dlv}:due:" + LANE) == 0
    log = await any_redis.xrange("lw:{p00}:log")
    told = [fields for _, fields in log if b"delivery.dead" in fields.values()]
    assert told


@pytest.mark.requirement("outbox:breaker:ends")
async def test_what_was_attempted_and_waits_behind_it_says_what_its_last_attempt_failed_with(any_redis: Any) -> None:
    there = await behind(any_redis, 60)
    await refused_for(any_redis, HASTY, 8400)
    ends = [await reading.show(any_redis, one.id) for one in there]
    tried = [one for one in ends if one.code == "gave_up" and one.attempts]
    assert all("its last attempt failed with http_503: busy" in one.message for one in tried)
    assert tried


@pytest.mark.requirement("outbox:breaker:ends")
async def test_what_came_of_late_waits_on_and_probes(any_redis: Any) -> None:
    old = await behind(any_redis, 20)
    await refused_for(any_redis, HASTY, 7800)
    now_ms = await clock.now_ms(any_redis)
    late = await insert(any_redis, [made(f"late_{number}", URL, created_ms=now_ms, due_ms=1) for number in range(3)])
    await let_pass(any_redis, 600)
    assert await probed(any_redis, HASTY, Delivered(200)) == 1
    assert await states(any_redis, old) == {"dead": 20}
    assert sum((await states(any_redis, late)).values()) == 3
    assert (await states(any_redis, late)).get("dead") is None


@pytest.mark.requirement("outbox:breaker:ends")
async def test_what_was_made_since_its_receiver_was_last_asked_is_attempted(any_redis: Any) -> None:
    """Also where what is given up after is less than a breaker is open."""
    short = Rules(Limits(may_disable=False), Backoff((5.0,), give_up_s=300.0))
    await behind(any_redis, 20)
    await refused_for(any_redis, HASTY, 3600)
    now_ms = await clock.now_ms(any_redis)
    [fresh] = await insert(any_redis, [made("evt_fresh", URL, created_ms=now_ms, due_ms=1)])
    await let_pass(any_redis, 600)
    assert await probed(any_redis, short, Delivered(200)) == 1
    assert (await reading.show(any_redis, fresh.id)).state == "delivered"


@pytest.mark.requirement("outbox:breaker:ends")
async def test_what_waited_while_nothing_ran_here_is_attempted_however_old_it_is(any_redis: Any) -> None:
    """Its receiver failed before, fails the first time after, and then is well."""
    there = await behind(any_redis, 30)
    await refused_for(any_redis, USUAL, 3600)
    await let_pass(any_redis, 20 * DAY_S)
    assert await probed(any_redis, USUAL) == 1
    await let_pass(any_redis, 4 * DAY_S)
    assert await probed(any_redis, USUAL, Delivered(200)) == 1
    while await probed(any_redis, USUAL, Delivered(200)):
        pass
    assert (await states(any_redis, there)).get("queued") is None
    ends = [await reading.show(any_redis, one.id) for one in there]
    assert {one.code for one in ends if one.state == "dead"} <= {"attempts_spent"}
    assert sum(one.state == "delivered" for one in ends) >= 20


@pytest.mark.requirement("outbox:breaker:ends")
async def test_what_a_person_paused_has_all_its_time_after_it(any_redis: Any) -> None:
    there = await behind(any_redis, 60)
    await refused_for(any_redis, HASTY, 6000)
    await lanes.pause(any_redis, LANE, "a person said so")
    await lanes.resume(any_redis, LANE)
    await refused_for(any_redis, HASTY, 6000)
    assert (await states(any_redis, there))["queued"] > 0


async def given_back(client: Any, rules: Rules, times: int, every_s: float = 31.0) -> list[str]:
    """The events that were claimed and given back unsent, each to be looked at in half a minute."""
    outbox, seen = box(client, {"crm": rules}), list[str]()
    for number in range(times):
        batch = await outbox.claim(f"claim-{number}", 10)
        seen += [one.event_id for one in batch]
        await outbox.release([(one, 30.0) for one in batch])
        await let_pass(client, every_s)
    return seen


PATIENT = Rules(backoff=Backoff(head_wait_s=900.0))


@pytest.mark.requirement("outbox:mailbox:unsent-head")
async def test_a_head_that_cannot_be_attempted_keeps_its_mailbox_waiting_for_so_long_only(any_redis: Any) -> None:
    head, following = await insert(any_redis, [made(f"evt_{number}", mailbox="room/1") for number in (1, 2)])
    assert set(await given_back(any_redis, PATIENT, 25)) == {"evt_1"}
    assert (await reading.show(any_redis, head.id)).state == "queued"
    assert "evt_2" in await given_back(any_redis, PATIENT, 10)
    one = await reading.show(any_redis, head.id)
    assert (one.state, one.code, one.attempts) == ("dead", "head_wait", 0)
    assert one.message.startswith("those behind it in order would wait for more than 900 s; ")
    assert (await reading.show(any_redis, following.id)).state == "queued"
    log = await any_redis.xrange("lw:{p00}:log")
    assert len([fields for _, fields in log if b"delivery.dead" in fields.values()]) == 1


@pytest.mark.requirement("outbox:mailbox:unsent-head")
async def test_a_head_that_nobody_came_for_is_not_charged_for_that_time(any_redis: Any) -> None:
    """Here nothing ran, or the store was away with the head in flight."""
    [head] = await insert(any_redis, [made("evt_1", mailbox="room/1")])
    await given_back(any_redis, PATIENT, 10, every_s=3600)
    assert (await reading.show(any_redis, head.id)).state == "queued"
    outbox = box(any_redis, {"crm": PATIENT})
    [held] = await outbox.claim("claim", 1)
    await let_pass(any_redis, 3600)
    [after] = await outbox.release([(await reading.show(any_redis, held.id), 1.0)])
    assert after is not None
    assert after.state == "queued"


@pytest.mark.requirement("outbox:mailbox:unsent-head")
async def test_what_is_in_no_mailbox_or_in_one_without_a_longest_wait_is_given_back_for_ever(any_redis: Any) -> None:
    alone = await inserted(any_redis, "evt_1")
    assert len(await given_back(any_redis, PATIENT, 60)) == 60
    row = await insert(any_redis, [made("evt_2", "rows", mailbox="room/1")])
    for number in range(60):
        batch = await box(any_redis).claim(f"rows-{number}", 10)
        await box(any_redis).release([(one, 30.0) for one in batch])
        await let_pass(any_redis, 31)
    assert await states(any_redis, [*alone, *row]) == {"queued": 2}


async def out_of_time(client: Any, outbox: Outbox) -> Delivery:
    """The head of a mailbox, claimed once those behind it have waited for as long as they should."""
    [held] = await outbox.claim("before", 1)
    await outbox.release([(held, 1000.0)])
    await let_pass(client, 1000)
    [held] = await outbox.claim("claim", 1)
    return held


@pytest.mark.requirement("outbox:mailbox:unsent-head")
async def test_that_a_head_died_unsent_is_told_once_also_where_others_change_its_lane(
    any_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    [head] = await insert(any_redis, [made("evt_1", mailbox="room/1")])
    outbox = box(any_redis, {"crm": PATIENT})
    held = await out_of_time(any_redis, outbox)
    read_lanes, changes = lanes.read_lanes, [1, 2]

    async def read_and_be_overtaken(client: Any, names: Any) -> Any:
        found = await read_lanes(client, names)
        if changes:
            changes.pop()
            await lanes.pause(client, "crm", "a person said so")
            await lanes.resume(client, "crm")
        return found

    monkeypatch.setattr(outbox_module, "read_lanes", read_and_be_overtaken)
    [after] = await outbox.release([(held, 0)])
    assert after is not None
    assert (after.state, (await reading.show(any_redis, head.id)).state) == ("dead", "dead")
    log = await any_redis.xrange("lw:{p00}:log")
    assert len([fields for _, fields in log if b"delivery.dead" in fields.values()]) == 1


@pytest.mark.requirement("outbox:mailbox:unsent-head")
async def test_a_head_that_died_unsent_is_a_line_in_the_log(any_redis: Any, caplog: pytest.LogCaptureFixture) -> None:
    await insert(any_redis, [made("evt_1", mailbox="room/1")])
    outbox = box(any_redis, {"crm": PATIENT})
    held = await out_of_time(any_redis, outbox)
    logger = logging.getLogger("lastword")
    logger.addHandler(caplog.handler)
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        ends = asyncio.get_running_loop().time() + LEASE_S
        await Settler(outbox, lease_s=40).settle(group, held, Unsent("its turn is newer", 1000.0), ends)
    logger.removeHandler(caplog.handler)
    assert [record.message for record in caplog.records] == ["delivery_unsent", "delivery_settled"]


@pytest.mark.requirement("outbox:mailbox:unsent-head")
async def test_a_head_is_not_dead_before_its_time_is_over(any_redis: Any) -> None:
    """However far off the next try would be: what kept it unsent may be over at once."""
    await insert(any_redis, [made("evt_1", mailbox="room/1")])
    outbox = box(any_redis, {"crm": Rules(backoff=Backoff(head_wait_s=20.0))})
    [held] = await outbox.claim("claim", 1)
    [after] = await outbox.release([(held, 30.0)])
    assert after is not None
    assert (after.state, after.due_ms) == ("queued", after.first_ms + 20_000)


@pytest.mark.requirement("outbox:left-alone")
async def test_a_head_that_dies_unsent_leaves_a_lane_alone_that_cannot_be_read(any_redis: Any) -> None:
    await insert(any_redis, [made("evt_1", mailbox="room/1")])
    outbox = box(any_redis, {"crm": PATIENT})
    held = await out_of_time(any_redis, outbox)
    before = {"mark": b"3:abcd", "record": b"[2]"}
    await any_redis.hset("lw:{dlv}:lane:crm", mapping=before)
    [after] = await outbox.release([(held, 0)])
    assert after is not None
    assert after.state == "dead"
    assert {name: await any_redis.hget("lw:{dlv}:lane:crm", name) for name in before} == before
