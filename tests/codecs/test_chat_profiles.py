"""What the profile `strict` refuses and `compat` repairs; and a whole answer where a stream was due."""

import json

import pytest

from worker.codecs.events import (
    Completed,
    Failed,
    Keepalive,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    ToolCallArguments,
    ToolCallCompleted,
    ToolCallOpened,
    Usage,
    UsageReported,
)
from worker.codecs.limits import Profile, StreamLimits
from worker.codecs.openai_chat import ChatCodec

DONE = b"data: [DONE]\n\n"
HEAD: dict[str, object] = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


def raw(**fields: object) -> bytes:
    return b"data: " + json.dumps(HEAD | fields).encode() + b"\n\n"


def chunk(delta: object = None, finish: object = None, index: object = 0) -> bytes:
    return raw(choices=[{"index": index, "delta": {} if delta is None else delta, "finish_reason": finish}])


def call(index: object = 0, **fields: object) -> bytes:
    return chunk({"tool_calls": [{"index": index, **fields}]})


def read(data: bytes, profile: Profile = "compat", limits: StreamLimits | None = None) -> list[StreamEvent]:
    decoder = ChatCodec(limits or StreamLimits(), profile).decoder()
    return decoder.feed(data) + decoder.close()


TEXT = chunk({"role": "assistant", "content": ""}) + chunk({"content": "x"}) + chunk({}, "stop")
FIRST = call(id="a", type="function", function={"name": "f", "arguments": ""})
TOOLS = FIRST + call(function={"arguments": "{}"}) + chunk({}, "tool_calls")
USAGE = raw(choices=[], usage={"total_tokens": 3})


@pytest.mark.requirement("codecs:chat:strict")
@pytest.mark.parametrize(
    "data",
    [
        TEXT + DONE,
        TEXT,
        TEXT + USAGE + DONE,
        TOOLS + DONE,
        b": quiet\n\n" + TEXT + DONE,
        TEXT.replace(b"\n", b"\r\n") + DONE,
        chunk({"content": "a"}, index=1) + TEXT + chunk({}, "stop", index=1) + DONE,
        chunk({"content": None, "refusal": "no"}) + chunk({}, "stop") + DONE,
        chunk({"content": "x", "a_new_field": 7}) + chunk({}, "content_filter") + DONE,
    ],
)
def test_a_stream_as_it_is_documented_is_read_by_both_profiles_alike(data: bytes) -> None:
    assert read(data, "strict") == read(data, "compat")
    assert isinstance(read(data, "strict")[-1], Completed)


