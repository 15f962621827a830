"""The body of a webhook, as a receiver parses it."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.webhook.payload import Resume, TokensUsed, TurnEnd, TurnError, render

NO_TOKENS = TokensUsed(None, None, None, None, None, None)


ANY_TEXT = st.text(st.characters())
"""Half surrogate pairs included: a program can hold them, UTF-8 cannot."""


def turn_end(text: str = "Hello.", error: TurnError | None = None) -> TurnEnd:
    return TurnEnd(
        turn="turn_00" + "b" * 20,
        session="room/1",
        agent="default",
        source="cli",
        outcome="failed" if error else "completed",
        reason=None,
        text=text,
        usage=TokensUsed(12, 3, 15, None, None, None),
        resume=Resume(discarded_attempts=2, discarded_estimated_input_tokens=24, resumes=2),
        labels={"ticket": "A-1"},
        error=error,
    )


@pytest.mark.requirement("webhook:payload:form")
def test_a_completed_turn_is_told_with_its_text_usage_resumes_and_labels() -> None:
    assert json.loads(render("turn.completed", 1_790_000_000_123, turn_end())) == {
        "type": "turn.completed",
        "timestamp": "2026-09-21T14:13:20.123Z",
        "data": {
            "turn": "turn_00" + "b" * 20,
            "session": "room/1",
            "agent": "default",
            "source": "cli",
            "outcome": "completed",
            "reason": None,
            "text": "Hello.",
            "usage": {
                "input_tokens": 12,
                "output_tokens": 3,
                "total_tokens": 15,
                "cached_input_tokens": None,
                "reasoning_tokens": None,
                "cache_write_input_tokens": None,
            },
            "resume": {"discarded_attempts": 2, "discarded_estimated_input_tokens": 24, "resumes": 2},
            "labels": {"ticket": "A-1"},
            "error": None,
        },
    }


@pytest.mark.requirement("webhook:payload:error")
def test_a_failed_turn_tells_its_error_and_the_id_to_ask_about() -> None:
    error = TurnError("timeout", "stalled", "the model fell silent", "c" * 32)
    body = json.loads(render("turn.failed", 1_790_000_000_000, turn_end("", error)))
    assert body["data"]["error"] == {
        "category": "timeout",
        "code": "stalled",
        "message": "the model fell silent",
        "correlation_id": "c" * 32,
    }
    assert body["data"]["text"] == ""


@pytest.mark.requirement("webhook:payload:exact-text")
@given(st.text())
def test_the_text_arrives_exactly_as_committed(text: str) -> None:
    assert json.loads(render("turn.completed", 1, turn_end(text)))["data"]["text"] == text


@given(st.text())
def test_every_rendering_of_a_turn_gives_the_same_bytes(text: str) -> None:
    assert render("turn.completed", 1, turn_end(text)) == render("turn.completed", 1, turn_end(text))


def well_formed(text: str) -> str:
    return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)


@pytest.mark.requirement("webhook:payload:any-text")
@given(session=ANY_TEXT, agent=ANY_TEXT, reason=ANY_TEXT, message=ANY_TEXT, label=ANY_TEXT, value=ANY_TEXT)
@example(session="\ud800", agent="\udfff", reason="\ude00\ud83d", message="a\ud800b", label="\ud83d", value="\udc80")
def test_a_text_that_no_utf_8_holds_is_delivered_with_a_mark_in_its_place(
    session: str, agent: str, reason: str, message: str, label: str, value: str
) -> None:
    error = TurnError("timeout", "stalled", message, "c" * 32)
    end = replace(turn_end("", error), session=session, agent=agent, reason=reason, labels={label: value})
    data = json.loads(render("turn.failed", 1, end).decode("utf-8"))["data"]
    found = (data["session"], data["agent"], data["reason"], data["error"]["message"], data["labels"])
    assert found == (*map(well_formed, (session, agent, reason, message)), {well_formed(label): well_formed(value)})
