"""Public bugs of clients and gateways that concern decoding, one test by kind: the bug does not happen here.

Letters and numbers are those of the sources in `tests/requirements/streams.toml`. Bugs of whole turns are tested with
the turn machine.
"""

import json

import pytest

from tests.support.chat_stream import (
    DONE,
    chunk,
    completion,
    failure,
    finish,
    is_terminal,
    raw,
    read,
    text,
    text_of,
    thought,
    tool,
)
from worker.codecs.events import (
    SUBSTANTIVE,
    Completed,
    Failed,
    Keepalive,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    Usage,
    UsageReported,
)
from worker.codecs.limits import StreamLimits
from worker.codecs.openai_chat import ChatCodec

USAGE = {"prompt_tokens": 9, "completion_tokens": 2}


def fed(data: bytes) -> list[StreamEvent]:
    """What a stream says while its socket stays open."""
    return ChatCodec().decoder().feed(data)


def bytewise(data: bytes) -> list[StreamEvent]:
    decoder = ChatCodec().decoder()
    return [event for byte in data for event in decoder.feed(bytes([byte]))] + decoder.close()


# A. Duplicated or glued text.


@pytest.mark.requirement("streams:bug:a:terminal-wins-over-what-follows")
@pytest.mark.parametrize("tail", [b"", b"data: {\n\n", b": still here\n\n", b"data: {"])
def test_a_whole_answer_stays_whole_whatever_its_provider_does_on_closing(tail: bytes) -> None:
    assert read(text("whole") + finish() + tail)[-1] == Completed("stop", (), None)


@pytest.mark.requirement("streams:bug:a:whole-text-repeated")
def test_the_whole_message_after_its_deltas_adds_nothing() -> None:
    again = raw({"choices": [{"index": 0, "message": {"content": "The tide is low."}, "finish_reason": "stop"}]})
    assert text_of(read(text("The tide ") + text("is low.") + again + DONE)) == "The tide is low."


# B. Partial or stale text delivered as final.


@pytest.mark.requirement("streams:bug:b:clean-close")
def test_a_clean_close_without_a_terminal_mark_completes_nothing() -> None:
    assert read(text("Costs are 40")) == [TextDelta("Costs are 40")]


@pytest.mark.requirement("streams:bug:b:bytes-left-at-the-end")
def test_bytes_left_of_an_unfinished_event_are_no_terminal_mark() -> None:
    for cut in range(1, len(finish()) - 3):
        assert not any(map(is_terminal, read(text("x") + finish()[:cut]))), cut


@pytest.mark.requirement("streams:bug:b:done-without-finish")
def test_done_without_a_finish_reason_is_complete_at_once_though_the_socket_stays_open() -> None:
    assert fed(text("whole") + DONE) == [TextDelta("whole"), Completed(None, (), None)]


@pytest.mark.requirement("streams:bug:b:finish-without-done")
def test_a_finish_reason_without_done_is_complete() -> None:
    assert completion(text("whole") + finish()).finish_reason == "stop"


@pytest.mark.requirement("streams:bug:b:reasoning-is-no-answer")
def test_reasoning_alone_and_a_clean_close_complete_nothing() -> None:
    assert read(thought("hm")) == [ReasoningDelta("hm")]


@pytest.mark.requirement("streams:bug:b:cut-by-length")
@pytest.mark.parametrize("said", [b"", text("half a wo"), thought("hm")])
def test_an_answer_cut_by_its_length_says_so_also_where_it_says_nothing_else(said: bytes) -> None:
    assert completion(said + finish("length") + DONE).finish_reason == "length"


@pytest.mark.requirement("streams:bug:b:finish-beside-content")
def test_text_beside_the_finish_reason_is_heard() -> None:
    assert text_of(read(chunk({"content": "all of it"}, "stop") + DONE)) == "all of it"


# C. Lost text, empty final answers.


@pytest.mark.requirement("streams:bug:c:answer-without-deltas")
def test_an_answer_that_did_not_stream_is_said_once() -> None:
    body = {"choices": [{"message": {"content": "Dear Ana, hello."}, "finish_reason": "stop"}]}
    assert text_of(read(json.dumps(body).encode())) == "Dear Ana, hello."
    assert text_of(read(raw(body) + DONE)) == "Dear Ana, hello."