DEVIATIONS = {
    "no id": (b'data: {"object":"chat.completion.chunk"}\n\n' + DONE, "wrong_type", "id must be text"),
    "no created": (raw(created=None, choices=[]) + DONE, "wrong_type", "created must be a number"),
    "no choices": (raw() + DONE, "wrong_type", "choices must be a list"),
    "another object": (raw(object="", choices=[]) + DONE, "object", "chat.completion.chunk"),
    "another id": (chunk() + raw(id="c-2", choices=[]) + DONE, "id", "the same in every chunk"),
    "an empty first chunk": (raw(choices=[], prompt_filter_results=[]) + DONE, "choices", "only in the chunk with"),
    "usage with an answer": (
        raw(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], usage={}),
        "usage",
        "a chunk of its own",
    ),
    "no choice index": (chunk({"content": "x"}, index=None) + DONE, "wrong_type", "choices[].index"),
    "no delta": (raw(choices=[{"index": 0, "finish_reason": "stop"}]), "wrong_type", "choices[].delta"),
    "no finish reason": (raw(choices=[{"index": 0, "delta": {}}]) + DONE, "finish_reason", "must be there"),
    "an unknown finish reason": (chunk({}, "model_length"), "finish_reason", "null or one of stop"),
    "an empty finish reason": (chunk({}, "") + DONE, "finish_reason", "null or one of stop"),
    "done alone": (chunk({"content": "x"}) + DONE, "done_without_finish", "[DONE] comes after a finish_reason"),
    "nothing but done": (DONE, "done_without_finish", "[DONE] comes after a finish_reason"),
    "content after the finish": (TEXT + chunk({"content": "y"}), "after_finish", "nothing of a choice comes after"),
    "content in parts": (
        chunk({"content": [{"type": "text", "text": "x"}]}) + DONE,
        "wrong_type",
        "choices[].delta.content must be text or null",
    ),
    "reasoning": (chunk({"reasoning_content": "x"}) + DONE, "undocumented", "delta.reasoning_content"),
    "the old function call": (
        chunk({"function_call": {"name": "f", "arguments": "{}"}}) + DONE,
        "undocumented",
        "delta.function_call",
    ),
    "a tool call without index": (
        chunk({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]}) + DONE,
        "wrong_type",
        "tool_calls[].index",
    ),
    "a tool call without id": (call(function={"name": "f"}) + DONE, "wrong_type", "tool_calls[].id"),
    "a tool call without name": (call(id="a", function={}) + DONE, "wrong_type", "tool_calls[].function.name"),
    "a second call at the same index": (
        FIRST + call(id="b", function={"name": "g"}) + DONE,
        "tool_call_repeated",
        "in the first delta of a tool call alone",
    ),
    "arguments as an object": (
        call(id="a", function={"name": "f", "arguments": {}}) + DONE,
        "wrong_type",
        "function.arguments must be text",
    ),
    "no JSON": (b"data: {\n\n" + TEXT + DONE, "not_json", "must be JSON"),
    "no JSON after the finish": (TEXT + b"data: {\n\n" + DONE, "not_json", "must be JSON"),
    "no number": (raw(choices=[], usage={}).replace(b"{}", b'{"logprob":NaN}') + DONE, "not_json", "without NaN"),
    "empty data": (b"data:\n\n" + TEXT + DONE, "not_json", "must be JSON"),
}


@pytest.mark.requirement("codecs:chat:strict")
@pytest.mark.parametrize("case", DEVIATIONS)
def test_what_is_not_documented_breaks_a_rule_that_is_named(case: str) -> None:
    data, code, rule = DEVIATIONS[case]
    failed = read(data, "strict")[-1]
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.code) == ("protocol", code)
    assert rule in failed.message


@pytest.mark.requirement("codecs:chat:deviations")
@pytest.mark.parametrize("case", sorted(set(DEVIATIONS) - {"no JSON"}))
def test_the_compatible_profile_completes_the_same_stream(case: str) -> None:
    assert isinstance(read(DEVIATIONS[case][0])[-1], Completed)


@pytest.mark.requirement("codecs:chat:strict")
def test_a_last_event_without_its_blank_line_does_not_count() -> None:
    cut = TEXT[:-1]
    assert isinstance(read(cut)[-1], Completed)
    assert read(cut, "strict") == [Keepalive(), TextDelta("x")]


@pytest.mark.requirement("codecs:chat:strict")
@pytest.mark.parametrize(("profile", "arguments"), [("strict", "{}{}"), ("compat", "{}")])
def test_strict_keeps_arguments_that_an_end_flush_repeats_as_they_came(profile: Profile, arguments: str) -> None:
    again = call(function={"arguments": "{}"})
    completed = read(FIRST + again + again + chunk({}, "tool_calls") + DONE, profile)[-1]
    assert isinstance(completed, Completed)
    assert [made.arguments for made in completed.tool_calls] == [arguments]


@pytest.mark.requirement("codecs:chat:strict")
@pytest.mark.parametrize("profile", ["strict", "compat"])
def test_an_error_is_an_error_in_both_profiles(profile: Profile) -> None:
    for data in (b'data: {"error": {"code": 503}}\n\n', b"event: error\ndata: busy\n\n", b'error: {"code": 503}\n'):
        failed = read(chunk({"content": "x"}) + data, profile)[-1]
        assert isinstance(failed, Failed)
        assert failed.failure == "retryable"


