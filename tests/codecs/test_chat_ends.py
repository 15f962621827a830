"""When a chat answer is over, what unmakes it, and what it says where servers say it in their own way."""

import pytest

from tests.support.chat_stream import DONE, chunk, completion, failure, finish, raw, read, text, text_of, thought, tool
from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.events import Completed, Failed, Keepalive, ReasoningDelta, RefusalDelta, StreamEvent, TextDelta
from worker.codecs.limits import StreamLimits
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


def ended(data: bytes, *, broken: bool) -> list[StreamEvent]:
    """All events of a stream that ends in good order, or not."""
    decoder = ChatCodec().decoder()
    return decoder.feed(data) + decoder.close(broken=broken)


HALF_CALL = {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "wipe", "arguments": ""}}]}


@pytest.mark.requirement("codecs:chat:contradicted-finish")
@pytest.mark.parametrize(
    "data",
    [
        b"".join(chunk({"content": words}, "stop") for words in ("All ", "of ", "it")),
        thought("hm") + finish() + text("Half an ans"),
        text("I will. ") + finish() + chunk(HALF_CALL),
        chunk({"content": "I will. "}, "stop") + chunk(HALF_CALL, "stop"),
        chunk({"content": "I"}, "stop") + chunk({"content": "<th"}) + raw({"choices": [], "usage": {}}),
    ],
)
def test_a_stream_that_breaks_behind_a_finish_reason_that_more_followed_is_a_death(data: bytes) -> None:
    assert not any(isinstance(entry, Completed | Failed) for entry in ended(data, broken=True))
    assert isinstance(ended(data, broken=False)[-1], Completed)


@pytest.mark.requirement("codecs:chat:contradicted-finish")
@pytest.mark.parametrize("data", [text("x") + finish(), CALLED + finish("tool_calls"), chunk({"content": "x"}, "stop")])
def test_a_stream_that_breaks_behind_the_finish_reason_of_a_whole_answer_is_the_answer(data: bytes) -> None:
    assert ended(data, broken=True) == ended(data, broken=False)
    assert isinstance(ended(data, broken=True)[-1], Completed)


@pytest.mark.requirement("codecs:chat:contradicted-finish")
@pytest.mark.parametrize("last", [None, "stop"])
@pytest.mark.parametrize(("end", "parsed"), [(b"", None), (DONE, {}), (finish("tool_calls"), {})])
def test_no_tool_call_behind_a_finish_reason_is_whole_unless_the_provider_said_so(
    last: str | None, end: bytes, parsed: object
) -> None:
    data = chunk({"content": "I will. "}, "stop") + chunk(HALF_CALL, last) + end
    (call,) = completion(data).tool_calls
    assert (call.name, call.arguments, call.arguments_json) == ("wipe", "", parsed)


@pytest.mark.requirement("codecs:chat:contradicted-finish")
def test_a_finish_reason_on_content_starts_no_wait_once_content_has_followed_one() -> None:
    decoder = ChatCodec().decoder()
    finishing = []
    for part in (chunk({"content": "a"}, "stop"), chunk({"content": "b"}, "stop"), chunk({"content": "c"}, "stop")):
        decoder.feed(part)
        finishing.append(decoder.finishing)
    assert finishing == [True, False, False]
    decoder.feed(finish())
    assert decoder.finishing


@pytest.mark.requirement("codecs:chat:limits")
@pytest.mark.parametrize(
    "end", [b"data: {nope\n\n", b"error: boom\n\n", raw({"error": {"message": "x"}}), DONE, finish(), b""]
)
def test_what_was_held_back_passes_a_limit_as_a_failure_however_the_answer_ends(end: bytes) -> None:
    held = chunk({"content": "<think>" + "a" * 10 + "</t"}) + CALLED + finish("tool_calls")
    failed = failure(held + end, ChatCodec(StreamLimits(text_chars=10)).decoder())
    assert (failed.failure, failed.code) == ("protocol", "text_too_long")


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


