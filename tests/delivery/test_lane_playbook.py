"""What an endpoint's lane lets through, told as playbooks: breaker, disabling, standing and what is told of them."""

from dataclasses import astuple, replace

import pytest

from channels.delivery import lane as lanes
from channels.delivery.lane import Lane, Limits
from channels.delivery.machine import LEASE_EXPIRED
from channels.delivery.model import Hopeless, Outcome, Withdrawn
from tests.delivery.lane_play import DOWN, GONE, NOT_FOUND, OURS, T0_MS, TAKEN, THROTTLED, Scene

DAY_S = 86_400
HOUR_S = 3_600


def opened() -> Scene:
    """A scene whose breaker has just opened, at second 0."""
    scene = Scene()
    scene.end(*(DOWN,) * 5)
    assert scene.open_for_s == 30
    return scene


def failing(limits: Limits | None = None, *, times: int) -> Scene:
    """A lane that failed so often at second 0, for good: its breaker is closed."""
    scene = Scene(limits)
    scene.end(*(NOT_FOUND,) * times)
    return scene


@pytest.mark.requirement("lanes:room")
def test_an_endpoint_has_no_more_in_flight_than_its_concurrency() -> None:
    scene = Scene(Limits(concurrency=3))
    assert [scene.room(2), scene.room(7), scene.room(0)] == [2, 3, 0]
    assert [scene.begin(2), scene.begin(7), scene.begin(7)] == [2, 1, 0]
    scene.in_flight = 9  # its concurrency was lowered
    assert scene.room() == 0
    assert lanes.most_in_flight(scene.lane, scene.limits) == 3


@pytest.mark.requirement("lanes:room")
def test_a_lane_of_which_nothing_is_known_lets_everything_through_and_nothing_follows_from_nothing() -> None:
    assert [value for value in astuple(Lane()) if value] == ["active"]
    assert lanes.after(Lane(), Limits(), [], T0_MS) == (Lane(), ())


@pytest.mark.requirement("lanes:breaker:opens")
def test_the_breaker_opens_at_the_fifth_transient_failure_in_a_row() -> None:
    scene = Scene()
    scene.end(*(DOWN,) * 4, TAKEN, *(DOWN,) * 4)
    assert (scene.open_for_s, scene.room()) == (0, 10)
    scene.end(DOWN)
    assert (scene.open_for_s, scene.room(), scene.free_in_s()) == (30, 0, 30)


@pytest.mark.requirement("lanes:breaker:opens")
@pytest.mark.parametrize(
    ("outcomes", "opens"),
    [
        ((DOWN, DOWN, TAKEN, DOWN, DOWN, DOWN, TAKEN, TAKEN, DOWN, DOWN), True),  # 7 of 10
        ((DOWN, DOWN, TAKEN, DOWN, DOWN, TAKEN, TAKEN, TAKEN, DOWN, DOWN), False),  # 6 of 10
        ((DOWN, DOWN, DOWN, TAKEN, DOWN, DOWN, DOWN, TAKEN, DOWN), False),  # 7 of 9
        ((DOWN, DOWN, TAKEN, DOWN, DOWN, DOWN, TAKEN, TAKEN, DOWN, OURS, NOT_FOUND, THROTTLED), False),
    ],
)
def test_the_breaker_opens_when_seven_of_ten_attempts_failed_for_now(
    outcomes: tuple[Outcome, ...], opens: bool
) -> None:
    scene = Scene()
    scene.end(*outcomes)
    assert bool(scene.open_for_s) == opens


@pytest.mark.requirement("lanes:breaker:opens")
@pytest.mark.parametrize(("at_s", "opens"), [(299.999, True), (300, False)])
def test_the_share_is_one_of_five_minutes(at_s: float, opens: bool) -> None:
    scene = Scene()
    scene.end(DOWN, DOWN, TAKEN, DOWN, DOWN, DOWN, TAKEN, TAKEN, DOWN)
    scene.at(at_s).end(DOWN)
    assert bool(scene.open_for_s) == opens


@pytest.mark.requirement("lanes:breaker:opens")
def test_what_ended_in_an_earlier_window_counts_for_neither_side() -> None:
    scene = Scene()
    scene.end(*(DOWN, DOWN, TAKEN) * 3)
    scene.at(300).end(*(DOWN, TAKEN) * 5)
    assert scene.open_for_s == 0
    scene = Scene()
    scene.end(*(TAKEN,) * 9)
    scene.at(300).end(*(DOWN, DOWN, TAKEN) * 3)
    assert scene.open_for_s == 0
    scene.end(DOWN)
    assert scene.open_for_s == 30


