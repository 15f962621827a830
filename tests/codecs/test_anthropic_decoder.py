"""The Messages decoder: its ends, its limits, and what it makes of bytes that no server should send."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.codec import Decoder
from worker.codecs.events import (
    SUBSTANTIVE,
    Completed,
    Failed,
    FailureClass,
    Keepalive,
    StreamEvent,
    TextDelta,
    ToolCall,
    ToolCallArguments,
    Usage,
    UsageReported,
)
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits

STREAMS = {path.stem: path.read_bytes() for path in (Path(__file__).parent / "streams" / "anthropic").glob("*.sse")}
PROFILES: list[Profile] = ["compat", "strict"]
ENDS = (Completed, Failed)


def sse(kind: str, **fields: object) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def begun(**usage: object) -> bytes:
    message = {"id": "msg_1", "role": "assistant", "content": [], "usage": {"input_tokens": 2, "output_tokens": 1}}
    return sse("message_start", message=message | ({"usage": usage} if usage else {}))


def block(index: int, kind: str, **fields: object) -> bytes:
    return sse("content_block_start", index=index, content_block={"type": kind, **fields})


def delta(index: int, kind: str, **fields: object) -> bytes:
    return sse("content_block_delta", index=index, delta={"type": kind, **fields})


def text(words: str, index: int = 0) -> bytes:
    return block(index, "text", text="") + delta(index, "text_delta", text=words) + stop(index)


def tool(arguments: str, index: int = 0, **fields: object) -> bytes:
    opened = block(index, "tool_use", **({"id": f"toolu_{index}", "name": "tide", "input": {}} | fields))
    return opened + delta(index, "input_json_delta", partial_json=arguments) + stop(index)


def stop(index: int = 0) -> bytes:
    return sse("content_block_stop", index=index)


def stopped(reason: object = "end_turn", **fields: object) -> bytes:
    return sse("message_delta", delta={"stop_reason": reason, **fields}, usage={"output_tokens": 9})


END = sse("message_stop")
PING = sse("ping")


def decoder(limits: StreamLimits = DEFAULT_LIMITS, profile: Profile = "compat") -> Decoder:
    return AnthropicCodec(limits, profile).decoder()


def read(data: bytes, reader: Decoder | None = None) -> list[StreamEvent]:
    reader = reader or decoder()
    return reader.feed(data) + reader.close()


def failure(data: bytes, reader: Decoder | None = None) -> Failed:
    last = read(data, reader)[-1]
    assert isinstance(last, Failed)
    return last


def completion(data: bytes) -> Completed:
    last = read(data)[-1]
    assert isinstance(last, Completed)
    return last


@pytest.mark.requirement("codecs-anthropic:terminal")
def test_message_stop_completes_the_call_at_once_and_nothing_after_it_is_read() -> None:
    reader = decoder()
    reader.feed(begun() + text("At nine.") + stopped())
    assert reader.feed(END + text("Or ten.", 1) + b"data: [DONE]\n\n")[-1] == Completed("stop", (), Usage(2, 9, 11))
    assert not reader.finishing
    assert reader.feed(text("Or ten.", 1)) == []
    assert reader.close() == []


@pytest.mark.requirement("codecs-anthropic:terminal")
def test_after_a_stop_reason_an_answer_without_tools_is_whole_at_the_end_of_the_stream() -> None:
    reader = decoder()
    assert not reader.finishing
    reader.feed(begun() + text("At nine.") + stopped())
    assert reader.finishing
    assert [type(event) for event in reader.close()] == [Completed]
    assert not reader.finishing


@pytest.mark.requirement("codecs-anthropic:terminal")
@pytest.mark.parametrize(
    ("profile", "data"),
    [
        ("compat", begun() + tool("{}") + stopped("tool_use")),
        ("strict", begun() + text("At nine.") + stopped()),
        ("compat", begun() + text("At nine.") + stopped(None)),
        ("compat", begun() + text("At nine.")),
        ("compat", b""),
    ],
)
def test_an_answer_that_may_lack_its_end_is_a_death(profile: Profile, data: bytes) -> None:
    reader = decoder(profile=profile)
    reader.feed(data)
    assert not reader.finishing
    assert not any(isinstance(event, ENDS) for event in reader.close())


@pytest.mark.requirement("codecs-anthropic:terminal")
def test_neither_broken_json_nor_an_error_after_the_stop_reason_unmakes_an_answer_without_tools() -> None:
    error = sse("error", error={"type": "api_error", "message": "Internal"})
    for tail in (b"data: {half\n\n", error):
        assert completion(begun() + text("At nine.") + stopped() + tail).finish_reason == "stop"
    assert failure(begun() + tool("{}") + stopped("tool_use") + b"data: {half\n\n").code == "not_json"
    assert failure(begun() + tool("{}") + stopped("tool_use") + error).failure == "retryable"
    assert failure(begun() + stopped() + error).failure == "retryable"
    assert failure(begun() + text("At ") + error).failure == "retryable"


@pytest.mark.requirement("codecs-anthropic:finish-reasons")
@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("tool_use", "tool_calls"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "refusal"),
        ("pause_turn", "pause_turn"),
        ("out_of_ink", "out_of_ink"),
    ],
)
def test_stop_reasons_have_one_vocabulary_and_the_raw_word_is_kept(word: str, ours: str) -> None:
    reader = decoder()
    last = read(begun() + text("x") + stopped(word) + END, reader)[-1]
    assert isinstance(last, Completed)
    assert (last.finish_reason, reader.finish_reason) == (ours, word)
    assert (last.refusal is None) == (ours != "refusal")


@pytest.mark.requirement("codecs-anthropic:refusal")
@pytest.mark.parametrize(
    ("details", "refusal"),
    [
        ({"type": "refusal", "explanation": "Against the policy."}, "Against the policy."),
        ({"type": "refusal", "explanation": None}, "refused"),
        ({"explanation": 4}, "refused"),
        (None, "refused"),
        ("no", "refused"),
    ],
)
def test_a_refusal_is_told_with_its_explanation(details: object, refusal: str) -> None:
    assert completion(begun() + stopped("refusal", stop_details=details) + END).refusal == refusal


@pytest.mark.requirement("codecs-anthropic:keepalives")
@pytest.mark.parametrize(
    "data",
    [
        PING,
        b": alive\n\n",
        sse("message_start", message={"id": "msg_1", "role": "assistant"}),
        begun(),
        begun() + PING + block(0, "text", text="") + delta(0, "text_delta", text=""),
        begun() + block(0, "thinking", thinking="") + delta(0, "signature_delta", signature="c2ln") + stop(),
        begun() + block(0, "redacted_thinking", data="b3Bh") + stop(),
        begun() + block(0, "server_tool_use", id="srvtoolu_1", name="web_search", input={}),
        begun() + block(0, "web_search_tool_result", tool_use_id="srvtoolu_1", content=[]) + stop(),
        sse("tide_report", level=3),
    ],
)
def test_what_carries_nothing_of_the_answer_is_not_substantive(data: bytes) -> None:
    events = decoder().feed(data)
    assert events
    assert not any(isinstance(event, SUBSTANTIVE) for event in events)


@pytest.mark.requirement("codecs-anthropic:keepalives")
def test_bytes_that_complete_no_event_give_nothing() -> None:
    reader = decoder()
    assert reader.feed(PING[:-1]) == []
    assert reader.feed(PING[-1:]) == [Keepalive()]
    assert reader.feed(b"") == []


@pytest.mark.requirement("codecs-anthropic:server-tools")
def test_a_tool_of_the_providers_own_is_no_tool_call_of_ours() -> None:
    query = delta(0, "input_json_delta", partial_json='{"query": "tide"}')
    searched = block(0, "server_tool_use", id="srvtoolu_1", name="web_search", input={}) + query + stop()
    found = block(1, "web_search_tool_result", tool_use_id="srvtoolu_1", content=[]) + stop(1)
    reader = decoder()
    events = read(begun() + searched + found + text("At nine.", 2) + stopped() + END, reader)
    assert [event for event in events if isinstance(event, SUBSTANTIVE)] == [TextDelta("At nine.")]
    assert reader.tool_calls == ()


@pytest.mark.requirement("codecs-anthropic:tool-calls")
@pytest.mark.parametrize(
    ("pieces", "arguments_json"),
    [
        ([], {}),
        ([""], {}),
        (['{"a"', ": 12345678901234567890}"], {"a": 12345678901234567890}),
        (["null"], {}),
        (['{"a": 1'], None),
        (["[1]"], None),
        (['{"a": NaN}'], None),
    ],
)
def test_the_arguments_of_a_tool_call_are_one_whole_object_or_nothing(
    pieces: list[str], arguments_json: dict[str, object] | None
) -> None:
    opened = block(0, "tool_use", id="toolu_1", name="tide", input={})
    written = b"".join(delta(0, "input_json_delta", partial_json=piece) for piece in pieces)
    calls = completion(begun() + opened + written + stop() + stopped("tool_use") + END).tool_calls
    assert calls == (ToolCall("toolu_1", "tide", "".join(pieces), arguments_json),)


@pytest.mark.requirement("codecs-anthropic:tool-calls")
@pytest.mark.parametrize("reason", ["tool_use", "max_tokens", "end_turn"])
@pytest.mark.parametrize("arguments", ['{"port": "Ayr"}', "{}", ""])
def test_a_tool_call_whose_block_was_never_stopped_is_not_whole_whatever_it_holds(reason: str, arguments: str) -> None:
    data = begun() + tool(arguments).removesuffix(stop()) + stopped(reason) + END
    assert [call.arguments_json for call in completion(data).tool_calls] == [None]


@pytest.mark.requirement("codecs-anthropic:tool-calls")
def test_a_tool_call_without_an_id_gets_one_that_is_the_same_however_often_it_is_read() -> None:
    data = begun() + tool("{}", id=None) + tool("{}", 1, id=None) + stopped("tool_use") + END
    first, second = completion(data).tool_calls
    assert (first.id, second.id) == tuple(call.id for call in completion(data).tool_calls)
    assert first.id != second.id
    assert completion(data.replace(b"msg_1", b"msg_2")).tool_calls[0].id != first.id


@pytest.mark.requirement("codecs-anthropic:echo")
def test_the_blocks_of_an_answer_are_echoed_only_with_one_that_is_the_providers_own() -> None:
    spoken = text("At nine.", 1) + tool('{"port": "Ayr"}', 2)
    thought = block(0, "thinking", thinking="", signature="") + delta(0, "thinking_delta", thinking="Low water.")
    signed = delta(0, "signature_delta", signature="c2ln")
    ending = stopped("tool_use") + END
    assert completion(begun() + thought + signed + stop() + spoken + ending).echo == (
        {"type": "thinking", "thinking": "Low water.", "signature": "c2ln"},
        {"type": "text", "text": "At nine."},
        {"type": "tool_use", "id": "toolu_2", "name": "tide", "input": {"port": "Ayr"}},
    )
    assert completion(begun() + thought + stop() + spoken + ending).echo == ()
    assert completion(begun() + spoken + ending).echo == ()


@pytest.mark.requirement("codecs-anthropic:echo")
def test_what_a_block_began_with_is_echoed_with_what_came_after() -> None:
    thought = block(0, "thinking", thinking="Low ", signature="c2ln") + delta(0, "thinking_delta", thinking="water.")
    spoken = block(1, "text", text="At ", citations=None) + delta(1, "text_delta", text="nine.") + stop(1)
    assert completion(begun() + thought + stop() + spoken + stopped() + END).echo == (
        {"type": "thinking", "thinking": "Low water.", "signature": "c2ln"},
        {"type": "text", "text": "At nine.", "citations": None},
    )


@pytest.mark.requirement("codecs-anthropic:echo")
def test_what_the_provider_would_refuse_is_not_echoed() -> None:
    """Text without a word, thinking without its signature, a server's block that was cut, broken arguments."""
    redacted = block(0, "redacted_thinking", data="b3Bh") + stop()
    unsigned = block(1, "thinking", thinking="Low water.", signature="") + stop(1)
    blank = block(2, "text", text="") + stop(2) + text(" \n", 3)
    cut = block(5, "server_tool_use", id="srvtoolu_1", name="web_search", input={})
    data = begun() + redacted + unsigned + blank + tool('{"port": "Ay', 4) + cut + stopped("max_tokens") + END
    assert completion(data).echo == (
        {"type": "redacted_thinking", "data": "b3Bh"},
        {"type": "tool_use", "id": "toolu_4", "name": "tide", "input": {}},
    )


