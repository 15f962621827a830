"""Requests are checked as each provider checks them, and a fault is told in the wire format's own error."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from channels.rehearsal.script import load_script
from channels.rehearsal.server import StandIn
from tests.support.asking import KEY_HEADERS, PATHS, ask, question
from tests.support.plain_reader import read
from worker.codecs.events import Completed, ToolCall
from worker.codecs.messages import AssistantMessage, Echo, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.wires import codec_of

WIRES = ("chat", "responses", "anthropic")
USER = {"role": "user", "content": "hello"}
SPEC = ToolSpec("clock", "Tells the time.", {"type": "object", "properties": {"timezone": {"type": "string"}}})
WITH_REASONING: dict[str, dict[str, object]] = {"responses": {"include": ["reasoning.encrypted_content"]}}
"""What a request must ask for, or its answer brings no reasoning that could be sent back."""


def provider(folder: Path, script: str) -> StandIn:
    """A stand-in provider with this script; not started."""
    path = folder / "script.toml"
    path.write_text(script, encoding="utf-8")
    return StandIn(load_script(path), transcript_path=folder / "transcript.jsonl")


def error_of(wire: str, body: Any) -> tuple[str, str]:
    """(kind, message) of an error body, which must have the wire format's own shape."""
    error = body["error"]
    if wire == "anthropic":
        assert set(body) == {"type", "error"}
        assert (body["type"], set(error)) == ("error", {"type", "message"})
    else:
        assert set(body) == {"error"}
        assert set(error) == {"message", "type", "param", "code"}
    return error["type"], error["message"]


def chat_call(call_id: str = "c1", arguments: str = "{}", name: str = "clock") -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def item_call(call_id: str = "c1", arguments: str = "{}") -> dict[str, object]:
    return {"type": "function_call", "call_id": call_id, "name": "clock", "arguments": arguments}


def block_call(call_id: str = "c1") -> dict[str, object]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": "clock", "input": {}}]}


def block_result(call_id: str = "c1") -> dict[str, object]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": "noon"}


CHAT_RESULT = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
ITEM_RESULT = {"type": "function_call_output", "call_id": "c1", "output": "noon"}
THINKING = {"type": "thinking", "thinking": "hm", "signature": "of another server"}
FAULTS: list[tuple[str, dict[str, object], str]] = [
    ("chat", {"model": ""}, "model: must not be empty"),
    ("chat", {"model": None}, "model: must be a string"),
    ("chat", {"stream": False}, "stream: must be true"),
    ("chat", {"messages": "hello"}, "messages: must be a list"),
    ("chat", {"messages": []}, "messages holds no user message"),
    ("chat", {"messages": ["hello"]}, "messages[0]: must be a JSON object"),
    ("chat", {"messages": [{"role": "system", "content": "x"}]}, "messages holds no user message"),
    ("chat", {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role: must be one of system, developer"),
    ("chat", {"messages": [{"role": "user"}]}, "messages[0].content: must be a string"),
    ("chat", {"messages": [USER, CHAT_RESULT]}, "messages[1]: there is no open tool call 'c1'"),
    ("chat", {"messages": [USER, chat_call()]}, "the tool call 'c1' has no result"),
    ("chat", {"messages": [USER, chat_call(), USER, CHAT_RESULT]}, "messages[1].tool_calls[0]: the tool call 'c1'"),
    ("chat", {"messages": [USER, chat_call(arguments="{"), CHAT_RESULT]}, "arguments: must hold a JSON object"),
    ("chat", {"messages": [USER, chat_call(name=""), CHAT_RESULT]}, "function.name: must not be empty"),
    ("chat", {"messages": [{**chat_call(), "role": "user"}, CHAT_RESULT]}, "a message of role user cannot call tools"),
    ("chat", {"tools": [{"type": "function"}]}, "tools[0].function: must be a JSON object"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "a b"}}]}, "it is 'a b'"),
    ("chat", {"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, "tools: names must be unique"),
    ("chat", {"max_tokens": 0}, "max_tokens: must be a whole number from 1"),
    ("responses", {"input": None}, "input holds no user message"),
    ("responses", {"input": 5}, "input: must be a list"),
    ("responses", {"input": [{"role": "tool", "content": "x"}]}, "input[0].role: must be one of system"),
    (
        "responses",
        {"input": [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}]},
        "output_text cannot be part of a message of role user",
    ),
    (
        "responses",
        {"input": [USER, {"role": "assistant", "content": [{"type": "input_text", "text": "x"}]}]},
        "input_text cannot be part of a message of role assistant",
    ),
    ("responses", {"input": [USER, ITEM_RESULT]}, "input[1]: there is no open tool call 'c1'"),
    ("responses", {"input": [USER, item_call()]}, "input[1]: the tool call 'c1' has no result"),
    ("responses", {"input": [USER, item_call(), item_call(), ITEM_RESULT]}, "'c1' stands for two calls"),
    ("responses", {"input": [USER, item_call(arguments="[]"), ITEM_RESULT]}, "arguments: must hold a JSON object"),
    ("responses", {"input": [USER, {"type": "reasoning", "summary": []}]}, "must be followed by the item"),
    ("responses", {"instructions": 5}, "instructions: must be a string"),
    ("responses", {"tools": [{"type": "function", "name": ""}]}, "tools[0].name: must match"),
    ("responses", {"max_output_tokens": "5"}, "max_output_tokens: must be a whole number from 1"),
    ("responses", {"stream": None}, "stream: must be true"),
    ("anthropic", {"max_tokens": None}, "max_tokens: must be a whole number from 1"),
    ("anthropic", {"stream": False}, "stream: must be true"),
    ("anthropic", {"messages": []}, "messages holds no user message"),
    ("anthropic", {"messages": [{"role": "system", "content": "x"}]}, "the first message must be of role user"),
    ("anthropic", {"messages": [USER, {"role": "system", "content": "x"}]}, "role: must be one of user, assistant"),
    ("anthropic", {"messages": [{"role": "user", "content": " "}]}, "messages[0].content: must not be empty"),
    ("anthropic", {"messages": [{"role": "user", "content": []}]}, "messages[0].content: must not be empty"),
    (
        "anthropic",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        "text: must not be empty",
    ),
    ("anthropic", {"messages": [USER, block_call()]}, "the tool call 'c1' has no result"),
    ("anthropic", {"messages": [USER, block_call(), USER]}, "the tool call 'c1' has no result"),
    ("anthropic", {"messages": [USER, block_call("c 1"), USER]}, "it is 'c 1'"),
    ("anthropic", {"messages": [{"role": "user", "content": [block_result()]}]}, "there is no open tool call 'c1'"),
    (
        "anthropic",
        {
            "messages": [
                USER,
                block_call(),
                {"role": "user", "content": [{"type": "text", "text": "x"}, block_result()]},
            ]
        },
        "the tool call 'c1' has no result",
    ),
    (
        "anthropic",
        {"messages": [USER, {"role": "user", "content": [THINKING]}]},
        "thinking belongs to a message of role",
    ),
    ("anthropic", {"system": 5}, "system: must be a string"),
    ("anthropic", {"tools": [{"name": "clock"}]}, "tools[0].input_schema: must be a JSON object"),
    ("anthropic", {"tools": [{"name": "clock", "input_schema": {}}]}, "input_schema.type: must be one of object"),
]


