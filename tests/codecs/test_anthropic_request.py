"""The request that the Messages codec writes."""

import json
from pathlib import Path
from typing import Any

import pytest

from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.events import Completed, ToolCall
from worker.codecs.messages import AssistantMessage, Echo, Message, Request, ToolMessage, ToolSpec, UserMessage

STREAMS = Path(__file__).parent / "streams" / "anthropic"
CALL = ToolCall("toolu_1", "tide", '{"port": "Ayr"}', {"port": "Ayr"})
WRITTEN = {"type": "tool_use", "id": "toolu_1", "name": "tide", "input": {"port": "Ayr"}}
ASKED = {"role": "user", "content": [{"type": "text", "text": "when?"}]}


def body(request: Request) -> Any:
    return json.loads(AnthropicCodec().encode(request).body)


def messages(*said: Message) -> Any:
    return body(Request("m", (UserMessage("when?"), *said)))["messages"]


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@pytest.mark.requirement("codecs-anthropic:request")
def test_the_request_asks_for_a_stream_and_always_says_how_many_tokens() -> None:
    encoded = AnthropicCodec().encode(Request("m", (UserMessage("when?"),)))
    assert encoded.path == "/messages"
    assert encoded.headers == {
        "content-type": "application/json",
        "accept": "text/event-stream",
        "anthropic-version": "2023-06-01",
    }
    assert json.loads(encoded.body) == {"model": "m", "messages": [ASKED], "max_tokens": 4096, "stream": True}


def test_the_key_goes_into_a_header_of_its_own() -> None:
    assert AnthropicCodec().authorization("k") == {"x-api-key": "k"}


@pytest.mark.requirement("codecs-anthropic:request")
def test_instructions_tools_and_settings_stand_beside_the_messages() -> None:
    tools = (ToolSpec("tide", "Tells the tide.", {"properties": {}}), ToolSpec("wind", "", {"type": "object"}))
    request = Request("m", (UserMessage("when?"),), "Be brief.", tools, max_tokens=90, temperature=0.0)
    sent = body(request)
    assert (sent["system"], sent["max_tokens"], sent["temperature"]) == ("Be brief.", 90, 0.0)
    assert sent["tools"] == [
        {
            "name": "tide",
            "description": "Tells the tide.",
            "input_schema": {"type": "object", "properties": {}},
        },
        {"name": "wind", "input_schema": {"type": "object"}},
    ]
    assert "system" not in body(Request("m", (UserMessage("when?"),), instructions=" "))


@pytest.mark.requirement("codecs-anthropic:request")
def test_extra_body_is_merged_over_and_a_null_takes_its_key_out() -> None:
    request = Request("m", (UserMessage("when?"),), extra_body={"max_tokens": 7, "stream": None, "top_k": 4})
    assert body(request) == {"model": "m", "messages": [ASKED], "max_tokens": 7, "top_k": 4}


@pytest.mark.requirement("codecs-anthropic:request:conversation")
def test_tool_results_follow_their_tool_calls_in_one_message_and_stand_before_what_else_was_said() -> None:
    wind = ToolCall("toolu_2", "wind", "", {})
    assert messages(
        AssistantMessage("Let me look.", (CALL, wind)),
        UserMessage("Hurry!"),
        ToolMessage("toolu_1", "tide", "at nine"),
        ToolMessage("toolu_2", "wind", "west"),
        UserMessage("Please."),
        AssistantMessage("At nine."),
    ) == [
        ASKED,
        {
            "role": "assistant",
            "content": [
                text("Let me look."),
                WRITTEN,
                {"type": "tool_use", "id": "toolu_2", "name": "wind", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": "at nine"},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "west"},
                text("Hurry!"),
                text("Please."),
            ],
        },
        {"role": "assistant", "content": [text("At nine.")]},
    ]


@pytest.mark.requirement("codecs-anthropic:request:conversation")
def test_what_one_side_says_in_a_row_is_one_message() -> None:
    assert messages(UserMessage("And where?"), AssistantMessage("At nine."), AssistantMessage("In Ayr.")) == [
        {"role": "user", "content": [text("when?"), text("And where?")]},
        {"role": "assistant", "content": [text("At nine."), text("In Ayr.")]},
    ]


@pytest.mark.requirement("codecs-anthropic:request:conversation")
def test_no_block_is_a_text_without_a_word() -> None:
    assert messages(
        AssistantMessage(" \n", (CALL,)), ToolMessage("toolu_1", "tide", ""), AssistantMessage(""), UserMessage(" ")
    ) == [
        ASKED,
        {"role": "assistant", "content": [WRITTEN]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}, text("(empty)")]},
    ]