@pytest.mark.requirement("codecs-anthropic:echo")
def test_a_block_nested_too_deeply_to_be_echoed_breaks_the_call() -> None:
    deep: object = "x"
    for _ in range(70):
        deep = [deep]
    data = begun() + block(0, "web_search_tool_result", tool_use_id="s", content=deep)
    assert failure(data).code == "nested_too_deep"
    cited = begun() + block(0, "text", text="") + delta(0, "citations_delta", citation=deep)
    assert failure(cited).code == "nested_too_deep"


@pytest.mark.requirement("codecs-anthropic:usage")
def test_usage_is_what_was_told_last_and_nothing_is_worked_out_from_what_was_not() -> None:
    reader = decoder()
    events = reader.feed(begun(input_tokens=10, cache_creation_input_tokens=200, cache_read_input_tokens=3000))
    assert events == [
        UsageReported(Usage(3210, None, None, cached_input_tokens=3000, cache_write_input_tokens=200)),
    ]
    counts = {"output_tokens": 40, "input_tokens": None, "output_tokens_details": {"thinking_tokens": 25}}
    reader.feed(sse("message_delta", delta={"stop_reason": None}, usage=counts))
    last = reader.feed(sse("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 41}) + END)[-1]
    assert isinstance(last, Completed)
    assert last.usage == Usage(3210, 41, 3251, 3000, 25, 200)
    assert reader.raw_usage == {
        "input_tokens": 10,
        "cache_creation_input_tokens": 200,
        "cache_read_input_tokens": 3000,
        "output_tokens": 41,
        "output_tokens_details": {"thinking_tokens": 25},
    }
    assert completion(text("x") + sse("message_delta", delta={"stop_reason": "end_turn"}) + END).usage is None


@pytest.mark.requirement("codecs-anthropic:usage")
@pytest.mark.parametrize("count", [-1, 1.5, "7", True, None, [7]])
def test_what_is_no_count_is_unknown(count: object) -> None:
    last = completion(begun(input_tokens=count, output_tokens=count) + text("x") + stopped() + END)
    assert last.usage == Usage(output_tokens=9)


@pytest.mark.requirement("codecs-anthropic:errors")
@pytest.mark.parametrize(
    ("kind", "message", "failure_class"),
    [
        ("overloaded_error", "Overloaded", "retryable"),
        ("api_error", "Internal server error", "retryable"),
        ("timeout_error", "Timed out", "retryable"),
        ("rate_limit_error", "Too many tokens a minute", "retryable"),
        ("invalid_request_error", "messages.0: text must not be empty", "refused"),
        ("invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum", "context_overflow"),
        ("authentication_error", "invalid x-api-key", "refused"),
        ("permission_error", "no access to this model", "refused"),
        ("not_found_error", "model: claude-y", "refused"),
        ("billing_error", "pay first", "refused"),
        ("invalid_request_error", "Output blocked by content filtering policy", "content_filter"),
    ],
)
@pytest.mark.parametrize("before", [b"", begun() + block(0, "text", text="") + delta(0, "text_delta", text="At ")])
def test_an_error_event_is_told_by_its_class(
    before: bytes, kind: str, message: str, failure_class: FailureClass
) -> None:
    reader = decoder()
    failed = failure(before + sse("error", error={"type": kind, "message": message}) + END, reader)
    assert failed == Failed(failure_class, message, kind)
    assert reader.raw_error == {"type": kind, "message": message}


@pytest.mark.requirement("codecs-anthropic:wrong-types")
@pytest.mark.parametrize(
    "data",
    [
        sse("message_start"),
        sse("message_start", message={"id": 7}),
        block(0, "text", text=7),
        block(0, "tool_use", id=["toolu_1"], name="tide"),
        block(0, "tool_use", id="toolu_1", name={}),
        sse("content_block_start", index=0),
        sse("content_block_start", index=0, content_block={"text": ""}),
        sse("content_block_start", index="0", content_block={"type": "text"}),
        sse("content_block_start", index=-1, content_block={"type": "text"}),
        sse("content_block_start", index=True, content_block={"type": "text"}),
        sse("content_block_delta", index=0),
        sse("content_block_delta", index=0, delta=[]),
        delta(0, "text_delta"),
        delta(0, "text_delta", text=None),
        delta(0, "thinking_delta", thinking=7),
        sse("message_delta", delta=7),
        stopped(7),
        sse("content_block_stop", index=0.5),
        b'data: {"type": 7}\n\n',
        b"data: 7\n\n",
    ],
)
@pytest.mark.parametrize("profile", PROFILES)
def test_a_field_of_the_wrong_type_breaks_the_call_in_both_profiles(profile: Profile, data: bytes) -> None:
    failed = failure(data if b"message_start" in data else begun() + data, decoder(profile=profile))
    assert failed.failure == "protocol"
    if profile == "compat":
        assert failed.code == "wrong_type"
        assert "must be" in failed.message


MESSAGE: dict[str, object] = {
    "id": "msg_1",
    "role": "assistant",
    "content": [],
    "usage": {"input_tokens": 2, "output_tokens": 1},
}


@pytest.mark.requirement("codecs-anthropic:strict:fields")
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (sse("message_start", message=MESSAGE | {"id": ""}), "wrong_type"),
        (sse("message_start", message=MESSAGE | {"role": "user"}), "wrong_role"),
        (sse("message_start", message=MESSAGE | {"content": ["x"]}), "content_in_message_start"),
        (sse("message_start", message=MESSAGE | {"usage": {"output_tokens": 1}}), "wrong_type"),
        (sse("message_start", message=MESSAGE | {"usage": {"input_tokens": 1}}), "wrong_type"),
        (begun() + block(0, "text"), "wrong_type"),
        (begun() + block(0, "thinking"), "wrong_type"),
        (begun() + block(0, "redacted_thinking"), "wrong_type"),
        (begun() + block(0, "tool_use", id="toolu_1"), "wrong_type"),
        (begun() + block(0, "tool_use", id="toolu_1", name=""), "wrong_type"),
        (begun() + block(0, "server_tool_use", name="web_search"), "wrong_type"),
        (begun() + block(0, "web_search_tool_result", content=[]), "wrong_type"),
        (begun() + block(0, "sketch"), "unknown_block"),
        (begun() + block(0, "text", text="") + delta(0, "ink_delta"), "unknown_delta"),
        (begun() + sse("message_delta", delta={}, usage={"output_tokens": 1}), "wrong_type"),
        (begun() + sse("message_delta", delta={"stop_reason": "end_turn"}), "wrong_type"),
        (begun() + sse("message_delta", delta={"stop_reason": "end_turn"}, usage={}), "wrong_type"),
        (begun() + b"data: [DONE]\n\n", "unknown_event"),
    ],
)
def test_the_strict_profile_wants_every_field_that_is_documented_as_given(data: bytes, code: str) -> None:
    failed = failure(data, decoder(profile="strict"))
    assert (failed.failure, failed.code) == ("protocol", code)
    assert not any(isinstance(event, Failed) for event in read(data))


