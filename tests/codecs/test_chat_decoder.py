"""The Chat Completions decoder, event by event."""

import pytest

from tests.support.chat_stream import DONE, STREAMS, chunk, completion, failure, raw, read, tool
from worker.codecs.events import (
    Completed,
    Failed,
    Keepalive,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    ToolCallArguments,
    ToolCallCompleted,
    ToolCallOpened,
    Usage,
    UsageReported,
)
from worker.codecs.limits import StreamLimits
from worker.codecs.openai_chat import ChatCodec


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
    trailer = raw({"choices": [], "usage": {"total_tokens": 3}})
    assert decoder.feed(trailer) == [UsageReported(Usage(total_tokens=3))]
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
        b"retry: 5\n",
        b"x-trace: 9\n",
        b"data:\n\n",
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": None}),
        raw({"choices": []}),
        raw({"choices": None, "usage": None}),
        raw({"choices": [], "usage": {}}),
        raw({"choices": [{"index": 1, "delta": {"content": "another answer"}}]}),
        chunk({"reasoning": 5, "reasoning_details": [{"type": "reasoning.encrypted", "data": "zz"}]}),
    ],
)
def test_an_item_that_carries_nothing_of_the_answer_is_one_keepalive(data: bytes) -> None:
    decoder = ChatCodec().decoder()
    assert decoder.feed(data) == [Keepalive()]
    assert decoder.feed(data * 3) == [Keepalive()] * 3


@pytest.mark.requirement("codecs:chat:keepalive")
@pytest.mark.parametrize("data", [b"", b"\n", b"data: {", b"event: ping\n", b"id: 7\n", b"data: {}\n"])
def test_bytes_that_complete_no_item_give_nothing(data: bytes) -> None:
    assert ChatCodec().decoder().feed(data) == []


def test_substantive_events_come_in_their_order_within_a_chunk() -> None:
    delta = {"reasoning": "r", "content": "t", "refusal": "n", "tool_calls": [{"index": 0, "function": {"name": "f"}}]}
    events = ChatCodec().decoder().feed(chunk(delta))
    assert events == [ReasoningDelta("r"), TextDelta("t"), RefusalDelta("n"), ToolCallOpened(0, "f")]


def test_a_piece_of_a_tool_call_that_adds_nothing_is_a_keepalive() -> None:
    decoder = ChatCodec().decoder()
    assert decoder.feed(tool(index=0, id="a", function={"name": "f"})) == [ToolCallOpened(0, "f")]
    assert decoder.feed(tool(index=0, id="a", function={"name": "f", "arguments": ""})) == [Keepalive()]
    assert decoder.feed(tool(index=0, function={"arguments": "{}"})) == [ToolCallArguments(0, "{}")]
    assert decoder.feed(tool(index=0, function={"arguments": "{}"})) == [Keepalive()]


@pytest.mark.requirement("codecs:chat:tool-events")
def test_a_tool_call_is_opened_grows_and_is_whole_right_before_the_completion() -> None:
    data = (
        tool(index=7, id="a", function={"name": "f", "arguments": '{"x"'})
        + tool(index=2, id="b", function={"arguments": ""})
        + tool(index=7, function={"arguments": ":1}"})
        + chunk({}, "tool_calls")
    )
    *events, completed = read(data + DONE)
    assert events == [
        ToolCallOpened(0, "f"),
        ToolCallArguments(0, '{"x"'),
        ToolCallOpened(1, ""),
        ToolCallArguments(0, ":1}"),
        Keepalive(),
        ToolCallCompleted(0),
        ToolCallCompleted(1),
    ]
    assert isinstance(completed, Completed)
    assert [(call.id, call.arguments) for call in completed.tool_calls] == [("b", ""), ("a", '{"x":1}')]


@pytest.mark.requirement("codecs:chat:tool-events")
def test_no_tool_call_is_called_whole_in_a_stream_that_breaks_off() -> None:
    broken = tool(index=0, id="a", function={"name": "f", "arguments": "{}"})
    assert ToolCallCompleted(0) not in read(broken) + read(broken + b"data: {\n\n") + read(broken + chunk({}, "error"))


@pytest.mark.requirement("codecs:chat:finish-words")
@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("STOP", "stop"),
        ("tool_calls", "tool_calls"),
        ("function_call", "tool_calls"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("model_length", "length"),
        ("content_filter", "content_filter"),
        ("sensitive", "content_filter"),
        ("refusal", "refusal"),
        ("a_word_of_its_own", "a_word_of_its_own"),
    ],
)
def test_finish_reasons_have_one_vocabulary_and_the_raw_word_is_kept(word: str, ours: str) -> None:
    decoder = ChatCodec().decoder()
    completed = read(chunk({"content": "x"}, word) + DONE, decoder)[-1]
    assert isinstance(completed, Completed)
    assert (completed.finish_reason, decoder.finish_reason) == (ours, word)


