"""The schedule of retries: its arithmetic, its spread, and what a receiver may ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery.backoff import RETRY_AFTER_CAP_S, SCHEDULE_S, Backoff

chance = st.floats(0, 1)


@pytest.mark.requirement("delivery:backoff:schedule")
def test_the_schedule_gives_eight_attempts_over_seventeen_and_a_half_hours() -> None:
    backoff = Backoff()
    waits = [backoff.wait_ms(failed, 0.5) for failed in range(1, backoff.attempts)]
    assert backoff.attempts == 8
    assert waits == [5_000, 30_000, 300_000, 1_800_000, 7_200_000, 18_000_000, 36_000_000]
    assert sum(waits) == ((17 * 60 + 35) * 60 + 35) * 1000


@pytest.mark.requirement("delivery:clock:due")
@given(st.lists(st.floats(0, 1e6), max_size=5), chance, st.none() | st.floats(0, 1e9))
def test_no_wait_is_longer_than_the_longest(schedule: list[float], jitter: float, asked: float | None) -> None:
    backoff = Backoff(tuple(schedule))
    waits = [backoff.wait_ms(failed, jitter, asked) for failed in range(1, backoff.attempts)]
    assert max(waits, default=0) <= backoff.longest_ms


@given(st.integers(1, 7), chance)
def test_chance_spreads_a_wait_over_a_fifth_to_either_side(failed: int, jitter: float) -> None:
    scheduled = SCHEDULE_S[failed - 1] * 1000
    assert 0.8 * scheduled - 1 <= Backoff().wait_ms(failed, jitter) <= 1.2 * scheduled + 1


@pytest.mark.requirement("delivery:backoff:retry-after")
@given(st.integers(1, 7), chance, st.floats(0, 1e9))
def test_retry_after_lengthens_a_wait_up_to_its_cap_and_never_shortens_it(
    failed: int, jitter: float, asked: float
) -> None:
    own = Backoff().wait_ms(failed, jitter)
    assert Backoff().wait_ms(failed, jitter, asked) == max(own, round(min(asked, RETRY_AFTER_CAP_S) * 1000))
