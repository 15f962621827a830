"""What an operator is told after attempts, and what a lane remembers of that."""

from collections.abc import Sequence

import pytest

from channels.delivery.lane import FAILING_AFTER, Lane, Rules
from channels.delivery.model import Delivered, Delivery, Failed, Outcome
from channels.outbox.deciding import after
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