@pytest.mark.requirement("lanes:breaker:probe")
def test_after_its_time_one_attempt_is_made_at_a_time_and_its_success_closes_the_breaker() -> None:
    scene = opened()
    assert scene.at(29.999).room() == 0
    assert scene.at(30).begin() == 1
    assert scene.room() == 0
    assert lanes.most_in_flight(scene.lane, scene.limits) == 1
    scene.in_flight = 0
    scene.end(TAKEN)
    assert (scene.room(), scene.lane.openings, scene.lane.open_until_ms) == (10, 0, 0)
    assert (scene.lane.window_ms, scene.lane.window_all) == (scene.now_ms, 0)
    scene.end(*(DOWN, TAKEN) * 5, *(DOWN,) * 4)
    assert scene.room() == 10


@pytest.mark.requirement("lanes:breaker:probe")
def test_each_failed_probe_doubles_the_time_up_to_ten_minutes_and_a_success_starts_anew() -> None:
    scene, now, waits = opened(), 0.0, []
    for _ in range(7):
        now += scene.open_for_s
        scene.at(now).end(DOWN)
        waits.append(scene.open_for_s)
    assert waits == [60, 120, 240, 480, 600, 600, 600]
    scene.at(now + 600).end(TAKEN)
    scene.end(*(DOWN,) * 5)
    assert scene.open_for_s == 30


@pytest.mark.requirement("lanes:breaker:late")
def test_late_failures_do_not_prolong_an_open_breaker_and_late_successes_do_not_close_it() -> None:
    scene = opened()
    before = scene.lane
    scene.at(29.999).end(*(DOWN,) * 20, TAKEN, *(DOWN,) * 20)
    as_before = replace(scene.lane, version=before.version, shut_since_ms=before.shut_since_ms)
    assert replace(as_before, failed=5, failing_since_ms=T0_MS) == before
    scene.at(30).end(TAKEN)
    scene.end(*(DOWN,) * 4)
    assert scene.open_for_s == 0


@pytest.mark.requirement("lanes:breaker:shut")
def test_a_receiver_counts_as_shut_from_the_opening_of_its_breaker_until_it_takes_something() -> None:
    scene = opened()
    assert scene.lane.shut_since_ms == T0_MS
    for second in (30, 100, 10_000, 10_800):  # the breaker was open until second 220, and asked again only long after
        scene.at(second).end(DOWN)
    assert scene.lane.shut_since_ms == T0_MS + 10_000_000
    scene.at(11_000).end(TAKEN)
    assert scene.lane.shut_since_ms == 0
    scene.at(12_000).end(DOWN)
    assert scene.lane.shut_since_ms == T0_MS + 12_000_000


@pytest.mark.requirement("lanes:breaker:shut")
@pytest.mark.parametrize("days", [-6, 6])
def test_a_clock_that_was_wrong_for_a_moment_makes_no_receiver_shut_for_longer(days: int) -> None:
    scene = opened()
    scene.at(30).end(DOWN)
    scene.at(days * 86_400 + 200).end(DOWN)
    scene.at(1_000).end(DOWN)
    assert scene.now_ms - scene.lane.shut_since_ms <= 1_000_000


@pytest.mark.requirement("lanes:breaker:late")
def test_a_late_success_shows_that_the_endpoint_still_takes_things() -> None:
    scene = failing(times=9)
    scene.end(*(DOWN,) * 5)
    scene.at(1).end(TAKEN)
    assert (scene.lane.failed, scene.lane.failing_since_ms, scene.room()) == (0, 0, 0)


@pytest.mark.requirement("lanes:breaker:not-stuck")
@pytest.mark.parametrize(
    "outcomes", [(), (OURS,), (LEASE_EXPIRED,), (NOT_FOUND,), (Withdrawn("x", ""),), (Hopeless("x", ""),)]
)
def test_a_probe_that_vanished_or_tells_nothing_leaves_room_for_the_next(outcomes: tuple[Outcome, ...]) -> None:
    scene = opened().at(30)
    for _ in range(3):
        assert scene.begin() == 1
        scene.in_flight = 0  # its lease ended, or it was given back
        scene.end(*outcomes)
    assert scene.begin() == 1
    scene.end(TAKEN)
    assert scene.lane.openings == 0


@pytest.mark.requirement("lanes:breaker:not-stuck")
def test_a_plain_url_that_is_down_for_weeks_is_still_asked_every_ten_minutes() -> None:
    scene, now = Scene(Limits(may_disable=False)), 0.0
    scene.end(*(DOWN,) * 5)
    for _ in range(14 * 144):
        now += scene.open_for_s
        assert scene.at(now).room() == 1
        scene.end(DOWN)
    assert scene.open_for_s == 600
    assert "disabled" not in scene.told