@pytest.mark.requirement("codecs:chat:old-function-call")
def test_a_function_call_of_the_old_kind_is_one_tool_call() -> None:
    data = (
        chunk({"function_call": {"name": "f", "arguments": ""}})
        + chunk({"function_call": {"arguments": '{"a"'}})
        + chunk({"function_call": {"arguments": ":1}"}}, "function_call")
    )
    *events, completed = read(data + DONE)
    assert events == [
        ToolCallOpened(0, "f"),
        ToolCallArguments(0, '{"a"'),
        ToolCallArguments(0, ":1}"),
        ToolCallCompleted(0),
    ]
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "tool_calls"
    (made,) = completed.tool_calls
    assert (made.name, made.arguments_json) == ("f", {"a": 1})
    assert made.id.startswith("call_")


def document(message: object, finish: object = "stop", **fields: object) -> dict[str, object]:
    return {"id": "d", "choices": [{"index": 0, "message": message, "finish_reason": finish}], **fields}


@pytest.mark.requirement("codecs:chat:whole-answer")
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("before", ["", "\n\n \n"])
def test_a_whole_answer_instead_of_a_stream_is_read_when_it_has_ended(indent: int | None, before: str) -> None:
    message = {
        "role": "assistant",
        "content": "Dear Ana",
        "reasoning": "a letter",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    body = before + json.dumps(document(message, "tool_calls", usage={"total_tokens": 3}, error=None), indent=indent)
    decoder = ChatCodec().decoder()
    assert set(decoder.feed(body.encode())) <= {Keepalive()}
    *events, completed = [event for event in decoder.close() if event != Keepalive()]
    assert events == [
        UsageReported(Usage(total_tokens=3)),
        ReasoningDelta("a letter"),
        TextDelta("Dear Ana"),
        ToolCallOpened(0, "f"),
        ToolCallArguments(0, "{}"),
        ToolCallCompleted(0),
    ]
    assert isinstance(completed, Completed)
    assert (completed.finish_reason, completed.usage, completed.choices) == ("tool_calls", Usage(total_tokens=3), 1)
    assert completed.tool_calls[0].id == "a"


@pytest.mark.requirement("codecs:chat:whole-answer")
def test_a_whole_answer_that_was_cut_is_a_death_and_one_that_failed_a_failure() -> None:
    body = json.dumps(document({"content": "Dear Ana, hello."})).encode()
    for cut in range(1, len(body)):
        assert read(body[:cut]) == [], cut
    failed = read(json.dumps(document({"content": "Dear"}, "error")).encode())[-1]
    assert isinstance(failed, Failed)
    assert failed.failure == "retryable"


@pytest.mark.requirement("codecs:chat:whole-answer")
@pytest.mark.parametrize(
    "body",
    [
        {"choices": []},
        {"choices": [{"index": 0, "finish_reason": "stop"}]},
        {"choices": [None, {"message": "x"}]},
        {"message": {"content": "x"}},
        {"object": "list", "data": []},
    ],
)
def test_a_document_that_holds_no_answer_is_not_a_stream(body: object) -> None:
    failed = read(json.dumps(body).encode())[-1]
    assert isinstance(failed, Failed)
    assert (failed.failure, failed.code) == ("refused", "not_a_stream")


@pytest.mark.requirement("codecs:chat:whole-answer")
def test_under_strict_a_whole_answer_is_not_a_stream() -> None:
    failed = read(json.dumps(document({"content": "x"})).encode(), "strict")[-1]
    assert isinstance(failed, Failed)
    assert failed.code == "not_a_stream"


@pytest.mark.requirement("codecs:chat:whole-answer")
def test_a_whole_answer_has_the_same_limits_as_a_stream() -> None:
    body = json.dumps(document({"content": "x" * 200}), indent=1).encode()
    for limits, code in (
        (StreamLimits(text_chars=100), "text_too_long"),
        (StreamLimits(line_bytes=100), "line_too_long"),
        (StreamLimits(event_bytes=100), "event_too_long"),
        (StreamLimits(stream_bytes=100), "stream_too_long"),
    ):
        failed = read(body, limits=limits)[-1]
        assert isinstance(failed, Failed)
        assert (failed.failure, failed.code) == ("protocol", code)
