"""The server-sent events decoder against the WHATWG standard, and its limits."""

from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.codecs.limits import StreamLimits
from worker.codecs.sse import SseComment, SseDecoder, SseEvent, SseFault, SseItem, SseRetry, SseUnknownLine


def items_of(data: bytes, size: int = 0, **limits: int) -> list[SseItem]:
    decoder = SseDecoder(StreamLimits(**limits))
    size = size or max(len(data), 1)
    items: list[SseItem] = []
    for start in range(0, len(data), size):
        items += decoder.feed(data[start : start + size])
    return items + decoder.close()


def event(data: bytes, name: str = "", last_id: str = "", *, whole: bool = True) -> SseEvent:
    return SseEvent(name, data, last_id, whole)


STANDARD = {
    "two events": (b"data: a\n\ndata: b\n\n", [event(b"a"), event(b"b")]),
    "lines of data are joined": (b"data: YHOO\ndata: +2\ndata: 10\n\n", [event(b"YHOO\n+2\n10")]),
    "comment, then ids": (
        b": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n",
        [
            SseComment(b" test stream"),
            event(b"first event", last_id="1"),
            event(b"second event"),
            event(b" third event"),
        ],
    ),
    "empty data": (b"data\n\ndata\ndata\n\ndata:", [event(b""), event(b"\n"), event(b"", whole=False)]),
    "one space is dropped": (
        b"data:test\n\ndata: test\n\ndata:  test\n\n",
        [event(b"test"), event(b"test"), event(b" test")],
    ),
    "event names last for one event": (b"event: add\ndata: 1\n\ndata: 2\n\n", [event(b"1", "add"), event(b"2")]),
    "a name without data gives nothing": (b"event: add\n\ndata: 2\n\n", [event(b"2")]),
    "an id stays in force": (b"id: 7\ndata: a\n\ndata: b\n\n", [event(b"a", last_id="7"), event(b"b", last_id="7")]),
    "an id with a null is ignored": (b"id: 7\nid: a\0b\ndata: a\n\n", [event(b"a", last_id="7")]),
    "retry": (b"retry: 250\nretry: 2s\nretry:\ndata: a\n\n", [SseRetry(250), event(b"a")]),
    "retry beyond reason is ignored": (b"retry: " + b"9" * 5000 + b"\ndata: a\n\n", [event(b"a")]),
    "a colon in the value": (b"data: a: b\n\n", [event(b"a: b")]),
    "one byte order mark": (b"\xef\xbb\xbfdata: a\n\n", [event(b"a")]),
    "a second byte order mark is not dropped": (
        b"\xef\xbb\xbf\xef\xbb\xbfdata: a\n\n",
        [SseUnknownLine(b"\xef\xbb\xbfdata: a", whole=True)],
    ),
    "a byte order mark in the middle is not dropped": (
        b"\n\xef\xbb\xbfdata: a\n\n",
        [SseUnknownLine(b"\xef\xbb\xbfdata: a", whole=True)],
    ),
    "carriage returns": (b"data: a\rdata: b\r\rdata: c\r\r", [event(b"a\nb"), event(b"c")]),
    "carriage return and line feed": (b"data: a\r\ndata: b\r\n\r\ndata: c\r\n\r\n", [event(b"a\nb"), event(b"c")]),
    "mixed line ends": (b"data: a\r\n\rdata: b\n\r\n", [event(b"a"), event(b"b")]),
    "the last event without its blank line": (b"data: a\n\ndata: b", [event(b"a"), event(b"b", whole=False)]),
    "names that are nearly fields": (
        b"Data: a\n data: b\ndatax: c\n\n",
        [
            SseUnknownLine(b"Data: a", whole=True),
            SseUnknownLine(b" data: b", whole=True),
            SseUnknownLine(b"datax: c", whole=True),
        ],
    ),
    "an error field": (b'error: {"code":500}\n\n', [SseUnknownLine(b'error: {"code":500}', whole=True)]),
    "an unknown line at the end": (b"gone", [SseUnknownLine(b"gone", whole=False)]),
    "nothing": (b"", []),
    "blank lines": (b"\n\r\n\r\n\n", []),
    "bytes that are no UTF-8 stay as they are": (b"data: \xff\xfe\n\n", [event(b"\xff\xfe")]),
    "a name that is no UTF-8": (b"event: \xff\ndata: a\n\n", [event(b"a", "\ufffd")]),
}


@pytest.mark.requirement("codecs:sse:standard")
@pytest.mark.parametrize("size", [0, 1, 2, 3])
@pytest.mark.parametrize("case", STANDARD)
def test_a_stream_reads_as_the_standard_says(case: str, size: int) -> None:
    data, expected = STANDARD[case]
    assert items_of(data, size) == expected


