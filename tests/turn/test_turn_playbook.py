"""A turn whose provider answers: from the message to the seal."""

from dataclasses import replace
from unittest.mock import ANY

import pytest

from tests.support.turns import (
    BROKEN_CALL,
    CLOCK,
    DEADLINE,
    MAIL,
    committed_as,
    completed,
    dropped,
    failed,
    opened,
    play,
    text,
    tool_call,
)
from worker.codecs.events import Keepalive, ReasoningDelta, RefusalDelta, ToolCallOpened, Usage
from worker.codecs.messages import AssistantMessage, Request, ToolMessage, UserMessage
from worker.turn.commands import (
    CloseCall,
    CommitCall,
    Failure,
    RecordToolResult,
    RunTools,
    Seal,
    StageText,
    StageThinking,
)
from worker.turn.events import Begin, Heard, Tick, ToolFinished
from worker.turn.states import State
from worker.turn.usage import NO_USAGE, Tally, UsageTotals

FIRST_REQUEST = Request(model="small", messages=(UserMessage("What is due?"),), tools=(CLOCK, MAIL))


def commit(call: int, attempt: int, text: str, *tool_calls: object, finish_reason: object = "stop") -> CommitCall:
    return committed_as(call, attempt, text, "", tool_calls, finish_reason, None, NO_USAGE)


def sealed(code: str, category: str = "provider_failure") -> Seal:
    return Seal("failed", None, Failure(category, code, ANY), ANY)  # type: ignore[arg-type]


@pytest.mark.requirement("turn:answer:completes")
def test_a_message_is_asked_staged_committed_and_sealed() -> None:
    scene = play()
    scene.given(Begin()).expect(opened(1, 1, 0, is_new_call=True, request=FIRST_REQUEST))
    scene.stands(State.CALLING)
    scene.given(text(1, 1, "Due ")).expect(StageText("Due "))
    scene.stands(State.STREAMING)
    scene.given(text(1, 1, "Friday.")).expect(StageText("Friday."))
    scene.given(completed(1, 1)).expect(commit(1, 1, "Due Friday."), Seal("completed", None, None, NO_USAGE))
    scene.stands(State.SEALED)
    assert scene.machine.deadline() is None


def test_the_request_carries_all_that_the_agent_sets_and_the_history_before_the_message() -> None:
    history = (UserMessage("Hello"), AssistantMessage("Hi"))
    scene = play(
        history=history, instructions="Be brief.", max_tokens=99, temperature=0.5, extra_body={"seed": 1}, tools=()
    )
    scene.given(Begin()).expect(opened(1, 1, 0, is_new_call=True, request=ANY))
    assert scene.commands[0].request == Request(
        model="small",
        messages=(*history, UserMessage("What is due?")),
        instructions="Be brief.",
        tools=(),
        max_tokens=99,
        temperature=0.5,
        extra_body={"seed": 1},
    )


@pytest.mark.requirement("turn:answer:thinking-is-no-answer")
def test_thinking_is_staged_and_kept_apart_from_the_text() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(Heard(1, 1, ReasoningDelta("Hm"))).expect(StageThinking("Hm"))
    scene.stands(State.STREAMING)
    scene.given(Heard(1, 1, ReasoningDelta("m."))).expect(StageThinking("m."))
    scene.given(text(1, 1, "Yes.")).expect(StageText("Yes."))
    scene.given(completed(1, 1)).expect(replace(commit(1, 1, "Yes."), thinking="Hmm."), ANY)


def test_keepalives_and_tool_call_fragments_order_nothing_and_only_the_latter_are_content() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.ignores(Heard(1, 1, Keepalive()))
    scene.stands(State.CALLING)
    scene.ignores(Heard(1, 1, ToolCallOpened(0, "clock")), Heard(1, 1, Keepalive()))
    scene.stands(State.STREAMING)


@pytest.mark.requirement("turn:answer:silent-call")
def test_a_call_that_says_all_in_one_piece_is_committed_like_any_other() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "Due Friday.")).expect(StageText("Due Friday."))
    scene.given(completed(1, 1)).expect(commit(1, 1, "Due Friday."), Seal("completed", None, None, NO_USAGE))


@pytest.mark.requirement("turn:tools:only-after-a-commit")
def test_tools_run_after_the_commit_and_their_results_go_into_the_next_call() -> None:
    first, second = tool_call("clock", id="t1"), tool_call("mail", {"to": "a"}, id="t2")
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "Let me look.")).expect(StageText("Let me look."))
    scene.given(completed(1, 1, "tool_calls", first, second)).expect(
        commit(1, 1, "Let me look.", first, second, finish_reason="tool_calls"),
        RunTools(1, ((0, first), (1, second)), 1),
    )
    scene.stands(State.RUNNING_TOOLS)
    scene.given(ToolFinished(1, 1, "sent")).expect(RecordToolResult(1, 1, second, "sent", None, 1))
    scene.given(ToolFinished(1, 0, "late", "timeout")).expect(
        RecordToolResult(1, 0, first, "late", "timeout", 1),
        opened(2, 1, 0, is_new_call=True, request=ANY),
    )
    assert scene.commands[-1].request.messages == (
        UserMessage("What is due?"),
        AssistantMessage("Let me look.", (first, second)),
        ToolMessage("t1", "clock", "late"),
        ToolMessage("t2", "mail", "sent"),
    )
    scene.given(text(2, 1, "Friday.")).expect(StageText("Friday."))
    scene.given(completed(2, 1)).expect(commit(2, 1, "Friday."), Seal("completed", None, None, NO_USAGE))


