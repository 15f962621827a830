"""The quick way for pieces of text: it decodes as the long one does, whatever the peer sends between them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from worker.codecs.anthropic_answer import MessageAnswer
from worker.codecs.chat_answer import ChatAnswer
from worker.codecs.events import StreamEvent
from worker.codecs.limits import Profile, StreamLimits
from worker.codecs.responses_answer import ResponsesAnswer
from worker.codecs.wires import WIRES, codec_of

STREAMS = Path(__file__).parent / "streams"
OWN = [("chat", path) for path in sorted(STREAMS.glob("*.sse"))]
OWN += [(path.parent.name, path) for path in sorted(STREAMS.glob("*/*.sse")) if path.parent.name in WIRES]
READERS: dict[str, type[Any]] = {"chat": ChatAnswer, "responses": ResponsesAnswer, "anthropic": MessageAnswer}
LIMITS = StreamLimits(text_chars=20)
PROFILES: tuple[Profile, ...] = ("compat", "strict")


@contextmanager
def counting(wire: str, *, quick: bool) -> Iterator[list[bool]]:
    """Notes which objects went the quick way; with `quick` false none may."""
    went: list[bool] = []
    reader = READERS[wire]
    quick_way = reader.take_more_text

    def take_more_text(self: Any, *told: Any) -> bool:
        went.append(quick and quick_way(self, *told))
        return went[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "take_more_text", take_more_text)
        yield went


def decoded(
    wire: str, data: bytes, limits: StreamLimits, *, quick: bool, profile: Profile = "compat"
) -> tuple[list[StreamEvent], object, int]:
    with counting(wire, quick=quick) as went:
        decoder = codec_of(wire, limits, profile).decoder()
        events = decoder.feed(data)
        state = (decoder.finishing, decoder.finish_reason, decoder.tool_calls, decoder.raw_usage)
        events += decoder.close()
    return events, state, sum(went)


@pytest.mark.requirement("codecs:quick:same")
@pytest.mark.parametrize(("wire", "path"), OWN, ids=lambda value: value.stem if isinstance(value, Path) else value)
def test_own_streams_read_the_same_both_ways(wire: str, path: Path) -> None:
    data = path.read_bytes()
    assert decoded(wire, data, StreamLimits(), quick=True)[:2] == decoded(wire, data, StreamLimits(), quick=False)[:2]


def chat(text: str) -> Any:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}


def anthropic(text: str, index: int = 0) -> Any:
    return {"type": "content_block_delta", "index": index, "delta": {"type": "text_delta", "text": text}}


def responses(text: str, index: int = 0) -> Any:
    place = {"output_index": index, "content_index": 0, "item_id": f"m{index}"}
    return {"type": "response.output_text.delta", **place, "delta": text}


SAID: dict[str, Any] = {"chat": chat, "anthropic": anthropic, "responses": responses}
ODD = [None, True, False, 0, 1, 2, "", "x", "error", "text_delta", "message", "m1", [], {}, ["x"], {"x": 1}, "\ud83d"]
FIELDS: dict[str, list[tuple[str | int, ...]]] = {
    "chat": [
        *((name,) for name in ("choices", "usage", "error", "object", "type", "id")),
        *(("choices", 0, name) for name in ("index", "delta", "finish_reason", "message")),
        *(("choices", 0, "delta", name) for name in ("content", "refusal", "reasoning", "role", "tool_calls")),
        ("choices", 0),
    ],
    "anthropic": [
        *((name,) for name in ("type", "index", "delta", "error", "object", "usage")),
        *(("delta", name) for name in ("type", "text")),
    ],
    "responses": [
        (name,) for name in ("type", "output_index", "content_index", "item_id", "delta", "response", "error", "object")
    ],
}
BLOCK = {"type": "content_block_start", "index": 1}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m", "content": []}
BEGINNING: dict[str, list[Any]] = {
    "chat": [],
    "anthropic": [
        {"type": "message_start", "message": MESSAGE | {"usage": {"input_tokens": 1, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    ],
    "responses": [
        {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "output_index": 0, "item": MESSAGE | {"id": "m0"}},
        {
            "type": "response.content_part.added",
            "output_index": 0,
            "content_index": 0,
            "item_id": "m0",
            "part": {"type": "output_text", "text": ""},
        },
    ],
}
"""What must come before a piece of text where the peer keeps to the rules."""
OTHERS: dict[str, list[Any]] = {
    "chat": [
        {"choices": [{"index": 0, "delta": {"content": "no id"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "b"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "stop"}]},
        {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}], "usage": {"prompt_tokens": 1}},
        {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant"}}]},
        {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ],
    "anthropic": [
        BLOCK | {"content_block": {"type": "redacted_thinking", "data": "d"}},
        BLOCK | {"content_block": {"type": "text", "text": ""}},
        BLOCK | {"content_block": {"type": "thinking", "thinking": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "thinking_delta", "thinking": "t"}},
        {"type": "content_block_stop", "index": 1},
        BLOCK | {"content_block": {"type": "tool_use", "id": "t", "name": "f"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "input_json_delta", "partial_json": "{}"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta", "text": "x", "citation": {}}},
        anthropic("b", 1),
        {"type": "content_block_stop", "index": 0},
        {"type": "ping"},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    ],
    "responses": [
        responses("b", 1),
        responses("b", 0) | {"item_id": "m1"},
        responses("b", 0) | {"content_index": 1},
        responses("b", 0) | {"sequence_number": 0},
        responses("b", 0) | {"response": {"usage": {"input_tokens": 1}}},
        {"type": "response.output_text.done", "output_index": 0, "content_index": 0, "text": ""},
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "message", "id": "m0"}},
        {"type": "response.refusal.delta", "output_index": 0, "content_index": 1, "delta": "no"},
        {"type": "response.completed", "response": {"status": "completed"}},
    ],
}


def twists(wire: str) -> Iterator[Any]:
    """A piece of text with one field replaced, for each field and each odd value."""
    for path in FIELDS[wire]:
        for odd in ODD:
            twisted = SAID[wire]("a")
            at = twisted
            for step in path[:-1]:
                at = at[step]
            at[path[-1]] = odd
            yield twisted


def reads_the_same(wire: str, objects: list[Any], name: str = "") -> None:
    for profile, beginning in product(PROFILES, ([], BEGINNING[wire])):
        stream = b""
        for number, one in enumerate([*beginning, *objects]):
            told = {"sequence_number": number, **one} if wire == "responses" else one
            event = name or ("" if wire == "chat" else one.get("type"))
            stream += f"event: {event}\ndata: {json.dumps(told)}\n\n".encode("utf-8", "replace")
        quick, slow = (decoded(wire, stream, LIMITS, quick=way, profile=profile)[:2] for way in (True, False))
        assert quick == slow, (profile, objects)


@pytest.mark.requirement("codecs:quick:same")
@pytest.mark.parametrize("wire", WIRES)
def test_whatever_stands_in_a_field_reads_the_same_both_ways(wire: str) -> None:
    said = SAID[wire]
    for twisted in twists(wire):
        reads_the_same(wire, [said("a"), twisted, said("b"), said("\ude00"), said("c" * 20)])
        reads_the_same(wire, [twisted, said("b")])
    reads_the_same(wire, [said("a"), said("b")], name="error")


@pytest.mark.requirement("codecs:quick:same")
@pytest.mark.parametrize("wire", WIRES)
def test_whatever_comes_between_reads_the_same_both_ways(wire: str) -> None:
    said = SAID[wire]
    others = [*OTHERS[wire], said("")]
    for first, second in product(others, others):
        reads_the_same(wire, [said("a"), first, said("b"), second, said("c"), said("d"), *OTHERS[wire][-2:]])
        reads_the_same(wire, [first, said("a"), said("b"), second, said("c")])
        reads_the_same(wire, [first, said(""), second, {"error": {"message": "overloaded"}}])
        reads_the_same(wire, [said("a"), first, second, SAID[wire]("b", 1) if wire != "chat" else said("b")])


@pytest.mark.requirement("codecs:quick:taken")
@pytest.mark.parametrize("wire", WIRES)
def test_ordinary_text_goes_the_quick_way(wire: str) -> None:
    plain = {
        "chat": {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]},
        "anthropic": {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        "responses": {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "a"},
    }[wire]
    stream = f"data: {json.dumps(plain)}\n\n".encode() * 10
    assert decoded(wire, stream, StreamLimits(), quick=True)[2] == 9
