"""The body of a webhook, as a receiver parses it."""

import json
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from channels.events.content import Resume, TokensUsed, TurnEnd, TurnError
from channels.webhook.payload import CAP_BYTES, HARD_CAP_BYTES, Form, form_of, render, render_own

NO_TOKENS = TokensUsed(None, None, None, None, None, None)
FORM = Form("https://lastword.example", 100_000)


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
    assert json.loads(render("turn.completed", 1_790_000_000_123, turn_end(), FORM, full=True)) == {
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
    body = json.loads(render("turn.failed", 1_790_000_000_000, turn_end("", error), FORM, full=True))
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
    assert json.loads(render("turn.completed", 1, turn_end(text), FORM, full=True))["data"]["text"] == text


@given(st.text())
def test_every_rendering_of_a_turn_gives_the_same_bytes(text: str) -> None:
    assert render("turn.completed", 1, turn_end(text), FORM, full=True) == render(
        "turn.completed", 1, turn_end(text), FORM, full=True
    )


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
    data = json.loads(render("turn.failed", 1, end, FORM, full=True).decode("utf-8"))["data"]
    found = (data["session"], data["agent"], data["reason"], data["error"]["message"], data["labels"])
    assert found == (*map(well_formed, (session, agent, reason, message)), {well_formed(label): well_formed(value)})


LONG_TEXTS = st.text(st.characters(), min_size=1, max_size=60).map(lambda text: text * 40)


@pytest.mark.requirement("events:payload:thin")
@given(ANY_TEXT)
def test_a_thin_body_has_all_but_the_text_and_says_where_to_fetch_that(text: str) -> None:
    full = json.loads(render("turn.completed", 1, turn_end(well_formed(text)), FORM, full=True))
    thin = json.loads(render("turn.completed", 1, turn_end(text), FORM, full=False))
    data = thin.pop("data")
    assert data.pop("fetch_url") == f"https://lastword.example/v1/turns/turn_00{'b' * 20}"
    assert data.pop("truncated") is False
    del full["data"]["text"]
    assert {**thin, "data": data} == full


@pytest.mark.requirement("events:payload:cap")
@given(LONG_TEXTS)
def test_a_body_of_exactly_the_cap_has_its_text_and_one_byte_more_has_a_url_instead(text: str) -> None:
    length = len(render("turn.completed", 1, turn_end(text), FORM, full=True))
    fits = render("turn.completed", 1, turn_end(text), replace(FORM, cap_bytes=length), full=True)
    assert len(fits) == length
    assert "text" in json.loads(fits)["data"]
    data = json.loads(render("turn.completed", 1, turn_end(text), replace(FORM, cap_bytes=length - 1), full=True))[
        "data"
    ]
    assert "text" not in data
    assert (data["truncated"], data["fetch_url"]) == (True, f"https://lastword.example/v1/turns/turn_00{'b' * 20}")


@pytest.mark.requirement("events:payload:cap")
def test_a_text_that_was_too_long_to_be_read_is_left_out_and_not_taken_for_an_empty_one() -> None:
    data = json.loads(render("turn.completed", 1, turn_end(""), FORM, full=True, is_whole=False))["data"]
    assert "text" not in data
    assert data["truncated"] is True


@pytest.mark.requirement("events:payload:cap-without-url")
def test_without_a_url_to_fetch_from_a_long_text_is_sent_all_the_same() -> None:
    form = form_of("", None)
    data = json.loads(render("turn.completed", 1, turn_end("x" * (2 * CAP_BYTES)), form, full=True))["data"]
    assert data["text"] == "x" * (2 * CAP_BYTES)
    with_url = form_of("https://lastword.example/", None)
    assert with_url == Form("https://lastword.example", CAP_BYTES)
    assert "text" not in json.loads(render("turn.completed", 1, turn_end("x" * CAP_BYTES), with_url, full=True))["data"]


@pytest.mark.requirement("events:payload:cap-without-url")
def test_a_cap_that_was_set_holds_without_a_url_too() -> None:
    data = json.loads(render("turn.completed", 1, turn_end("x" * 40_000), form_of("", 32_768), full=True))["data"]
    assert "text" not in data
    assert (data["truncated"], data["fetch_url"]) == (True, None)
    data = json.loads(render("turn.completed", 1, turn_end("x" * HARD_CAP_BYTES), form_of("", None), full=True))["data"]
    assert (data["truncated"], data["fetch_url"]) == (True, None)


@pytest.mark.requirement("events:payload:numbers")
@pytest.mark.parametrize(
    "number",
    [b"1.7976931348623157e+308", b"18446744073709551616", b"0.1000", b"-0", b"1E400", b"12345678901234567890.5"],
)
def test_a_number_that_an_event_brings_arrives_as_it_was_written(number: bytes) -> None:
    """svix/svix-webhooks 864."""
    assert b'"data":{"n":%s}}' % number in render_own("delivery.dead", 1, b'{"n":%s}' % number)


@pytest.mark.requirement("events:payload:numbers")
def test_a_number_of_more_than_64_bits_arrives_to_its_last_digit() -> None:
    tokens = replace(NO_TOKENS, input_tokens=2**64, output_tokens=2**70 + 1)
    body = render("turn.completed", 1, replace(turn_end(), usage=tokens), FORM, full=True)
    assert b'"input_tokens":18446744073709551616,"output_tokens":1180591620717411303425,' in body