@pytest.mark.requirement("turn:tools:any-finish-reason")
@pytest.mark.parametrize("finish_reason", ["stop", "tool_calls", "function_call", None, "whatever"])
def test_tool_calls_run_whatever_word_the_provider_finishes_with(finish_reason: str | None) -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, finish_reason, tool_call())).expect(
        commit(1, 1, "", tool_call(), finish_reason=finish_reason), RunTools(1, ((0, tool_call()),), 1)
    )


@pytest.mark.requirement("turn:trap-t5:white-space-only-call")
def test_white_space_before_tools_is_committed_as_it_came() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "\n\n")).expect(StageText("\n\n"))
    scene.given(completed(1, 1, "tool_calls", tool_call())).expect(
        commit(1, 1, "\n\n", tool_call(), finish_reason="tool_calls"), ANY
    )


@pytest.mark.requirement("turn:tools:unknown")
def test_a_tool_that_is_not_offered_is_answered_at_once_while_the_others_run() -> None:
    unknown, good = tool_call("launch", id="t1"), tool_call("clock", id="t2")
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", unknown, good)).expect(
        commit(1, 1, "", unknown, good, finish_reason="tool_calls"),
        RecordToolResult(1, 0, unknown, "Error: there is no such tool. The tools are: clock, mail.", "unknown_tool", 1),
        RunTools(1, ((1, good),), 1),
    )


@pytest.mark.requirement("turn:tools:broken-arguments")
def test_arguments_that_are_not_whole_are_never_run_and_the_model_is_told() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", BROKEN_CALL)).expect(
        commit(1, 1, "", BROKEN_CALL, finish_reason="tool_calls"),
        RecordToolResult(1, 0, BROKEN_CALL, ANY, "bad_arguments", 1),
        opened(2, 1, 0, is_new_call=True, request=ANY),
    )
    assert scene.commands[-1].request.messages[-1] == ToolMessage(
        "t9", "clock", "Error: the arguments are not one whole JSON object, so nothing was run. Call the tool again."
    )


@pytest.mark.requirement("turn:tools:none-offered")
def test_a_tool_call_where_no_tool_was_offered_fails_the_turn() -> None:
    scene = play(tools=()).given(Begin())
    scene.take()
    scene.given(text(1, 1, "I will.")).expect(StageText("I will."))
    scene.given(completed(1, 1, "tool_calls", tool_call())).expect(
        commit(1, 1, "I will.", tool_call(), finish_reason="tool_calls"), sealed("unknown_tool")
    )


@pytest.mark.requirement("turn:tools:cap-on-calls")
def test_a_model_that_never_stops_asking_for_tools_is_stopped_at_the_cap() -> None:
    scene = play(max_calls=2).given(Begin())
    for call in (1, 2):
        scene.take()
        scene.given(completed(call, 1, "tool_calls", tool_call())).expect(ANY, ANY)
        scene.given(ToolFinished(call, 0, "12:00"))
    scene.expect(ANY, sealed("max_calls"))


@pytest.mark.requirement("turn:tools:only-after-a-commit")
def test_a_result_of_a_tool_that_does_not_run_is_refused() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", tool_call(), tool_call(id="t2"))).expect(ANY, ANY)
    scene.refuses(ToolFinished(1, 2, "x")).refuses(ToolFinished(2, 0, "x"))
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY)
    scene.refuses(ToolFinished(1, 0, "12:00"))


@pytest.mark.requirement("turn:answer:cut-short")
@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_an_answer_that_was_cut_short_is_kept_as_incomplete_and_its_tools_do_not_run(reason: str) -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "Due Fri")).expect(StageText("Due Fri"))
    scene.given(completed(1, 1, reason, tool_call())).expect(
        commit(1, 1, "Due Fri", tool_call(), finish_reason=reason), Seal("incomplete", reason, None, NO_USAGE)
    )


@pytest.mark.requirement("turn:answer:refusal")
def test_the_words_of_a_refusal_are_never_the_answer() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.ignores(Heard(1, 1, RefusalDelta("I cannot ")), Heard(1, 1, RefusalDelta("do that.")))
    scene.given(completed(1, 1, refusal="I cannot do that.")).expect(
        commit(1, 1, "", finish_reason="refusal"), Seal("incomplete", "refusal", None, NO_USAGE)
    )


