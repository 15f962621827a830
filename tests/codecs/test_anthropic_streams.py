"""Whole Messages streams, event by event: our own transcripts, and the recorded ones where they are at hand.

A transcript's expectation holds the events of profile `compat`, and how profile `strict` ends: `completed`, the code of
its failure, or null for a death.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.codec import Decoder
from worker.codecs.events import (
    Completed,
    Failed,
    Keepalive,
    ReasoningDelta,
    RefusalDelta,
    StreamEvent,
    TextDelta,
    ToolCallArguments,
    ToolCallCompleted,
    ToolCallOpened,
    Usage,
    UsageReported,
)
from worker.codecs.limits import Profile

TRANSCRIPTS = Path(__file__).parent / "streams" / "anthropic"
RECORDED = Path(__file__).parents[3] / "shared" / "fixtures" / "anthropic"
CHUNKS = [None, 1, 3, 7]
NAMES = sorted(path.stem for path in TRANSCRIPTS.glob("*.sse"))
RECORDED_NAMES = sorted(path.stem for path in RECORDED.glob("*.sse"))
WORDS: dict[type, str] = {
    TextDelta: "text",
    ReasoningDelta: "reasoning",
    RefusalDelta: "refusal",
    ToolCallOpened: "opened",
    ToolCallArguments: "arguments",
    ToolCallCompleted: "called",
}
CALL_FIELDS = ("id", "name", "arguments", "arguments_json")

DEVIATE = {
    "derived-cut-before-message-stop": None,
    "litellm-tools": "block_still_open",
    "llamaserver-tiny-reasoning": "block_still_open",
    "no-trailing-blank-line": None,
    "sdk-compaction": None,
    "sdk-fallback-response": None,
    "sdk-refusal-empty-text": None,
    "sdk-tool-json-cut-by-max-tokens": "block_still_open",
    "sdk-tool-use": None,
    "v-duplicate-message-start": "second_message",
    "v-spliced-message-start": "second_message",
}
"""Recorded streams that profile `strict` does not complete, with the code of the failure; None: not ended properly."""


def expectation(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.expected.json").read_text(encoding="utf-8"))


def read(data: bytes, chunk: int | None = None, profile: Profile = "compat") -> tuple[Decoder, list[StreamEvent]]:
    decoder = AnthropicCodec(profile=profile).decoder()
    size = chunk or max(len(data), 1)
    events = [event for start in range(0, len(data), size) for event in decoder.feed(data[start : start + size])]
    return decoder, events + decoder.close()


def known(fields: Any) -> dict[str, object]:
    return {name: value for name, value in asdict(fields).items() if value is not None}


def told(event: StreamEvent) -> object:
    """An event as the expectations write it."""
    match event:
        case Keepalive():
            return "keepalive"
        case UsageReported(usage):
            return {"usage": known(usage)}
        case Failed():
            return {"failed": known(event)}
        case Completed():
            fields = asdict(event) | {"usage": None if event.usage is None else known(event.usage)}
            fields["tool_calls"], fields["echo"] = list(fields["tool_calls"]), list(event.echo)
            assert fields.pop("choices") == 1
            return {"completed": {name: value for name, value in fields.items() if value}}
    values = list(asdict(event).values())
    return {WORDS[type(event)]: values if len(values) > 1 else values[0]}


def ended(events: list[StreamEvent]) -> str | None:
    match events[-1:]:
        case [Completed()]:
            return "completed"
        case [Failed(code=code)]:
            return code
        case _:
            return None


@pytest.mark.requirement("codecs-anthropic:compat:transcripts")
@pytest.mark.requirement("codecs-anthropic:any-cut")
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_gives_the_events_written_beside_it(name: str, chunk: int | None) -> None:
    _, events = read((TRANSCRIPTS / f"{name}.sse").read_bytes(), chunk)
    assert [told(event) for event in events] == expectation(TRANSCRIPTS, name)["compat"]


@pytest.mark.requirement("codecs-anthropic:strict:transcripts")
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_the_strict_profile_takes_what_is_documented_alike_and_refuses_the_rest(name: str, chunk: int | None) -> None:
    data = (TRANSCRIPTS / f"{name}.sse").read_bytes()
    _, events = read(data, chunk, "strict")
    expected = expectation(TRANSCRIPTS, name)
    assert ended(events) == expected["strict"]
    if expected["strict"] == "completed":
        assert [told(event) for event in events] == expected["compat"]


def test_every_transcript_has_its_expectation_and_the_reverse() -> None:
    assert sorted(path.name.removesuffix(".expected.json") for path in TRANSCRIPTS.glob("*.expected.json")) == NAMES
    assert len(NAMES) > 60


@pytest.mark.requirement("codecs-anthropic:recorded")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_recorded_message_decodes_as_expected(chunk: int | None) -> None:
    wrong = []
    for name in RECORDED_NAMES:
        expected = expectation(RECORDED, name)["expected"]
        decoder, events = read((RECORDED / f"{name}.sse").read_bytes(), chunk)
        decoded = {
            "text": "".join(event.text for event in events if isinstance(event, TextDelta)),
            "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)) or None,
            "tool_calls": [asdict(call) for call in decoder.tool_calls],
            "stop_reason": decoder.finish_reason,
            "usage": decoder.raw_usage,
            "complete": ended(events) == "completed",
        }
        calls = [{field: call[field] for field in CALL_FIELDS} for call in expected["tool_calls"]]
        wanted = {field: expected[field] for field in decoded} | {"tool_calls": calls}
        wrong += [(name, field) for field in decoded if decoded[field] != wanted[field]]
        if expected["error"]:
            wrong += (
                [(name, "error")]
                if [event.message for event in events if isinstance(event, Failed)] != [expected["error"]["message"]]
                else []
            )
    assert len(RECORDED_NAMES) == 62
    assert wrong == []


@pytest.mark.requirement("codecs-anthropic:strict:recorded")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
def test_the_strict_profile_completes_every_recorded_message_that_keeps_the_rules() -> None:
    endings = {name: ended(read((RECORDED / f"{name}.sse").read_bytes(), None, "strict")[1]) for name in RECORDED_NAMES}
    deviating = {name: code for name, code in endings.items() if code != "completed"}
    assert deviating == DEVIATE


@pytest.mark.requirement("codecs-anthropic:echo")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
def test_recorded_thinking_and_server_tools_are_echoed_with_every_block_that_has_a_word() -> None:
    for name in RECORDED_NAMES:
        expected = expectation(RECORDED, name)["expected"]
        _, events = read((RECORDED / f"{name}.sse").read_bytes())
        if not isinstance(events[-1], Completed) or not events[-1].echo:
            continue
        kinds = [block["type"] for block in events[-1].echo]
        assert [kind for kind in kinds if kind != "text"] == [k for k in expected["block_types"] if k != "text"], name
        said = "".join(str(block["text"]) for block in events[-1].echo if block["type"] == "text")
        assert "".join(said.split()) == "".join(expected["text"].split()), name


@pytest.mark.requirement("codecs-anthropic:usage")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
def test_the_input_of_a_recorded_message_counts_what_the_cache_gave_and_took() -> None:
    _, events = read((RECORDED / "cache-read.sse").read_bytes())
    assert isinstance(events[-1], Completed)
    assert events[-1].usage == Usage(1042, 100, 1142, cached_input_tokens=1031, cache_write_input_tokens=0)
