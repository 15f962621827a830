"""Conversations that grow too long for the model."""

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import (
    BACKUP,
    LIMITS,
    LONG_HISTORY,
    MAIN,
    START,
    completed,
    failed,
    opened,
    play,
    text,
    tool_call,
)
from worker.codecs.events import Keepalive, ReasoningDelta, Usage
from worker.codecs.messages import AssistantMessage, ToolMessage, UserMessage
from worker.turn.commands import Blame, CloseCall, Failure, HandOff, OpenSidecar, RecordCompaction, Seal, Warn
from worker.turn.compaction import Plan
from worker.turn.events import Begin, Died, Drain, Heard, NotAnswered, Sent, Tick, ToolFinished
from worker.turn.facts import Compacted, Progress
from worker.turn.machine import TurnMachine
from worker.turn.start import CompactionTerms
from worker.turn.states import State

TERMS = CompactionTerms()
RESULTS = (
    UserMessage("Look everything up."),
    *(
        message
        for number in range(6)
        for message in (
            AssistantMessage("", (tool_call(id=f"h{number}"),)),
            ToolMessage(f"h{number}", "clock", f"{number} " * 4000),
        )
    ),
    AssistantMessage("Done."),
)
FULL = Progress(last_input_tokens=800)


def too_full(**changes: Any) -> Playbook:
    """A turn whose session has filled more than three quarters of the context."""
    if "stall_s" in changes:
        changes["watchdog"] = replace(MAIN.watchdog, stall_s=changes.pop("stall_s"))
    return play(history=LONG_HISTORY, context_tokens=1000, compaction=TERMS, progress=FULL, **changes)


def summed_up(scene: Playbook, summary: str = "They talked.") -> Playbook:
    scene.given(text(0, 1, summary)).expect()
    return scene.given(completed(0, 1, usage=Usage(input_tokens=700, output_tokens=9)))


@pytest.mark.requirement("turn:compaction:before-a-call")
def test_a_conversation_that_fills_the_context_is_summed_up_beside_the_turn_before_the_next_call() -> None:
    scene = too_full()
    scene.given(Begin()).expect(OpenSidecar(1, ANY, "main"))
    scene.stands(State.COMPACTING)
    assert scene.commands[0].request.tools == ()
    scene.ignores(Sent(0, 1), Heard(0, 1, Keepalive()), Heard(0, 1, ReasoningDelta("Hm.")))
    summed_up(scene).expect(RecordCompaction(1, ANY, ANY, Usage(700, 9), None), opened(1, 1, 0, is_new_call=True))
    fact = scene.commands[-2].fact
    assert (fact.before_call, fact.forced, fact.summary) == (1, False, "They talked.")
    messages = scene.commands[-1].request.messages
    assert "They talked." in messages[0].text
    assert messages[-1] == UserMessage("What is due?")
    assert len(messages) < len(LONG_HISTORY)


@pytest.mark.requirement("turn:compaction:results-first")
def test_where_dropping_old_tool_results_is_enough_nothing_is_summed_up() -> None:
    scene = play(history=RESULTS, context_tokens=1000, compaction=TERMS, progress=FULL)
    scene.given(Begin()).expect(RecordCompaction(1, ANY, ANY, None, None), opened(1, 1, 0, is_new_call=True))
    assert scene.commands[0].fact.summary is None
    results = [each.text for each in scene.commands[1].request.messages if isinstance(each, ToolMessage)]
    assert [len(result) > 4000 for result in results] == [False] * 3 + [True] * 3


@pytest.mark.requirement("turn:compaction:sidecar-resumes")
def test_a_sidecar_that_stalls_is_asked_again_with_the_same_request_and_nothing_of_it_is_staged() -> None:
    scene = too_full()
    scene.given(Begin()).expect(OpenSidecar(1, ANY, "main"))
    request = scene.commands[0].request
    scene.given(text(0, 1, "They")).expect()
    scene.at(45).given(Tick()).expect(CloseCall(), Blame("main"), Warn(ANY, ANY), OpenSidecar(2, request, "main"))
    scene.ignores(text(0, 1, " late"))
    scene.given(text(0, 2, "They talked.")).expect()
    scene.given(completed(0, 2)).expect(RecordCompaction(1, ANY, ANY, None, None), opened(1, 1, 0, is_new_call=True))
    assert scene.commands[-2].fact.summary == "They talked."
    assert scene.commands[-2].totals.discarded_resume_attempts is None, "no attempt of the turn was discarded"