@pytest.mark.requirement("codecs:chat:finish-words")
@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("RECITATION PROHIBITED_CONTENT BLOCKLIST SPII IMAGE_SAFETY Safety content-filter", "content_filter"),
        ("normal FINISH_REASON_STOP endTurn eosFound STOP", "stop"),
        ("toolUse TOOL_CALLS tool-call functionCall", "tool_calls"),
        ("maxTokens FINISH_REASON_MAX_TOKENS", "length"),
        ("null NULL none None", None),
    ],
)
def test_finish_words_are_known_however_they_are_written(words: str, meaning: str | None) -> None:
    for word in words.split():
        completed = completion(CALLED + chunk({}, word) + DONE)
        assert completed.finish_reason == meaning
        assert [call.arguments_json for call in completed.tool_calls] == [{}]


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


def called(arguments: object, name: str = "clock", **rest: object) -> list[dict[str, object]]:
    return [{"index": 0, "id": "a", "type": "function", "function": {"name": name, "arguments": arguments}} | rest]


ROME = '{"city":"Rome"}'


@pytest.mark.requirement("codecs:chat:message-calls")
@pytest.mark.parametrize(
    "before",
    [
        chunk({"tool_calls": called("")}),
        chunk({"tool_calls": called('{"ci')}),
        chunk({"tool_calls": called(ROME)}),
        chunk({"tool_calls": called("")}) + finish("tool_calls"),
        message(tool_calls=called("")) + message(tool_calls=called('{"city"')),
        b"",
    ],
)
@pytest.mark.parametrize(
    "again", [called(ROME), called(ROME, index=None), called(ROME, id="other"), called(ROME, id=None, index=None)]
)
def test_a_message_adds_the_arguments_that_a_call_lacked(before: bytes, again: list[dict[str, object]]) -> None:
    (call,) = completion(before + message("tool_calls", tool_calls=again) + DONE).tool_calls
    assert (call.name, call.arguments, call.arguments_json) == ("clock", ROME, {"city": "Rome"})


@pytest.mark.requirement("codecs:chat:message-calls")
def test_a_message_adds_the_arguments_of_a_function_call_and_those_of_each_of_several_calls() -> None:
    old = chunk({"function_call": {"name": "f", "arguments": ""}})
    (call,) = completion(
        old + message("function_call", function_call={"name": "f", "arguments": ROME}) + DONE
    ).tool_calls
    assert call.arguments == ROME
    second = {"index": 1, "id": "b"}
    opened = chunk({"tool_calls": called("") + called("", "other", **second)})
    whole = called("[2]", "other", **second) + called("[1]")
    calls = completion(opened + message("tool_calls", tool_calls=whole) + DONE).tool_calls
    assert [(call.name, call.arguments) for call in calls] == [("clock", "[1]"), ("other", "[2]")]
    unescaped = completion(chunk({"tool_calls": called("")}) + message(tool_calls=called({"a": 1})) + DONE)
    assert unescaped.tool_calls[0].arguments_json == {"a": 1}


@pytest.mark.requirement("codecs:chat:message-calls")
@pytest.mark.parametrize("end", [b"", finish("tool_calls")])
@pytest.mark.parametrize("again", [called(ROME), called("{}", "wipe"), called("{}") * 2, called(7)])
def test_a_message_that_contradicts_a_call_lets_it_not_run(end: bytes, again: list[dict[str, object]]) -> None:
    failed = failure(chunk({"tool_calls": called("{}")}) + end + message("tool_calls", tool_calls=again) + DONE)
    assert failed.failure == "protocol"
    assert failed.code in ("message_changed", "wrong_type")


@pytest.mark.requirement("codecs:chat:limits")
def test_arguments_that_a_message_adds_count_for_their_limit() -> None:
    data = chunk({"tool_calls": called("")}) + message("tool_calls", tool_calls=called(ROME)) + DONE
    assert failure(data, ChatCodec(StreamLimits(argument_chars=5)).decoder()).code == "arguments_too_long"


