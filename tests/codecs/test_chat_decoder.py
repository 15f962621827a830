"""The Chat Completions decoder, event by event."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.codecs.chat_answer import ChatLimits
from worker.codecs.events import (
    Completed,
    Failed,
    FailureClass,
    Keepalive,
    ReasoningDelta,
    RefusalDelta,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from worker.codecs.openai_chat import ChatCodec, ChatDecoder

STREAMS = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "streams").glob("*.sse")}
DONE = b"data: [DONE]\n\n"


def chunk(delta: object = None, finish: object = None, **rest: object) -> bytes:
    body = {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **rest}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def raw(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def tool(**entry: object) -> bytes:
    return chunk({"tool_calls": [entry]})


def read(data: bytes, decoder: ChatDecoder | None = None) -> list[StreamEvent]:
    decoder = decoder or ChatCodec().decoder()
    return decoder.feed(data) + decoder.close()


def failure(data: bytes, decoder: ChatDecoder | None = None) -> Failed:
    last = read(data, decoder)[-1]
    assert isinstance(last, Failed)
    return last


def completion(data: bytes) -> Completed:
    last = read(data)[-1]
    assert isinstance(last, Completed)
    return last


@pytest.mark.requirement("codecs:chat:terminal-done")
def test_the_done_mark_completes_the_call_at_once() -> None:
    decoder = ChatCodec().decoder()
    assert decoder.feed(chunk({"content": "x"})) == [TextDelta("x")]
    assert decoder.feed(DONE) == [Completed(None, (), None, 1, None)]
    assert not decoder.finishing
    assert decoder.feed(chunk({"content": "y"})) == []
    assert decoder.close() == []


@pytest.mark.requirement("codecs:chat:terminal-finish-reason")
def test_after_a_finish_reason_the_call_waits_for_usage_and_completes_at_the_end_of_the_stream() -> None:
    decoder = ChatCodec().decoder()
    assert not decoder.finishing
    assert decoder.feed(chunk({"content": "x"}, "stop")) == [TextDelta("x")]
    assert decoder.finishing
    decoder.feed(raw({"choices": [], "usage": {"total_tokens": 3}}))
    assert decoder.finishing
    assert decoder.close() == [Completed("stop", (), Usage(total_tokens=3), 1, None)]
    assert not decoder.finishing
    assert decoder.close() == []


@pytest.mark.requirement("codecs:chat:death")
@pytest.mark.parametrize(
    "data", [b"", b": hi\n\n", chunk({"content": "x"}), chunk({"content": "x"})[:-9], b'error: {"a', b"dat"]
)
def test_a_stream_without_its_terminal_mark_ends_without_a_terminal_event(data: bytes) -> None:
    assert not any(isinstance(event, Completed | Failed) for event in read(data))


@pytest.mark.requirement("codecs:chat:death")
@pytest.mark.parametrize("line", [b"x-trace: 9\n", b"{not json}\n", b'{"detail": "x"}\n', b"<!-- -->\n"])
def test_a_foreign_line_in_a_stream_that_breaks_off_does_not_make_it_another_body(line: bytes) -> None:
    data = chunk({"content": "x"}) + line + chunk({"content": "y"})
    assert [event for event in read(data) if event != Keepalive()] == [TextDelta("x"), TextDelta("y")]


@pytest.mark.requirement("codecs:chat:death")
@pytest.mark.parametrize("word", ["null", "", None])
def test_a_finish_reason_that_says_nothing_is_no_terminal_mark(word: str | None) -> None:
    decoder = ChatCodec().decoder()
    assert decoder.feed(chunk({"content": "x"}, word)) == [TextDelta("x")]
    assert not decoder.finishing
    assert decoder.close() == []


@pytest.mark.requirement("codecs:chat:keepalive")
@pytest.mark.parametrize(
    "data",
    [
        b": PROCESSING\n\n",
        b"\n",
        b"data: {",
        b"retry: 5\n",
        b"data:\n\n",
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": None}),
        raw({"choices": []}),
        raw({"choices": None, "usage": {"total_tokens": 1}}),
        raw({"choices": [{"index": 1, "delta": {"content": "another answer"}}]}),
        chunk({"reasoning": 5, "reasoning_details": [{"type": "reasoning.encrypted", "data": "zz"}]}),
    ],
)
def test_bytes_that_carry_nothing_of_the_answer_are_a_keepalive(data: bytes) -> None:
    assert ChatCodec().decoder().feed(data) == [Keepalive()]


def test_a_megabyte_of_comments_is_one_keepalive_for_each_read() -> None:
    decoder = ChatCodec().decoder()
    assert decoder.feed(b":\n" * 500_000) == [Keepalive()]
    assert decoder.feed(chunk({"content": "x"})) == [TextDelta("x")]


def test_substantive_events_come_in_their_order_within_a_chunk() -> None:
    delta = {"reasoning": "r", "content": "t", "refusal": "n", "tool_calls": [{"index": 0, "function": {"name": "f"}}]}
    events = ChatCodec().decoder().feed(chunk(delta))
    assert events == [ReasoningDelta("r"), TextDelta("t"), RefusalDelta("n"), ToolCallDelta(0)]


def test_a_piece_of_a_tool_call_that_adds_nothing_is_a_keepalive() -> None:
    decoder = ChatCodec().decoder()
    assert decoder.feed(tool(index=0, id="a", function={"name": "f"})) == [ToolCallDelta(0)]
    assert decoder.feed(tool(index=0, id="a", function={"name": "f", "arguments": ""})) == [Keepalive()]
    assert decoder.feed(tool(index=0, function={"arguments": "{"})) == [ToolCallDelta(0)]


@pytest.mark.requirement("codecs:chat:usage")
def test_usage_is_given_in_our_words_and_what_is_no_count_is_unknown() -> None:
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": "many",
        "total_tokens": True,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert completion(chunk(usage=usage) + DONE).usage == Usage(9, None, None, 4, 2)
    assert completion(chunk(usage={"prompt_cache_hit_tokens": 8}) + DONE).usage == Usage(cached_input_tokens=8)
    assert completion(chunk(usage="free") + chunk(usage={}) + chunk(usage=None) + DONE).usage is None


def test_the_answers_of_a_stream_are_counted() -> None:
    other = raw({"choices": [{"index": 1, "delta": {"content": "b"}}, {"delta": {"content": "a"}}, None]})
    assert read(other + DONE) == [TextDelta("a"), Completed(None, (), None, 2, None)]


@pytest.mark.requirement("codecs:chat:made-up-id")
def test_a_tool_call_without_an_id_gets_one_that_is_the_same_however_often_it_is_read() -> None:
    entries = [{"index": index, "function": {"name": "f", "arguments": "{}"}} for index in range(2)]
    data = chunk({"tool_calls": entries}, id="answer-1") + DONE
    first, second = (call.id for call in completion(data).tool_calls)
    assert first != second
    assert first.startswith("call_")
    assert [call.id for call in completion(data).tool_calls] == [first, second]
    another = completion(chunk({"tool_calls": entries}, id="answer-2") + DONE).tool_calls
    assert {first, second}.isdisjoint(call.id for call in another)
    decoder = ChatCodec().decoder()
    decoder.feed(data.removesuffix(DONE))
    assert [call.id for call in decoder.tool_calls] == [first, second]


WRONG_TYPES = {
    "[1]": "the data of an event must be a JSON object",
    "7": "the data of an event must be a JSON object",
    "null": "the data of an event must be a JSON object",
    '{"choices":{"a":1}}': "choices must be a list, not an object",
    '{"choices":[7]}': "choices[] must be an object, not a number",
    '{"choices":[{"index":"0"}]}': "choices[].index must be a number, not text",
    '{"choices":[{"index":true}]}': "choices[].index must be a number, not a boolean",
    '{"choices":[{"delta":"x"}]}': "choices[].delta must be an object, not text",
    '{"choices":[{"delta":{"content":true}}]}': "delta.content must be text or a list of parts, not a boolean",
    '{"choices":[{"delta":{"content":{"text":"x"}}}]}': "delta.content must be text or a list of parts, not an object",
    '{"choices":[{"delta":{"content":["x"]}}]}': "choices[].delta.content[] must be an object, not text",
    '{"choices":[{"delta":{"content":[{"type":"text","text":1.5}]}}]}': "content[].text must be text, not a number",
    '{"choices":[{"delta":{"refusal":["no"]}}]}': "choices[].delta.refusal must be text, not a list",
    '{"choices":[{"delta":{"tool_calls":"f"}}]}': "choices[].delta.tool_calls must be a list, not text",
    '{"choices":[{"delta":{"tool_calls":["f"]}}]}': "delta.tool_calls[] must be an object, not text",
    '{"choices":[{"delta":{"tool_calls":[{"function":"f"}]}}]}': "tool_calls[].function must be an object, not text",
    '{"choices":[{"delta":{"tool_calls":[{"index":"1"}]}}]}': "tool_calls[].index must be a number, not text",
    '{"choices":[{"delta":{"tool_calls":[{"id":1}]}}]}': "tool_calls[].id must be text, not a number",
    '{"choices":[{"delta":{"tool_calls":[{"function":{"name":[]}}]}}]}': "function.name must be text, not a list",
    '{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":3}}]}}]}': "arguments must be text or an object",
    '{"choices":[{"finish_reason":3}]}': "choices[].finish_reason must be text, not a number",
}


@pytest.mark.requirement("codecs:chat:wrong-types")
@pytest.mark.parametrize("body", WRONG_TYPES)
def test_a_field_of_the_wrong_type_is_a_protocol_fault_that_names_the_rule(body: str) -> None:
    failed = failure(f"data: {body}\n\n".encode())
    assert (failed.failure, failed.code) == ("protocol", "wrong_type")
    assert WRONG_TYPES[body] in failed.message


@pytest.mark.parametrize(
    "body",
    [
        '{"choices":0}',
        '{"choices":[null]}',
        '{"choices":[{"delta":[]}]}',
        '{"choices":[{"delta":{"content":0,"reasoning":{"a":1},"refusal":false,"tool_calls":{}}}]}',
        '{"choices":[{"delta":{"content":[{"type":"thinking","thinking":[7]},{"type":"image"},{}]}}]}',
        '{"choices":[{"delta":{"tool_calls":[null]}}]}',
        '{"usage":7,"error":false,"model":[],"id":{}}',
        "{}",
    ],
)
def test_a_wrong_type_that_takes_nothing_from_the_answer_is_passed_over(body: str) -> None:
    assert read(f"data: {body}\n\n".encode() + chunk({"content": "x"}) + DONE)[-2:-1] == [TextDelta("x")]


@pytest.mark.requirement("codecs:chat:not-json")
def test_an_event_that_is_no_json_is_a_protocol_fault_unless_the_stream_ended_inside_it() -> None:
    failed = failure(b'data: {"choices"\n\n')
    assert (failed.failure, failed.code) == ("protocol", "not_json")
    assert read(b'data: {"choices"\n') == [Keepalive()]
    assert failure(b"data: " + b"[" * 100_000 + b"\n\n").code == "not_json"


def test_an_answer_without_a_first_choice_is_no_empty_success() -> None:
    failed = failure(raw({"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]}) + DONE)
    assert (failed.failure, failed.code) == ("protocol", "no_first_choice")


CLASSES: list[tuple[object, FailureClass]] = [
    ({"code": 502, "message": "m"}, "retryable"),
    ({"code": "429", "message": "m"}, "retryable"),
    ({"status_code": 408}, "retryable"),
    ({"code": 529, "type": "overloaded_error"}, "retryable"),
    ({"type": "server_error", "message": "m"}, "retryable"),
    ({"type": "RateLimitError", "message": "maximum context of 3 requests"}, "retryable"),
    ({"code": 429, "message": "too many tokens, context length 9"}, "retryable"),
    ({"type": "timeout"}, "retryable"),
    ({"message": "who knows"}, "retryable"),
    ("model crashed", "retryable"),
    (True, "retryable"),
    ([1], "retryable"),
    ({"code": 1302, "message": "m"}, "retryable"),
    ({"code": 400, "message": "m"}, "refused"),
    ({"code": "tool_use_failed", "status_code": 400}, "refused"),
    ({"type": "invalid_request_error", "message": "m"}, "refused"),
    ({"type": "AuthenticationError"}, "refused"),
    ({"type": "permission_error"}, "refused"),
    ({"code": "model_not_found"}, "refused"),
    ({"code": "insufficient_quota", "status": 429}, "refused"),
    ({"code": "context_length_exceeded", "message": "m"}, "context_overflow"),
    ({"code": 400, "message": "This model's maximum context length is 4096 tokens."}, "context_overflow"),
    ({"code": 500, "type": "server_error", "message": "Context size has been exceeded."}, "context_overflow"),
    ({"code": 400, "message": "prompt is too long: 9 > 8"}, "context_overflow"),
    ({"code": "content_filter", "status": 400}, "content_filter"),
    ({"message": "The response was filtered due to Azure's content management policy"}, "content_filter"),
]


@pytest.mark.requirement("codecs:chat:error-classes")
@pytest.mark.parametrize(("error", "expected"), CLASSES)
def test_an_error_object_is_classed_by_what_it_says(error: object, expected: FailureClass) -> None:
    decoder = ChatCodec().decoder()
    failed = failure(chunk({"content": "x"}) + raw({"error": error}), decoder)
    assert failed.failure == expected
    assert decoder.raw_error == error


def test_an_error_keeps_its_code_its_message_and_its_wait() -> None:
    assert failure(raw({"error": {"code": 429, "message": "slow down", "retry_after": 7}})) == Failed(
        "retryable", "slow down", "429", 7.0
    )
    assert failure(raw({"error": "busy", "status_code": 400, "retry_after": -1})) == Failed("refused", "busy", "400")
    assert len(failure(raw({"error": "x" * 10_000})).message) == 2000


def test_an_error_beside_a_broken_choice_is_the_error() -> None:
    assert failure(raw({"error": "busy", "choices": [7]})).message == "busy"


@pytest.mark.parametrize(
    "data", [b"event: error\ndata: {}\n\n", b"event: error\ndata:\n\n", b"event: error\ndata: null\n\n"]
)
def test_an_error_event_that_says_nothing_is_a_failure(data: bytes) -> None:
    assert failure(data).failure == "retryable"


@pytest.mark.requirement("codecs:chat:dead-finish")
@pytest.mark.parametrize("word", ["error", "insufficient_system_resource"])
def test_a_finish_reason_that_is_an_error_is_a_retryable_failure(word: str) -> None:
    assert failure(chunk({"content": "x"}, word) + DONE).failure == "retryable"


@pytest.mark.requirement("codecs:chat:not-a-stream")
@pytest.mark.parametrize(
    "body", [b"<html>\n", b" <!doctype html>", b'{"detail": "x"}', b"[1, 2]", b"bad gateway\nsorry\n"]
)
def test_a_body_that_is_no_event_stream_is_refused_as_such(body: bytes) -> None:
    failed = failure(body)
    assert (failed.failure, failed.code) == ("refused", "not_a_stream")
    assert body.decode().strip()[:8] in failed.message


def test_a_page_and_an_error_document_are_known_before_the_stream_ends() -> None:
    for body in (b"<html>\n", b'{"error":{"code":503}}\n', b"word\n" * 20_000):
        assert isinstance(ChatCodec().decoder().feed(body)[-1], Failed)
    assert failure(b'{"error":{"code":503}}').failure == "retryable"


@pytest.mark.requirement("codecs:chat:limits")
def test_each_limit_has_a_failure_of_its_own() -> None:
    limits = ChatLimits(text_chars=8, argument_chars=8, tool_calls=2)
    codec = ChatCodec(limits, line_bytes=400, event_bytes=800)
    calls = [{"index": index, "function": {"name": "f"}} for index in range(3)]
    cases = {
        "text_too_long": chunk({"content": "12345"}) + chunk({"reasoning": "6789"}),
        "arguments_too_long": tool(index=0, function={"arguments": "12345"})
        + tool(index=1, function={"arguments": "6789"}),
        "too_many_tool_calls": chunk({"tool_calls": calls}),
        "line_too_long": b"data: " + b"x" * 400,
        "event_too_long": b"data: 123456\n" * 200,
        "too_many_choices": b"".join(raw({"choices": [{"index": index}]}) for index in range(129)),
    }
    for code, data in cases.items():
        failed = failure(data, codec.decoder())
        assert (failed.failure, failed.code) == ("protocol", code)
    within = chunk({"content": "12345678"}) + tool(index=0, function={"arguments": "12345678"}) + DONE
    assert isinstance(read(within, codec.decoder())[-1], Completed)


def test_a_text_beyond_the_limit_is_not_completed_by_an_earlier_finish_reason() -> None:
    codec = ChatCodec(ChatLimits(text_chars=4))
    assert (
        failure(chunk({"content": "1234"}, "stop") + chunk({"content": "5"}), codec.decoder()).code == "text_too_long"
    )


@pytest.mark.requirement("codecs:chat:any-cut")
@settings(deadline=None)
@given(st.sampled_from(sorted(STREAMS)), st.data())
def test_however_a_stream_is_cut_it_says_the_same(name: str, draw: st.DataObject) -> None:
    data = STREAMS[name]
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=10)))
    decoder = ChatCodec().decoder()
    events: list[StreamEvent] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += decoder.feed(data[start:end])
    events += decoder.close()
    assert [event for event in events if event != Keepalive()] == [
        event for event in read(data) if event != Keepalive()
    ]


def listened_to(data: bytes, size: int) -> list[StreamEvent]:
    """Feed everything, whatever comes; after a terminal event nothing more may come."""
    decoder = ChatCodec(ChatLimits(text_chars=500, argument_chars=500, tool_calls=5), 2000, 4000).decoder()
    events: list[StreamEvent] = []
    for start in range(0, len(data), size):
        events += decoder.feed(data[start : start + size])
        assert isinstance(decoder.tool_calls, tuple)
    events += decoder.close()
    events += decoder.feed(data) + decoder.close()
    terminal = [number for number, event in enumerate(events) if isinstance(event, Completed | Failed)]
    assert terminal in ([], [len(events) - 1])
    said = [asdict(event) for event in events]
    json.dumps([said, decoder.raw_usage, decoder.raw_error], ensure_ascii=False).encode()  # raises on half a character
    return events


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 64))
def test_random_bytes_never_raise(data: bytes, size: int) -> None:
    listened_to(data, size)


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)),
    st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=6)), max_size=6),
    st.integers(1, 64),
)
def test_mutated_streams_never_raise_and_say_nothing_after_their_end(
    name: str, changes: list[tuple[int, bytes]], size: int
) -> None:
    data = STREAMS[name]
    for place, piece in changes:
        cut = place % (len(data) + 1)
        data = data[:cut] + piece + data[cut + len(piece) // 2 :]
    listened_to(data, size)


STREAM_KEYS = ["choices", "index", "delta", "message", "content", "type", "text", "thinking", "reasoning", "refusal"]
CALL_KEYS = ["tool_calls", "function", "id", "name", "arguments", "finish_reason", "usage", "error", "code", "status"]
LEAVES = [
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud83e", "\udddc"]),
]
JSON = st.recursive(
    st.one_of(LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(STREAM_KEYS + CALL_KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(st.lists(JSON, max_size=4), st.lists(JSON, max_size=3))
def test_chunks_of_any_json_never_raise(bodies: list[object], deltas: list[object]) -> None:
    data = b"".join(map(raw, bodies)) + b"".join(raw({"choices": [{"delta": delta}]}) for delta in deltas) + DONE
    listened_to(data, 50)


@pytest.mark.requirement("codecs:chat:half-characters")
@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "\ud83e", "\udddc", "é"]), min_size=1, max_size=12), st.integers(1, 12))
def test_halves_of_a_character_are_joined_and_lone_halves_replaced(units: list[str], size: int) -> None:
    pieces = ["".join(units[start : start + size]) for start in range(0, len(units), size)]
    data = b'data: {"choices":[],"logprob":NaN}\n\n' + b"".join(chunk({"content": piece}) for piece in pieces) + DONE
    text = "".join(event.text for event in read(data) if isinstance(event, TextDelta))
    assert text == "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@pytest.mark.requirement("codecs:chat:half-characters")
def test_half_a_character_in_an_error_is_replaced_there() -> None:
    decoder = ChatCodec().decoder()
    error = {"message": "cut \ud83e", "delta": ["\udddc"], "choices": {"delta": "\ud83e"}}
    assert failure(raw({"error": error, "delta": "\ud83e"}), decoder).message == "cut \ufffd"
    assert decoder.raw_error == {"message": "cut \ufffd", "delta": ["\ufffd"], "choices": {"delta": "\ufffd"}}