SMALL = StreamLimits(
    line_bytes=400, event_bytes=500, stream_bytes=2000, index=3, text_chars=20, argument_chars=20, tool_calls=2
)


@pytest.mark.requirement("codecs-anthropic:limits")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(
    ("code", "data"),
    [
        ("line_too_long", begun() + block(0, "text", text="x" * 400)),
        ("event_too_long", begun() + b"data: {\ndata: " + b" " * 380 + b"\ndata: " + b" " * 380 + b"\ndata: }\n\n"),
        ("stream_too_long", begun() + PING * 60),
        ("index_too_high", begun() + b"".join(text("x", index) for index in range(5))),
        ("text_too_long", begun() + text("x" * 21)),
        ("text_too_long", begun() + block(0, "thinking", thinking="") + delta(0, "thinking_delta", thinking="x" * 21)),
        ("arguments_too_long", begun() + tool('{"port": "Auchtermuchty"}')),
        (
            "arguments_too_long",
            begun()
            + block(0, "server_tool_use", id="s", name="web_search")
            + delta(0, "input_json_delta", partial_json="x" * 21),
        ),
        ("too_many_tool_calls", begun() + b"".join(tool("{}", index) for index in range(3))),
    ],
)
def test_each_limit_has_a_failure_of_its_own(code: str, data: bytes, profile: Profile) -> None:
    assert failure(data, decoder(SMALL, profile)) == replace(failure(data, decoder(SMALL, profile)), code=code)
    assert failure(data, decoder(SMALL, profile)).failure == "protocol"


