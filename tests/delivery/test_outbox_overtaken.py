"""What a claim makes of what changed since it looked, of its own claims, and of places that are free again."""

from dataclasses import replace
from typing import Any

import pytest

from channels.delivery import machine
from channels.delivery.lane import Lane
from channels.delivery.model import Delivered, Delivery, Evidence, Outcome
from channels.outbox import deciding, lanes, reading, replaying
from channels.outbox.deciding import Look, Terms
from channels.outbox.stored import SeenLane
from tests.delivery.outboxes import BUSY, box, insert, inserted, limited, made
from tests.delivery.passing_time import let_pass


@pytest.mark.requirement("outbox:listed")
async def test_those_of_one_millisecond_are_listed_in_the_order_in_which_they_were_made(any_redis: Any) -> None:
    there: list[Delivery] = []
    for begin in range(0, 30, 10):
        there += await insert(any_redis, [made(f"evt_{number}", created_ms=7) for number in range(begin, begin + 10)])
    listed = (await reading.listed(any_redis, 100)).deliveries
    assert [one.event_id for one in listed] == [one.event_id for one in reversed(there)]


@pytest.mark.requirement("outbox:rate")
async def test_a_claim_spends_no_slot_on_what_was_cancelled_since_it_looked(any_redis: Any) -> None:
    rated = {"crm": limited(rate_per_s=0.1, burst=2)}
    first, second = await inserted(any_redis, "evt_1", "evt_2")
    slow = box(any_redis, rated)
    look, cancelled = slow._look, list[Delivery]()

    async def look_and_be_overtaken(token: str, limit: int) -> Any:
        found = await look(token, limit)
        cancelled.extend([] if cancelled else [await replaying.cancel(any_redis, first.id, "not wanted")])
        return found

    slow._look = look_and_be_overtaken  # type: ignore[method-assign]
    assert [one.id for one in await slow.claim("slow", 10)] == [second.id]
    await inserted(any_redis, "evt_3", "evt_4")
    assert len(await box(any_redis, rated).claim("next", 10)) == 1


@pytest.mark.requirement("delivery:outbox:one-claim-settles-once")
async def test_a_claim_that_is_repeated_gives_only_what_it_still_holds(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2", "evt_3")
    outbox = box(any_redis)
    first, second, third = await outbox.claim("claim", 10)
    await outbox.settle([(first, BUSY)])
    await outbox.release([(second, 0)])
    [again] = await outbox.claim("another", 10)
    assert again.id == second.id
    assert await outbox.claim("claim", 10) == [third]


@pytest.mark.requirement("outbox:settled-twice")
@pytest.mark.parametrize("late_first", [True, False])
async def test_two_claims_of_one_delivery_that_are_settled_together_get_each_their_own(
    any_redis: Any, late_first: bool
) -> None:
    """The attempt of a sender whose lease had ended ends together with the one that was made instead."""
    await inserted(any_redis, "evt_1")
    outbox = box(any_redis)
    [late] = await outbox.claim("late", 10)
    await let_pass(any_redis, 41)
    assert await outbox.claim("counts-it-as-unknown", 10) == []
    await let_pass(any_redis, 6)
    [now] = await outbox.claim("now", 10)
    batch: list[tuple[Delivery, Outcome]] = [(late, BUSY), (now, Delivered(200, Evidence(200, 5)))]
    for _ in range(2):
        after = await outbox.settle(batch if late_first else batch[::-1])
        lost, stored = after if late_first else after[::-1]
        assert lost is None
        assert stored is not None
        assert (stored.state, stored.log[-1].code) == ("delivered", "http_200")
        assert await reading.show(any_redis, now.id) == stored
    [back] = await insert(any_redis, [made("evt_2")])
    [held] = await outbox.claim("held", 10)
    old = replace(held, token="old", version=held.version - 2)
    given = await outbox.release([(old, 0.0), (held, 0.0)])
    assert [one and (one.id, one.state) for one in given] == [None, (back.id, "queued")]


@pytest.mark.requirement("outbox:cap")
def test_a_place_whose_lease_has_ended_is_given_in_the_same_claim() -> None:
    held = machine.claim(made("evt_1"), "dead", 1_000, 40_000)
    look = Look(SeenLane("crm", "", Lane()), 1, [held], [made("evt_2"), made("evt_3")])
    terms = Terms("claim", 10, 50_000, 40_000, lambda: 0.5)
    [step] = deciding.claimed([look], {"crm": limited(concurrency=1)}, terms)
    assert [(one.new.event_id, one.new.state) for one in step.changes] == [
        ("evt_1", "waiting"),
        ("evt_2", "in_flight"),
    ]


@pytest.mark.requirement("outbox:lease")
async def test_a_lane_at_which_there_is_nothing_to_do_is_looked_at_once(any_redis: Any) -> None:
    """As after the records of its deliveries were lost."""
    await inserted(any_redis, "evt_1")
    [held] = await box(any_redis).claim("claim", 10)
    await let_pass(any_redis, 41)
    await any_redis.delete(f"lw:{{p00}}:dlv:{held.id}")
    assert await box(any_redis).due_in() == 0
    assert await box(any_redis).claim("looks", 10) == []
    assert await box(any_redis).due_in() is None
    assert (await lanes.standings(any_redis, ["crm"]))["crm"].failures == 0
    assert await box(any_redis).settle([(held, Delivered(200))]) == [None]
