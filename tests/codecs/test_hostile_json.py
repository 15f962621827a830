"""JSON that is deep, large or flawed, in every wire format: bounded work, and no exception."""

import json

import pytest

from tests.support.responses_events import call, done, event, framed, response
from worker.codecs import wirejson
from worker.codecs.events import Completed, Failed, Keepalive, StreamEvent, TextDelta
from worker.codecs.limits import StreamLimits
from worker.codecs.sse import SseDecoder, SseEvent, SseFault
from worker.codecs.toolargs import MAX_DEPTH
from worker.codecs.wires import WIRES, codec_of

DEPTHS = (200, 990, 1_000, 5_000, 100_000)


def read(data: bytes, wire: str = "chat") -> list[StreamEvent]:
    decoder = codec_of(wire).decoder()
    return decoder.feed(data) + decoder.close()


def failed(events: list[StreamEvent]) -> tuple[str, str | None]:
    (last,) = [entry for entry in events if isinstance(entry, Completed | Failed)]
    assert isinstance(last, Failed)
    return last.failure, last.code


def nested(depth: int, inside: str = "") -> str:
    return "[" * depth + inside + "]" * depth


@pytest.mark.requirement("codecs:json:depth")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("inside", ["", "NaN"])
def test_an_event_that_is_nested_too_deep_is_no_json(wire: str, depth: int, inside: str) -> None:
    places = (
        '{"choices":[{"delta":{"tool_calls":[{"function":{"name":"a","arguments":%s}}]}}]}',
        '{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"","x":%s}}',
        '{"type":"response.output_item.done","output_index":0,"item":{"type":"x","x":%s}}',
        '{"error":%s}',
        "%s",
    )
    for place in places:
        data = b"data: " + (place % nested(depth, inside)).encode() + b"\n\n"
        assert failed(read(data, wire)) == ("protocol", "not_json")


@pytest.mark.requirement("codecs:json:depth")
@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("depth", DEPTHS)
def test_an_error_that_is_nested_too_deep_is_told_as_a_bounded_text(wire: str, depth: int) -> None:
    for data in (b'event: error\ndata: {"error":%s}\n\n', b'error: {"error":%s}\n'):
        decoder = codec_of(wire).decoder()
        (last,) = decoder.feed(data % nested(depth).encode())
        assert isinstance(last, Failed)
        assert (last.failure, len(last.message) <= 2000) == ("retryable", True)
        assert isinstance(decoder.raw_error, str)
        assert len(decoder.raw_error) <= 8192


@pytest.mark.requirement("codecs:json:depth")
def test_json_may_be_nested_up_to_the_limit_and_brackets_side_by_side_or_in_texts_are_not_deep() -> None:
    assert wirejson.parse(nested(wirejson.MAX_DEPTH).encode())[1] is False
    with pytest.raises(ValueError, match="nested deeper than 128 levels"):
        wirejson.parse(nested(wirejson.MAX_DEPTH + 1).encode())
    many = json.dumps([[]] * 5_000 + ["[" * 5_000])
    assert wirejson.parse(many.encode()) == (json.loads(many), False)


@pytest.mark.requirement("codecs:json:depth")
def test_an_item_that_could_not_be_sent_back_is_refused() -> None:
    for depth, code in ((MAX_DEPTH, None), (MAX_DEPTH + 1, "nested_too_deep")):
        item = {"type": "web_search_call", "id": "ws_1", "found": json.loads(nested(depth))}
        opened = [event("response.created", response=response())]
        ended = [event("response.completed", response=response("completed", [item]))]
        for events in ([*opened, done(0, item), *ended], [*opened, *ended]):
            last = read(framed(events), "responses")[-1]
            assert (last.code if isinstance(last, Failed) else None) == code


@pytest.mark.requirement("codecs:json:flaws")
def test_a_flaw_is_passed_over_in_json_of_a_usual_size_and_makes_a_large_one_none() -> None:
    assert wirejson.parse(b'{"a": NaN, "b": "\xff"}')[0] != {}
    large = b"[" + b"[]," * 100_000 + b"NaN]"
    with pytest.raises(ValueError, match="more than 131072 values"):
        wirejson.parse(large)
    assert failed(read(b"data: " + large + b"\n\n")) == ("protocol", "not_json")
    for many in (b"{}", b'"\\ud800"', b'"\\uD83D"', b"[]", b"1"):
        with pytest.raises(ValueError, match="more than 131072 values"):
            wirejson.parse(b"[" + (many + b",") * 132_000 + b"NaN]")
    with pytest.raises(ValueError, match="longer than 2097152 bytes"):
        wirejson.parse(b'["' + b"a" * 2_100_000 + b'",NaN]')


@pytest.mark.requirement("codecs:json:flaws")
def test_a_flaw_beside_a_long_answer_makes_it_not_unreadable() -> None:
    words = "word, " * 100_000
    body = json.dumps({"choices": [{"message": {"content": words}, "finish_reason": "stop", "x": float("nan")}]})
    told, completed = read(body.encode())
    assert (told, isinstance(completed, Completed)) == (TextDelta(words), True)


@pytest.mark.requirement("codecs:sse:limits")
@pytest.mark.parametrize("line", [b"data:\n", b"data\n", b"data: \n"])
def test_an_event_of_very_many_lines_is_too_long_however_short_they_are(line: bytes) -> None:
    assert SseDecoder().feed(line * 100_000 + b"\n") == [SseEvent("", b"\n" * 99_999, "", whole=True)]
    (fault,) = SseDecoder().feed(line * 100_001 + b"\n")
    assert isinstance(fault, SseFault)
    assert fault.code == "event_too_long"


