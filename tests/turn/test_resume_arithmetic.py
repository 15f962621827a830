"""How often a call is asked again, and after which wait."""

import pytest

from worker.turn.resume import is_last_attempt, resume_wait, transport_wait


@pytest.mark.requirement("turn:resume:budget")
@pytest.mark.parametrize(("budget", "attempts"), [(0, 1), (1, 2), (2, 3), (10, 11)])
def test_a_budget_permits_that_many_attempts_more(budget: int, attempts: int) -> None:
    last = [spent for spent in range(20) if is_last_attempt(budget, spent)][0]  # noqa: RUF015 - reads as the rule
    assert 1 + last == attempts


@pytest.mark.requirement("turn:transport:backoff")
@pytest.mark.parametrize(("made", "seconds"), [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 30), (6, 30), (5000, 30)])
def test_the_transport_doubles_its_wait_up_to_a_cap(made: int, seconds: float) -> None:
    assert transport_wait(made, 1, 30, chance=0.5) == seconds


@pytest.mark.requirement("turn:transport:backoff")
def test_waits_are_spread_by_a_quarter_both_ways() -> None:
    assert [transport_wait(1, 1, 30, chance) for chance in (0, 0.5, 1)] == [1.5, 2, 2.5]
    assert [resume_wait(0.5, chance) for chance in (0, 0.5, 1)] == [0.375, 0.5, 0.625]


@pytest.mark.requirement("turn:transport:retry-after")
def test_a_longer_wait_that_the_provider_asks_for_is_honoured_and_a_shorter_one_is_not() -> None:
    assert transport_wait(0, 1, 30, chance=0.5, retry_after=120) == 120
    assert transport_wait(2, 1, 30, chance=0.5, retry_after=3) == 4
    assert resume_wait(0.5, chance=0.5, retry_after=7) == 7