@pytest.mark.requirement("codecs-anthropic:request:conversation")
@pytest.mark.parametrize("arguments_json", [None, {}])
def test_broken_and_empty_arguments_go_back_as_an_empty_object(arguments_json: dict[str, object] | None) -> None:
    call = ToolCall("toolu_1", "tide", '{"port": "Ay', arguments_json)
    assert messages(AssistantMessage("", (call,)))[1]["content"] == [WRITTEN | {"input": {}}]


@pytest.mark.requirement("codecs-anthropic:request:conversation")
def test_a_tool_call_of_another_provider_gets_an_id_and_a_name_that_this_format_takes() -> None:
    call = ToolCall("functions.tide:0", "tide table", "{}", {})
    nameless = ToolCall("", "", "{}", {})
    _, asked, answered = messages(AssistantMessage("", (call, nameless)), ToolMessage("functions.tide:0", "tide", "x"))
    used, unnamed = asked["content"]
    assert (used["name"], unnamed["name"]) == ("tide_table", "unnamed")
    assert used["id"].startswith("toolu_")
    assert used["id"] != unnamed["id"]
    assert answered["content"][0]["tool_use_id"] == used["id"]


@pytest.mark.requirement("codecs-anthropic:request:conversation")
def test_integers_beyond_64_bits_are_sent_as_they_came() -> None:
    call = ToolCall("toolu_1", "tide", "", {"at": 12345678901234567890123, "port": "Ἀθῆναι"})
    assert messages(AssistantMessage("", (call,)))[1]["content"][0]["input"] == call.arguments_json


@pytest.mark.requirement("codecs-anthropic:request:echo")
@pytest.mark.parametrize("name", ["thinking-signed", "thinking-redacted", "thinking-then-a-tool", "server-tool"])
def test_an_answer_with_blocks_of_the_providers_own_goes_back_as_it_came(name: str) -> None:
    reader = AnthropicCodec().decoder()
    completed = reader.feed((STREAMS / f"{name}.sse").read_bytes())[-1]
    assert isinstance(completed, Completed)
    assert completed.echo
    echo = Echo("claude", "anthropic", completed.echo)
    said = AssistantMessage("left aside", completed.tool_calls, echo)
    results = [ToolMessage(call.id, call.name, "at nine") for call in completed.tool_calls]
    _, answered, *rest = messages(said, *results)
    assert answered == {"role": "assistant", "content": list(completed.echo)}
    assert [block["tool_use_id"] for message in rest for block in message["content"]] == [
        block["id"] for block in completed.echo if block["type"] == "tool_use"
    ]


@pytest.mark.requirement("codecs-anthropic:request:echo")
def test_the_echo_of_another_wire_format_is_left_aside() -> None:
    echo = Echo("gpt", "responses", ({"type": "reasoning", "encrypted_content": "b3Bh"},))
    assert messages(AssistantMessage("At nine.", (), echo))[1]["content"] == [text("At nine.")]


@pytest.mark.requirement("codecs-anthropic:request:echo")
def test_an_id_that_had_to_be_changed_is_changed_in_the_echo_too() -> None:
    items: tuple[dict[str, object], ...] = ({"type": "thinking", "signature": "c2ln"}, {**WRITTEN, "id": "call:1"})
    echo = Echo("gateway", "anthropic", items)
    call = ToolCall("call:1", "tide", "{}", {})
    _, answered, result = messages(AssistantMessage("", (call,), echo), ToolMessage("call:1", "tide", "x"))
    assert answered["content"][1]["id"] == result["content"][0]["tool_use_id"] != "call:1"