@pytest.mark.requirement("codecs-anthropic:limits")
def test_blocks_that_use_one_index_again_and_again_are_counted_all_the_same() -> None:
    assert failure(begun() + text("x") * 5, decoder(SMALL)).code == "index_too_high"


@pytest.mark.requirement("codecs-anthropic:limits")
def test_an_answer_at_its_limits_is_whole() -> None:
    data = begun() + text("x" * 20) + tool('{"port": "Achiltib"}', 1) + tool("", 2) + stopped("tool_use") + END
    last = read(data, decoder(replace(SMALL, stream_bytes=len(data))))[-1]
    assert isinstance(last, Completed)
    assert len(last.tool_calls) == 2


@pytest.mark.requirement("codecs-anthropic:half-characters")
def test_a_character_cut_in_two_is_joined_in_text_and_arguments_and_mended_elsewhere() -> None:
    opened = block(0, "text", text="") + delta(0, "text_delta", text="\ud83d") + delta(0, "text_delta", text="\udea2")
    cited = delta(0, "citations_delta", citation={"cited_text": "\ud83d"})
    called = block(1, "tool_use", id="toolu_1", name="tide", input={})
    written = [delta(1, "input_json_delta", partial_json=piece) for piece in ('{"a": "\ud83d', '\udea2"}')]
    found = block(2, "redacted_thinking", data="b3Bh") + stop(2)
    data = begun() + opened + cited + stop() + called + b"".join(written) + stop(1) + found
    events = read(data + stopped("tool_use") + END)
    assert TextDelta("🚢") in events
    assert [event for event in events if isinstance(event, ToolCallArguments)] == [
        ToolCallArguments(0, '{"a": "'),
        ToolCallArguments(0, '🚢"}'),
    ]
    last = events[-1]
    assert isinstance(last, Completed)
    assert last.tool_calls[0].arguments_json == {"a": "🚢"}
    assert json.dumps(last.echo, ensure_ascii=False).encode().count("\ufffd".encode()) == 1
    assert completion(begun() + stopped("\ud83d") + END).finish_reason == "\ufffd"
    assert completion(begun() + stopped("refusal", stop_details={"explanation": "\ud83d"}) + END).refusal == "\ufffd"