@pytest.mark.requirement("turn:compaction:failure-is-no-end")
@pytest.mark.parametrize(
    "end",
    [
        failed(0, 1, "refused"),
        failed(0, 1, "content_filter"),
        failed(0, 1, "context_overflow"),
        completed(0, 1),
        completed(0, 1, "stop", refusal="No."),
        completed(0, 1, "tool_calls", tool_call()),
        NotAnswered(0, 1, 401, False, "unauthorized", "No."),
    ],
)
def test_a_summary_that_cannot_be_had_never_fails_the_turn(end: Any) -> None:
    scene = too_full()
    scene.given(Begin()).take()
    commands = [command for command in scene.given(end).take() if not isinstance(command, CloseCall | Blame)]
    assert commands == [Warn("compaction_failed", ANY), opened(1, 1, 0, is_new_call=True)]
    assert scene.commands[-1].request.messages == (*LONG_HISTORY, UserMessage("What is due?"))


@pytest.mark.requirement("turn:compaction:never-in-a-resume")
def test_a_call_that_is_reissued_is_never_made_shorter() -> None:
    scene = play(history=LONG_HISTORY, context_tokens=10_000, compaction=TERMS).given(Begin())
    first = scene.take()[0].request
    scene.given(Died(1, 1, "reset", "")).expect(ANY, ANY, ANY, opened(1, 2, 1, False, first))
    progress = Progress(call=1, attempt=1, calls=1, is_open=True, last_input_tokens=800)
    taken = play(history=LONG_HISTORY, context_tokens=1000, compaction=TERMS, progress=progress)
    taken.given(Begin()).expect(ANY, opened(1, 2, 0, is_new_call=False))


@pytest.mark.requirement("turn:compaction:not-before-each-call")
def test_it_is_not_done_again_before_the_input_has_grown() -> None:
    scene = too_full()
    scene.given(Begin()).take()
    summed_up(scene).take()
    usage = Usage(input_tokens=790)
    scene.given(text(1, 1, "Let me see. " * 200)).take()
    scene.given(completed(1, 1, "tool_calls", tool_call(), usage=usage)).expect(ANY, ANY)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, opened(2, 1, 0, is_new_call=True))
    scene.given(text(2, 1, "And then. " * 200)).take()
    scene.given(completed(2, 1, "tool_calls", tool_call("mail"), usage=Usage(input_tokens=900))).expect(ANY, ANY)
    scene.given(ToolFinished(2, 0, "sent")).expect(ANY, OpenSidecar(1, ANY, "main"))


@pytest.mark.requirement("turn:compaction:takeover")
def test_another_driver_shows_the_model_the_same_shortened_conversation() -> None:
    scene = too_full()
    scene.given(Begin()).take()
    summed_up(scene).take()
    facts = [command.fact for command in scene.commands if isinstance(command, RecordCompaction)]
    progress = Progress(call=1, attempt=1, calls=1, is_open=True, last_input_tokens=800)
    taken = play(history=LONG_HISTORY, context_tokens=1000, compaction=TERMS, progress=progress, facts=tuple(facts))
    taken.given(Begin()).expect(ANY, opened(1, 2, 0, False, scene.commands[-1].request))


