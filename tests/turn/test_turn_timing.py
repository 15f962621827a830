"""When the first content came, and when a request really went out."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from tests.support.turns import LONG_HISTORY, MAIN, begun, completed, failed, text
from worker.codecs.events import Keepalive, ReasoningDelta, Usage
from worker.output.events import UsageOutput
from worker.turn import outputs
from worker.turn.commands import Timing
from worker.turn.events import Heard, Sent, Tick
from worker.turn.start import CompactionTerms


@pytest.mark.requirement("turn:trap-t9:first-and-surviving")
def test_the_time_to_the_first_content_is_told_for_the_call_and_for_the_attempt_that_survived() -> None:
    scene = begun().ignores(Sent(1, 1))
    scene.at(2).given(text(1, 1, "The ti")).take()
    scene.at(47).given(Tick()).take()
    scene.ignores(Sent(1, 2))
    scene.at(50).ignores(Heard(1, 2, Keepalive()))
    scene.at(52).given(Heard(1, 2, ReasoningDelta("Hm."))).take()
    scene.at(60).given(text(1, 2, "The tide is low.")).take()
    commit = scene.given(completed(1, 2, usage=Usage(7, 3))).take()[0]
    assert commit.timing == Timing(first_delta_s=2, surviving_first_delta_s=5)
    usage = next(output for output in outputs.of_commit(commit) if isinstance(output, UsageOutput))
    assert (usage.first_delta_ms, usage.surviving_first_delta_ms) == (2000, 5000)


@pytest.mark.requirement("turn:trap-t9:first-and-surviving")
def test_a_call_without_content_has_no_such_times() -> None:
    commit = begun(empty_nudges=0).given(completed(1, 1)).take()[0]
    assert commit.timing == Timing(None, None)


@pytest.mark.requirement("turn:watchdog:begins-when-sent")
def test_the_silence_of_a_request_begins_when_it_goes_out() -> None:
    scene = begun()
    assert scene.machine.deadline() == 1800
    scene.at(500).ignores(Sent(1, 1))
    assert scene.machine.deadline() == 2300
    scene.at(1800).ignores(Tick())


@pytest.mark.requirement("turn:watchdog:begins-when-sent")
def test_that_a_request_of_an_attempt_that_is_over_went_out_changes_nothing() -> None:
    scene = begun()
    scene.at(1800).given(Tick()).expect(ANY, ANY, ANY, ANY)
    scene.at(1900).ignores(Sent(1, 1))
    assert scene.machine.deadline() == 3600


@pytest.mark.requirement("turn:trap-t9:first-and-surviving")
def test_a_call_that_overflowed_counts_from_its_first_request() -> None:
    scene = begun(history=LONG_HISTORY, compaction=CompactionTerms(summarises=True))
    scene.at(1).given(text(1, 1, "The")).take()
    scene.at(2).given(failed(1, 1, "context_overflow")).take()
    scene.at(3).given(text(0, 1, "They talked.")).take()
    scene.at(4).given(completed(0, 1)).take()
    scene.ignores(Sent(1, 2))
    scene.at(7).given(text(1, 2, "The tide is low.")).take()
    assert scene.given(completed(1, 2)).take()[0].timing == Timing(first_delta_s=1, surviving_first_delta_s=3)


@pytest.mark.requirement("turn:watchdog:reasoning")
def test_white_space_between_thoughts_is_no_answer() -> None:
    scene = begun(watchdog=replace(MAIN.watchdog, reasoning_s=100))
    for now in range(0, 100, 10):
        scene.at(now).given(Heard(1, 1, ReasoningDelta("Hm."))).take()
        scene.given(text(1, 1, "\n")).take()
    scene.at(100).given(Tick()).expect(ANY, ANY, ANY, ANY)
    assert scene.commands[-3].reason == "reasoning"


@pytest.mark.requirement("turn:watchdog:reasoning")
def test_white_space_after_text_is_no_thought_either() -> None:
    scene = begun(watchdog=replace(MAIN.watchdog, reasoning_s=60, stall_s=0))
    scene.given(text(1, 1, "Hello")).take()
    scene.at(2).given(text(1, 1, "\n\n")).take()
    assert scene.machine.deadline() == 602
