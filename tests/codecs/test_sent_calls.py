"""What every wire format sends of a history, whoever made it: ids, names, and values that are hard to write."""

import datetime as dt
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.codecs.codec import Codec
from worker.codecs.events import ToolCall
from worker.codecs.messages import AssistantMessage, Echo, Message, Request, ToolMessage, ToolSpec, UserMessage
from worker.codecs.wires import WIRES, codec_of

LONGEST_ID = {"chat": 40, "responses": 64, "anthropic": 200}
NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def body(codec: Codec, *messages: Message, **fields: Any) -> Any:
    encoded = codec.encode(Request("m", (UserMessage("hi"), *messages), **fields)).body
    return json.loads(encoded, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def calls_and_results(sent: Any) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """The (id, name) of each call and the (id, text) of each result in a body, whatever its wire format."""
    calls: list[tuple[str, str]] = []
    results: list[tuple[str, str]] = []
    for entry in sent.get("messages") or sent["input"]:
        calls += [(call["id"], call["function"]["name"]) for call in entry.get("tool_calls") or ()]
        if entry.get("role") == "tool":
            results.append((entry["tool_call_id"], entry["content"]))
        kind = str(entry.get("type"))
        if kind.endswith("_call"):
            calls.append((entry["call_id"], entry["name"]))
        if kind.endswith("_call_output"):
            results.append((entry["call_id"], entry["output"]))
        for block in entry["content"] if isinstance(entry.get("content"), list) else ():
            calls += [(block["id"], block["name"])] if block["type"] == "tool_use" else []
            results += [(block["tool_use_id"], block["content"])] if block["type"] == "tool_result" else []
    return calls, results


def called(call_id: str, name: str = "tide") -> ToolCall:
    return ToolCall(call_id, name, '{"a": 1}', {"a": 1})


@pytest.mark.requirement("codecs:request:identities")
@pytest.mark.parametrize("wire", WIRES)
def test_ids_and_names_that_a_provider_would_refuse_are_changed_alike_in_call_and_result(wire: str) -> None:
    ids = ("a" * 41, "b" * 300, "c" * 40, "d\ud83d" + "d" * 50, "")
    names = ("tide table", "x" * 300, "", "mcp.tide", "tide")
    answer = AssistantMessage("", tuple(map(called, ids, names)))
    calls, results = calls_and_results(body(codec_of(wire), answer, *(ToolMessage(i, "n", f"<{i}>") for i in ids)))
    assert [call_id for call_id, _ in calls] == [call_id for call_id, _ in results]
    assert len({call_id for call_id, _ in calls}) == len(ids)
    assert all(0 < len(call_id) <= LONGEST_ID[wire] for call_id, _ in calls)
    assert calls[2][0] == ids[2]
    longest = 128 if wire == "anthropic" else 64
    assert [name for _, name in calls] == ["tide_table", "x" * longest, "unnamed", "mcp_tide", "tide"]


@pytest.mark.requirement("codecs:request:identities")
@pytest.mark.parametrize("wire", WIRES)
def test_an_id_that_comes_again_is_sent_once_and_each_result_follows_its_own_call(wire: str) -> None:
    history: list[Message] = []
    for number in range(3):
        history += [AssistantMessage("", (called("call_0"),)), ToolMessage("call_0", "tide", f"r{number}")]
    history += [
        AssistantMessage("", (called("call_0"), called("call_0"))),
        ToolMessage("call_0", "tide", "r3"),
        ToolMessage("call_0", "tide", "r4"),
    ]
    calls, results = calls_and_results(body(codec_of(wire), *history))
    ids = [call_id for call_id, _ in calls]
    assert len(set(ids)) == 5
    assert ids[0] == "call_0"
    assert sorted(results, key=lambda result: result[1]) == [(ids[n], f"r{n}") for n in range(5)]
    longer = calls_and_results(body(codec_of(wire), *history, AssistantMessage("", (called("call_0"),))))[0]
    assert longer[: len(calls)] == calls


@pytest.mark.requirement("codecs:request:identities")
@pytest.mark.parametrize(
    ("wire", "item"),
    [
        ("responses", {"type": "function_call", "call_id": "call_0", "name": "mcp.tide", "arguments": '{"a":1}'}),
        ("responses", {"type": "custom_tool_call", "call_id": "call_0", "name": "mcp.tide", "input": "x"}),
        ("anthropic", {"type": "tool_use", "id": "call_0", "name": "mcp.tide", "input": {}}),
    ],
)
def test_the_same_holds_for_what_goes_back_as_it_came(wire: str, item: dict[str, object]) -> None:
    history: list[Message] = []
    for number in range(2):
        echo = Echo("p", wire, (item,))
        history += [AssistantMessage("", (called("call_0"),), echo), ToolMessage("call_0", "tide", f"r{number}")]
    calls, results = calls_and_results(body(codec_of(wire), *history))
    assert [call_id for call_id, _ in calls] == [call_id for call_id, _ in results]
    assert len({call_id for call_id, _ in calls}) == 2
    assert {name for _, name in calls} == {"mcp_tide"}


@pytest.mark.requirement("codecs:request:identities")
def test_an_id_too_long_to_be_kept_is_the_same_one_in_echo_and_result() -> None:
    from tests.support.responses_events import call, call_events, done, framed, read, reasoning, whole  # noqa: PLC0415
    from worker.codecs.events import Completed  # noqa: PLC0415

    secret = {**reasoning(), "encrypted_content": "gAAAA"}
    long_id = "c" * 1000
    assert call(call_id=long_id)
    data = framed(whole([done(0, secret)], call_events(1, "{}", call_id=long_id)))
    completed = read(data)[-1]
    assert isinstance(completed, Completed)
    assert completed.echo
    (made,) = completed.tool_calls
    answer = AssistantMessage("", (made,), Echo("p", "responses", completed.echo))
    ((call_id, _),), ((result_id, _),) = calls_and_results(
        body(codec_of("responses"), answer, ToolMessage(made.id, "tide", "x"))
    )
    assert call_id == result_id
    assert len(call_id) <= 64


@pytest.mark.requirement("codecs:request:any-value")
@pytest.mark.parametrize("wire", WIRES)
def test_no_value_that_a_request_can_hold_keeps_it_from_being_written(wire: str) -> None:
    large = 18446744073709552000
    deep: dict[str, object] = {}
    for _ in range(5_000):
        deep = {"below": deep}
    schema: dict[str, object] = {"type": "object", "properties": {"a": {"type": "integer", "maximum": large}}}
    extra: dict[str, object] = {
        "large": large * large,
        "half\ud83d": "a \ud83d b",
        "none": [float("nan"), float("inf")],
        "pair": (1, 2),
        "day": dt.date(2026, 11, 30),
        "deep": deep,
    }
    call = ToolCall("c1", "tide", "{}", {"a": large * large, "b": "\ud83d"})
    history = (AssistantMessage("\ud83d", (call,)), ToolMessage("c1", "tide", "a\udea2b"))
    sent = body(
        codec_of(wire), *history, tools=(ToolSpec("tide", "", schema),), instructions="\ud83d", extra_body=extra
    )
    assert str(large) in json.dumps(sent["tools"])
    assert (sent["large"], sent["half\ufffd"], sent["none"]) == (large * large, "a \ufffd b", [None, None])
    assert (sent["pair"], sent["day"]) == ([1, 2], "2026-11-30")
    assert "a\ufffdb" in json.dumps(sent, ensure_ascii=False)


TEXT = st.text(st.characters(exclude_categories=()), max_size=9)  # halves of characters too
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.requirement("codecs:request:any-value")
@settings(deadline=None)
@given(st.sampled_from(WIRES), st.dictionaries(TEXT, VALUES, max_size=3), TEXT, TEXT)
def test_whatever_it_holds_a_request_is_written_as_json(
    wire: str, extra: dict[str, object], call_id: str, name: str
) -> None:
    call = ToolCall(call_id, name, "{}", {"a": extra})
    body(codec_of(wire), AssistantMessage(name, (call,)), ToolMessage(call_id, name, name), extra_body={"x": extra})
