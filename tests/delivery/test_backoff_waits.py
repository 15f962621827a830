"""The schedule of retries: its arithmetic, its spread, and what a receiver may ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery.backoff import (
    LONGEST_MS,
    LONGEST_WAIT_S,
    OURS_ATTEMPTS,
    RETRY_AFTER_CAP_S,
    SCHEDULE_S,
    THROTTLE_LEAST_S,
    THROTTLE_S,
    Backoff,
    asked_s,
)

chance = st.floats(0, 1)
anything_asked = st.none() | st.floats()


@pytest.mark.requirement("delivery:backoff:schedule")
def test_the_schedule_gives_ten_attempts_over_three_days() -> None:
    backoff = Backoff()
    waits = [backoff.wait_ms(failed, 0.5) for failed in range(1, backoff.attempts)]
    assert backoff.attempts == 10
    minute, hour = 60_000, 3_600_000
    assert waits[:4] == [5_000, 5 * minute, 30 * minute, 2 * hour]
    assert waits[4:] == [5 * hour, 10 * hour, 14 * hour, 20 * hour, 24 * hour]
    assert sum(waits) == 75 * hour + 35 * minute + 5_000


@pytest.mark.requirement("delivery:backoff:schedule")
@pytest.mark.parametrize(("jitter", "factor"), [(0.0, 0.8), (0.25, 0.9), (0.5, 1.0), (1.0, 1.2)])
def test_chance_spreads_every_wait_evenly_over_a_fifth_to_either_side(jitter: float, factor: float) -> None:
    waits = [Backoff().wait_ms(failed, jitter) for failed in range(1, 10)]
    assert waits == [round(scheduled * factor * 1000) for scheduled in SCHEDULE_S]


@pytest.mark.requirement("delivery:backoff:span")
def test_the_span_of_a_schedule_is_its_sum_with_every_wait_drawn_long() -> None:
    assert Backoff().span_s == pytest.approx(((90 * 60) + 42) * 60 + 6)
    assert Backoff((1.0,) * 39).attempts == 40
    assert Backoff(()).attempts == 1
    assert Backoff(()).span_s == 0
    assert Backoff().span_s < Backoff().give_up_s == 5 * 86_400


@pytest.mark.requirement("delivery:clock:due")
@given(st.lists(st.floats(0, LONGEST_WAIT_S), max_size=5), chance, anything_asked)
def test_no_wait_is_longer_than_the_longest(schedule: list[float], jitter: float, asked: float | None) -> None:
    backoff = Backoff(tuple(schedule))
    waits = [backoff.wait_ms(failed, jitter, asked) for failed in range(1, backoff.attempts)]
    waits += [backoff.ours_ms(failed, jitter) for failed in range(1, OURS_ATTEMPTS)]
    waits += [backoff.throttled_ms(jitter, asked)]
    assert max(waits) <= LONGEST_MS


@pytest.mark.requirement("delivery:clock:due")
def test_the_longest_wait_is_one_that_there_may_be() -> None:
    assert Backoff((LONGEST_WAIT_S,)).wait_ms(1, 1.0) == LONGEST_MS


@pytest.mark.requirement("delivery:backoff:retry-after")
@given(st.integers(1, 9), chance, st.floats(0, 1e9))
def test_retry_after_lengthens_a_wait_up_to_its_cap_and_never_shortens_it(
    failed: int, jitter: float, asked: float
) -> None:
    own = Backoff().wait_ms(failed, jitter)
    assert Backoff().wait_ms(failed, jitter, asked) == max(own, round(min(asked, RETRY_AFTER_CAP_S) * 1000))


@pytest.mark.requirement("delivery:backoff:retry-after")
@pytest.mark.parametrize(
    ("asked", "meant"),
    [
        (None, 0),
        (0.0, 0),
        (-5.0, 0),
        (float("-inf"), 0),
        (float("nan"), 0),
        (0.25, 0.25),
        (99.0, 99),
        (100.0, 100),
        (101.0, 100),
        (float("inf"), 100),
    ],
)
def test_what_a_receiver_may_ask_for_is_capped_and_nonsense_asks_for_nothing(asked: float | None, meant: float) -> None:
    assert asked_s(asked, 100.0) == meant
    assert Backoff((1.0,), retry_after_cap_s=100.0).wait_ms(1, 0.5, asked) == max(1_000, meant * 1000)


@pytest.mark.requirement("delivery:machine:throttled")
@pytest.mark.parametrize(
    ("asked", "jitter", "wait_ms"),
    [
        (None, 0.0, 30_000),
        (None, 1.0, 36_000),
        (0.0, 0.0, 30_000),
        (float("nan"), 0.0, 30_000),
        (120.0, 0.0, 120_000),
        (120.0, 0.5, 132_000),
        (120.0, 1.0, 144_000),
        (86_000.0, 1.0, 86_400_000),
        (float("inf"), 0.0, 86_400_000),
        (0.001, 1.0, 1_000),
    ],
)
def test_a_throttled_delivery_waits_as_long_as_asked_and_up_to_a_fifth_more(
    asked: float | None, jitter: float, wait_ms: int
) -> None:
    assert (THROTTLE_S, THROTTLE_LEAST_S) == (30, 1)
    assert Backoff().throttled_ms(jitter, asked) == wait_ms


@pytest.mark.requirement("delivery:machine:ours")
def test_the_waits_of_our_own_faults_double_from_a_second_to_five_minutes() -> None:
    waits = [Backoff().ours_ms(failed, 0.5) for failed in range(1, OURS_ATTEMPTS)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 300_000, 300_000]
    assert (Backoff().ours_ms(1, 0.0), Backoff().ours_ms(1, 1.0)) == (800, 1_200)
