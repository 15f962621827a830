"""When a chat answer is over, what unmakes it, and what it says where servers say it in their own way."""

import pytest

from tests.support.chat_stream import DONE, chunk, completion, failure, finish, raw, read, text, text_of, thought, tool
from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.events import Completed, Failed, Keepalive, ReasoningDelta, RefusalDelta, StreamEvent, TextDelta
from worker.codecs.openai_chat import ChatCodec

ERROR = raw({"error": {"code": 502, "message": "upstream hung up"}})
CALLED = tool(index=0, id="a", function={"name": "f", "arguments": "{}"})


def message(finish: object = None, **fields: object) -> bytes:
    return raw({"choices": [{"index": 0, "message": fields, "finish_reason": finish}]})


def reasoning_of(events: list[StreamEvent]) -> str:
    return "".join(entry.text for entry in events if isinstance(entry, ReasoningDelta))


# The finish reason.


@pytest.mark.requirement("codecs:chat:early-finish")
@pytest.mark.parametrize("more", [text(" more"), thought("hm"), CALLED, chunk({"refusal": "no"})])
def test_content_after_a_finish_reason_takes_back_that_only_trailing_matter_follows(more: bytes) -> None:
    decoder = ChatCodec().decoder()
    decoder.feed(chunk({"content": "x"}, "stop"))
    assert decoder.finishing
    decoder.feed(more)
    assert not decoder.finishing
    decoder.feed(raw({"choices": [], "usage": {"total_tokens": 3}}) + chunk({}))
    assert not decoder.finishing
    decoder.feed(finish())
    assert decoder.finishing


@pytest.mark.requirement("codecs:chat:early-finish")
@pytest.mark.parametrize("last", [b"", DONE, finish(), finish() + DONE])
@pytest.mark.parametrize("early", ["stop", None])
def test_whatever_came_until_the_end_is_the_answer_though_a_finish_reason_came_before(last: bytes, early: str) -> None:
    said = chunk({"reasoning": "hm"}, "stop") + chunk({"content": "All "}, early) + chunk({"content": "of it"}, early)
    events = read(said + last)
    assert (text_of(events), isinstance(events[-1], Completed)) == ("All of it", True)


@pytest.mark.requirement("codecs:chat:error-after-finish")
@pytest.mark.parametrize("said", [text("whole"), CALLED, chunk({"refusal": "no"})])
@pytest.mark.parametrize(
    "error", [ERROR, b"event: error\ndata: busy\n\n", b'error: {"code": 503}\n', b'{"error": "x"}\n']
)
def test_an_error_after_the_finish_reason_unmakes_no_answer(said: bytes, error: bytes) -> None:
    plain = completion(said + finish("stop"))
    assert completion(said + finish("stop") + error + DONE) == plain
    assert completion(said + finish("stop") + raw({"choices": [], "usage": {}}) + error) == plain


