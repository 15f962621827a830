"""A call beside the turn: it lives like a call, and leaves nothing but its result."""

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.turns import BACKUP, DEADLINE, LIMITS, MAIN, completed, failed, text, tool_call
from worker.codecs.events import Keepalive, ReasoningDelta, Usage
from worker.codecs.messages import Request, UserMessage
from worker.turn.commands import Blame, CloseCall, Command, OpenSidecar, Warn
from worker.turn.events import Died, Event, Heard, NotAnswered, Sent, Tick
from worker.turn.sidecar import Sidecar, SidecarResult
from worker.turn.start import CallTerms

MESSAGES = (UserMessage("All that was said."),)
REQUEST = Request(model="small", messages=MESSAGES, instructions="Sum up.")
BUSY = NotAnswered(0, 1, 503, True, "http_503", "Busy.")


def sidecar(*, providers: Any = (MAIN,), **limits: Any) -> Sidecar:
    terms = CallTerms(providers, replace(LIMITS, **limits), DEADLINE, lambda: 0.5, frozenset)
    return Sidecar(MESSAGES, "Sum up.", terms)


def heard(*events: Event, **limits: Any) -> tuple[list[Command], SidecarResult | None]:
    """What follows from events that all come in the first second."""
    beside = sidecar(**limits)
    commands = beside.open(0)
    for event in events:
        commands += beside.handle(event, 0.5)
    return commands, beside.result


@pytest.mark.requirement("compaction:beside:result")
def test_its_answer_is_a_result_and_nothing_of_it_is_staged_or_committed() -> None:
    commands, result = heard(
        Sent(0, 1),
        Heard(0, 1, Keepalive()),
        Heard(0, 1, ReasoningDelta("hm")),
        text(0, 1, "Ada "),
        text(0, 1, "asked."),
        completed(0, 1, usage=Usage(70, 3)),
    )
    assert commands == [OpenSidecar(1, REQUEST, "main")]
    assert result == SidecarResult("Ada asked.", Usage(70, 3), None, "main")


@pytest.mark.requirement("compaction:beside:lives-like-a-call")
def test_a_stall_closes_the_attempt_and_the_same_request_follows() -> None:
    beside = sidecar()
    beside.open(0)
    beside.handle(Sent(0, 1), 10)
    assert beside.deadline() == 1810
    beside.handle(text(0, 1, "Ada"), 12)
    assert beside.deadline() == 57
    assert beside.handle(Tick(), 57) == [
        CloseCall(),
        Blame("main"),
        Warn("turn_call_resumed", ANY),
        OpenSidecar(2, REQUEST, "main"),
    ]
    assert not beside.listens_to(0, 1)
    assert beside.listens_to(0, 2)
    beside.handle(text(0, 2, "Ada asked."), 58)
    assert beside.handle(completed(0, 2), 59) == []
    assert beside.result == SidecarResult("Ada asked.", None, None, "main")
    assert not beside.listens_to(0, 2)


@pytest.mark.requirement("compaction:beside:lives-like-a-call")
def test_a_request_without_a_stream_is_sent_again_and_then_to_the_fallback() -> None:
    beside = sidecar(providers=(replace(MAIN, transport_retries=1), BACKUP))
    beside.open(0)
    assert beside.handle(BUSY, 0) == []
    assert beside.deadline() == 1
    assert beside.handle(Tick(), 1) == [OpenSidecar(1, REQUEST, "main")]
    assert beside.handle(BUSY, 1) == [
        CloseCall(),
        Blame("main"),
        ANY,
        OpenSidecar(2, replace(REQUEST, model="other"), "backup"),
    ]


@pytest.mark.requirement("compaction:beside:failure")
@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([completed(0, 1)], "sidecar_answer"),
        ([text(0, 1, " \n"), completed(0, 1)], "sidecar_answer"),
        ([text(0, 1, "Ada"), completed(0, 1, "tool_calls", tool_call())], "sidecar_answer"),
        ([text(0, 1, "Ada"), completed(0, 1, "content_filter")], "sidecar_answer"),
        ([text(0, 1, "Ada"), completed(0, 1, refusal="No.")], "sidecar_answer"),
        ([completed(0, 1, "length")], "sidecar_answer"),
        ([text(0, 1, "Ada"), failed(0, 1, "content_filter")], "sidecar_answer"),
        ([text(0, 1, "Ada"), failed(0, 1, "context_overflow")], "context_overflow"),
        ([text(0, 1, "Ada"), failed(0, 1, "refused")], "refused"),
        ([text(0, 1, "Ada"), completed(0, 1, choices=2)], "several_choices"),
        ([NotAnswered(0, 1, 401, False, "http_401", "No.")], "http_401"),
        ([NotAnswered(0, 1, 400, False, "context_overflow", "Too long.")], "context_overflow"),
        ([Died(0, number, "reset", "") for number in (1, 2, 3)], "reset"),
    ],
)
def test_what_is_no_summary_is_a_failure_with_a_word_for_it(events: list[Event], code: str) -> None:
    commands, result = heard(*events)
    assert result is not None
    assert result.text == ""
    assert result.failure is not None
    assert result.failure.code == code
    assert {type(command) for command in commands} <= {OpenSidecar, Blame, CloseCall, Warn}


@pytest.mark.requirement("compaction:beside:result")
def test_a_text_that_was_cut_by_its_length_is_still_one() -> None:
    _, result = heard(text(0, 1, "Ada"), completed(0, 1, "length"))
    assert result == SidecarResult("Ada", None, None, "main")


@pytest.mark.requirement("compaction:beside:result")
def test_what_an_answer_cost_is_told_also_when_it_cannot_be_used() -> None:
    _, result = heard(completed(0, 1, usage=Usage(70, 3)))
    assert result is not None
    assert result.usage == Usage(70, 3)


@pytest.mark.requirement("compaction:beside:failure")
def test_a_failure_says_nothing_of_the_answer() -> None:
    _, result = heard(text(0, 1, "a secret"), completed(0, 1, "content_filter"))
    assert result is not None
    assert result.failure is not None
    assert "secret" not in result.failure.message
