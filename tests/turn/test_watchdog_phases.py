"""Which silence is too long: the deadlines of one attempt, phase by phase."""

from dataclasses import replace

import pytest

from worker.turn.watchdog import Budget, Watchdog, WatchdogLimits

LIMITS = WatchdogLimits(prefill_s=1800, inter_delta_s=600, progress_s=1200, stall_s=45)


def watchdog(limits: WatchdogLimits = LIMITS, *, streamed: bool = False, detects_stalls: bool = True) -> Watchdog:
    return Watchdog(limits, 0, streamed=streamed, detects_stalls=detects_stalls)


def dies(watchdog: Watchdog) -> tuple[float, Budget | None]:
    """When the attempt is dead if nothing more is heard, and of what; not a moment sooner."""
    at = watchdog.deadline()
    assert watchdog.expired(at - 0.001) is None
    return at, watchdog.expired(at)


@pytest.mark.requirement("turn:watchdog:prefill")
def test_a_provider_that_is_silent_from_the_start_gets_the_whole_prefill_budget() -> None:
    assert dies(watchdog()) == (1800, "prefill")


@pytest.mark.requirement("turn:watchdog:keepalives-never-promote")
def test_keepalives_in_prefill_prolong_liveness_but_neither_progress_nor_the_phase() -> None:
    dog = watchdog()
    for now in range(10, 1800, 10):
        dog.lives(now)
    assert dies(dog) == (1800, "prefill")
    assert not dog.streamed


@pytest.mark.requirement("turn:watchdog:progress")
def test_progress_counts_when_it_is_longer_than_prefill() -> None:
    dog = watchdog(WatchdogLimits(prefill_s=100, inter_delta_s=60, progress_s=120, stall_s=0))
    dog.lives(90)
    assert dies(dog) == (120, "progress")


@pytest.mark.requirement("turn:watchdog:inter-delta")
def test_the_first_content_promotes_to_the_tight_budgets() -> None:
    dog = watchdog(detects_stalls=False)
    dog.progressed(100, thinks=False)
    assert dies(dog) == (700, "inter_delta")


@pytest.mark.requirement("turn:watchdog:progress")
def test_a_stream_of_keepalives_after_content_dies_of_progress() -> None:
    dog = watchdog(detects_stalls=False)
    dog.progressed(100, thinks=False)
    for now in range(110, 1300, 10):
        dog.lives(now)
    assert dies(dog) == (1300, "progress")


@pytest.mark.requirement("turn:watchdog:stall")
def test_content_that_stops_is_a_stall_whatever_keepalives_come() -> None:
    dog = watchdog()
    dog.progressed(100, thinks=False)
    dog.lives(140)
    assert dies(dog) == (145, "stall")
    dog.progressed(144, thinks=False)
    assert dies(dog) == (189, "stall")


@pytest.mark.requirement("turn:watchdog:stall")
def test_the_stall_detector_sleeps_until_this_attempt_has_sent_content() -> None:
    """A resumed attempt has to read the whole prompt again before it can say anything."""
    assert dies(watchdog(streamed=True)) == (600, "inter_delta")


@pytest.mark.requirement("turn:watchdog:stall")
@pytest.mark.parametrize(
    "dog",
    [watchdog(detects_stalls=False), watchdog(WatchdogLimits(1800, 600, 1200, 0))],
    ids=["the last attempt that is permitted", "switched off"],
)
def test_without_the_stall_detector_the_inter_delta_budget_holds(dog: Watchdog) -> None:
    dog.progressed(1, thinks=False)
    assert dies(dog) == (601, "inter_delta")


@pytest.mark.requirement("turn:watchdog:inherits-the-phase")
def test_a_resumed_attempt_keeps_the_tight_budgets_through_keepalives() -> None:
    dog = watchdog(streamed=True)
    for now in range(10, 1200, 10):
        dog.lives(now)
    assert dies(dog) == (1200, "progress")
    assert dog.streamed


def test_of_two_budgets_that_end_together_one_is_named() -> None:
    dog = watchdog(WatchdogLimits(prefill_s=10, inter_delta_s=10, progress_s=10, stall_s=10))
    dog.progressed(0, thinks=False)
    assert dog.expired(10) in ("inter_delta", "progress", "stall")


@pytest.mark.parametrize(
    ("budget", "seconds"), [("stall", 45), ("inter_delta", 600), ("prefill", 1800), ("progress", 1200)]
)
def test_a_budget_tells_its_length(budget: Budget, seconds: float) -> None:
    assert LIMITS.seconds(budget) == seconds


@pytest.mark.requirement("turn:watchdog:reasoning")
def test_reasoning_is_progress_but_endless_reasoning_dies_of_its_own_budget() -> None:
    limits = WatchdogLimits(prefill_s=1800, inter_delta_s=600, progress_s=1200, stall_s=45, reasoning_s=100)
    dog = watchdog(limits)
    for now in range(10, 110, 10):
        dog.progressed(now, thinks=True)
        assert dog.expired(now) is None
    assert dog.deadline() == 110
    assert dog.expired(110) == "reasoning"
    dog.progressed(109, thinks=False)
    assert dog.expired(120) is None


@pytest.mark.requirement("turn:watchdog:reasoning")
def test_the_last_attempt_keeps_its_reasoning_budget_and_0_switches_it_off() -> None:
    limits = WatchdogLimits(prefill_s=1800, inter_delta_s=600, progress_s=1200, stall_s=45, reasoning_s=100)
    last = watchdog(limits, detects_stalls=False)
    last.progressed(0, thinks=True)
    last.progressed(90, thinks=True)
    assert last.expired(100) == "reasoning"
    off = watchdog(replace(limits, reasoning_s=0))
    for now in range(0, 5000, 40):
        off.progressed(now, thinks=True)
        assert off.expired(now) is None