@pytest.mark.requirement("codecs:sse:limits")
@pytest.mark.parametrize("lines", [[b"x" * 31], [b"x" * 15, b"x" * 15]])
def test_an_event_may_fill_its_limit_and_no_more(lines: list[bytes]) -> None:
    limits = StreamLimits(event_bytes=32)
    data = b"".join(b"data: " + line + b"\n" for line in lines)
    assert SseDecoder(limits).feed(data + b"\n") == [SseEvent("", b"\n".join(lines), "", whole=True)]
    (fault,) = SseDecoder(limits).feed(data[:-1] + b"y\n\n")
    assert isinstance(fault, SseFault)
    assert fault.code == "event_too_long"


@pytest.mark.requirement("codecs:json:flaws")
def test_a_body_of_very_many_lines_is_too_long_and_its_lines_are_not_all_tried_as_json(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[bytes] = []

    def parse(data: bytes, pieces_below: tuple[str, ...] | None = None) -> tuple[object, bool]:
        tried.append(data)
        return wirejson.parse(data, pieces_below)

    monkeypatch.setattr("worker.codecs.foreign.parse", parse)
    for line in (b"{\n\n", b"{}}\n\n"):
        tried.clear()
        assert failed(read(line * 100_001)) == ("protocol", "event_too_long")
        assert len(tried) <= 64


@pytest.mark.requirement("codecs:json:flaws")
def test_an_error_line_is_heard_beside_other_lines() -> None:
    said = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n' + b'{"detail": 1}\n' * 20
    assert failed(read(said + b'{"error": {"code": 503}}\n')) == ("retryable", "503")


@pytest.mark.requirement("codecs:json:names")
@pytest.mark.parametrize("wire", WIRES)
def test_names_ids_and_finish_words_are_bounded_and_whole_where_they_are_of_a_usual_length(wire: str) -> None:
    for size in (200, 200_000):
        name, call_id, word = "n" * size, "i" * size, "w" * size
        (last,) = [entry for entry in read(STREAM_OF[wire](name, call_id, word), wire) if isinstance(entry, Completed)]
        (made,) = last.tool_calls
        assert made.name == "n" * 200
        assert (made.id == call_id) == (size == 200)
        assert len(made.id) <= 200
        assert len(last.finish_reason or "") <= 200
        opened = [entry for entry in read(STREAM_OF[wire](name, call_id, word), wire) if hasattr(entry, "name")]
        assert [getattr(entry, "name", None) for entry in opened] == ["n" * 200]


def _chat(name: str, call_id: str, word: str) -> bytes:
    called = {"index": 0, "id": call_id, "function": {"name": name, "arguments": "{}"}}
    chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [called]}, "finish_reason": word}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"


def _responses(name: str, call_id: str, word: str) -> bytes:
    del word  # its statuses are few and all known
    item = call("{}", call_id=call_id, name=name)
    ended = event("response.completed", response=response("completed", [item]))
    return framed([event("response.created", response=response()), done(0, item), ended])


def _anthropic(name: str, call_id: str, word: str) -> bytes:
    events = [
        {"type": "message_start", "message": {"id": "m", "usage": {}}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": call_id, "name": name, "input": {}},
        },
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": word}},
        {"type": "message_stop"},
    ]
    return b"".join(b"data: " + json.dumps(entry).encode() + b"\n\n" for entry in events)


STREAM_OF = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}


@pytest.mark.requirement("codecs:chat:whole-answer")
def test_a_comment_before_a_json_body_is_a_keepalive_and_the_body_the_answer() -> None:
    body = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, indent=1).encode()
    *before, said, completed = read(b": ka\n\n: ka\n\n" + body)
    assert set(before) == {Keepalive()}
    assert (said, completed) == (TextDelta("Hi"), Completed("stop", (), None))
    assert [entry for entry in read(b": ka\n\nx-trace: 9\n") if entry != Keepalive()] == []
    assert [entry for entry in read(b": ka\n\n" + body[:-3]) if entry != Keepalive()] == []


@pytest.mark.requirement("codecs:chat:whole-answer")
@pytest.mark.parametrize(
    "tail", [b"data: [DONE]\n\n", b'data: {"choices": []}\n\ndata: [DONE]\n\n', b": ka\n\ndata: [DONE]\n\n"]
)
@pytest.mark.parametrize("indent", [None, 1])
def test_a_whole_json_answer_before_a_done_mark_is_the_answer(tail: bytes, indent: int | None) -> None:
    body = json.dumps({"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}, indent=indent).encode()
    data = body + b"\n\n" + tail
    events = read(data)
    assert [entry for entry in events if entry != Keepalive()] == [TextDelta("Hi"), Completed("stop", (), None)]
    decoder = codec_of("chat").decoder()
    assert [entry for byte in data for entry in decoder.feed(bytes([byte]))] + decoder.close() == events


@pytest.mark.requirement("codecs:chat:whole-answer")
@pytest.mark.parametrize(
    ("body", "how"),
    [
        (b"Just a sentence.\n", ("refused", "not_a_stream")),
        (b'{"detail": "no"}\n', ("refused", "not_a_stream")),
        (b'{"choices": [{"mess\n', ("protocol", "not_json")),
    ],
)
def test_another_body_before_a_done_mark_is_no_empty_answer(body: bytes, how: tuple[str, str]) -> None:
    assert failed(read(body + b"\ndata: [DONE]\n\n")) == how
