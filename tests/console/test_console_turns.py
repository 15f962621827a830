from collections.abc import Sequence

import pytest
from rich.console import Console

from channels.console.terminal import for_terminal
from channels.console.turns import table_of
from worker.output.events import (
    CallCompletedOutput,
    ErrorOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
    UsageOutput,
)


def printed(outputs: Sequence[Output]) -> tuple[str, str]:
    """What is shown, and the part of it that is struck through."""
    console = Console(width=120)
    segments = list(console.render(table_of(outputs)))
    struck = "".join(segment.text for segment in segments if segment.style and segment.style.strike)
    return "".join(segment.text for segment in segments), struck


@pytest.mark.requirement("console:turns:discards")
def test_a_discard_that_was_seen_is_struck_through() -> None:
    shown, struck = printed(
        [
            TextDeltaOutput(text="It is ra", call=1, attempt=1, at_ms=1000),
            TextDeltaOutput(text="ining", call=1, attempt=1, at_ms=1100),
            TextStreamDiscardedOutput(call=1, attempt=1, reason="timeout", discarded_bytes=14, at_ms=3500),
            TextDeltaOutput(text="It is sunny.", call=1, attempt=2, at_ms=3600),
            TextOutput(text="It is sunny.", call=1, attempt=2, at_ms=3700),
            CallCompletedOutput(call=1, attempt=2, finish_reason="stop", at_ms=3700),
            TurnCompletedOutput(outcome="completed", at_ms=3800),
        ]
    )
    assert struck == "It is raining"
    assert "discarded (timeout)" in shown
    assert "2.50 s" in shown
    assert "call 1.2" in shown
    assert shown.count("It is sunny.") == 1
    assert "turn completed" in shown


@pytest.mark.requirement("console:turns:discards")
@pytest.mark.parametrize(("size", "words"), [(14, "14 bytes that nobody saw"), (0, "nothing had streamed")])
def test_a_discard_that_nobody_saw_tells_its_size(size: int, words: str) -> None:
    shown, struck = printed([TextStreamDiscardedOutput(call=1, attempt=1, reason="reset", discarded_bytes=size)])
    assert struck == ""
    assert words in shown


def test_text_that_is_still_streaming_is_shown_as_that() -> None:
    shown, _ = printed([TextDeltaOutput(text="It is", call=1, attempt=1)])
    assert "It is (streaming)" in shown


def test_text_of_a_model_is_never_read_as_markup() -> None:
    shown, _ = printed([TextOutput(text="[bold]x[/bold] [/nope]", call=1, attempt=1)])
    assert "[bold]x[/bold] [/nope]" in shown


def test_tools_usage_and_errors_have_a_row_each() -> None:
    shown, _ = printed(
        [
            ToolCallOutput(tool_call_id="a", name="clock", arguments="{}", call=1, attempt=1),
            ToolResultOutput(tool_call_id="a", name="clock", result="noon", call=1),
            UsageOutput(input_tokens=3, discarded_resume_attempts=1, call=1, attempt=1),
            ErrorOutput(message="the model was silent", category="timeout", code="stall", correlation_id="c0ffee"),
            TurnCompletedOutput(outcome="failed", reason="stall"),
        ]
    )
    for words in (
        "tool clock {}",
        "tool clock answered: noon",
        "usage: input_tokens 3, discarded_resume_attempts 1",
        "error: the model was silent [stall, reference c0ffee]",
        "turn failed (stall)",
    ):
        assert words in shown


@pytest.mark.requirement("console:terminal:no-control")
def test_control_characters_are_shown_as_signs_in_a_terminal_alone() -> None:
    evil = "\x1b]0;title\x07 \x9b2J \x7f\ttab\nline"
    assert for_terminal(evil) == "␛]0;title␇ \ufffd2J ␡\ttab\nline"
    outputs: list[Output] = [
        TextOutput(text="\x1b[2Jone", call=1, attempt=1),
        ToolResultOutput(tool_call_id="a", name="clock", result="\x1b[2Jtwo", call=1),
        TextDeltaOutput(text="\x1b[2Jthree", call=2, attempt=1),
        TextStreamDiscardedOutput(call=2, attempt=1, reason="timeout", discarded_bytes=8),
        TextDeltaOutput(text="\x1b[2Jfour", call=2, attempt=2),
        ErrorOutput(message="\x1b[2Jfive", category="timeout", code="stall", correlation_id="c0ffee"),
    ]
    console = Console(width=120)
    shown = "".join(segment.text for segment in console.render(table_of(outputs, for_terminal)))
    assert "\x1b" not in shown
    for word in ("one", "two", "three", "four", "five"):
        assert f"␛[2J{word}" in shown
