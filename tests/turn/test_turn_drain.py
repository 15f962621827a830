"""A turn in a process that shuts down."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import begun, completed, discarded, dropped, opened, play, text, tool_call
from worker.turn.commands import CloseCall, Failure, HandOff, RecordToolResult, Seal, StageText, StopTools
from worker.turn.events import Begin, Died, Drain, NotAnswered, Tick, ToolFinished
from worker.turn.states import State
from worker.turn.usage import NO_USAGE
from worker.turn.verdict import OUTCOME_UNKNOWN


def sealed(code: str, category: str) -> Seal:
    return Seal("failed", None, Failure(category, code, ANY), ANY, ANY)  # type: ignore[arg-type]


@pytest.mark.requirement("turn:drain:handoff")
def test_an_open_call_is_discarded_and_handed_off_at_once() -> None:
    scene = begun()
    scene.given(text(1, 1, "Due ")).expect(ANY)
    scene.given(Drain()).expect(CloseCall(), dropped(1, 1, "drain", 4, discarded(1)), HandOff())
    assert (scene.machine.state, scene.machine.deadline()) == (State.HANDED_OFF, None)


@pytest.mark.requirement("turn:drain:handoff")
def test_a_call_that_has_said_nothing_is_handed_off_with_its_discard_all_the_same() -> None:
    begun().given(Drain()).expect(CloseCall(), dropped(1, 1, "drain", 0, discarded(1)), HandOff())


@pytest.mark.requirement("turn:drain:handoff")
def test_a_turn_that_has_not_begun_is_handed_off_untouched() -> None:
    play().given(Drain()).expect(HandOff())


@pytest.mark.requirement("turn:drain:handoff")
def test_a_call_between_two_attempts_is_handed_off_without_spending_the_budget() -> None:
    scene = begun(resume_backoff_s=2)
    scene.given(Died(1, 1, "reset", "")).expect(
        CloseCall(), dropped(1, 1, "reset", 0, discarded(1), resumes_spent=1), ANY
    )
    scene.given(Drain()).expect(HandOff())


@pytest.mark.requirement("turn:drain:handoff")
def test_a_request_between_two_tries_is_discarded_and_handed_off() -> None:
    scene = begun()
    scene.given(NotAnswered(1, 1, 503, True, "http_503", "Busy.")).expect()
    scene.given(Drain()).expect(CloseCall(), dropped(1, 1, "drain", 0, discarded(1)), HandOff())


@pytest.mark.requirement("turn:drain:tools-finish")
def test_running_tools_finish_and_the_turn_is_handed_off_instead_of_the_next_call() -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", tool_call(), tool_call(id="t2"))).expect(ANY, ANY)
    scene.ignores(Drain(), Drain())
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY)
    scene.given(ToolFinished(1, 1, "12:01")).expect(ANY, HandOff())


@pytest.mark.requirement("turn:drain:fail")
def test_where_drains_fail_turns_a_healthy_stream_may_finish() -> None:
    scene = begun(on_drain="fail")
    scene.ignores(Drain())
    scene.given(text(1, 1, "Due Friday.")).expect(StageText("Due Friday."))
    scene.given(completed(1, 1)).expect(ANY, Seal("completed", None, None, NO_USAGE))


@pytest.mark.requirement("turn:drain:fail")
def test_where_drains_fail_turns_tools_and_the_next_call_go_on() -> None:
    scene = play(on_drain="fail")
    scene.ignores(Drain())
    scene.given(Begin()).expect(ANY)
    scene.given(completed(1, 1, "tool_calls", tool_call())).expect(ANY, ANY)
    scene.ignores(Drain())
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, opened(2, 1, 0, is_new_call=True, request=ANY))
    scene.given(Died(2, 1, "reset", "")).expect(CloseCall(), ANY, sealed("reset", "stream_failure"))


@pytest.mark.requirement("turn:drain:fail")
def test_where_drains_fail_turns_a_call_that_times_out_is_discarded_and_fails_at_once() -> None:
    scene = begun(on_drain="fail")
    scene.at(1).given(text(1, 1, "Due ")).expect(ANY)
    scene.ignores(Drain())
    scene.at(46).given(Tick()).expect(
        CloseCall(), dropped(1, 1, "stall", 4, NO_USAGE), sealed("stall_timeout", "timeout")
    )
    assert 'turns.on_drain = "fail"' in scene.commands[-1].failure.message


@pytest.mark.requirement("turn:drain:fail")
def test_where_drains_fail_turns_a_call_that_waits_for_its_next_try_fails_of_what_it_had_died_of() -> None:
    scene = begun(on_drain="fail", resume_backoff_s=2)
    scene.given(Died(1, 1, "reset", "")).expect(CloseCall(), ANY, ANY)
    scene.given(Drain()).expect(sealed("reset", "stream_failure"))

    scene = begun(on_drain="fail")
    scene.given(NotAnswered(1, 1, 503, True, "http_503", "Busy.")).expect()
    scene.given(Drain()).expect(
        CloseCall(), dropped(1, 1, "drain", 0, NO_USAGE), sealed("http_503", "provider_failure")
    )


@pytest.mark.requirement("turn:drain:fail")
def test_where_drains_fail_turns_a_request_without_an_answer_is_not_sent_again() -> None:
    scene = begun(on_drain="fail")
    scene.ignores(Drain())
    scene.given(NotAnswered(1, 1, 503, True, "http_503", "Busy.")).expect(
        CloseCall(), dropped(1, 1, "not_answered", 0, NO_USAGE), sealed("http_503", "provider_failure")
    )


def result_of(index: int, name: str) -> RecordToolResult:
    """Nobody knows what became of a tool."""
    call = tool_call(name, id=f"t{index}")
    return RecordToolResult(1, index, call, OUTCOME_UNKNOWN.result, OUTCOME_UNKNOWN.failure, 1)


def running_tools(*tools: str, **changes: Any) -> Playbook:
    """A scene in which these tools of a call run, and the process has begun to shut down."""
    scene = begun(**changes)
    calls = [tool_call(name, id=f"t{index}") for index, name in enumerate(tools)]
    scene.given(completed(1, 1, "tool_calls", *calls)).expect(ANY, ANY)
    return scene.ignores(Drain())


@pytest.mark.requirement("turn:drain:over")
def test_tools_that_still_run_are_stopped_and_the_next_driver_is_told_what_a_takeover_would_tell() -> None:
    """`clock` may run again, so nothing is said of it; `mail` may have been sent."""
    scene = running_tools("clock", "mail", retry_safe=frozenset({"clock"}))
    scene.given(Drain(is_over=True)).expect(StopTools(), result_of(1, "mail"), HandOff())
    assert (scene.machine.state, scene.machine.deadline()) == (State.HANDED_OFF, None)


@pytest.mark.requirement("turn:drain:over")
def test_a_tool_that_has_ended_in_time_keeps_its_result() -> None:
    scene = running_tools("mail", "mail")
    scene.given(ToolFinished(1, 1, "sent")).expect(ANY)
    scene.given(Drain(is_over=True)).expect(StopTools(), result_of(0, "mail"), HandOff())


@pytest.mark.requirement("turn:drain:over")
def test_where_no_tool_runs_the_turn_was_handed_off_long_before() -> None:
    begun().given(Drain(is_over=True)).expect(CloseCall(), dropped(1, 1, "drain", 0, discarded(1)), HandOff())
    play().given(Drain(is_over=True)).expect(HandOff())


@pytest.mark.requirement("turn:drain:over-fail")
def test_where_drains_fail_turns_what_is_not_done_in_time_fails_with_what_stands() -> None:
    scene = begun(on_drain="fail")
    scene.ignores(Drain())
    scene.given(text(1, 1, "Due ")).expect(ANY)
    scene.given(Drain(is_over=True)).expect(
        CloseCall(), dropped(1, 1, "drain", 4, NO_USAGE), sealed("drained", "internal")
    )
    assert 'turns.on_drain = "fail"' in scene.commands[-1].failure.message

    scene = running_tools("mail", on_drain="fail")
    scene.given(Drain(is_over=True)).expect(StopTools(), result_of(0, "mail"), sealed("drained", "internal"))