@pytest.mark.requirement("codecs:chat:message")
@pytest.mark.parametrize("delta", [{"role": "assistant", "content": ""}, {"content": ""}, {"role": "assistant"}, {}])
def test_a_message_beside_a_delta_that_says_nothing_is_read(delta: dict[str, object]) -> None:
    both = {"index": 0, "delta": delta, "message": {"role": "assistant", "content": "Hi there"}}
    for before in (b"", text("Hi")):
        for last in ("stop", None):
            assert text_of(read(before + raw({"choices": [both | {"finish_reason": last}]}) + DONE)) == "Hi there"
    both["delta"] = {"content": "Hi"}
    assert text_of(read(raw({"choices": [both]}) + DONE)) == "Hi"


@pytest.mark.requirement("codecs:chat:message")
def test_white_space_that_only_the_last_message_has_is_told() -> None:
    assert text_of(read(message(content="Hello") + message("stop", content="Hello\n\n") + DONE)) == "Hello\n\n"


@pytest.mark.requirement("codecs:chat:message")
def test_a_character_that_came_in_halves_is_the_same_in_a_message() -> None:
    halves = text("Hi \ud83d") + text("\ude00")
    assert text_of(read(halves + message("stop", content="Hi \U0001f600!") + DONE)) == "Hi \U0001f600!"


# Reasoning inside the content.


@pytest.mark.requirement("codecs:chat:think-tag")
@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100])
@pytest.mark.parametrize(
    ("said", "reasoning", "answer"),
    [
        ("<think>so</think>Hi", "so", "Hi"),
        ("<think>\na < b </thin\n</think>\n\nHi", "\na < b </thin\n", "\n\nHi"),
        ("<think></think>Hi", "", "Hi"),
        ("<think>never closed </thi", "never closed </thi", "<think>never closed </thi"),
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
@pytest.mark.parametrize(
    ("end", "answer"),
    [(finish(), "<think> is a tag"), (b"", "<think> is a tag"), (finish("length"), ""), (CALLED + finish(), "")],
)
def test_a_think_tag_that_is_never_closed_is_the_answer_where_there_is_no_other(end: bytes, answer: str) -> None:
    events = read(text("<think> is ") + text("a tag") + end + DONE)
    assert (reasoning_of(events), text_of(events)) == (" is a tag", answer)
    assert isinstance(events[-1], Completed)


@pytest.mark.requirement("codecs:chat:think-tag")
@pytest.mark.parametrize(
    "before", [thought("hm"), chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]})]
)
def test_after_reasoning_that_has_a_field_of_its_own_a_think_tag_is_text(before: bytes) -> None:
    events = read(before + text("<think> is a") + text("</think> tag") + finish() + DONE)
    assert (reasoning_of(events), text_of(events)) == ("hm", "<think> is a</think> tag")


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


@pytest.mark.requirement("codecs:chat:message-calls")
def test_two_calls_of_a_message_that_may_be_the_same_let_no_call_run() -> None:
    opened = chunk({"tool_calls": called("") + called("", index=1, id="b")})
    for again in (called("[1]", id=None) + called("[2]", id=None), called("[1]") + called("[2]", index=1)):
        assert failure(opened + message("tool_calls", tool_calls=again) + DONE).code == "message_changed"


@pytest.mark.requirement("codecs:chat:message-calls")
def test_a_character_of_arguments_that_came_in_halves_is_the_same_in_a_message() -> None:
    halves = chunk({"tool_calls": called('{"a":"\ud83d')}) + chunk({"tool_calls": called('\ude00"')})
    (call,) = completion(halves + message("tool_calls", tool_calls=called('{"a":"\U0001f600"}')) + DONE).tool_calls
    assert call.arguments_json == {"a": "\U0001f600"}


@pytest.mark.requirement("codecs:chat:contradicted-finish")
def test_a_finish_reason_on_the_beginning_of_a_call_makes_it_not_whole() -> None:
    begun = chunk(HALF_CALL, "stop")
    assert not any(isinstance(entry, Completed | Failed) for entry in ended(begun, broken=True))
    assert [call.arguments_json for call in completion(begun).tool_calls] == [None]
    for end in (DONE, finish("tool_calls")):
        assert [call.arguments_json for call in completion(begun + end).tool_calls] == [{}]