@pytest.mark.requirement("turn:overflow:once")
@pytest.mark.parametrize(
    "overflow",
    [failed(1, 1, "context_overflow"), NotAnswered(1, 1, 400, False, "context_overflow", "Too long.")],
)
def test_a_context_that_overflows_is_made_shorter_and_asked_once_more_without_spending_a_resume(overflow: Any) -> None:
    scene = play(history=LONG_HISTORY, compaction=TERMS).given(Begin())
    scene.take()
    scene.given(overflow).expect(CloseCall(), ANY, OpenSidecar(1, ANY, "main"))
    assert scene.commands[-2].reason == "context_overflow"
    summed_up(scene).expect(RecordCompaction(1, ANY, ANY, ANY, None), opened(1, 2, 0, is_new_call=False))
    assert scene.commands[-2].fact.forced
    again = failed(1, 2, "context_overflow")
    failure = Failure("provider_failure", "context_overflow", ANY)
    scene.given(again).expect(CloseCall(), ANY, Seal("failed", None, failure, ANY))


@pytest.mark.requirement("turn:overflow:nothing-to-drop")
def test_where_nothing_can_be_made_shorter_an_overflow_fails_the_turn() -> None:
    for compaction in (None, TERMS):
        scene = play(compaction=compaction).given(Begin())
        scene.take()
        failure = Failure("provider_failure", "context_overflow", ANY)
        scene.given(failed(1, 1, "context_overflow")).expect(ANY, ANY, Seal("failed", None, failure, ANY))


@pytest.mark.requirement("turn:overflow:nothing-to-drop")
def test_an_overflow_whose_summary_cannot_be_had_fails_the_turn_as_an_overflow() -> None:
    scene = play(history=LONG_HISTORY, compaction=TERMS).given(Begin())
    scene.take()
    scene.given(failed(1, 1, "context_overflow")).take()
    failure = Failure("provider_failure", "context_overflow", ANY)
    commands = scene.given(failed(0, 1, "refused")).take()
    assert commands[-1] == Seal("failed", None, failure, ANY)


@pytest.mark.requirement("turn:overflow:takeover")
def test_another_driver_does_not_make_the_same_call_shorter_twice() -> None:
    fact = Compacted(before_call=1, forced=True, kept_results=3, summary="They talked.")
    progress = Progress(call=1, attempt=2, calls=1, is_open=True)
    scene = play(history=LONG_HISTORY, compaction=TERMS, facts=(fact,), progress=progress).given(Begin())
    scene.take()
    failure = Failure("provider_failure", "context_overflow", ANY)
    scene.given(failed(1, 3, "context_overflow")).expect(ANY, ANY, Seal("failed", None, failure, ANY, ANY))


@pytest.mark.requirement("turn:compaction:ends-with-the-turn")
def test_a_drain_and_the_turn_deadline_end_a_compaction_too() -> None:
    scene = too_full()
    scene.given(Begin()).take()
    scene.given(Drain()).expect(CloseCall(), HandOff())


@pytest.mark.requirement("turn:compaction:failure-is-no-end")
@pytest.mark.parametrize(("deadline", "until"), [(7200, 180), (30, 15)])
def test_a_summary_that_takes_too_long_is_given_up_before_it_costs_the_turn_its_time(
    deadline: float, until: float
) -> None:
    scene = too_full(deadline=deadline, stall_s=0)
    scene.given(Begin()).take()
    scene.given(text(0, 1, "They")).expect()
    assert scene.machine.deadline() == until
    scene.at(until).given(Tick()).expect(CloseCall(), Warn("compaction_failed", ANY), opened(1, 1, 0, is_new_call=True))
    scene.ignores(completed(0, 1))


@pytest.mark.requirement("turn:compaction:failure-is-no-end")
def test_a_summary_that_could_not_be_had_is_not_asked_for_before_each_call() -> None:
    scene = too_full()
    scene.given(Begin()).take()
    scene.given(failed(0, 1, "refused")).take()
    scene.given(completed(1, 1, "tool_calls", tool_call(), usage=Usage(input_tokens=810))).take()
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, opened(2, 1, 0, is_new_call=True))
    scene.given(completed(2, 1, "tool_calls", tool_call("mail"), usage=Usage(input_tokens=900))).take()
    scene.given(ToolFinished(2, 0, "sent")).expect(ANY, OpenSidecar(1, ANY, "main"))


