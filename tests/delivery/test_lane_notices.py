"""What an operator is told after attempts, and what a lane remembers of that."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from channels.delivery.lane import DISABLE_AFTER_S, DISABLE_LEAST, FAILING_AFTER, Lane, Rules
from channels.delivery.machine import LEASE_EXPIRED
from channels.delivery.model import Delivered, Delivery, Failed, Outcome
from channels.outbox.attempted import after
from tests.delivery.outboxes import BUSY, GONE, MISSING, made

OURS = Failed("ours", "internal", "a fault of ours", "no")
NOW = 1_790_000_000_000


def ended(lane: Lane, outcomes: Sequence[Outcome], event_type: str, state: str = "waiting") -> tuple[Lane, list[str]]:
    """The lane after these, and the types of what is told."""
    each = [(made(f"evt_{n}", event_type=event_type, state=state), outcome) for n, outcome in enumerate(outcomes)]
    lane, told = after("crm", lane, Rules(), each, NOW)
    return lane, [str(one.words[one.words.index("type") + 1]) for one in told]


@pytest.mark.requirement("events:notices:disabled")
@pytest.mark.parametrize("event_type", ["turn.completed", "delivery.failing"])
def test_that_an_endpoint_is_disabled_is_told_whatever_it_was_sent(event_type: str) -> None:
    lane, told = ended(Lane(), [GONE], event_type, "dead")
    assert lane.standing == "disabled"
    assert "delivery.endpoint_disabled" in told
    assert ended(lane, [GONE], event_type, "dead")[1].count("delivery.endpoint_disabled") == 0


@pytest.mark.requirement("events:notices:untold")
def test_a_failing_that_was_not_told_is_told_with_the_next_that_may_be() -> None:
    lane, told = ended(Lane(), [BUSY] * FAILING_AFTER, "delivery.dead")
    assert (told, lane.told_ms, lane.alarmed, lane.failed) == ([], 0, False, FAILING_AFTER)
    lane, told = ended(lane, [BUSY], "turn.completed")
    assert (told, lane.told_ms, lane.alarmed) == (["delivery.failing"], NOW, True)


@pytest.mark.requirement("events:notices:untold")
def test_a_recovery_that_was_not_told_is_told_with_the_next_success_that_may_be() -> None:
    lane, _ = ended(Lane(), [BUSY] * FAILING_AFTER, "turn.completed")
    lane, told = ended(lane, [Delivered(204)], "delivery.dead")
    assert (told, lane.alarmed, lane.failed) == ([], True, 0)
    lane, told = ended(lane, [Delivered(204)], "turn.completed")
    assert (told, lane.alarmed) == (["delivery.recovered"], False)


@pytest.mark.requirement("events:notices:untold")
def test_a_death_that_may_not_be_told_hides_none_that_may() -> None:
    lane, told = ended(Lane(), [MISSING], "delivery.failing", "dead")
    assert (told, lane.told_dead_ms) == ([], 0)
    both: list[tuple[Delivery, Outcome]] = [
        (made("evt_1", event_type="delivery.failing", state="dead"), MISSING),
        (made("evt_2"), Delivered(204)),
    ]
    lane, told_of = after("crm", lane, Rules(), both, NOW)
    assert (told_of, lane.told_dead_ms) == ([], 0), "the other one is not dead"
    assert ended(lane, [MISSING], "turn.completed", "dead")[1] == ["delivery.dead"]


@pytest.mark.requirement("events:notices:untold")
def test_a_lane_of_which_nothing_changed_but_what_was_not_told_stays_as_it_is() -> None:
    before = Lane(version=3, told_ms=NOW, alarmed=True)
    assert after("crm", before, Rules(), [(made("evt_1", event_type="delivery.failing"), OURS)], NOW) == (before, [])


def told_of(lane: Lane, *ended: tuple[Delivery, Outcome]) -> tuple[Lane, dict[str, dict[str, str]]]:
    """The lane after these, and what is told of it, by type."""
    lane, told = after("crm", lane, Rules(), ended, NOW)
    words = [dict(zip(one.words[::2], one.words[1::2], strict=True)) for one in told]
    return lane, {str(each["type"]): json.loads(each["data"]) for each in words}


ARRIVED = (made("arrived", state="delivered"), Delivered(204))
LAPSED = (replace(made("lapsed", state="waiting"), code="lease_expired"), LEASE_EXPIRED)
ASKED = (replace(made("asked", state="waiting"), code="http_429"), Failed("throttled", "http_429", "later", "yes"))
FAILED = [(replace(made(f"failed_{n}", state="waiting"), code="http_503"), BUSY) for n in range(FAILING_AFTER)]
REMOVED = (replace(made("gone", state="dead"), code="http_410"), GONE)
REFUSED = (replace(made("refused", state="dead"), code="http_404"), MISSING)
OTHERS = [ARRIVED, LAPSED, ASKED]


@pytest.mark.requirement("events:notices:about")
@pytest.mark.parametrize(
    "last", [[], *([one] for one in OTHERS), OTHERS], ids=lambda some: "-".join(e.event_id for e, _ in some)
)
def test_a_notice_names_the_last_delivery_that_shows_it_whatever_was_settled_with_it(
    last: list[tuple[Delivery, Outcome]],
) -> None:
    _, told = told_of(Lane(), *FAILED, *last)
    about = told["delivery.failing"]
    assert (about["delivery"], about["code"]) == (FAILED[-1][0].id, "http_503")
    _, told = told_of(Lane(), REMOVED, *last, *FAILED[:1])
    assert told["delivery.endpoint_disabled"]["delivery"] == REMOVED[0].id
    _, told = told_of(Lane(), REFUSED, *last, *FAILED[:1])
    assert (told["delivery.dead"]["delivery"], told["delivery.dead"]["code"]) == (REFUSED[0].id, "http_404")
    _, told = told_of(Lane(alarmed=True), ARRIVED, *FAILED[:1], *(one for one in last if one is not ARRIVED))
    assert told["delivery.recovered"]["delivery"] == ARRIVED[0].id


@pytest.mark.requirement("events:notices:about")
def test_one_that_was_failing_for_long_is_disabled_for_a_delivery_that_failed() -> None:
    before = Lane(failed=DISABLE_LEAST, failing_since_ms=NOW - round(DISABLE_AFTER_S * 1000))
    _, told = told_of(before, *FAILED[:1], LAPSED, ASKED, ARRIVED)
    assert told["delivery.endpoint_disabled"]["delivery"] == FAILED[0][0].id


@pytest.mark.requirement("events:notices:untold")
def test_a_failure_that_may_not_be_told_is_not_told_of_one_that_arrived_with_it() -> None:
    failures: list[tuple[Delivery, Outcome]] = [
        (made(f"failed_{n}", event_type="delivery.dead", state="waiting"), BUSY) for n in range(FAILING_AFTER)
    ]
    lane, told = told_of(Lane(), *failures, ARRIVED)
    assert (told, lane.told_ms, lane.alarmed, lane.failed) == ({}, 0, False, 0)
    lane, told = told_of(Lane(), ARRIVED, *failures)
    assert (told, lane.told_ms, lane.alarmed, lane.failed) == ({}, 0, False, FAILING_AFTER)
    assert list(told_of(lane, *FAILED[:1])[1]) == ["delivery.failing"]