@pytest.mark.requirement("streams:bug:c:nothing-visible")
@pytest.mark.parametrize("said", [text(" \n"), thought("hm"), text("")])
def test_an_attempt_that_died_with_nothing_visible_is_no_empty_answer(said: bytes) -> None:
    assert not any(map(is_terminal, read(said)))


# D. Stalls, half-open sockets, timeouts.


@pytest.mark.requirement("streams:bug:d:keepalives-are-no-progress")
@pytest.mark.parametrize(
    "quiet",
    [
        b": ping\n\n",
        b"event: ping\ndata: {}\n\n",
        b"data:\n\n",
        chunk({}),
        chunk({"content": ""}),
        chunk({"role": "assistant"}),
        raw({"choices": [], "usage": USAGE}),
    ],
)
def test_what_says_nothing_of_the_answer_is_no_progress(quiet: bytes) -> None:
    events = fed(quiet * 5)
    assert len(events) == 5
    assert not any(isinstance(event, SUBSTANTIVE) for event in events)


@pytest.mark.requirement("streams:bug:d:reasoning-is-progress")
def test_reasoning_is_progress() -> None:
    assert all(isinstance(event, SUBSTANTIVE) for event in fed(thought("h") + thought("m")))


@pytest.mark.requirement("streams:bug:d:failure-at-once")
def test_an_error_is_acted_on_at_once_though_the_socket_stays_open() -> None:
    failed = fed(text("x") + raw({"error": {"message": "the true reason", "code": 500}}))[-1]
    assert isinstance(failed, Failed)
    assert failed.message == "the true reason"


@pytest.mark.requirement("streams:bug:d:dripping-bytes")
def test_a_line_that_drips_is_neither_progress_nor_an_end() -> None:
    decoder = ChatCodec().decoder()
    assert [decoder.feed(bytes([byte])) for byte in text("x")[:-2]] == [[]] * (len(text("x")) - 2)


# E. Errors inside a success.


@pytest.mark.requirement("streams:bug:e:named-error")
@pytest.mark.parametrize("data", ['{"message": "busy"}', '{"error": {"message": "busy"}}', "busy", '"busy"'])
def test_a_named_error_ends_the_answer_whatever_its_body_is(data: str) -> None:
    failed = failure(text("Partial") + f"event: error\ndata: {data}\n\n".encode() + finish() + DONE)
    assert failed.failure == "retryable"


@pytest.mark.requirement("streams:bug:e:error-then-done")
def test_an_error_before_done_is_no_success_without_tokens() -> None:
    assert failure(raw({"error": {"code": "server_error", "message": "m"}}) + DONE).code == "server_error"


@pytest.mark.requirement("streams:bug:e:error-without-field")
@pytest.mark.parametrize(
    "line", [b'{"error": {"code": 503}}\n', b'error: {"code": 503}\n', b'{"error": {"code": 503}}']
)
def test_an_error_that_is_no_event_is_not_dropped(line: bytes) -> None:
    assert failure(line).failure == "retryable"
    assert failure(text("x") + line).failure == "retryable"


@pytest.mark.requirement("streams:bug:e:refusal-in-a-stream")
def test_a_refusal_as_the_first_event_is_no_dropped_stream() -> None:
    assert failure(raw({"error": {"code": 400, "message": "no such parameter"}})).failure == "refused"


# F. Tool calls.

CUT = '{"to":"q7","bo'


@pytest.mark.requirement("streams:bug:f:cut-arguments")
@pytest.mark.requirement("streams:vector:t11")
@pytest.mark.parametrize("reason", ["length", "tool_calls"])
def test_cut_arguments_are_never_repaired_defaulted_or_emptied(reason: str) -> None:
    (call,) = completion(tool(index=0, id="a", function={"name": "send", "arguments": CUT}) + finish(reason)).tool_calls
    assert (call.arguments, call.arguments_json) == (CUT, None)


@pytest.mark.requirement("streams:vector:t11")
def test_cut_arguments_and_a_clean_close_complete_nothing() -> None:
    assert not any(map(is_terminal, read(tool(index=0, id="a", function={"name": "send", "arguments": CUT}))))


