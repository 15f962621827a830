"""The wire formats by name, and `lastword decode` on the recorded streams of all of them."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from channels.console.decode import decode_file
from worker.codecs.events import Completed, Failed, Keepalive
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.messages import Request, UserMessage
from worker.codecs.wires import WIRES, codec_of
from worker.errors import ConfigurationError
from worker.sections import ProviderSettings

RECORDED = Path(__file__).parents[3] / "shared" / "fixtures"
TRANSCRIPT = Path(__file__).parent / "streams" / "anthropic" / "thinking-then-a-tool.sse"
CALL_FIELDS = ("id", "name", "arguments", "arguments_json")
COUNTS = {"chat": 92, "responses": 62, "anthropic": 62}
FINISHES = {"chat": "finish_reason", "responses": "status", "anthropic": "stop_reason"}
"""What the expectations call the provider's word for how an answer finished."""


@pytest.mark.requirement("codecs-anthropic:wires")
@pytest.mark.parametrize("wire", WIRES)
def test_each_wire_has_a_codec_that_knows_its_name(wire: str) -> None:
    codec = codec_of(wire)
    assert codec.wire == wire
    encoded = codec.encode(Request("m", (UserMessage("hi"),)))
    assert encoded.path.startswith("/")
    assert json.loads(encoded.body)["stream"] is True
    assert [value for value in codec.authorization("k3y").values() if "k3y" in value]
    assert codec.decoder().feed(b": alive\n\n") == [Keepalive()]


@pytest.mark.requirement("codecs-anthropic:wires")
@pytest.mark.parametrize("wire", WIRES)
def test_limits_and_profile_reach_the_decoder_of_each_wire(wire: str) -> None:
    decoder = codec_of(wire, StreamLimits(line_bytes=10)).decoder()
    assert [event.code for event in decoder.feed(b"x" * 11) if isinstance(event, Failed)] == ["line_too_long"]
    profiles: tuple[Profile, ...] = get_args(Profile)
    unnamed = b'data: {"tide": 3}\n\n'
    ends = {profile: codec_of(wire, DEFAULT_LIMITS, profile).decoder().feed(unnamed) for profile in profiles}
    assert isinstance(ends["strict"][-1], Failed)
    assert ends["compat"] == [Keepalive()]


def test_the_settings_know_the_same_wires() -> None:
    assert get_args(ProviderSettings.model_fields["wire"].annotation) == WIRES


def test_a_wire_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigurationError, match="wire 'morse' is not known: use chat, responses or anthropic"):
        codec_of("morse")


@pytest.mark.requirement("codecs-anthropic:decode")
@pytest.mark.parametrize("chunk", [None, 1, 3, 7])
@pytest.mark.parametrize("wire", WIRES)
def test_every_recorded_stream_decodes_as_expected_in_its_wire(wire: str, chunk: int | None) -> None:
    names = sorted(path.stem for path in (RECORDED / wire).glob("*.sse"))
    if not names:
        pytest.skip("the recorded streams are not beside this checkout")
    wrong = []
    for name in names:
        expected: Any = json.loads((RECORDED / wire / f"{name}.expected.json").read_text(encoding="utf-8"))["expected"]
        decoded: Any = decode_file(name, (RECORDED / wire / f"{name}.sse").read_bytes(), chunk, wire)
        calls = [{field: call[field] for field in CALL_FIELDS} for call in expected["tool_calls"]]
        fields = {field: field for field in ("text", "reasoning", "refusal", "usage", "error", "complete")}
        fields["finish_reason"] = FINISHES[wire]
        if wire == "anthropic":  # its expectations tell a refusal by the stop reason alone
            del fields["refusal"]
        wrong += [(name, ours) for ours, theirs in fields.items() if decoded[ours] != expected[theirs]]
        wrong += [(name, "tool_calls")] if decoded["tool_calls"] != calls else []
    assert len(names) == COUNTS[wire]
    assert wrong == []


@pytest.mark.requirement("codecs-anthropic:decode")
def test_all_wires_together_have_216_recorded_streams() -> None:
    assert sum(COUNTS.values()) == 216


@pytest.mark.requirement("codecs-anthropic:decode")
@pytest.mark.parametrize("chunk", [None, 1, 7])
def test_a_captured_message_is_shown_in_the_providers_words(chunk: int | None) -> None:
    assert decode_file("capture.sse", TRANSCRIPT.read_bytes(), chunk, "anthropic") == {
        "file": "capture.sse",
        "text": "",
        "reasoning": "I must look.",
        "refusal": None,
        "tool_calls": [
            {"id": "toolu_1", "name": "tide", "arguments": '{"port": "Ayr"}', "arguments_json": {"port": "Ayr"}}
        ],
        "finish_reason": "tool_use",
        "usage": {"input_tokens": 12, "output_tokens": 9},
        "error": None,
        "complete": True,
    }


@pytest.mark.requirement("codecs-anthropic:decode")
def test_a_fault_that_we_found_is_told_as_the_wire_tells_its_errors() -> None:
    unnamed = TRANSCRIPT.read_bytes().replace(b"event: message_start\n", b"")
    decoded = decode_file("capture.sse", unnamed, None, "anthropic", "strict")
    assert decoded["error"] == {
        "type": "protocol_error",
        "message": "the event is called '', and its type is 'message_start'",
    }
    assert decoded["complete"] is False
    assert decode_file("capture.sse", unnamed, None, "anthropic")["complete"] is True


def test_a_profile_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--profile 'lax' is not known: use compat or strict"):
        decode_file("x", b"", None, "chat", "lax")


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("profile", ["strict", "compat"])
@pytest.mark.parametrize("depth", [200, 1000, 100_000])
def test_json_that_is_nested_however_deeply_breaks_nothing(wire: str, profile: Profile, depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        deep = opening * depth + b"1" + closing * depth
        for body in (
            b'data: {"error": %s}\n\n' % deep,
            b'event: error\ndata: {"type": "error", "error": %s}\n\n' % deep,
            b'data: {"choices": [{"index": 0, "delta": {"content": %s}}]}\n\n' % deep,
            b'event: response.created\ndata: {"type": "response.created", "response": %s}\n\n' % deep,
            b'event: message_start\ndata: {"type": "message_start", "message": %s}\n\n' % deep,
            b'{"error": %s}' % deep,
        ):
            decoder = codec_of(wire, DEFAULT_LIMITS, profile).decoder()
            events = decoder.feed(body) + decoder.close()
            assert not any(isinstance(event, Completed) for event in events)