@pytest.mark.requirement("codecs:chat:usage")
def test_usage_is_reported_whenever_it_comes() -> None:
    reports = [event for event in read(STREAMS["usage-in-every-chunk-then-null"]) if isinstance(event, UsageReported)]
    assert len(reports) > 1
    assert reports[-1].usage == completion(STREAMS["usage-in-every-chunk-then-null"]).usage


@pytest.mark.requirement("codecs:chat:usage")
@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cache_write_tokens": 6}},
        {"prompt_tokens_details": {"cache_creation_input_tokens": 6}},
        {"cache_creation_input_tokens": 6},
    ],
)
def test_tokens_that_were_written_to_a_cache_are_told(usage: dict[str, object]) -> None:
    assert completion(chunk(usage=usage) + DONE).usage == Usage(cache_write_input_tokens=6)


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
    '{"choices":[{"index":"0"}]}': "choices[].index must be a number from 0, not text",
    '{"choices":[{"index":true}]}': "choices[].index must be a number from 0, not a boolean",
    '{"choices":[{"delta":"x"}]}': "choices[].delta must be an object, not text",
    '{"choices":[{"delta":{"content":true}}]}': "delta.content must be text or a list of parts, not a boolean",
    '{"choices":[{"delta":{"content":{"text":"x"}}}]}': "delta.content must be text or a list of parts, not an object",
    '{"choices":[{"delta":{"content":["x"]}}]}': "choices[].delta.content[] must be an object, not text",
    '{"choices":[{"delta":{"content":[{"type":"text","text":1.5}]}}]}': "content[].text must be text, not a number",
    '{"choices":[{"delta":{"refusal":["no"]}}]}': "choices[].delta.refusal must be text, not a list",
    '{"choices":[{"delta":{"tool_calls":"f"}}]}': "choices[].delta.tool_calls must be a list, not text",
    '{"choices":[{"delta":{"tool_calls":["f"]}}]}': "delta.tool_calls[] must be an object, not text",
    '{"choices":[{"delta":{"tool_calls":[{"function":"f"}]}}]}': "tool_calls[].function must be an object, not text",
    '{"choices":[{"delta":{"tool_calls":[{"index":"1"}]}}]}': "tool_calls[].index must be a number from 0, not text",
    '{"choices":[{"index":-1}]}': "choices[].index must be a number from 0, not a negative number",
    '{"choices":[{"delta":{"function_call":["f"]}}]}': "choices[].delta.function_call must be an object, not a list",
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
    assert read(b'data: {"choices"\n') == []
    assert failure(b"data: " + b"[" * 100_000 + b"\n\n").code == "not_json"


def test_an_answer_without_a_first_choice_is_no_empty_success() -> None:
    failed = failure(raw({"choices": [{"index": 1, "delta": {"content": "x"}, "finish_reason": "stop"}]}) + DONE)
    assert (failed.failure, failed.code) == ("protocol", "no_first_choice")


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
    codec = ChatCodec(
        StreamLimits(
            line_bytes=400, event_bytes=800, stream_bytes=3000, index=6, text_chars=8, argument_chars=8, tool_calls=2
        )
    )
    calls = [{"index": index, "function": {"name": "f"}} for index in range(3)]
    cases = {
        "text_too_long": chunk({"content": "12345"}) + chunk({"reasoning": "6789"}),
        "arguments_too_long": tool(index=0, function={"arguments": "12345"})
        + tool(index=1, function={"arguments": "6789"}),
        "too_many_tool_calls": chunk({"tool_calls": calls}),
        "line_too_long": b"data: " + b"x" * 400,
        "event_too_long": b"data: 123456\n" * 200,
        "stream_too_long": b":\n" * 1501,
        "index_too_high": raw({"choices": [{"index": 7}]}),
    }
    for code, data in cases.items():
        failed = failure(data, codec.decoder())
        assert (failed.failure, failed.code) == ("protocol", code)
    failed = failure(tool(index=7, id="a"), codec.decoder())
    assert failed.code == "index_too_high"
    assert "tool_calls[].index is 7, beyond the limit of 6" in failed.message
    within = chunk({"content": "12345678"}) + tool(index=0, function={"arguments": "12345678"}) + DONE
    assert isinstance(read(within, codec.decoder())[-1], Completed)


def test_a_text_beyond_the_limit_is_not_completed_by_an_earlier_finish_reason() -> None:
    codec = ChatCodec(StreamLimits(text_chars=4))
    assert (
        failure(chunk({"content": "1234"}, "stop") + chunk({"content": "5"}), codec.decoder()).code == "text_too_long"
    )