@pytest.mark.requirement("lanes:throttled")
@pytest.mark.parametrize(
    ("asked", "waits_s"),
    [(90.0, 90), (1.5, 1.5), (0.001, 1), (7_200.0, 3_600), (float("inf"), 3_600), (None, 30), (0.0, 30), (-1.0, 30)],
)
def test_a_receiver_that_asks_to_wait_stops_its_whole_endpoint_and_has_not_failed(
    asked: float | None, waits_s: float
) -> None:
    scene = Scene()
    scene.end(*(replace(THROTTLED, retry_after=asked),) * 20)
    assert (scene.room(), scene.free_in_s()) == (0, waits_s)
    assert scene.at(waits_s - 0.001).room() == 0
    assert scene.at(waits_s).room() == 10
    assert (scene.lane.failed, scene.told) == (0, [])


@pytest.mark.requirement("lanes:throttled")
def test_a_shorter_wish_does_not_cut_a_longer_one_short() -> None:
    scene = Scene()
    scene.end(replace(THROTTLED, retry_after=90.0), replace(THROTTLED, retry_after=10.0))
    assert scene.free_in_s() == 90


@pytest.mark.requirement("lanes:ours")
@pytest.mark.parametrize("outcome", [OURS, LEASE_EXPIRED, Withdrawn("x", ""), Hopeless("x", "")])
def test_what_is_our_own_fault_or_was_never_sent_changes_nothing(outcome: Outcome) -> None:
    scene = failing(times=9)
    before = scene.lane
    scene.at(30 * DAY_S).end(*(outcome,) * 20)
    assert scene.lane == before


@pytest.mark.requirement("lanes:disable:rule")
@pytest.mark.parametrize(
    ("times", "at_s", "disabled"),
    [(9, 5 * DAY_S, True), (8, 5 * DAY_S, False), (9, 5 * DAY_S - 0.001, False), (500, 0, False)],
)
@pytest.mark.parametrize("last", [DOWN, NOT_FOUND])
def test_an_endpoint_is_disabled_at_its_tenth_failure_when_the_first_was_five_days_ago(
    times: int, at_s: float, disabled: bool, last: Outcome
) -> None:
    scene = failing(times=times)
    assert ("disabled" in scene.at(at_s).end(last)) == disabled
    assert (scene.lane.standing == "disabled") == disabled
    assert (scene.lane.why, scene.lane.since_ms) == (("failing", scene.now_ms) if disabled else ("", 0))


@pytest.mark.requirement("lanes:disable:rule")
def test_the_time_after_which_it_is_disabled_is_the_endpoints_own() -> None:
    scene = failing(Limits(disable_after_s=60), times=9)
    assert scene.at(60).end(DOWN) == ("disabled",)


@pytest.mark.requirement("lanes:disable:rule")
def test_it_is_disabled_once_however_many_fail_after_it() -> None:
    scene = failing(times=9)
    scene.at(5 * DAY_S).end(*(DOWN,) * 9)
    since_ms = scene.lane.since_ms
    scene.at(6 * DAY_S).end(*(DOWN,) * 9, GONE)
    assert scene.told.count("disabled") == 1
    assert (scene.lane.since_ms, scene.lane.why) == (since_ms, "failing")


@pytest.mark.requirement("lanes:disable:success")
def test_one_success_starts_the_time_anew() -> None:
    scene = failing(times=9)
    scene.at(5 * DAY_S - 1).end(TAKEN, *(NOT_FOUND,) * 9)
    assert "disabled" not in scene.at(10 * DAY_S - 1.001).end(NOT_FOUND)
    assert "disabled" in scene.at(10 * DAY_S - 1).end(NOT_FOUND)


@pytest.mark.requirement("lanes:disable:gone")
def test_an_endpoint_that_answers_410_is_disabled_at_once() -> None:
    scene = Scene()
    assert scene.end(GONE, GONE) == ("disabled",)
    assert (scene.lane.standing, scene.lane.why, scene.room()) == ("disabled", "gone", 0)


@pytest.mark.requirement("lanes:disable:gone")
def test_a_plain_url_is_never_disabled() -> None:
    scene = failing(Limits(may_disable=False), times=9)
    assert "disabled" not in scene.at(50 * DAY_S).end(GONE, *(NOT_FOUND,) * 50)
    assert scene.room() == 10


