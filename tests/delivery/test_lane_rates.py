"""The rate of a lane, and its limits under a clock that jumps: scenes, and what holds of any life."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery import lane as lanes
from channels.delivery.lane import Lane, Limits
from channels.delivery.model import Delivered, Failed, Outcome
from tests.delivery.lane_play import DOWN, GONE, NOT_FOUND, OURS, T0_MS, TAKEN, THROTTLED, Scene

YEAR_MS = 365 * 86_400_000

rates = st.floats(0.001, 200) | st.sampled_from([0.1, 1.0, 3.0, 7.0, 30.0, 1000.0])
limits_of_any = st.builds(
    Limits, concurrency=st.integers(1, 20), rate_per_s=st.none() | rates, burst=st.integers(1, 50)
)
asked = st.none() | st.floats()
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.sampled_from([TAKEN, DOWN, NOT_FOUND, GONE, OURS]),
    st.builds(Failed, st.just("throttled"), st.just("c"), st.just("m"), st.just("yes"), asked),
)
times = st.integers(0, 2 * YEAR_MS)
any_lane = st.builds(
    Lane,
    rate_ms=st.floats(0, 2.0 * T0_MS),
    not_before_ms=st.integers(0, 2 * T0_MS),
    failures=st.integers(0, 10**6),
    failed=st.integers(0, 10**6),
    failing_since_ms=st.integers(0, 2 * T0_MS),
    window_ms=st.integers(0, 2 * T0_MS),
    openings=st.integers(0, 10**6),
    open_until_ms=st.integers(0, 2 * T0_MS),
    told_ms=st.integers(0, 2 * T0_MS),
    told_dead_ms=st.integers(0, 2 * T0_MS),
    alarmed=st.booleans(),
)


@pytest.mark.requirement("lanes:rate:exact-slot")
def test_a_limited_attempt_waits_for_exactly_the_free_slot() -> None:
    scene = Scene(Limits(rate_per_s=4))
    assert [scene.begin(), scene.begin()] == [1, 0]
    assert scene.lane.version == 1
    assert scene.free_in_s() == 0.25
    assert scene.at(0.249).begin() == 0
    assert scene.at(0.25).begin() == 1


@pytest.mark.requirement("lanes:rate:exact-slot")
def test_a_burst_begins_at_once_and_fills_up_again_with_the_rate() -> None:
    scene = Scene(Limits(concurrency=99, rate_per_s=10, burst=5))
    assert [scene.begin(2), scene.begin(), scene.begin()] == [2, 3, 0]
    assert [scene.at(0.099).begin(), scene.at(0.1).begin(), scene.at(0.3).begin()] == [0, 1, 2]
    assert scene.at(0.799).room() == 4
    assert scene.at(0.8).room() == 5
    assert scene.at(3600).begin() == 5


@pytest.mark.requirement("lanes:rate:exact-slot")
def test_what_is_not_taken_spends_nothing_and_no_limit_is_no_state() -> None:
    scene = Scene(Limits(rate_per_s=1))
    assert scene.begin(0) == 0
    assert (scene.room(), scene.lane) == (1, Lane())
    scene = Scene(Limits(concurrency=7))
    assert (scene.begin(), scene.lane) == (7, Lane())
    assert lanes.free_ms(Lane(), scene.limits) == lanes.free_ms(Lane(), Limits(rate_per_s=1)) == 0


@pytest.mark.requirement("lanes:rate:exact-slot")
@given(rates, st.integers(1, 20), st.integers(1, 40), st.integers(0, YEAR_MS))
def test_there_is_room_at_the_moment_told_and_none_before(rate: float, burst: int, taken: int, start_ms: int) -> None:
    scene = Scene(Limits(concurrency=100, rate_per_s=rate, burst=burst))
    scene.now_ms += start_ms
    for _ in range(taken):
        scene.now_ms = max(scene.now_ms, lanes.free_ms(scene.lane, scene.limits))
        assert scene.begin(1) == 1
    scene.in_flight = 0
    free_ms = lanes.free_ms(scene.lane, scene.limits)
    assert lanes.room(scene.lane, scene.limits, 0, 1, free_ms) == 1
    assert free_ms <= scene.now_ms or lanes.room(scene.lane, scene.limits, 0, 1, free_ms - 1) == 0


@pytest.mark.requirement("lanes:rate:bound")
@given(rates, st.integers(1, 10), st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 12)), max_size=40))
def test_in_any_window_there_are_at_most_burst_and_rate_times_its_length(
    rate: float, burst: int, asks: list[tuple[int, int]]
) -> None:
    scene = Scene(Limits(concurrency=100, rate_per_s=rate, burst=burst))
    begun: list[tuple[int, int]] = []
    for later_ms, wanted in asks:
        scene.now_ms += later_ms
        scene.in_flight = 0
        begun.append((scene.now_ms, scene.begin(wanted)))
    for place, (start_ms, _) in enumerate(begun):
        count = 0
        for end_ms, more in begun[place:]:
            count += more
            assert count <= burst + rate * (end_ms - start_ms) / 1000 + 1e-3 * rate + 1e-6


@pytest.mark.requirement("lanes:rate:bound")
@given(rates, st.integers(1, 10), st.integers(1, 60))
def test_one_who_comes_at_each_free_slot_loses_at_most_the_rest_of_a_millisecond(
    rate: float, burst: int, count: int
) -> None:
    scene = Scene(Limits(concurrency=100, rate_per_s=rate, burst=burst))
    for _ in range(burst + count):
        scene.in_flight = 0
        scene.now_ms = max(scene.now_ms, lanes.free_ms(scene.lane, scene.limits))
        assert scene.begin(1) == 1
    assert scene.now_ms - T0_MS <= math.ceil(count * (1000 / rate + 1))


@pytest.mark.requirement("lanes:rate:late")
@given(rates, st.integers(1, 5), st.lists(st.integers(1, 90), min_size=1, max_size=60))
def test_who_comes_late_to_what_is_waiting_loses_no_slot_and_gets_none_too_many(
    rate: float, burst: int, late: list[int]
) -> None:
    scene = Scene(Limits(concurrency=1000, rate_per_s=rate, burst=burst))
    begun = scene.begin(waiting_ms=0)
    assert begun == burst
    for later_ms in late:
        scene.in_flight = 0
        scene.now_ms = max(scene.now_ms, lanes.free_ms(scene.lane, scene.limits)) + later_ms
        begun += scene.begin(waiting_ms=0)
        whole = rate * (scene.now_ms - T0_MS) / 1000
        assert whole - 1e-3 * rate <= begun + 1e-6
        assert begun <= burst + whole + 1e-3 * rate + 1e-6


@pytest.mark.requirement("lanes:rate:late")
def test_after_a_pause_or_for_what_has_only_just_come_there_is_the_burst_and_no_more() -> None:
    for pause_s, waiting_s, slots in ((0.05, 0, 5), (0.05, 0.03, 3), (0.05, 0.05, 1), (0.11, 0, 11), (0.12, 0, 1)):
        scene = Scene(Limits(concurrency=99, rate_per_s=100))
        assert scene.begin(1) == 1  # the next slot is 10 ms later
        assert scene.at(pause_s).begin(waiting_ms=T0_MS + round(waiting_s * 1000)) == slots
    scene = Scene(Limits(concurrency=99, rate_per_s=100))
    assert scene.begin(waiting_ms=0) == 1


@pytest.mark.requirement("lanes:room")
@given(any_lane, limits_of_any, st.integers(0, 60), st.integers(0, 60), st.integers(0, 2 * T0_MS))
def test_room_is_never_negative_nor_more_than_wanted_or_allowed(
    lane: Lane, limits: Limits, in_flight: int, wanted: int, now_ms: int
) -> None:
    room = lanes.room(lane, limits, in_flight, wanted, now_ms)
    assert 0 <= room <= wanted
    assert room + in_flight <= max(in_flight, lanes.most_in_flight(lane, limits))


@pytest.mark.requirement("lanes:clock")
@given(any_lane, limits_of_any, st.integers(T0_MS // 2, T0_MS))
def test_any_stored_lane_has_room_within_a_bounded_time(lane: Lane, limits: Limits, now_ms: int) -> None:
    right = lanes.put_right(lane, limits, now_ms)
    interval_ms = 0 if limits.rate_per_s is None else 1000 / limits.rate_per_s
    free_ms = lanes.free_ms(right, limits)
    assert free_ms - now_ms <= max(3_660_000, 60_000 + interval_ms) + 1
    assert lanes.room(right, limits, 0, 1, max(now_ms, free_ms)) == 1
    assert lanes.put_right(right, limits, now_ms) == right


@pytest.mark.requirement("lanes:clock")
@given(any_lane, limits_of_any, st.integers(T0_MS // 2, T0_MS))
def test_any_stored_lane_closes_its_breaker_at_a_success_when_its_time_is_over(
    lane: Lane, limits: Limits, now_ms: int
) -> None:
    lane = lanes.put_right(lane, limits, now_ms)
    now_ms = max(now_ms, lane.open_until_ms)
    after, _ = lanes.after(lane, limits, [TAKEN], now_ms)
    assert (after.openings, after.failures, after.failed, after.open_until_ms <= now_ms) == (0, 0, 0, True)


@pytest.mark.requirement("lanes:clock")
@given(any_lane, limits_of_any, st.lists(outcomes, max_size=30), st.integers(T0_MS // 2, T0_MS))
def test_whatever_ends_in_whatever_lane_all_it_puts_off_is_bounded(
    lane: Lane, limits: Limits, ended: list[Outcome], now_ms: int
) -> None:
    after, told = lanes.after(lane, limits, ended, now_ms)
    assert after.not_before_ms <= now_ms + 3_660_000
    assert after.open_until_ms <= now_ms + 660_000
    assert after.failing_since_ms <= now_ms or after.failed == lane.failed
    assert len(told) == len(set(told)) or told.count("recovered") > 1


@pytest.mark.requirement("lanes:clock")
@pytest.mark.parametrize("back_s", [61, 3600, 365 * 86_400])
def test_after_the_clock_was_put_back_the_rate_goes_on_with_one_slot(back_s: int) -> None:
    scene = Scene(Limits(concurrency=99, rate_per_s=1, burst=3))
    scene.begin()
    scene.in_flight = 0
    scene.at(-back_s)
    assert scene.free_in_s() == 0
    assert scene.begin() == 1
    assert scene.free_in_s() == 1


@pytest.mark.requirement("lanes:clock")
def test_a_clock_put_back_by_less_than_a_minute_is_waited_for() -> None:
    scene = Scene(Limits(rate_per_s=1))
    scene.begin()
    scene.in_flight = 0
    assert scene.at(-60).free_in_s() == 61
    assert scene.at(-60).room() == 0


@pytest.mark.requirement("lanes:clock")
def test_only_what_lies_further_ahead_than_it_can_is_of_another_clock() -> None:
    just = Lane(openings=1, not_before_ms=T0_MS + 3_660_000, open_until_ms=T0_MS + 660_000)
    assert lanes.put_right(just, Limits(), T0_MS) is just
    paused = replace(just, not_before_ms=just.not_before_ms + 1)
    assert lanes.put_right(paused, Limits(), T0_MS) == replace(just, version=1, not_before_ms=0)
    opened = replace(just, open_until_ms=just.open_until_ms + 1)
    assert lanes.put_right(opened, Limits(), T0_MS) == replace(just, version=1, open_until_ms=0)


@pytest.mark.requirement("lanes:clock")
def test_a_rate_that_was_raised_is_not_waited_for_as_if_it_were_still_slow() -> None:
    scene = Scene(Limits(rate_per_s=1 / 3600))
    scene.begin()
    scene.in_flight, scene.limits = 0, Limits(rate_per_s=10)
    assert scene.begin() == 1


@pytest.mark.requirement("lanes:clock")
def test_pause_breaker_and_notices_of_a_clock_a_year_ahead_are_over() -> None:
    scene = Scene().at(365 * 86_400)
    scene.end(*(DOWN,) * 5, Failed("throttled", "c", "m", "yes", 900.0), died=True)
    scene.at(0)
    assert (scene.room(), scene.free_in_s()) == (1, 0)
    assert scene.end(DOWN, died=True) == ("failing", "dead")
    assert scene.lane.failing_since_ms == scene.now_ms
    assert scene.open_for_s == 60


@pytest.mark.requirement("lanes:disable:success")
@given(
    st.lists(
        st.tuples(
            st.floats(0, 5 * 86_400 - 1), st.lists(st.sampled_from([DOWN, NOT_FOUND, THROTTLED, OURS]), max_size=30)
        ),
        max_size=20,
    )
)
def test_an_endpoint_that_takes_something_at_least_every_five_days_is_never_disabled(
    rounds: list[tuple[float, list[Failed]]],
) -> None:
    scene, now = Scene(), 0.0
    for gap_s, failures in rounds:
        scene.at(now).end(*failures)
        now += gap_s
        scene.at(now).end(*failures)
        scene.end(Delivered(200))
    assert scene.lane.standing == "active"


@pytest.mark.requirement("lanes:notices")
@given(st.lists(st.tuples(st.integers(0, 2_000), outcomes, st.booleans()), max_size=80))
def test_no_notice_is_told_twice_in_an_hour_but_a_recovery_that_followed_a_notice(
    life: list[tuple[int, Outcome, bool]],
) -> None:
    scene, told = Scene(), list[tuple[str, int]]()
    for later_s, outcome, died in life:
        scene.now_ms += later_s * 1000
        told += [(notice, scene.now_ms) for notice in scene.end(outcome, died=died)]
    for notice in ("failing", "dead"):
        moments = [at_ms for name, at_ms in told if name == notice]
        assert all(later - before >= 3_600_000 for before, later in itertools.pairwise(moments))
    names = [name for name, _ in told if name in {"failing", "recovered"}]
    assert all(name == "failing" or names[place - 1] == "failing" for place, name in enumerate(names))
    assert names[:1] != ["recovered"]
    assert [name for name, _ in told].count("disabled") <= 1