@pytest.mark.requirement("turn:compaction:ends-with-the-turn")
def test_where_a_drain_fails_turns_a_summary_that_waits_for_its_next_try_is_given_up() -> None:
    scene = too_full(on_drain="fail")
    scene.given(Begin()).take()
    scene.given(NotAnswered(0, 1, 503, True, "overloaded", "Busy.")).expect()
    scene.given(Drain()).expect(CloseCall(), Warn("compaction_failed", ANY), opened(1, 1, 0, is_new_call=True))
    healthy = too_full(on_drain="fail")
    healthy.given(Begin()).take()
    healthy.given(text(0, 1, "They")).expect()
    healthy.ignores(Drain()).stands(State.COMPACTING)


@pytest.mark.requirement("turn:compaction:sidecar-resumes")
def test_a_summary_is_asked_of_the_provider_that_answers_the_turn() -> None:
    scene = play(
        providers=(MAIN, BACKUP), history=LONG_HISTORY, context_tokens=1000, compaction=TERMS, extra_body={"seed": 1}
    ).given(Begin())
    scene.take()
    scene.given(Died(1, 1, "reset", "")).take()
    scene.given(text(1, 2, "Let me see. " * 200)).take()
    scene.given(completed(1, 2, "tool_calls", tool_call(), usage=Usage(input_tokens=900))).take()
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, OpenSidecar(1, ANY, "backup"))
    assert scene.commands[-1].request.extra_body == {"seed": 1}


@pytest.mark.requirement("turn:overflow:once")
def test_a_fallback_that_overflows_is_asked_again_itself_with_its_budget_kept() -> None:
    scene = play(providers=(MAIN, BACKUP), history=LONG_HISTORY, compaction=TERMS).given(Begin())
    scene.take()
    scene.given(Died(1, 1, "reset", "")).take()
    scene.given(failed(1, 2, "context_overflow")).expect(CloseCall(), ANY, OpenSidecar(1, ANY, "backup"))
    summed_up(scene).expect(ANY, opened(1, 3, 1, is_new_call=False, provider="backup"))


@pytest.mark.requirement("turn:compaction:not-before-each-call")
def test_where_no_usage_is_reported_it_is_done_once() -> None:
    scene = too_full()
    scene.given(Begin()).take()
    summed_up(scene).take()
    for number in (1, 2, 3):
        scene.given(text(number, 1, "Let me see. " * 200)).take()
        scene.given(completed(number, 1, "tool_calls", tool_call(arguments={"timezone": f"{number}"}))).take()
        scene.given(ToolFinished(number, 0, "12:00")).expect(ANY, opened(number + 1, 1, 0, is_new_call=True))


@pytest.mark.requirement("turn:compaction:ends-with-the-turn")
def test_a_summary_that_is_begun_while_this_process_shuts_down_is_tried_once() -> None:
    scene = play(
        history=LONG_HISTORY, context_tokens=1000, compaction=TERMS, on_drain="fail", progress=Progress(call=0)
    ).given(Begin())
    scene.take()
    scene.given(completed(1, 1, "tool_calls", tool_call(), usage=Usage(input_tokens=900))).take()
    scene.ignores(Drain())
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, OpenSidecar(1, ANY, "main"))
    scene.given(Died(0, 1, "reset", "")).expect(
        CloseCall(), Blame("main"), Warn("compaction_failed", ANY), opened(2, 1, 0, is_new_call=True)
    )


@pytest.mark.requirement("turn:compaction:strategy-that-raises")
def test_a_strategy_that_raises_costs_the_turn_nothing() -> None:
    class Broken:
        def plan(self, *_: Any) -> Plan | None:
            raise ZeroDivisionError

    start = replace(START, providers=(replace(MAIN, context_tokens=1000),), history=LONG_HISTORY, progress=FULL)
    turn = TurnMachine(start, replace(LIMITS, compaction=TERMS), 7200, lambda: 0.5, strategy=Broken())
    warning = Warn("compaction_strategy_failed", (("call", 1), ("error", "ZeroDivisionError")))
    assert turn.handle(Begin(), 0) == (warning, opened(1, 1, 0, is_new_call=True))
