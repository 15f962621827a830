"""Tool calls that run only once a person has said yes."""

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.playbook import Playbook
from tests.support.turns import completed, opened, play, tool_call
from worker.codecs.events import ToolCall
from worker.turn.batch import arguments_hash
from worker.turn.commands import AskApproval, Failure, Park, RecordToolResult, RunTools, Seal
from worker.turn.events import Begin, Decided, Drain, Tick, ToolFinished
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed, Fact, Progress, ToolStarted
from worker.turn.states import State
from worker.turn.verdict import NOBODY_DECIDED, NOT_APPROVED, NOT_WHAT_WAS_SHOWN, ToolRefusal

CLOCK_CALL, MAIL_CALL = tool_call("clock", id="t1"), ToolCall("t2", "mail", '{"to": "Ana"}', {"to": "Ana"})
SECOND_MAIL = ToolCall("t3", "mail", '{"to": "Bo"}', {"to": "Bo"})
BEGUN = Progress(call=1, attempt=1, calls=1)


def begun(**changes: Any) -> Playbook:
    scene = play(asks=frozenset({"mail"}), **changes).given(Begin())
    scene.take()
    return scene


def decided(option: str, index: int = 0, by: str | None = "ana") -> Decided:
    return Decided((ApprovalDecided(1, index, option, by),))


def refused(tool: ToolCall, refusal: ToolRefusal, index: int = 0) -> RecordToolResult:
    return RecordToolResult(1, index, tool, refusal.result, refusal.failure, 1)


def taken_over(*facts: Fact, **changes: Any) -> Playbook:
    committed = Committed(1, 1, "", (MAIL_CALL,), "tool_calls", None, "main")
    return play(asks=frozenset({"mail"}), facts=(committed, *facts), progress=BEGUN, **changes).given(Begin())


@pytest.mark.requirement("turn:approval:asks-then-parks")
def test_a_tool_that_needs_approval_is_asked_about_and_the_turn_parks() -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).expect(ANY, AskApproval(1, 0, MAIL_CALL, 1), Park())
    scene.stands(State.PARKED)
    assert scene.machine.deadline() is None


@pytest.mark.requirement("turn:approval:siblings-go-on")
def test_the_other_tools_of_the_answer_run_meanwhile_and_the_turn_parks_when_they_have_ended() -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", CLOCK_CALL, MAIL_CALL)).expect(
        ANY, AskApproval(1, 1, MAIL_CALL, 1), RunTools(1, ((0, CLOCK_CALL),), 1)
    )
    scene.stands(State.RUNNING_TOOLS)
    scene.given(ToolFinished(1, 0, "12:00")).expect(ANY, Park())


@pytest.mark.requirement("turn:approval:granted")
@pytest.mark.parametrize("option", ["approve_once", "approve_session"])
def test_what_a_person_approves_runs(option: str) -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
    scene.given(decided(option)).expect(RunTools(1, ((0, MAIL_CALL),), 1))
    scene.stands(State.RUNNING_TOOLS)
    scene.given(ToolFinished(1, 0, "sent")).expect(ANY, opened(2, 1, 0, is_new_call=True))


@pytest.mark.requirement("turn:approval:session")
def test_what_is_approved_for_the_session_is_not_asked_about_again_and_what_is_approved_once_is() -> None:
    for option, again in (
        ("approve_session", [RunTools(2, ((0, SECOND_MAIL),), 1)]),
        ("approve_once", [AskApproval(2, 0, SECOND_MAIL, 1), Park()]),
    ):
        scene = begun()
        scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
        scene.given(decided(option)).take()
        scene.given(ToolFinished(1, 0, "sent")).take()
        scene.given(completed(2, 1, "tool_calls", SECOND_MAIL)).expect(ANY, *again)


@pytest.mark.requirement("turn:approval:session")
def test_a_tool_that_an_earlier_turn_was_granted_for_the_session_runs_at_once() -> None:
    scene = begun(progress=Progress(granted=frozenset({"mail"})))
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).expect(ANY, RunTools(1, ((0, MAIL_CALL),), 1))


@pytest.mark.requirement("turn:approval:denied")
@pytest.mark.parametrize(
    ("option", "refusal"),
    [("deny", NOT_APPROVED), ("expired", NOBODY_DECIDED), ("approve_everything_for_ever", NOT_APPROVED)],
)
def test_what_is_denied_expired_or_answered_in_an_unknown_way_is_told_to_the_model_and_does_not_run(
    option: str, refusal: ToolRefusal
) -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
    scene.given(decided(option)).expect(refused(MAIL_CALL, refusal), opened(2, 1, 0, is_new_call=True))


@pytest.mark.requirement("turn:approval:one-by-one")
def test_a_turn_with_two_questions_parks_again_until_both_are_decided() -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL, SECOND_MAIL)).expect(ANY, ANY, ANY, Park())
    scene.given(decided("approve_once", 1)).expect(RunTools(1, ((1, SECOND_MAIL),), 1))
    scene.given(ToolFinished(1, 1, "sent")).expect(ANY, Park())
    scene.given(decided("deny", 0)).expect(refused(MAIL_CALL, NOT_APPROVED), ANY)