@pytest.mark.requirement("lanes:standing")
def test_a_paused_endpoint_gets_nothing_until_it_is_resumed() -> None:
    scene = Scene()
    scene.lane = lanes.pause(scene.lane, scene.now_ms, "maintenance")
    assert (scene.lane.standing, scene.lane.why, scene.lane.since_ms) == ("paused", "maintenance", T0_MS)
    assert (scene.room(), lanes.most_in_flight(scene.lane, scene.limits)) == (0, 0)
    assert lanes.pause(scene.lane, T0_MS + 1, "again") == scene.lane
    scene.lane = lanes.resume(scene.lane)
    assert (scene.lane, scene.room()) == (Lane(version=2), 10)


@pytest.mark.requirement("lanes:standing")
def test_what_began_before_a_pause_still_counts() -> None:
    scene = failing(times=9)
    scene.lane = lanes.pause(scene.lane, scene.now_ms, "")
    assert scene.at(5 * DAY_S).end(DOWN) == ("disabled",)


@pytest.mark.requirement("lanes:standing")
def test_disabling_goes_over_a_pause_and_a_pause_not_over_disabling() -> None:
    paused = lanes.pause(Lane(), 1, "maintenance")
    disabled = lanes.disable(paused, 2, "retired")
    assert disabled == Lane(version=2, standing="disabled", why="retired", since_ms=2)
    assert lanes.pause(disabled, 3, "maintenance") == disabled
    assert lanes.disable(disabled, 3, "again") == disabled


@pytest.mark.requirement("lanes:standing")
def test_an_endpoint_that_is_enabled_again_is_one_of_which_nothing_bad_is_known_but_keeps_its_rate() -> None:
    scene = Scene(Limits(rate_per_s=1))
    scene.begin()
    scene.end(*(DOWN,) * 9, replace(THROTTLED, retry_after=900.0), died=True)
    scene.at(5 * DAY_S).end(DOWN)
    assert scene.lane.standing == "disabled"
    rate_ms, version = scene.lane.rate_ms, scene.lane.version
    scene.lane = lanes.resume(scene.lane)
    assert scene.lane == Lane(
        version=version + 1, rate_ms=rate_ms, told_ms=scene.lane.told_ms, told_dead_ms=scene.lane.told_dead_ms
    )
    assert scene.end(*(DOWN,) * 4) == ("failing",)


@pytest.mark.requirement("lanes:notices")
def test_the_fourth_failure_in_a_row_is_told_once_in_an_hour() -> None:
    scene = failing(times=3)
    assert scene.told == []
    assert scene.end(*(NOT_FOUND,) * 500) == ("failing",)
    assert scene.at(HOUR_S - 0.001).end(NOT_FOUND) == ()
    assert scene.at(HOUR_S).end(NOT_FOUND, NOT_FOUND) == ("failing",)


@pytest.mark.requirement("lanes:notices")
def test_a_breaker_that_opens_by_share_is_told_as_failing() -> None:
    scene = Scene()
    assert scene.end(DOWN, DOWN, TAKEN, DOWN, DOWN, DOWN, TAKEN, TAKEN, DOWN) == ()
    assert scene.end(DOWN) == ("failing",)


@pytest.mark.requirement("lanes:notices")
def test_an_endpoint_that_flaps_is_told_as_failing_and_recovered_once_in_an_hour() -> None:
    scene = Scene()
    for second in range(HOUR_S):
        scene.at(second).end(*(NOT_FOUND,) * 4, TAKEN, TAKEN)
    assert scene.told == ["failing", "recovered"]


@pytest.mark.requirement("lanes:notices")
def test_recovered_waits_for_the_probe_and_is_not_told_of_what_is_disabled() -> None:
    scene = opened()
    assert scene.at(1).end(TAKEN) == ()
    assert scene.at(30).end(TAKEN) == ("recovered",)
    scene = opened().at(30)
    scene.lane = lanes.disable(scene.lane, scene.now_ms, "retired")
    assert scene.end(TAKEN, *(NOT_FOUND,) * 9) == ()


@pytest.mark.requirement("lanes:notices")
def test_deaths_are_told_once_in_an_hour_also_over_a_resume() -> None:
    scene = Scene()
    assert scene.end(died=True) == ("dead",)
    scene.lane = lanes.resume(lanes.pause(scene.lane, scene.now_ms, ""))
    assert [scene.at(second).end(died=True) for second in (1, 1_800, HOUR_S - 0.001)] == [()] * 3
    assert scene.at(HOUR_S).end(died=True) == ("dead",)
    assert scene.at(2 * HOUR_S).end(died=False) == ()