PIECES: list[bytes] = [
    b"data",
    b"event",
    b"id",
    b"retry",
    b"error",
    b":",
    b" ",
    b"\n",
    b"\r",
    b"\r\n",
    b"\n\n",
    b"\xef\xbb\xbf",
    b"\0",
    b"data: {}\n\n",
    b": hi\n",
    b"7",
    "é€🧜".encode(),
    b"\xf0\x9f",
    b"\xff",
    b"x" * 20,
]


@pytest.mark.requirement("codecs:sse:any-cut")
@settings(deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map(b"".join), st.integers(0, 400), st.data())
def test_however_a_stream_is_cut_it_gives_the_same_items(data: bytes, longest: int, draw: st.DataObject) -> None:
    limits = {"line_bytes": 64, "event_bytes": 100, "stream_bytes": longest}
    expected = items_of(data, **limits)
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8)))
    decoder = SseDecoder(StreamLimits(**limits))
    items: list[SseItem] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        items += decoder.feed(data[start:end])
    assert items + decoder.close() == expected
    assert items_of(data, 1, **limits) == expected


@pytest.mark.requirement("codecs:sse:limits")
@pytest.mark.parametrize("size", [0, 1, 7])
@pytest.mark.parametrize("ending", [b"", b"\n\n", b"\r\n\r\n"])
def test_a_line_may_fill_its_limit_and_no_more(size: int, ending: bytes) -> None:
    longest = b"data: " + b"x" * 26
    whole = bool(ending)
    assert items_of(longest + ending, size, line_bytes=32) == [event(b"x" * 26, whole=whole)]
    (fault,) = items_of(longest + b"x" + ending, size, line_bytes=32)
    assert fault == SseFault("line_too_long", "a line of the event stream is longer than 32 bytes")


@pytest.mark.requirement("codecs:sse:limits")
@pytest.mark.parametrize("size", [0, 1, 7])
def test_an_event_of_many_lines_has_a_limit_of_its_own(size: int) -> None:
    (fault,) = items_of(b"data: 12345678\n" * 4 + b"\n" + b"data: later\n\n", size, line_bytes=32, event_bytes=32)
    assert fault == SseFault("event_too_long", "an event of the stream is longer than 32 bytes")


@pytest.mark.requirement("codecs:sse:limits")
@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_stream_may_fill_its_limit_and_no_more(size: int) -> None:
    data = b"data: a\n\n: quiet\n"
    assert items_of(data, size, stream_bytes=len(data)) == [event(b"a"), SseComment(b" quiet")]
    items = items_of(data + b"\n", size, stream_bytes=len(data))
    fault = SseFault("stream_too_long", "the event stream is longer than 17 bytes")
    assert items == [event(b"a"), SseComment(b" quiet"), fault]


def test_what_came_before_a_limit_was_passed_is_given() -> None:
    items = items_of(b"data: a\n\n" + b"x" * 40 + b"\ndata: b\n\n", line_bytes=32)
    assert items[0] == event(b"a")
    assert [type(item) for item in items] == [SseEvent, SseFault]


def test_nothing_is_given_after_a_fault_or_the_close() -> None:
    decoder = SseDecoder(StreamLimits(line_bytes=8))
    assert isinstance(decoder.feed(b"x" * 9)[0], SseFault)
    assert decoder.feed(b"\ndata: a\n\n") == []
    assert decoder.close() == []
    closed = SseDecoder()
    assert closed.close() == []
    assert closed.feed(b"data: a\n\n") == []


class CountingBuffer(bytearray):
    """Counts the bytes that go in and the bytes that are copied out."""

    taken = 0
    given = 0

    def __iadd__(self, piece: bytes) -> Self:  # type: ignore[override, misc]
        CountingBuffer.taken += len(piece)
        self.extend(piece)
        return self

    def __bytes__(self) -> bytes:
        CountingBuffer.given += len(self)
        return bytes(memoryview(self))


@pytest.mark.requirement("codecs:sse:linear")
@pytest.mark.parametrize("size", [1, 16, 4096])
def test_each_byte_of_a_long_line_is_copied_in_once_and_out_once(size: int) -> None:
    line = b"data: " + b"x" * 200_000
    decoder = SseDecoder()
    decoder._pending = CountingBuffer()
    CountingBuffer.taken = CountingBuffer.given = 0
    for start in range(0, len(line), size):
        assert decoder.feed(line[start : start + size]) == []
    assert decoder.feed(b"\n\n") == [event(line[6:])]
    assert CountingBuffer.taken == len(line)
    assert CountingBuffer.given == len(line)
