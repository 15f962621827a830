"""Whole Responses streams: our own, event by event, and the recorded ones where they are at hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.responses_events import read, read_in_pieces, written
from worker.codecs.events import Completed, ReasoningDelta, RefusalDelta, StreamEvent, TextDelta
from worker.codecs.limits import Profile
from worker.codecs.openai_responses import ResponsesCodec

OWN = Path(__file__).parent / "streams" / "responses"
RECORDED = Path(__file__).parents[3] / "shared" / "fixtures" / "responses"
NAMES = sorted(path.stem for path in OWN.glob("*.sse"))
RECORDED_NAMES = sorted(path.stem for path in RECORDED.glob("*.sse"))
CHUNKS = [1, 3, 7, 1 << 30]
PROFILES: list[Profile] = ["compat", "strict"]
CALL_FIELDS = ("id", "name", "arguments", "arguments_json")

REFUSED_WHEN_STRICT = {
    "chatgpt-codex-completed-with-empty-output": "output_changed",
    "chatgpt-codex-parallel-tools": "output_changed",
    "chatgpt-codex-reasoning-two-tools": "output_changed",
    "chatgpt-codex-text": "output_changed",
    "derived-cut-before-completed": "wrong_sequence",
    "litellm-reasoning": "type_mismatch",
    "llamaserver-length": "wrong_sequence",
    "llamaserver-text": "wrong_sequence",
    "llamaserver-tiny-reasoning": "wrong_sequence",
    "llamaserver-tiny-tools": "wrong_sequence",
    "openai-background-queued": "created_status",
    "openai-background-resumed-from-0": "event_before_created",
    "openai-function-call": "wrong_sequence",
    "openai-function-call-args": "wrong_sequence",
    "openai-mcp-list-tools": "item_open",
    "openrouter-compat-comment": "type_mismatch",
    "openrouter-raw-reasoning-text": "type_mismatch",
    "v-copilot-item-id-rotation": "response_id_changed",
    "v-lmstudio-tool-call": "arguments_changed",
    "v-openai-custom-tool": "wrong_sequence",
    "v-openai-error-then-failed": "insufficient_quota",
}
"""Recorded streams that are not as documented, with the rule that each breaks first; the last one is an error."""


def expectation(name: str) -> Any:
    return json.loads((OWN / f"{name}.expected.json").read_text(encoding="utf-8"))


@pytest.mark.requirement("codecs-responses:kinds")
@pytest.mark.requirement("codecs-responses:any-cut")
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", NAMES)
def test_our_own_stream_says_what_is_written_beside_it(name: str, profile: Profile, chunk: int) -> None:
    expected = expectation(name)
    said = read_in_pieces((OWN / f"{name}.sse").read_bytes(), chunk, profile)
    wanted = expected["compat"] if expected[profile] == "the same" else expected[profile]
    assert [written(entry) for entry in said] == wanted


def test_every_stream_of_our_own_has_its_expectation_and_the_reverse() -> None:
    assert sorted(path.name.removesuffix(".expected.json") for path in OWN.glob("*.expected.json")) == NAMES
    assert len(NAMES) > 40


@pytest.mark.requirement("codecs-responses:recorded")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_recorded_stream_decodes_as_expected(chunk: int) -> None:
    wrong = []
    for name in RECORDED_NAMES:
        expected = json.loads((RECORDED / f"{name}.expected.json").read_text(encoding="utf-8"))["expected"]
        decoded = decode((RECORDED / f"{name}.sse").read_bytes(), chunk)
        expected["tool_calls"] = [{field: tool[field] for field in CALL_FIELDS} for tool in expected["tool_calls"]]
        wrong += [(name, field) for field, value in decoded.items() if value != expected[field]]
    assert len(RECORDED_NAMES) == 62
    assert wrong == []


def decode(data: bytes, chunk: int) -> dict[str, Any]:
    """The fields of a recorded expectation, as the decoder has them."""
    decoder = ResponsesCodec().decoder()
    said: list[StreamEvent] = []
    for start in range(0, len(data), chunk):
        said += decoder.feed(data[start : start + chunk])
    said += decoder.close()
    return {
        "text": "".join(entry.text for entry in said if isinstance(entry, TextDelta)),
        "reasoning": "".join(entry.text for entry in said if isinstance(entry, ReasoningDelta)) or None,
        "refusal": "".join(entry.text for entry in said if isinstance(entry, RefusalDelta)) or None,
        "tool_calls": [{field: getattr(tool, field) for field in CALL_FIELDS} for tool in decoder.tool_calls],
        "status": decoder.finish_reason,
        "usage": decoder.raw_usage,
        "error": decoder.raw_error,
        "complete": any(isinstance(entry, Completed) for entry in said),
    }


@pytest.mark.requirement("codecs-responses:recorded")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
def test_the_strict_profile_reads_what_is_as_documented_as_the_other_does_and_names_the_rule_otherwise() -> None:
    refused = {}
    for name in RECORDED_NAMES:
        data = (RECORDED / f"{name}.sse").read_bytes()
        strict = read(data, "strict")
        if isinstance(strict[-1], Completed):
            assert strict == read(data), name
        else:
            refused[name] = getattr(strict[-1], "code", "died")
    assert refused == REFUSED_WHEN_STRICT


@pytest.mark.requirement("codecs-responses:any-cut")
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
def test_line_ends_and_a_byte_order_mark_change_nothing(line_end: bytes, chunk: int) -> None:
    for name in ("two-parallel-tools", "keepalives-and-events-that-say-nothing", "characters-of-every-width"):
        data = (OWN / f"{name}.sse").read_bytes()
        other = b"\xef\xbb\xbf" + data.replace(b"\n", line_end)
        assert read_in_pieces(other, chunk) == read(data)