@pytest.mark.requirement("turn:answer:refusal")
def test_text_before_a_refusal_is_kept() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "First, ")).expect(ANY)
    scene.given(completed(1, 1, refusal="no.")).expect(
        commit(1, 1, "First, ", finish_reason="refusal"), Seal("incomplete", "refusal", None, NO_USAGE)
    )


@pytest.mark.requirement("turn:answer:refusal")
def test_a_refusal_that_was_itself_cut_short_is_a_refusal() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "length", refusal="I can")).expect(
        commit(1, 1, "", finish_reason="refusal"), Seal("incomplete", "refusal", None, NO_USAGE)
    )


@pytest.mark.requirement("turn:answer:empty")
@pytest.mark.parametrize("words", ["", " \n"])
def test_an_answer_without_a_word_is_no_success(words: str) -> None:
    scene = play(empty_nudges=0).given(Begin())
    scene.take()
    if words:
        scene.given(text(1, 1, words)).expect(StageText(words))
    scene.given(completed(1, 1)).expect(commit(1, 1, words), sealed("empty_answer"))


@pytest.mark.requirement("turn:answer:several-choices")
def test_several_answers_at_once_are_none() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "One")).expect(ANY)
    scene.given(completed(1, 1, choices=2)).expect(
        CloseCall(), dropped(1, 1, "several_choices", 3, NO_USAGE), sealed("several_choices")
    )


@pytest.mark.requirement("turn:failure:refused-in-stream")
@pytest.mark.parametrize("failure", ["refused", "context_overflow"])
def test_an_error_that_will_not_pass_ends_the_turn_at_once(failure: str) -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "Due ")).expect(ANY)
    scene.given(failed(1, 1, failure, "too long")).expect(
        CloseCall(), dropped(1, 1, failure, 4, NO_USAGE), sealed(failure)
    )


@pytest.mark.requirement("turn:failure:content-filter-in-stream")
def test_a_content_filter_error_leaves_the_answer_incomplete_without_the_filtered_text() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(text(1, 1, "Due ")).expect(ANY)
    scene.given(failed(1, 1, "content_filter")).expect(
        CloseCall(),
        dropped(1, 1, "content_filter", 4, NO_USAGE),
        Seal("incomplete", "content_filter", None, NO_USAGE),
    )


@pytest.mark.requirement("turn:usage:completed-calls-only")
def test_totals_add_up_the_calls_that_completed_and_are_unknown_once_one_of_them_did_not_say() -> None:
    """A sum of some calls must not pass for the cost of all."""
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", tool_call(), usage=Usage(100, 10, 110, 50))).expect(ANY, ANY)
    assert scene.commands[-2].totals == UsageTotals(100, 10, 110, 50)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, ANY)
    scene.given(text(2, 1, "Noon.")).expect(ANY)
    scene.given(completed(2, 1, usage=Usage(120, 5, None, None, 3))).expect(
        replace(commit(2, 1, "Noon."), usage=Usage(120, 5, None, None, 3), totals=UsageTotals(220, 15)),
        Seal("completed", None, None, UsageTotals(220, 15)),
    )


def test_a_driver_that_takes_over_does_not_forget_that_a_call_was_silent_about_its_cost() -> None:
    tally = Tally(NO_USAGE, None, completed_calls=1)
    tally.completed(Usage(120, 5, 125))
    assert tally.totals == NO_USAGE


@pytest.mark.requirement("turn:deadline")
def test_the_turn_deadline_ends_a_call_in_mid_stream() -> None:
    scene = play(deadline=50).given(Begin())
    scene.take()
    scene.at(49).given(text(1, 1, "Due ")).expect(ANY)
    assert scene.machine.deadline() == 50
    scene.at(50).given(Tick()).expect(
        CloseCall(), dropped(1, 1, "turn_deadline", 4, NO_USAGE), sealed("turn_deadline", "timeout")
    )


@pytest.mark.requirement("turn:deadline")
def test_the_turn_deadline_ends_running_tools() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", tool_call())).expect(ANY, ANY)
    assert scene.machine.deadline() == DEADLINE
    scene.at(DEADLINE).given(Tick()).expect(sealed("turn_deadline", "timeout"))


@pytest.mark.requirement("turn:deadline")
def test_results_that_come_after_the_deadline_open_no_call() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", tool_call())).expect(ANY, ANY)
    scene.at(DEADLINE + 1).given(ToolFinished(1, 0, "12:00")).expect(ANY, sealed("turn_deadline", "timeout"))


@pytest.mark.requirement("turn:watchdog:stale-expiry")
def test_a_watchdog_expiry_that_comes_after_tools_were_dispatched_does_nothing() -> None:
    scene = play().given(Begin())
    scene.take()
    scene.at(1).given(text(1, 1, "Let me look.")).expect(ANY)
    stalls_at = scene.machine.deadline()
    assert stalls_at == 46
    scene.at(45).given(completed(1, 1, "tool_calls", tool_call())).expect(ANY, ANY)
    scene.at(46).ignores(Tick())
    scene.at(5000).ignores(Tick(), text(1, 1, "more"), completed(1, 1))
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, opened(2, 1, 0, is_new_call=True, request=ANY))
