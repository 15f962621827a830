"""The matrix of faulty streams: each row is served by a real socket, and what the driver is told is right.

What other clients do with these rows was measured, see the source of the requirement: they take a cut answer for a
whole one, wait for a peer that has said everything, or never notice that only keepalives come.
"""

import asyncio
import json
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import httpx
import pytest

from tests.support.chat_stream import DONE, chunk, finish, raw, text, thought, tool
from tests.support.peer import Act, Conversation, Peer, within
from tests.support.responses_events import call_events, event, framed, message_events, response, whole
from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.codec import Codec
from worker.codecs.events import (
    Completed,
    Failed,
    Keepalive,
    ReasoningDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallOpened,
    UsageReported,
)
from worker.codecs.messages import Request, UserMessage
from worker.codecs.openai_chat import ChatCodec
from worker.codecs.openai_responses import ResponsesCodec
from worker.engine.stream import Endpoint, attempt_events
from worker.turn.events import Died, Event, Heard

REQUEST = Request("a-model", (UserMessage("the question of the user"),), max_tokens=100)
GRACE_S = 0.05
CODECS: dict[str, Codec] = {"chat": ChatCodec(), "anthropic": AnthropicCodec(), "responses": ResponsesCodec()}
End = Literal["ends", "holds", "resets", "cuts"]


@dataclass(frozen=True, slots=True)
class Row:
    """A stream in parts, each sent once the one before it was heard, then its end; and what is right.

    `outcome`: `completed`, `died` or `failed`, and its finish reason, kind or class. `calls`: name and arguments of
    the tool calls of the completion.
    """

    sent: tuple[bytes, ...]
    end: End
    outcome: str
    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()


