"""Committed facts as the messages of a request."""

import pytest

from tests.support.turns import tool_call
from worker.codecs.messages import AssistantMessage, ToolMessage, UserMessage
from worker.turn.facts import Committed, ToolEnded, ToolStarted
from worker.turn.transcript import NEVER_RUN, Transcript, with_turn

CLOCK_CALL, MAIL_CALL = tool_call("clock", id="t1"), tool_call("mail", id="t2")
COMMITTED = Committed(1, 1, "Let me look.", (CLOCK_CALL, MAIL_CALL), "tool_calls", None)
FINAL = Committed(2, 1, "Friday.", (), "stop", None)


@pytest.mark.requirement("turn:transcript:facts-to-messages")
def test_a_turn_is_its_message_then_each_call_with_its_results_in_the_order_of_the_calls() -> None:
    facts = (
        COMMITTED,
        ToolStarted(1, 0),
        ToolStarted(1, 1),
        ToolEnded(1, 1, "sent", None),
        ToolEnded(1, 0, "12", None),
    )
    assert with_turn((), "What is due?", (*facts, FINAL)) == (
        UserMessage("What is due?"),
        AssistantMessage("Let me look.", (CLOCK_CALL, MAIL_CALL)),
        ToolMessage("t1", "clock", "12"),
        ToolMessage("t2", "mail", "sent"),
        AssistantMessage("Friday."),
    )


@pytest.mark.requirement("turn:transcript:facts-to-messages")
def test_results_go_with_the_call_that_asked_for_them() -> None:
    second = Committed(2, 1, "Again.", (CLOCK_CALL,), "tool_calls", None)
    facts = (Committed(1, 1, "", (CLOCK_CALL,), None, None), ToolEnded(1, 0, "12", None), second)
    messages = with_turn((), "What is due?", (*facts, ToolEnded(2, 0, "13", None)))
    assert [message.text for message in messages if isinstance(message, ToolMessage)] == ["12", "13"]


@pytest.mark.requirement("turn:transcript:no-call-without-a-result")
def test_a_tool_call_of_an_earlier_turn_that_never_ran_still_has_a_result_to_read() -> None:
    cut = Committed(1, 1, "Let me", (CLOCK_CALL,), "length", None)
    assert with_turn((), "What is due?", [cut])[-1] == ToolMessage("t1", "clock", NEVER_RUN)


def test_a_turn_without_facts_is_its_message() -> None:
    assert with_turn((), "What is due?", ()) == (UserMessage("What is due?"),)


def test_the_history_comes_first_and_facts_are_taken_one_by_one() -> None:
    transcript = Transcript((UserMessage("Hello"), AssistantMessage("Hi")), "What is due?", [COMMITTED])
    transcript.add(ToolStarted(1, 1))
    transcript.add(ToolEnded(1, 0, "12", None))
    assert (transcript.last, transcript.started, transcript.ended) == (COMMITTED, {1}, {0})
    transcript.add(FINAL)
    assert (transcript.last, transcript.started, transcript.ended) == (FINAL, set(), set())
    assert transcript.messages("main")[:3] == (
        UserMessage("Hello"),
        AssistantMessage("Hi"),
        UserMessage("What is due?"),
    )