@pytest.mark.requirement("turn:approval:one-by-one")
def test_a_decision_about_something_else_changes_nothing() -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
    scene.given(decided("approve_once", 7)).expect(Park())


@pytest.mark.requirement("turn:approval:arguments-match")
def test_only_what_was_shown_runs() -> None:
    asked = ApprovalAsked(1, 0, arguments_hash(CLOCK_CALL))
    scene = taken_over(asked, ApprovalDecided(1, 0, "approve_once", "ana"))
    scene.expect(ANY, refused(MAIL_CALL, NOT_WHAT_WAS_SHOWN), opened(2, 1, 0, is_new_call=True))
    never_asked = taken_over(ApprovalDecided(1, 0, "approve_once", "ana"))
    never_asked.expect(ANY, refused(MAIL_CALL, NOT_WHAT_WAS_SHOWN), ANY)


@pytest.mark.requirement("turn:approval:takeover")
def test_another_driver_asks_only_what_was_not_asked_and_goes_on_with_what_was_decided() -> None:
    asked = ApprovalAsked(1, 0, arguments_hash(MAIL_CALL))
    taken_over().expect(ANY, AskApproval(1, 0, MAIL_CALL, 1), Park())
    taken_over(asked).expect(ANY, Park())
    taken_over(asked, ApprovalDecided(1, 0, "approve_once", "ana")).expect(ANY, RunTools(1, ((0, MAIL_CALL),), 1))
    taken_over(asked, ApprovalDecided(1, 0, "expired")).expect(ANY, refused(MAIL_CALL, NOBODY_DECIDED), ANY)


@pytest.mark.requirement("turn:approval:takeover")
def test_an_approved_tool_that_was_running_when_its_driver_vanished_is_not_run_again() -> None:
    asked = ApprovalAsked(1, 0, arguments_hash(MAIL_CALL))
    scene = taken_over(asked, ApprovalDecided(1, 0, "approve_once", "ana"), ToolStarted(1, 0))
    recorded = scene.take()[1]
    assert recorded.failure == "outcome_unknown"


@pytest.mark.requirement("turn:approval:drain")
def test_a_parked_turn_has_nothing_to_drain_and_a_drain_before_it_parks_lets_it_park() -> None:
    scene = begun()
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
    scene.ignores(Drain()).stands(State.PARKED)
    draining = begun()
    draining.given(completed(1, 1, "tool_calls", CLOCK_CALL, MAIL_CALL)).take()
    draining.ignores(Drain())
    draining.given(ToolFinished(1, 0, "12:00")).expect(ANY, Park())


@pytest.mark.requirement("turn:approval:deadline-stands-still")
def test_the_turn_deadline_does_not_end_a_parked_turn() -> None:
    scene = begun(deadline=100)
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
    scene.at(500).ignores(Tick()).stands(State.PARKED)


@pytest.mark.requirement("turn:approval:own-answer")
def test_a_question_once_asked_needs_its_own_answer_whatever_was_granted_meanwhile() -> None:
    """Else a person could deny what already runs."""
    asked = [ApprovalAsked(1, index, arguments_hash(call)) for index, call in enumerate((MAIL_CALL, SECOND_MAIL))]
    committed = Committed(1, 1, "", (MAIL_CALL, SECOND_MAIL), "tool_calls", None, "main")
    facts = (committed, *asked, ApprovalDecided(1, 0, "approve_session", "ana"))
    scene = play(asks=frozenset({"mail"}), facts=facts, progress=replace(BEGUN, granted=frozenset({"mail"})))
    scene.given(Begin()).expect(ANY, RunTools(1, ((0, MAIL_CALL),), 1))
    scene.given(ToolFinished(1, 0, "sent")).expect(ANY, Park())
    scene.given(decided("deny", 1)).expect(refused(SECOND_MAIL, NOT_APPROVED, 1), ANY)


@pytest.mark.requirement("turn:approval:own-answer")
def test_an_answer_to_a_question_of_an_earlier_call_says_nothing_of_a_later_one() -> None:
    later = Committed(2, 1, "", (SECOND_MAIL,), "tool_calls", None, "main")
    asked = ApprovalAsked(2, 0, arguments_hash(SECOND_MAIL))
    late = ApprovalDecided(1, 0, "approve_once", "ana")
    for facts in ((later, asked, late), (later, asked, ApprovalDecided(2, 0, "deny", "bo"), late)):
        scene = play(asks=frozenset({"mail"}), facts=facts, progress=Progress(call=2, attempt=1, calls=2)).given(
            Begin()
        )
        assert not any(isinstance(command, RunTools) for command in scene.take())
    scene = play(asks=frozenset({"mail"}), facts=(later, asked), progress=Progress(call=2, attempt=1, calls=2))
    scene.given(Begin()).expect(ANY, Park())
    scene.given(Decided((late,))).expect(Park())


@pytest.mark.requirement("turn:approval:deadline-stands-still")
def test_what_is_approved_after_the_deadline_does_not_start() -> None:
    scene = begun(deadline=100)
    scene.given(completed(1, 1, "tool_calls", MAIL_CALL)).take()
    failure = Failure("timeout", "turn_deadline", ANY)
    scene.at(100).given(decided("approve_once")).expect(Seal("failed", None, failure, ANY))