def anthropic(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def block(**content: object) -> bytes:
    return anthropic("content_block_start", index=0, content_block=content)


def delta(**fields: object) -> bytes:
    return anthropic("content_block_delta", index=0, delta=fields)


def stopped(reason: str) -> bytes:
    return anthropic("message_delta", delta={"stop_reason": reason}, usage={"output_tokens": 3})


MESSAGE = {"id": "msg_1", "type": "message", "role": "assistant", "content": [], "usage": {"input_tokens": 9}}
START = anthropic("message_start", message=MESSAGE)
WORDS = START + block(type="text", text="") + delta(type="text_delta", text="part")
STOP = anthropic("content_block_stop", index=0)
BYE = anthropic("message_stop")
CALL = START + block(type="tool_use", id="a", name="f", input={})
CUT = '{"path":"/tmp/a","content":"he'
CUT_CALL = tool(index=0, id="a", function={"name": "f", "arguments": CUT})
BOM = b"\xef\xbb\xbf"


def both(first: dict[str, object], second: dict[str, object]) -> tuple[bytes, ...]:
    """Two parallel calls, each in two pieces."""
    pieces = []
    for place, name in ((first, "f"), (second, "g")):
        pieces.append(tool(**place, id=name, function={"name": name, "arguments": '{"a"'}))
        pieces.append(tool(**place, function={"arguments": ":1}"}))
    return (*pieces, finish("tool_calls") + DONE)


TWO_CALLS = (("f", '{"a":1}'), ("g", '{"a":1}'))
SPREAD = b'data:{"choices":[{"delta":\r\ndata: {"content":"h\xc3\xa9 \xf0\x9f\xa7\x9c"}}]}\r\n\r\n'
MERMAID = "h\u00e9 \U0001f9dc"
LONG = "x" * 3_000_000

CHAT = {
    "end without finish and done": Row((text("part"),), "ends", "died end_of_stream", "part"),
    "done without finish": Row((text("whole") + DONE,), "holds", "completed None", "whole"),
    "finish without done, then the end": Row((text("whole"), finish()), "ends", "completed stop", "whole"),
    "finish without done, socket held": Row((text("whole"), finish()), "holds", "completed stop", "whole"),
    "finish without done, then a reset": Row((text("whole"), finish()), "resets", "completed stop", "whole"),
    "done, socket held": Row((text("whole"), finish() + DONE), "holds", "completed stop", "whole"),
    "reset": Row((text("part"),), "resets", "died reset", "part"),
    "a cut chunk": Row((text("part"),), "cuts", "died reset", "part"),
    "an error object": Row((text("part"), raw({"error": {"code": 503}})), "holds", "failed retryable", "part"),
    "a named error": Row(
        (text("part"), b'event: error\ndata: {"message": "busy"}\n\n' + finish() + DONE),
        "holds",
        "failed retryable",
        "part",
    ),
    "length": Row((text("part"), finish("length") + DONE), "holds", "completed length", "part"),
    "content filter": Row((text("part"), finish("content_filter") + DONE), "holds", "completed content_filter", "part"),
    "an empty body": Row((), "ends", "died end_of_stream"),
    "nothing but done": Row((DONE,), "holds", "completed None"),
    "reasoning alone, then the end": Row((thought("hm"),), "ends", "died end_of_stream"),
    "the finish without its blank line": Row((text("whole"), finish()[:-2]), "ends", "completed stop", "whole"),
    "bad JSON in mid-stream": Row((text("part"), b'data: {"choi\n\n' + DONE), "holds", "failed protocol", "part"),
    "choices that are null": Row(
        (raw({"choices": None}), text("whole") + finish() + DONE), "holds", "completed stop", "whole"
    ),
    "cut arguments and length": Row(
        (CUT_CALL, finish("length") + DONE), "holds", "completed length", calls=(("f", CUT),)
    ),
    "cut arguments, then the end": Row((CUT_CALL,), "ends", "died end_of_stream"),
    "parallel calls without index": Row(both({}, {}), "holds", "completed tool_calls", calls=TWO_CALLS),
    "parallel calls with one index": Row(
        both({"index": 0}, {"index": 0}), "holds", "completed tool_calls", calls=TWO_CALLS
    ),
    "carriage returns": Row(
        ((text("whole") + finish() + DONE).replace(b"\n", b"\r"),), "holds", "completed stop", "whole"
    ),
    "a carriage return and its line feed apart": Row(
        (SPREAD[:-1], SPREAD[-1:] + finish().replace(b"\n", b"\r\n"), DONE), "holds", "completed stop", MERMAID
    ),
    "characters in single bytes": Row(
        (*(SPREAD[place : place + 1] for place in range(len(SPREAD))), DONE), "holds", "completed None", MERMAID
    ),
    "a line of 3 MB": Row((text(LONG), finish() + DONE), "holds", "completed stop", LONG),
    "a byte order mark": Row((BOM + text("whole"), DONE), "holds", "completed None", "whole"),
}

ANTHROPIC = {
    "end without a stop reason": Row((WORDS,), "ends", "died end_of_stream", "part"),
    "message_stop, socket held": Row((WORDS, STOP + stopped("end_turn") + BYE), "holds", "completed stop", "part"),
    "a stop reason without message_stop, then the end": Row(
        (WORDS + STOP, stopped("end_turn")), "ends", "completed stop", "part"
    ),
    "reset": Row((WORDS,), "resets", "died reset", "part"),
    "a cut chunk": Row((WORDS,), "cuts", "died reset", "part"),
    "an error": Row(
        (WORDS, anthropic("error", error={"type": "overloaded_error", "message": "m"})),
        "holds",
        "failed retryable",
        "part",
    ),
    "length": Row((WORDS, STOP + stopped("max_tokens") + BYE), "holds", "completed length", "part"),
    "an empty body": Row((), "ends", "died end_of_stream"),
    "cut arguments and length": Row(
        (CALL, delta(type="input_json_delta", partial_json=CUT), STOP + stopped("max_tokens") + BYE),
        "holds",
        "completed length",
        calls=(("f", CUT),),
    ),
    "cut arguments, then the end": Row(
        (CALL, delta(type="input_json_delta", partial_json=CUT)), "ends", "died end_of_stream"
    ),
    "line feeds with carriage returns": Row(
        ((WORDS + STOP + stopped("end_turn") + BYE).replace(b"\n", b"\r\n"),), "holds", "completed stop", "part"
    ),
    "a byte order mark": Row((BOM + WORDS, STOP + stopped("end_turn") + BYE), "holds", "completed stop", "part"),
}

SAID = whole(message_events(0, "part"))
BEGUN, WHOLE = framed(SAID[:5]), (framed(SAID[:5]), framed(SAID[5:]))
FAILURE = response("failed", error={"code": "server_error", "message": "m"})
SHORT = response("incomplete", SAID[-1]["response"]["output"], incomplete_details={"reason": "max_output_tokens"})

RESPONSES = {
    "end without a terminal event": Row((BEGUN,), "ends", "died end_of_stream", "part"),
    "completed, socket held": Row(WHOLE, "holds", "completed stop", "part"),
    "failed, socket held": Row(
        (BEGUN, framed([event("response.failed", response=FAILURE)])), "holds", "failed retryable", "part"
    ),
    "an error event, socket held": Row(
        (BEGUN, framed([event("error", code="server_error", message="m")])), "holds", "failed retryable", "part"
    ),
    "reset": Row((BEGUN,), "resets", "died reset", "part"),
    "a cut chunk": Row((BEGUN,), "cuts", "died reset", "part"),
    "length": Row(
        (BEGUN, framed([*SAID[5:-1], event("response.incomplete", response=SHORT)])),
        "holds",
        "completed length",
        "part",
    ),
    "an empty body": Row((), "ends", "died end_of_stream"),
    "cut arguments, then the end": Row((framed(call_events(0, CUT)[:2]),), "ends", "died end_of_stream"),
    "a byte order mark": Row((BOM + WHOLE[0], WHOLE[1]), "holds", "completed stop", "part"),
}

QUIET = {
    "chat: comments": ("chat", b"", b": here\n\n"),
    "chat: chunks without anything": ("chat", text("one"), chunk({})),
    "chat: empty content": ("chat", text("one"), chunk({"role": "assistant", "content": ""})),
    "responses: keepalives": ("responses", BEGUN, framed([event("keepalive")], numbered=False)),
    "anthropic: pings": ("anthropic", WORDS, anthropic("ping")),
    "anthropic: the start again": ("anthropic", START, anthropic("message_start", message=MESSAGE)),
}


def playing(sent: tuple[bytes, ...], end: End, heard: asyncio.Event) -> Act:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        for part in sent:
            await peer.chunk(part)
            await within(5, f"{part[:40]!r} to be heard", heard)
            heard.clear()
        match end:
            case "ends":
                await peer.end()
            case "holds":
                await peer.until_gone()
            case "resets":
                peer.reset()
            case "cuts":
                pass

    return act


async def events_of(client: httpx.AsyncClient, wire: str, row: Row) -> list[Event]:
    heard = asyncio.Event()
    seen: list[Event] = []
    async with Peer(playing(row.sent, row.end, heard)) as peer, asyncio.timeout(20):
        endpoint = Endpoint("main", peer.url, "sk-the-key", {}, 2, GRACE_S)
        async for batch in attempt_events(client, endpoint, CODECS[wire], REQUEST, 1, 1):
            seen += batch
            heard.set()
    assert len(peer.conversations) == 1, "a request is never sent again behind the caller's back"
    return seen


def outcome(event: Event) -> str:
    match event:
        case Heard(event=Completed(finish_reason=reason)):
            return f"completed {reason}"
        case Heard(event=Failed(failure=failure)):
            return f"failed {failure}"
        case Died(kind=kind):
            return f"died {kind}"
        case _:
            return str(event)


async def check(client: httpx.AsyncClient, wire: str, row: Row) -> list[Event]:
    events = await events_of(client, wire, row)
    assert outcome(events[-1]) == row.outcome
    before = [event.event for event in events[:-1] if isinstance(event, Heard)]
    assert len(before) == len(events) - 1
    assert not any(isinstance(event, Completed | Failed) for event in before)
    assert "".join(event.text for event in before if isinstance(event, TextDelta)) == row.text
    calls: tuple[tuple[str, str], ...] = ()
    if isinstance(events[-1], Heard) and isinstance(completed := events[-1].event, Completed):
        calls = tuple((call.name, call.arguments) for call in completed.tool_calls)
        for call in completed.tool_calls:
            assert (call.arguments_json is None) == (call.arguments == CUT), "cut arguments are never repaired"
    assert calls == row.calls
    return events


@pytest.mark.requirement("streams:matrix")
@pytest.mark.parametrize("row", CHAT)
async def test_a_faulty_chat_stream_is_told_as_what_it_is(client: httpx.AsyncClient, row: str) -> None:
    await check(client, "chat", CHAT[row])


@pytest.mark.requirement("streams:matrix")
@pytest.mark.parametrize("row", ANTHROPIC)
async def test_a_faulty_anthropic_stream_is_told_as_what_it_is(client: httpx.AsyncClient, row: str) -> None:
    await check(client, "anthropic", ANTHROPIC[row])


@pytest.mark.requirement("streams:matrix")
@pytest.mark.parametrize("row", RESPONSES)
async def test_a_faulty_responses_stream_is_told_as_what_it_is(client: httpx.AsyncClient, row: str) -> None:
    await check(client, "responses", RESPONSES[row])


@pytest.mark.requirement("streams:matrix")
async def test_reasoning_before_a_death_is_heard_and_is_no_answer(client: httpx.AsyncClient) -> None:
    events = await check(client, "chat", CHAT["reasoning alone, then the end"])
    assert events[0] == Heard(1, 1, ReasoningDelta("hm"))


@pytest.mark.requirement("streams:matrix")
async def test_a_call_that_was_cut_was_seen_to_grow(client: httpx.AsyncClient) -> None:
    events = await check(client, "chat", CHAT["cut arguments, then the end"])
    assert events[:2] == [Heard(1, 1, ToolCallOpened(0, "f")), Heard(1, 1, ToolCallArguments(0, CUT))]


@pytest.mark.requirement("streams:matrix")
@pytest.mark.requirement("streams:vector:t06")
@pytest.mark.parametrize("row", QUIET)
async def test_what_says_nothing_is_keepalives_however_long_it_goes_on(client: httpx.AsyncClient, row: str) -> None:
    wire, first, again = QUIET[row]
    heard = asyncio.Event()
    sent = ((first,) if first else ()) + (again,) * 30
    async with Peer(playing(sent, "holds", heard)) as peer, asyncio.timeout(20):
        endpoint = Endpoint("main", peer.url, None, {}, 2, GRACE_S)
        async with aclosing(attempt_events(client, endpoint, CODECS[wire], REQUEST, 1, 1)) as batches:
            if first:
                await anext(batches)
                heard.set()
            for _ in range(30):
                for event in await anext(batches):
                    assert isinstance(event, Heard)
                    assert isinstance(event.event, Keepalive | UsageReported)
                heard.set()


@pytest.mark.requirement("streams:matrix")
async def test_silence_is_left_to_whoever_watches(client: httpx.AsyncClient) -> None:
    heard = asyncio.Event()
    async with Peer(playing((text("part"),), "holds", heard)) as peer:
        endpoint = Endpoint("main", peer.url, None, {}, 2, GRACE_S)
        async with aclosing(attempt_events(client, endpoint, CODECS["chat"], REQUEST, 1, 1)) as batches:
            assert await anext(batches) == [Heard(1, 1, TextDelta("part"))]
            heard.set()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(4 * GRACE_S):
                    await anext(batches)
        await within(2, "the peer to see the end of the connection", peer.conversations[0].ended)
