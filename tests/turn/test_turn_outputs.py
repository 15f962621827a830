"""What readers are told of each command, and in which order."""

from dataclasses import replace
from typing import Any

import pytest

from tests.support.turns import completed, discarded, play, text, tool_call
from worker.codecs.events import Usage
from worker.output.events import (
    CallCompletedOutput,
    ErrorOutput,
    Output,
    TextOutput,
    TextStreamDiscardedOutput,
    ThinkingOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
    UsageOutput,
)
from worker.turn import outputs
from worker.turn.commands import CommitCall, DiscardCall, Failure, RecordToolResult, Seal
from worker.turn.events import Begin, Died, NotAnswered
from worker.turn.facts import Committed, Progress
from worker.turn.usage import NO_USAGE

STALLED = Failure("timeout", "stall_timeout", "It stalled.")
ERROR = ErrorOutput(message="It stalled.", category="timeout", code="stall_timeout", correlation_id="c0ffee")


def commit(text: str, *, thinking: str = "", usage: Usage | None = None, totals: Any = NO_USAGE) -> CommitCall:
    return CommitCall(2, 3, text, thinking, (), "stop", usage, totals)


def of(**fields: Any) -> dict[str, Any]:
    return {"call": 2, "attempt": 3, **fields}


@pytest.mark.requirement("turn:outputs:order-of-a-commit")
def test_a_commit_tells_the_text_then_the_boundary_then_thinking_then_usage() -> None:
    told = outputs.of_commit(commit("Due.", thinking="Hm.", usage=Usage(7, 3, 10, 2, 1), totals=discarded(1, 7)))
    assert told == (
        TextOutput(**of(text="Due.")),
        CallCompletedOutput(**of(finish_reason="stop")),
        ThinkingOutput(**of(text="Hm.")),
        UsageOutput(
            **of(
                input_tokens=7,
                output_tokens=3,
                total_tokens=10,
                cached_input_tokens=2,
                reasoning_tokens=1,
                discarded_resume_attempts=1,
                discarded_resume_estimated_input_tokens=7,
            )
        ),
    )


@pytest.mark.requirement("turn:trap-t5:white-space-only-call")
@pytest.mark.parametrize(("text", "kinds"), [("", [CallCompletedOutput]), ("\n", [TextOutput, CallCompletedOutput])])
def test_the_boundary_is_told_also_without_text_and_white_space_is_text(text: str, kinds: list[type[Output]]) -> None:
    assert [type(output) for output in outputs.of_commit(commit(text))] == kinds


@pytest.mark.requirement("turn:usage:unknown-is-left-out")
def test_usage_that_nobody_reported_is_not_told_and_no_discard_means_no_such_field() -> None:
    assert UsageOutput not in map(type, outputs.of_commit(commit("Due.")))
    usage = outputs.of_commit(commit("Due.", usage=Usage(7)))[-1]
    assert usage == UsageOutput(**of(input_tokens=7))


def test_what_resumes_cost_is_told_even_where_the_provider_reports_no_usage() -> None:
    assert outputs.of_commit(commit("", totals=discarded(2)))[-1] == UsageOutput(**of(discarded_resume_attempts=2))


@pytest.mark.requirement("turn:trap-t11:discard-says-what-died")
def test_a_discard_says_which_attempt_died_of_what_and_how_much_of_it_is_void() -> None:
    assert outputs.of_discard(DiscardCall(2, 3, "stall", 11, NO_USAGE)) == (
        TextStreamDiscardedOutput(**of(reason="stall", discarded_bytes=11)),
    )


def test_a_tool_is_told_when_it_starts_and_when_it_has_ended() -> None:
    call = tool_call("clock", id="t1")
    assert outputs.of_tool_start(2, call, 3) == (ToolCallOutput(**of(tool_call_id="t1", name="clock", arguments="{}")),)
    assert outputs.of_tool_result(RecordToolResult(2, 0, call, "late", "timeout", 3)) == (
        ToolResultOutput(**of(tool_call_id="t1", name="clock", result="late", failure="timeout")),
    )


@pytest.mark.requirement("turn:outputs:end")
def test_a_completed_turn_ends_with_its_end_alone() -> None:
    assert outputs.of_seal(Seal("completed", None, None, discarded(1)), "c0ffee") == (TurnCompletedOutput(),)


@pytest.mark.requirement("turn:outputs:end")
def test_a_failed_turn_tells_the_error_before_its_end() -> None:
    assert outputs.of_seal(Seal("failed", None, STALLED, NO_USAGE), "c0ffee") == (
        ERROR,
        TurnCompletedOutput(outcome="failed"),
    )


@pytest.mark.requirement("turn:trap-t8:discarded-usage-on-failure")
def test_a_failed_turn_tells_what_its_discards_cost_before_the_error() -> None:
    assert outputs.of_seal(Seal("failed", None, STALLED, discarded(2, 14), True), "c0ffee") == (
        UsageOutput(discarded_resume_attempts=2, discarded_resume_estimated_input_tokens=14),
        ERROR,
        TurnCompletedOutput(outcome="failed"),
    )


def test_an_incomplete_turn_tells_its_reason() -> None:
    assert outputs.of_seal(Seal("incomplete", "length", None, NO_USAGE), "c0ffee") == (
        TurnCompletedOutput(outcome="incomplete", reason="length"),
    )


@pytest.mark.requirement("turn:usage:told-once")
def test_what_the_last_call_has_told_of_discards_is_not_told_again_at_the_end() -> None:
    """Readers keep the last usage of a turn: one without tokens would hide them."""
    told = Seal("incomplete", "length", None, discarded(2, 14), has_untold_discards=False)
    assert outputs.of_seal(told, "c0ffee") == (TurnCompletedOutput(outcome="incomplete", reason="length"),)
    scene = play(resume_budget=2).given(Begin())
    scene.take()
    scene.given(Died(1, 1, "reset", "")).take()
    scene.given(text(1, 2, "Due")).take()
    seal = scene.given(completed(1, 2, "length", usage=Usage(7, 3))).take()[-1]
    assert (seal.totals.discarded_resume_attempts, seal.has_untold_discards) == (1, False)


@pytest.mark.requirement("turn:usage:told-once")
def test_what_drivers_before_have_discarded_is_told_by_the_one_that_ends_the_turn() -> None:
    waits = Progress(call=1, attempt=1, calls=1, resumes_spent=1, totals=discarded(1))
    scene = play(progress=waits).given(Begin())
    scene.take()
    assert scene.given(NotAnswered(1, 2, 400, False, "refused", "No.")).take()[-1].has_untold_discards
    told = Committed(1, 2, "Due", (), "length", Usage(7, 3), "main")
    answered = replace(waits, attempt=2)
    sealed = play(progress=answered, facts=(told,)).given(Begin()).take()[-1]
    assert (sealed.outcome, sealed.has_untold_discards) == ("incomplete", False)
