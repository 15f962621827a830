"""The request that the Responses codec writes."""

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.support.responses_events import (
    added,
    call,
    call_events,
    done,
    framed,
    message,
    message_events,
    read,
    reasoning,
    whole,
)
from worker.codecs.codec import Codec
from worker.codecs.events import Completed, ToolCall
from worker.codecs.messages import AssistantMessage, Echo, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.openai_responses import ResponsesCodec

CALL = ToolCall("c1", "tide", '{"port": "Ayr"}', {"port": "Ayr"})
SECRET = {**reasoning(), "encrypted_content": "gAAAA"}


def body(request: Request) -> Any:
    return json.loads(ResponsesCodec().encode(request).body)


def sent(*messages: Message) -> Any:
    return body(Request("m", messages))["input"]


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def assistant(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def function_call(arguments: str = '{"port": "Ayr"}', call_id: str = "c1") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "tide", "arguments": arguments}


@pytest.mark.requirement("codecs-responses:request")
def test_the_request_asks_for_a_stream_that_is_stored_nowhere_and_for_nothing_that_a_model_may_refuse() -> None:
    codec: Codec = ResponsesCodec()
    encoded = codec.encode(Request("m", (UserMessage("hi"),)))
    assert codec.wire == "responses"
    assert codec.authorization("k-1") == {"authorization": "Bearer k-1"}
    assert encoded.path == "/responses"
    assert encoded.headers == {"content-type": "application/json", "accept": "text/event-stream"}
    assert json.loads(encoded.body) == {
        "model": "m",
        "input": [user("hi")],
        "stream": True,
        "store": False,
    }


@pytest.mark.requirement("codecs-responses:request")
def test_encrypted_reasoning_is_asked_for_where_the_extra_body_says_so() -> None:
    extra: dict[str, object] = {"include": ["reasoning.encrypted_content"]}
    assert body(Request("m", (UserMessage("hi"),), extra_body=extra))["include"] == ["reasoning.encrypted_content"]


@pytest.mark.requirement("codecs-responses:request")
def test_the_whole_conversation_is_written_in_order_with_its_tool_calls() -> None:
    request = Request(
        "m",
        (
            UserMessage("when?"),
            AssistantMessage("", (CALL,)),
            ToolMessage("c1", "tide", "at nine"),
            AssistantMessage("Nine.", ()),
            AssistantMessage("Again: ", (replace(CALL, id="c2"),)),
        ),
        instructions="Be brief.",
        tools=(ToolSpec("tide", "Tells the tide.", {"type": "object"}),),
        max_tokens=90,
        temperature=0.0,
    )
    written = body(request)
    assert written["input"] == [
        user("when?"),
        function_call(),
        {"type": "function_call_output", "call_id": "c1", "output": "at nine"},
        assistant("Nine."),
        assistant("Again: "),
        function_call(call_id="c2"),
    ]
    tool = {"type": "function", "name": "tide", "description": "Tells the tide.", "parameters": {"type": "object"}}
    assert (written["instructions"], written["tools"]) == ("Be brief.", [tool])
    assert (written["max_output_tokens"], written["temperature"]) == (90, 0.0)


@pytest.mark.requirement("codecs-responses:request")
@pytest.mark.parametrize("arguments", ['{"port": "Ay', "", "null", "[1]", "{}"])
def test_arguments_that_are_no_object_are_sent_as_an_empty_one(arguments: str) -> None:
    broken = ToolCall("c1", "tide", arguments, {} if arguments in ("", "null", "{}") else None)
    assert sent(AssistantMessage("", (broken,))) == [function_call("{}")]
    echo = Echo("p", "responses", (SECRET, {**call(arguments), "arguments": arguments}))
    assert sent(AssistantMessage("", (broken,), echo)) == [SECRET, call("{}")]


@pytest.mark.requirement("codecs-responses:extra-body")
def test_the_extra_body_is_merged_over_the_request_and_a_null_takes_a_key_out() -> None:
    extra: dict[str, object] = {"include": None, "store": True, "reasoning": {"effort": "low"}, "temperature": 1}
    written = body(Request("m", (UserMessage("hi"),), temperature=0.5, extra_body=extra))
    assert "include" not in written
    assert (written["store"], written["reasoning"], written["temperature"]) == (True, {"effort": "low"}, 1)


@pytest.mark.requirement("codecs-responses:echo")
def test_an_answer_with_encrypted_reasoning_goes_back_item_by_item_as_it_came() -> None:
    items = [[added(0, SECRET), done(0, SECRET)], message_events(1, "Look: "), call_events(2, '{"port":"Ayr"}')]
    completed = read(framed(whole(*items)))[-1]
    assert isinstance(completed, Completed)
    answer = AssistantMessage("Look: ", completed.tool_calls, Echo("p", "responses", completed.echo))
    result = ToolMessage("call_1", "tide", "nine")
    assert sent(UserMessage("when?"), answer, result) == [
        user("when?"),
        SECRET,
        message("Look: "),
        call('{"port":"Ayr"}'),
        {"type": "function_call_output", "call_id": "call_1", "output": "nine"},
    ]


@pytest.mark.requirement("codecs-responses:echo")
def test_the_echo_of_another_wire_format_is_left_aside() -> None:
    echo = Echo("p", "anthropic", ({"type": "thinking"},))
    assert sent(AssistantMessage("Nine.", (), echo)) == [assistant("Nine.")]


@pytest.mark.requirement("codecs-responses:echo")
def test_the_result_of_a_custom_tool_is_sent_as_one() -> None:
    custom: dict[str, object] = {
        "id": "ct_1",
        "type": "custom_tool_call",
        "call_id": "c1",
        "name": "sql",
        "input": "SELECT 1",
    }
    echo = Echo("p", "responses", (SECRET, custom))
    answer = AssistantMessage("", (ToolCall("c1", "sql", "SELECT 1", None),), echo)
    assert sent(answer, ToolMessage("c1", "sql", "no such tool")) == [
        SECRET,
        custom,
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "no such tool"},
    ]
