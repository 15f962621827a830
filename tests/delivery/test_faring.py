"""What a lane shows of failures, of its breaker and of what its receiver asked for."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery import lane as lanes
from channels.delivery.faring import Faring, faring, keeps_failing
from channels.delivery.lane import OPEN_AFTER, OPEN_S, Lane, Limits
from channels.delivery.model import Delivered, Failed
from tests.delivery.outboxes import BUSY, MISSING

NOW = 1_790_000_000_000
ASKED = Failed("throttled", "http_429", "too many", "yes", retry_after=120.0)
NOTHING = Faring(0, None, None, None)


def test_of_an_endpoint_that_takes_what_it_is_sent_nothing_is_wrong() -> None:
    assert faring(Lane(), NOW) == faring(lanes.after(Lane(), Limits(), [Delivered(204)], NOW)[0], NOW) == NOTHING


@pytest.mark.requirement("operating:failing")
@pytest.mark.parametrize("later_ms", [0, 1, 3_600_000])
def test_one_whose_breaker_is_open_tells_when_it_is_tried_next(later_ms: int) -> None:
    lane, _ = lanes.after(Lane(), Limits(), [BUSY] * OPEN_AFTER, NOW)
    assert faring(lane, NOW + later_ms) == Faring(OPEN_AFTER, NOW, NOW + round(OPEN_S * 1000), None)


@pytest.mark.requirement("operating:failing")
def test_a_pause_that_was_asked_for_is_told_until_it_is_over() -> None:
    lane, _ = lanes.after(Lane(), Limits(), [ASKED], NOW)
    assert faring(lane, NOW + 119_999) == Faring(0, None, None, NOW + 120_000)
    assert faring(lane, NOW + 120_000) == NOTHING
    assert not keeps_failing(lane)


@pytest.mark.requirement("operating:failing")
def test_times_of_a_clock_that_was_put_back_since_are_not_shown() -> None:
    lane, _ = lanes.after(Lane(), Limits(), [ASKED, *[BUSY] * OPEN_AFTER], NOW)
    assert faring(lane, NOW - 86_400_000) == Faring(OPEN_AFTER, NOW, NOW - 86_400_000, None)


@pytest.mark.requirement("operating:failing")
def test_one_that_is_sent_nothing_shows_its_failures_and_no_next_attempt() -> None:
    lane, _ = lanes.after(Lane(), Limits(), [ASKED, *[BUSY] * OPEN_AFTER], NOW)
    paused = lanes.pause(lane, NOW, "it moves house")
    assert (faring(paused, NOW), keeps_failing(paused)) == (Faring(OPEN_AFTER, NOW, None, None), False)


@pytest.mark.requirement("operating:failing")
@given(st.lists(st.sampled_from([BUSY, MISSING, ASKED, Delivered(204)]), max_size=20))
def test_an_endpoint_keeps_failing_from_the_failure_on_of_which_operators_are_told(
    outcomes: list[Failed | Delivered],
) -> None:
    lane = Lane()
    for outcome in outcomes:
        # As if nothing had been told for long: then each such failure is told.
        lane, told = lanes.after(replace(lane, told_ms=0), Limits(), [outcome], NOW)
        if isinstance(outcome, Failed) and outcome.kind != "throttled":
            assert keeps_failing(lane) == ("failing" in told)
        elif isinstance(outcome, Delivered):
            assert not keeps_failing(lane)