@pytest.mark.requirement("codecs-anthropic:whole-answer")
def test_a_whole_answer_instead_of_a_stream_is_taken_by_the_compat_profile() -> None:
    content: list[dict[str, object]] = [
        {"type": "thinking", "thinking": "Low water.", "signature": "c2ln"},
        {"type": "text", "text": "At nine."},
    ]
    document = {"id": "msg_1", "type": "message", "content": content, "stop_reason": "end_turn"}
    data = json.dumps(document | {"usage": {"input_tokens": 2, "output_tokens": 9}}).encode()
    last = read(data)[-1]
    assert last == Completed("stop", (), Usage(2, 9, 11), echo=tuple(content))
    assert failure(data, decoder(profile="strict")).code == "not_a_stream"
    assert failure(b'{"type": "message", "content": [7]}').code == "wrong_type"
    assert failure(b'{"type": "tide", "content": []}').code == "not_a_stream"


@pytest.mark.requirement("codecs-anthropic:any-cut")
@settings(deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)), st.lists(st.integers(0, 3000), max_size=40).map(sorted), st.sampled_from(PROFILES)
)
def test_the_events_are_the_same_however_the_bytes_are_cut(name: str, cuts: list[int], profile: Profile) -> None:
    data = STREAMS[name]
    reader = decoder(profile=profile)
    events: list[StreamEvent] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += reader.feed(data[start:end])
    assert events + reader.close() == read(data, decoder(profile=profile))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A transcript whose events were dropped, doubled, swapped, spliced with another one's, or changed in a byte."""
    events = STREAMS[draw(st.sampled_from(sorted(STREAMS)))].split(b"\n\n")
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(events) - 1))
        match draw(st.sampled_from(["drop", "double", "swap", "splice", "byte", "cut"])):
            case "drop" if len(events) > 1:
                del events[at]
            case "double":
                events.insert(at, events[at])
            case "swap":
                other = draw(st.integers(0, len(events) - 1))
                events[at], events[other] = events[other], events[at]
            case "splice":
                events[at:at] = STREAMS[draw(st.sampled_from(sorted(STREAMS)))].split(b"\n\n")[:4]
            case "byte" if events[at]:
                place = draw(st.integers(0, len(events[at]) - 1))
                events[at] = events[at][:place] + draw(st.binary(max_size=3)) + events[at][place + 1 :]
            case _:
                events[at] = events[at][: draw(st.integers(0, len(events[at])))]
    return b"\n\n".join(events)