@pytest.mark.requirement("rehearsal:requests:checked")
@pytest.mark.parametrize(("wire", "fields", "told"), FAULTS)
async def test_a_malformed_request_gets_the_wire_formats_own_400(
    tmp_path: Path, wire: str, fields: dict[str, Any], told: str
) -> None:
    async with provider(tmp_path, '[[calls]]\nsteps = [ { text = "one" } ]\n') as stand_in:
        refused = await ask(stand_in.base_url, "hello", wire, **fields)
        exchange = await stand_in.transcript.wait_for_end(1)
        answer = await ask(stand_in.base_url, "hello", wire)
    kind, message = error_of(wire, httpx.Response(200, content=refused.body).json())
    assert (refused.status, kind) == (400, "invalid_request_error")
    assert told in message
    assert (exchange.wire, exchange.call, exchange.ended) == (wire, None, "status")
    assert read(wire, answer.body).text == "one"


@pytest.mark.requirement("rehearsal:requests:checked")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_body_that_is_no_json_object_gets_a_400(tmp_path: Path, wire: str) -> None:
    async with provider(tmp_path, "[[calls]]\nsteps = []\n") as stand_in, httpx.AsyncClient() as client:
        for content in (b"", b"[]", b"{"):
            answer = await client.post(f"{stand_in.base_url}/{PATHS[wire]}", content=content)
            assert answer.status_code == 400
            assert error_of(wire, answer.json())[1] == "the body is no JSON object"


@pytest.mark.requirement("rehearsal:requests:checked")
async def test_messages_want_their_version_header(tmp_path: Path) -> None:
    async with provider(tmp_path, "[[calls]]\nsteps = []\n") as stand_in, httpx.AsyncClient() as client:
        answer = await client.post(f"{stand_in.base_url}/messages", json=question("anthropic", "x"))
    assert answer.status_code == 400
    assert error_of("anthropic", answer.json())[1] == "anthropic-version: header is required"


