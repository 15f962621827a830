"""Server-sent events, as the WHATWG HTML standard reads them: bytes in, items out.

What belongs here: lines, fields, events and the limits on them. What must not be known here: JSON, providers, turns.

Three things go beyond the standard, because real servers need them. Comments are reported: they prove that the
connection lives. Lines with a field the standard does not know are reported instead of dropped: an old llama.cpp
says `error: {...}` so, and a body that is no event stream consists of nothing else. An event that the end of the
stream left without its blank line is given by `close`, marked as not whole.

Data stays bytes; a reader that wants text decodes it as UTF-8 with replacement. Work and memory are linear in the
bytes fed, however they are cut.
"""

from typing import NamedTuple

from worker.codecs.limits import DEFAULT_LIMITS, StreamLimits

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_FEED = 0x0A
_COLON = 0x3A
_LONGEST_RETRY = 15
_new = tuple.__new__
_MOST_LINES = 100_000
"""Data lines of one event: an empty one costs more memory than the bytes that are counted."""


class SseEvent(NamedTuple):
    """One event. `name` is empty where the stream gave none. A tuple, as one is made for every chunk.

    `data`: the data lines, joined by line feeds. `last_id`: the id in force. `whole` is False when the stream ended
    before the blank line, so that the last line may be cut.
    """

    name: str
    data: bytes
    last_id: str
    whole: bool


class SseComment(NamedTuple):
    """A line that began with a colon. `text` is what follows it."""

    text: bytes


class SseRetry(NamedTuple):
    """The reconnection time that the peer asked for."""

    milliseconds: int


class SseUnknownLine(NamedTuple):
    """A line whose field the standard does not know. `whole` is False when the stream ended inside it."""

    line: bytes
    whole: bool


class SseFault(NamedTuple):
    """The stream passed a limit; nothing more of it is read. `code`: that limit's, see `StreamLimits`."""

    code: str
    message: str


SseItem = SseEvent | SseComment | SseRetry | SseUnknownLine | SseFault


class SseDecoder:
    """Reads one stream. Of `limits` those of a line, of the data of an event and of the whole stream hold here."""

    def __init__(self, limits: StreamLimits = DEFAULT_LIMITS) -> None:
        self._line_bytes = limits.line_bytes
        self._event_bytes = limits.event_bytes
        self._stream_bytes = limits.stream_bytes
        self._bytes_left = limits.stream_bytes
        self._pending = bytearray()
        self._after_carriage_return = False
        self._at_start = True
        self._closed = False
        self._name = ""
        self._last_id = ""
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, data: bytes) -> list[SseItem]:
        """Take the next bytes, cut anywhere; give what they complete, in order. Never raises."""
        if self._closed or not data:
            return []
        items: list[SseItem] = []
        fits = data[: self._bytes_left]  # read all the same, so that it does not matter how the bytes are cut
        self._bytes_left -= len(fits)
        if fits:
            self._read(fits, items)
        if len(fits) < len(data) and not self._closed:
            self._passed("stream_too_long", f"the event stream is longer than {self._stream_bytes} bytes", items)
        return items

    def close(self) -> list[SseItem]:
        """The stream ended: give what it left unfinished. Nothing is given after that."""
        if self._closed:
            return []
        items: list[SseItem] = []
        if self._pending:
            self._take_line(bytes(self._pending), items, whole=False)
        if not self._closed:
            self._dispatch(items, whole=False)
        self._closed = True
        return items

    def _read(self, data: bytes, items: list[SseItem]) -> None:
        lines = self._with_line_feeds(data).split(b"\n")
        rest = lines.pop()
        if lines and self._pending:
            self._pending += lines[0]
            lines[0] = bytes(self._pending)
            self._pending.clear()
        for line in lines:
            # What streams are full of is taken here and now: calls would cost half as much again.
            if not line:
                self._at_start = False
                if len(self._data) == 1:
                    items.append(_new(SseEvent, (self._name, self._data.pop(), self._last_id, True)))
                    self._data_bytes = 0
                    self._name = ""
                else:
                    self._dispatch(items, whole=True)
                continue
            if self._at_start or len(line) > self._line_bytes:
                self._take_line(line, items, whole=True)
            elif line.startswith(b"data: "):
                self._take_data(line[6:], items)
            elif line.startswith(b"event: "):
                self._name = line[7:].decode("utf-8", "replace")
            else:
                self._take_line(line, items, whole=True)
            if self._closed:
                return
        self._pending += rest
        if len(self._pending) > self._line_bytes:
            self._line_too_long(items)

    def _with_line_feeds(self, data: bytes) -> bytes:
        if self._after_carriage_return:
            self._after_carriage_return = False
            if data[0] == _LINE_FEED:
                data = data[1:]
        if b"\r" in data:
            self._after_carriage_return = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        return data

    def _take_line(self, line: bytes, items: list[SseItem], *, whole: bool) -> None:
        if len(line) > self._line_bytes:
            self._line_too_long(items)
            return
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line:
                return
        if line[0] == _COLON:
            items.append(SseComment(line[1:]))
        else:
            self._take_field(line, items, whole=whole)

    def _take_field(self, line: bytes, items: list[SseItem], *, whole: bool) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._take_data(value, items)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")
        elif field == b"id":
            if b"\0" not in value:
                self._last_id = value.decode("utf-8", "replace")
        elif field == b"retry":
            if value.isdigit() and len(value) <= _LONGEST_RETRY:
                items.append(SseRetry(int(value)))
        else:
            items.append(SseUnknownLine(line, whole))

    def _take_data(self, value: bytes, items: list[SseItem]) -> None:
        self._data.append(value)
        self._data_bytes += len(value) + 1
        if self._data_bytes > self._event_bytes:
            message = f"an event of the stream is longer than {self._event_bytes} bytes"
            self._passed("event_too_long", message, items)
        elif len(self._data) > _MOST_LINES:
            message = f"an event of the stream has more than {_MOST_LINES} lines"
            self._passed("event_too_long", message, items)

    def _dispatch(self, items: list[SseItem], *, whole: bool) -> None:
        if self._data:
            data = self._data[0] if len(self._data) == 1 else b"\n".join(self._data)
            items.append(SseEvent(self._name, data, self._last_id, whole))
            self._data.clear()
            self._data_bytes = 0
        self._name = ""

    def _line_too_long(self, items: list[SseItem]) -> None:
        self._passed("line_too_long", f"a line of the event stream is longer than {self._line_bytes} bytes", items)

    def _passed(self, code: str, message: str, items: list[SseItem]) -> None:
        self._closed = True
        items.append(SseFault(code, message))