@pytest.mark.requirement("streams:bug:f:finish-is-told")
@pytest.mark.parametrize("reason", ["length", "content_filter", "something_else"])
def test_a_finish_that_forbids_tools_is_told_beside_whole_arguments(reason: str) -> None:
    completed = completion(tool(index=0, id="a", function={"name": "f", "arguments": "{}"}) + finish(reason))
    assert (completed.finish_reason, len(completed.tool_calls)) == (reason, 1)


def calls_of(*pieces: bytes) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in completion(b"".join(pieces) + finish("tool_calls")).tool_calls]


@pytest.mark.requirement("streams:bug:f:no-index")
def test_parallel_calls_without_index_are_told_apart() -> None:
    assert calls_of(
        tool(id="a", function={"name": "f", "arguments": '{"x"'}),
        tool(function={"arguments": ":1}"}),
        tool(id="b", function={"name": "g", "arguments": "{}"}),
    ) == [("f", '{"x":1}'), ("g", "{}")]


@pytest.mark.requirement("streams:bug:f:no-index")
def test_calls_with_and_without_index_do_not_mix() -> None:
    assert calls_of(
        tool(index=0, id="a", function={"name": "f", "arguments": "{}"}),
        tool(id="b", function={"name": "g", "arguments": '{"y"'}),
        tool(function={"arguments": ":2}"}),
    ) == [("f", "{}"), ("g", '{"y":2}')]


@pytest.mark.requirement("streams:bug:f:one-index-for-all")
def test_calls_that_all_have_the_index_zero_are_told_apart_by_id() -> None:
    assert calls_of(
        tool(index=0, id="a", function={"name": "f", "arguments": "{}"}),
        tool(index=0, id="b", function={"name": "g", "arguments": '{"y":2}'}),
    ) == [("f", "{}"), ("g", '{"y":2}')]


@pytest.mark.requirement("streams:bug:f:two-entries-of-one-index")
def test_two_entries_of_one_index_in_the_first_chunk_are_one_call() -> None:
    entries = [
        {"index": 0, "id": "a", "function": {"name": "f", "arguments": ""}},
        {"index": 0, "function": {"arguments": '{"x":1}'}},
    ]
    assert calls_of(chunk({"tool_calls": entries})) == [("f", '{"x":1}')]


@pytest.mark.requirement("streams:bug:f:drifting-index")
def test_fragments_whose_index_drifts_belong_to_the_open_call() -> None:
    assert calls_of(
        tool(index=0, id="a", function={"name": "f", "arguments": '{"x"'}),
        tool(index=1, function={"arguments": ":1"}),
        tool(index=2, function={"arguments": "}"}),
    ) == [("f", '{"x":1}')]


# G. Bytes on the wire.

MERMAID = "h\u00e9 \U0001f9dc"
WRITTEN = f'data: {{"choices":[{{"index":0,"delta":{{"content":"{MERMAID}"}}}}]}}\n\n'.encode() + finish() + DONE


@pytest.mark.requirement("streams:bug:g:cut-characters")
def test_a_character_cut_at_any_byte_is_whole_again() -> None:
    assert bytewise(WRITTEN) == read(WRITTEN)
    assert text_of(bytewise(WRITTEN)) == MERMAID


@pytest.mark.requirement("streams:bug:g:cut-line-ends")
def test_a_line_feed_that_comes_after_its_carriage_return_ends_no_event() -> None:
    data = b'data: {"choices":[{"index":0,\r\ndata: "delta":{"content":"x"}}]}\r\n\r\n'
    for cut in range(len(data)):
        decoder = ChatCodec().decoder()
        assert decoder.feed(data[:cut]) + decoder.feed(data[cut:]) == [TextDelta("x")], cut


@pytest.mark.requirement("streams:bug:g:line-ends")
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r", b"\n"])
def test_an_event_is_given_at_its_end_whatever_ends_its_lines(line_end: bytes) -> None:
    assert fed(text("x").replace(b"\n", line_end)) == [TextDelta("x")]


@pytest.mark.requirement("streams:bug:g:byte-order-mark")
def test_a_byte_order_mark_takes_nothing_of_the_first_event() -> None:
    assert text_of(read(b"\xef\xbb\xbf" + text("x") + DONE)) == "x"