@pytest.mark.requirement("codecs:chat:error-after-finish")
@pytest.mark.parametrize(
    "data",
    [
        text("x") + ERROR,
        text("x") + raw({"error": "busy", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}),
        text("x") + finish() + raw({"error": "busy", "choices": [{"index": 0, "delta": {"content": "more"}}]}),
        text("x") + finish() + raw({"error": "busy", "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]}),
        text("x") + finish() + text("more") + ERROR,
        finish() + ERROR,
        thought("hm") + finish("length") + ERROR,
    ],
)
def test_an_error_beside_or_before_the_finish_reason_or_after_an_answer_that_says_nothing_is_one(data: bytes) -> None:
    assert failure(data).failure == "retryable"


@pytest.mark.requirement("codecs:chat:error-after-finish")
def test_under_strict_an_error_is_an_error_wherever_it_comes() -> None:
    known = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    whole = chunk({"content": "whole"}, **known) + chunk({}, "stop", **known)
    assert isinstance(completion(whole, ChatCodec(profile="strict").decoder()), Completed)
    assert failure(whole + ERROR, ChatCodec(profile="strict").decoder()).failure == "retryable"


@pytest.mark.requirement("codecs:chat:dead-finish")
@pytest.mark.parametrize(
    "word",
    ["error", "ERROR", "Abort", "cancelled", "MALFORMED_FUNCTION_CALL", "malformed-function-call", "network_error"],
)
def test_a_finish_word_that_means_an_error_is_a_retryable_failure_in_whatever_case(word: str) -> None:
    assert failure(CALLED + finish(word) + DONE) == Failed(
        "retryable", f"the provider ended the answer with finish_reason {word}", word
    )


@pytest.mark.requirement("codecs:finish:unknown-word")
@pytest.mark.parametrize("word", ["stop", "STOP", "tool_calls", "function-call", "eos", "end_turn", "length", None])
def test_tool_calls_are_whole_after_a_word_that_is_known(word: str | None) -> None:
    (call,) = completion(CALLED + chunk({}, word) + DONE).tool_calls
    assert call.arguments_json == {}


@pytest.mark.requirement("codecs:finish:unknown-word")
def test_no_tool_call_is_whole_after_a_word_that_nobody_knows() -> None:
    completed = completion(CALLED + text("x") + finish("out_of_ink") + DONE)
    assert completed.finish_reason == "out_of_ink"
    assert [(call.arguments, call.arguments_json) for call in completed.tool_calls] == [("{}", None)]


@pytest.mark.requirement("codecs:finish:unknown-word")
@pytest.mark.parametrize(("word", "parsed"), [("tool_use", {}), ("end_turn", {}), ("out_of_ink", None)])
def test_the_same_holds_for_messages(word: str, parsed: dict[str, object] | None) -> None:
    data = (
        raw({"type": "message_start", "message": {"id": "m"}})
        + raw(
            {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "a", "name": "f"}}
        )
        + raw({"type": "content_block_stop", "index": 0})
        + raw({"type": "message_delta", "delta": {"stop_reason": word}})
    )
    end = raw({"type": "message_stop"})
    (call,) = completion(data + end, AnthropicCodec().decoder()).tool_calls
    assert call.arguments_json == parsed
    dead = data.replace(word.encode(), b"ERROR")
    assert failure(dead + end, AnthropicCodec().decoder()).failure == "retryable"


# Messages instead of deltas.


@pytest.mark.requirement("codecs:chat:message")
def test_a_message_after_reasoning_alone_says_its_text() -> None:
    events = read(thought("hm") + message("stop", reasoning_content="hm", content="The answer.") + DONE)
    assert (text_of(events), reasoning_of(events)) == ("The answer.", "hm")


@pytest.mark.requirement("codecs:chat:message")
@pytest.mark.parametrize("whole", ["Hi you", [{"type": "text", "text": "Hi"}, {"type": "text", "text": " you"}]])
@pytest.mark.parametrize("first", [text("Hi"), message(content="Hi"), text("H") + text("i")])
def test_a_message_that_says_more_than_came_adds_the_rest(first: bytes, whole: object) -> None:
    assert text_of(read(first + message(content=whole) + message("stop", content=whole) + DONE)) == "Hi you"


@pytest.mark.requirement("codecs:chat:message")
def test_a_refusal_in_a_message_is_compared_too() -> None:
    events = read(chunk({"refusal": "I can"}) + message("stop", refusal="I cannot.", content=None) + DONE)
    assert "".join(entry.text for entry in events if isinstance(entry, RefusalDelta)) == "I cannot."


@pytest.mark.requirement("codecs:chat:message")
@pytest.mark.parametrize("content", ["Hi you", "", None, " Hi you\n"])
def test_a_message_that_repeats_what_came_adds_nothing(content: object) -> None:
    assert text_of(read(text("Hi ") + text("you") + message("stop", content=content) + DONE)) == "Hi you"


@pytest.mark.requirement("codecs:chat:message")
@pytest.mark.parametrize("content", ["Ho", "H", "you"])
def test_a_message_that_contradicts_what_came_is_a_failure(content: str) -> None:
    failed = failure(text("Hi") + message(content=content) + finish() + DONE)
    assert (failed.failure, failed.code) == ("protocol", "message_changed")


@pytest.mark.requirement("codecs:chat:message")
def test_tool_calls_in_a_message_after_those_of_the_deltas_are_not_called_again_nor_dropped() -> None:
    again = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{ }"}}
    for repeated in ({"tool_calls": [again]}, {"function_call": {"name": "f", "arguments": "{ }"}}):
        completed = completion(CALLED + message("tool_calls", content=None, **repeated) + DONE)
        assert [(call.id, call.arguments) for call in completed.tool_calls] == [("a", "{}")]
    more = failure(CALLED + message("tool_calls", tool_calls=[again, again | {"id": "b"}]) + DONE)
    assert more.code == "message_changed"


# Reasoning inside the content.


@pytest.mark.requirement("codecs:chat:think-tag")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    ("said", "reasoning", "answer"),
    [
        ("<think>so</think>Hi", "so", "Hi"),
        ("<think>\na < b </thin\n</think>\n\nHi", "\na < b </thin\n", "\n\nHi"),
        ("<think></think>Hi", "", "Hi"),
        ("<think>never closed </thi", "never closed </thi", ""),
        ("<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
        ("Hi <think>so</think>", "", "Hi <think>so</think>"),
        ("<thinking>x</thinking>", "", "<thinking>x</thinking>"),
        ("<thin", "", "<thin"),
        (" <think>x", "", " <think>x"),
    ],
)
def test_a_think_tag_at_the_start_of_the_content_is_reasoning(
    said: str, reasoning: str, answer: str, size: int
) -> None:
    pieces = [text(said[at : at + size]) for at in range(0, len(said), size)]
    events = read(b"".join(pieces) + finish() + DONE)
    assert (reasoning_of(events), text_of(events)) == (reasoning, answer)
    assert isinstance(events[-1], Completed)
    (whole, *_) = [
        entry.tool_calls for entry in read(message("stop", content=said) + DONE) if isinstance(entry, Completed)
    ]
    assert whole == ()
    repeated = read(b"".join(pieces) + message("stop", content=said) + DONE)
    assert (reasoning_of(repeated), text_of(repeated)) == (reasoning, answer)


@pytest.mark.requirement("codecs:chat:think-tag")
def test_under_strict_content_is_content() -> None:
    known = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    data = chunk({"content": "<think>so</think>Hi"}, **known) + chunk({}, "stop", **known) + DONE
    events = read(data, ChatCodec(profile="strict").decoder())
    assert events[0] == TextDelta("<think>so</think>Hi")
    assert isinstance(events[-1], Completed)


@pytest.mark.requirement("codecs:chat:half-characters")
def test_half_a_character_at_the_end_of_a_refusal_is_replaced_in_it() -> None:
    *events, completed = read(chunk({"refusal": "no \ud83d"}) + finish() + DONE)
    assert [entry for entry in events if entry != Keepalive()] == [RefusalDelta("no "), RefusalDelta("\ufffd")]
    assert isinstance(completed, Completed)
    assert completed.refusal == "no \ufffd"