@pytest.mark.requirement("rehearsal:wires:refusals")
@pytest.mark.parametrize("wire", WIRES)
async def test_an_unknown_model_and_a_script_that_is_over_are_told_in_the_wire_formats_own_error(
    tmp_path: Path, wire: str
) -> None:
    script = 'after_last = "refuse"\nmodels = ["m"]\n[[calls]]\nsteps = []\n'
    async with provider(tmp_path, script) as stand_in, httpx.AsyncClient() as client:

        async def post(**fields: object) -> httpx.Response:
            headers = dict(line.split(": ", 1) for line in KEY_HEADERS[wire].split("\r\n"))
            body = question(wire, "x") | fields
            return await client.post(f"{stand_in.base_url}/{PATHS[wire]}", json=body, headers=headers)

        unknown = await post(model="other")
        assert (await post()).status_code == 200
        over = await post()
    kind, message = error_of(wire, unknown.json())
    assert (unknown.status_code, message) == (404, "the model 'other' does not exist")
    assert kind == ("not_found_error" if wire == "anthropic" else "invalid_request_error")
    assert over.status_code == 400
    assert "the script has 1 calls" in error_of(wire, over.json())[1]


@pytest.mark.requirement("rehearsal:transcript:no-keys")
async def test_the_key_of_messages_never_reaches_the_transcript(tmp_path: Path) -> None:
    async with provider(tmp_path, "[[calls]]\nsteps = []\n") as stand_in:
        await ask(stand_in.base_url, "hello", "anthropic")
        exchange = await stand_in.transcript.wait_for_end(1)
    assert exchange.request["headers"]["x-api-key"] == "withheld"
    assert "sk-secret" not in (tmp_path / "transcript.jsonl").read_text(encoding="utf-8")


async def send(stand_in: StandIn, wire: str, request: Request) -> Completed:
    """Ask through our own codec; the answer must be whole."""
    codec = codec_of(wire, profile="compat" if wire == "chat" else "strict")  # its reasoning is not documented
    encoded = codec.encode(request)
    decoder = codec.decoder()
    async with httpx.AsyncClient() as client:
        headers = encoded.headers | codec.authorization("sk-secret")
        answer = await client.post(stand_in.base_url + encoded.path, content=encoded.body, headers=headers)
    assert answer.status_code == 200, answer.text
    end = [*decoder.feed(answer.content), *decoder.close()][-1]
    assert isinstance(end, Completed), end
    return end


@pytest.mark.requirement("rehearsal:requests:ours")
@pytest.mark.parametrize("wire", WIRES)
async def test_our_own_requests_are_well_formed_over_a_whole_conversation(tmp_path: Path, wire: str) -> None:
    script = """
    [[calls]]
    steps = [
      { reasoning = "Which zone?" }, { text = "Let me look." },
      { tool = "clock", arguments = { timezone = "UTC" } }, { tool = "clock" },
    ]
    [[calls]]
    steps = [ { text = "Noon." } ]
    """
    first = Request(
        "m", (UserMessage("What time is it?"),), "You are careful.", (SPEC,), 500, 0.5, WITH_REASONING.get(wire, {})
    )
    async with provider(tmp_path, script) as stand_in:
        asked = await send(stand_in, wire, first)
        assert bool(asked.echo) is (wire != "chat")
        results = tuple(ToolMessage(call.id, call.name, "12:00") for call in asked.tool_calls)
        answer = AssistantMessage("Let me look.", asked.tool_calls, Echo("main", wire, asked.echo))
        messages: tuple[Message, ...] = (*first.messages, answer, *results)
        await send(stand_in, wire, replace(first, messages=messages))
        later = (
            *messages,
            AssistantMessage("Noon."),
            AssistantMessage(""),
            UserMessage("Sure?"),
            UserMessage("Really?"),
        )
        await send(stand_in, wire, replace(first, messages=later))
        assert [exchange.call for exchange in stand_in.transcript.exchanges] == [1, 2, 1]


@pytest.mark.requirement("rehearsal:requests:reasoning")
@pytest.mark.parametrize("wire", ["responses", "anthropic"])
async def test_reasoning_that_is_sent_back_changed_is_refused(tmp_path: Path, wire: str) -> None:
    script = '[[calls]]\nsteps = [ { reasoning = "Which zone?" }, { tool = "clock" } ]\n'
    first = Request("m", (UserMessage("What time is it?"),), tools=(SPEC,), extra_body=WITH_REASONING.get(wire, {}))
    async with provider(tmp_path, script) as stand_in, httpx.AsyncClient() as client:
        asked = await send(stand_in, wire, first)
        [call] = asked.tool_calls
        history = (*first.messages, AssistantMessage("", (call,), Echo("main", wire, asked.echo)), result_of(call))
        codec = codec_of(wire)
        encoded = codec.encode(replace(first, messages=history))
        assert encoded.body.count(b"Which zone?") == 1
        forged = encoded.body.replace(b"Which zone?", b"What zone?")
        answer = await client.post(stand_in.base_url + encoded.path, content=forged, headers=encoded.headers)
    assert answer.status_code == 400
    assert "is not that of this" in error_of(wire, answer.json())[1]


def result_of(call: ToolCall) -> ToolMessage:
    return ToolMessage(call.id, call.name, "12:00")