@pytest.mark.requirement("streams:bug:g:long-line")
@pytest.mark.requirement("streams:vector:t20")
def test_a_line_of_3_mb_is_read_below_its_limit_and_an_error_above_it() -> None:
    data = text("x" * 3_000_000) + finish()
    assert len(text_of(read(data))) == 3_000_000
    failed = failure(data, ChatCodec(StreamLimits(line_bytes=1_000_000)).decoder())
    assert (failed.failure, failed.code) == ("protocol", "line_too_long")


@pytest.mark.requirement("streams:bug:g:limits-are-loud")
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (StreamLimits(line_bytes=90), "line_too_long"),
        (StreamLimits(event_bytes=90), "event_too_long"),
        (StreamLimits(stream_bytes=120), "stream_too_long"),
        (StreamLimits(text_chars=5), "text_too_long"),
    ],
)
def test_a_limit_cuts_nothing_in_silence(limits: StreamLimits, code: str) -> None:
    failed = failure(text("a") + text("b" * 60) + chunk(usage=USAGE) + finish() + DONE, ChatCodec(limits).decoder())
    assert failed.code == code


T20 = (
    b"\xef\xbb\xbf: a comment\r\n\r\n"
    b'data:{"choices":[{"index":0,\r\ndata: "delta":{"content":"h\xc3\xa9 "}}]}\r\n\r\n'
    b'data: {"choices":[{"index":0,\rdata:"delta":{"content":"\xf0\x9f\x98\x80"}}]}\r\r'
    b": and one more\n\n" + finish()[:-1]
)


@pytest.mark.requirement("streams:vector:t20")
@pytest.mark.parametrize("profile", ["compat", "strict"])
def test_a_stream_with_everything_at_once_reads_alike_at_every_cut(profile: str) -> None:
    def decoder() -> ChatCodec:
        return ChatCodec(profile="strict") if profile == "strict" else ChatCodec()

    expected = read(T20, decoder().decoder())
    for cut in range(len(T20) + 1):
        reader = decoder().decoder()
        assert reader.feed(T20[:cut]) + reader.feed(T20[cut:]) + reader.close() == expected, cut
    if profile == "compat":
        quiet = Keepalive()
        said = [quiet, TextDelta("h\u00e9 "), TextDelta("\U0001f600"), quiet, quiet, Completed("stop", (), None)]
        assert expected == said


@pytest.mark.requirement("streams:vector:t20")
def test_under_strict_a_last_event_without_its_blank_line_is_no_terminal_event() -> None:
    head: dict[str, object] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    last = raw(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    decoder = ChatCodec(profile="strict").decoder()
    assert read(last[:-1], decoder) == []
    assert isinstance(read(last, ChatCodec(profile="strict").decoder())[-1], Completed)


# H. Usage.


@pytest.mark.requirement("streams:bug:h:reported-before-a-death")
def test_usage_that_came_before_a_death_is_told() -> None:
    for tail in (b"", raw({"error": {"code": 500, "message": "m"}})):
        decoder = ChatCodec().decoder()
        assert UsageReported(Usage(9, 2)) in read(text("x") + chunk(usage=USAGE) + tail, decoder)
        assert decoder.raw_usage == USAGE
    beside = raw({"error": {"code": 500}, "usage": USAGE})
    assert UsageReported(Usage(9, 2)) in read(beside)


@pytest.mark.requirement("streams:bug:h:repeats-count-once")
def test_repeated_usage_counts_once_and_the_last_one_counts() -> None:
    early = chunk({"content": "x"}, usage={"prompt_tokens": 9, "completion_tokens": 1})
    completed = completion(early * 3 + chunk(usage=USAGE) * 2 + chunk(usage=None) + finish() + DONE)
    assert completed.usage == Usage(9, 2)


@pytest.mark.requirement("streams:bug:h:absent-is-not-zero")
def test_usage_that_did_not_come_is_unknown_and_not_zero() -> None:
    assert completion(text("x") + finish() + DONE).usage is None
    assert completion(chunk({}, "stop", usage={"prompt_tokens": 9})).usage == Usage(input_tokens=9)


@pytest.mark.requirement("streams:bug:h:usage-beside-the-finish")
def test_usage_in_the_chunk_of_the_finish_or_after_it_is_told() -> None:
    assert completion(chunk({"content": "x"}, "stop", usage=USAGE) + DONE).usage == Usage(9, 2)
    assert completion(text("x") + finish() + raw({"choices": [], "usage": USAGE}) + DONE).usage == Usage(9, 2)
