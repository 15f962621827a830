"""The request that the Chat Completions codec writes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from worker.codecs.events import ToolCall
from worker.codecs.messages import AssistantMessage, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.openai_chat import ChatCodec


def body(request: Request) -> Any:
    return json.loads(ChatCodec().encode(request).body)


def test_the_request_asks_for_a_stream_with_usage() -> None:
    encoded = ChatCodec().encode(Request("m", (UserMessage("hi"),)))
    assert encoded.path == "/chat/completions"
    assert encoded.headers == {"content-type": "application/json", "accept": "text/event-stream"}
    assert json.loads(encoded.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.mark.requirement("codecs:chat:request")
def test_the_whole_conversation_is_written_in_order_with_its_tool_calls() -> None:
    call = ToolCall("c1", "tide", '{"port": "Ayr"}', {"port": "Ayr"})
    request = Request(
        "m",
        (
            UserMessage("when?"),
            AssistantMessage("", (call,)),
            ToolMessage("c1", "tide", "at nine"),
            AssistantMessage("Nine.", ()),
            AssistantMessage("Again: ", (replace(call, id="c2"),)),
        ),
        instructions="Be brief.",
        tools=(ToolSpec("tide", "Tells the tide.", {"type": "object"}),),
        max_tokens=90,
        temperature=0.0,
    )
    written = {"id": "c1", "type": "function", "function": {"name": "tide", "arguments": '{"port": "Ayr"}'}}
    function = {"name": "tide", "description": "Tells the tide.", "parameters": {"type": "object"}}
    sent = body(request)
    assert sent["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": None, "tool_calls": [written]},
        {"role": "tool", "tool_call_id": "c1", "content": "at nine"},
        {"role": "assistant", "content": "Nine."},
        {"role": "assistant", "content": "Again: ", "tool_calls": [written | {"id": "c2"}]},
    ]
    assert sent["tools"] == [{"type": "function", "function": function}]
    assert (sent["max_tokens"], sent["temperature"]) == (90, 0.0)


@pytest.mark.requirement("codecs:chat:extra-body")
def test_the_extra_body_is_merged_over_the_request_and_a_null_takes_a_key_out() -> None:
    extra: dict[str, object] = {"stream_options": None, "max_tokens": None, "temperature": 0.9, "seed": 7}
    sent = body(Request("m", (), max_tokens=5, temperature=0.1, extra_body=extra))
    assert sent == {"model": "m", "messages": [], "stream": True, "temperature": 0.9, "seed": 7}


@pytest.mark.parametrize(("arguments", "parsed"), [('{"a": ', None), ("[1]", None), ("", {}), ("null", {}), (" ", {})])
def test_arguments_that_no_server_could_parse_are_sent_back_as_an_empty_object(
    arguments: str, parsed: dict[str, object] | None
) -> None:
    sent = body(Request("m", (AssistantMessage("", (ToolCall("c", "f", arguments, parsed),)),)))
    assert sent["messages"][0]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_the_same_request_is_written_as_the_same_bytes() -> None:
    request = Request("m", (UserMessage("é"),), tools=(ToolSpec("f", "d", {}),), extra_body={"b": 1, "a": 2})
    assert ChatCodec().encode(request) == ChatCodec().encode(request)