@pytest.mark.requirement("codecs-anthropic:never-raises")
@given(damaged(), st.sampled_from(PROFILES), st.integers(1, 200))
@settings(deadline=None, max_examples=400)
def test_a_damaged_stream_ends_at_most_once_and_never_in_an_exception(data: bytes, profile: Profile, size: int) -> None:
    reader = decoder(profile=profile)
    events = [event for start in range(0, len(data), size) for event in reader.feed(data[start : start + size])]
    events += reader.close()
    assert sum(isinstance(event, ENDS) for event in events[:-1]) == 0
    if events and isinstance(events[-1], Completed):
        assert events[-1].tool_calls == reader.tool_calls
        json.dumps([events[-1].echo, reader.raw_usage], ensure_ascii=False).encode()
    assert reader.feed(PING + END) == []
    assert reader.close() == []
    assert read(data, decoder(profile=profile)) == events


@pytest.mark.requirement("codecs-anthropic:never-raises")
@settings(deadline=None)
@given(st.binary(max_size=300), st.sampled_from(PROFILES))
def test_bytes_of_any_kind_never_end_in_an_exception(data: bytes, profile: Profile) -> None:
    assert sum(isinstance(event, ENDS) for event in read(data, decoder(profile=profile))) <= 1


FIELDS = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 1100) | st.text(max_size=4) | st.sampled_from(["text", "tool_use"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)
NAMES = st.sampled_from(["message", "index", "content_block", "delta", "usage", "error", "content", "id"])
KINDS = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta", "ping"]
)
PARTS = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["text", "thinking", "tool_use", "server_tool_use", "text_delta", "input_json_delta", "citations_delta"]
        )
    },
    optional=dict.fromkeys(("text", "id", "name", "input", "partial_json", "thinking", "stop_reason", "usage"), FIELDS),
)


@pytest.mark.requirement("codecs-anthropic:never-raises")
@settings(deadline=None)
@given(
    st.lists(st.tuples(KINDS, st.dictionaries(NAMES, FIELDS | PARTS, max_size=4)), max_size=8),
    st.sampled_from(PROFILES),
)
def test_events_with_fields_of_any_type_never_end_in_an_exception(
    told: list[tuple[str, dict[str, object]]], profile: Profile
) -> None:
    data = begun() + b"".join(sse(kind, **fields) for kind, fields in told) + stopped() + END
    assert sum(isinstance(event, ENDS) for event in read(data, decoder(profile=profile))) == 1
