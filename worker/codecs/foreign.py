"""A body that is no event stream, and error lines that stand outside the events of one.

What belongs here: how lines that no event-stream field begins are read. What must not be known here: wire formats,
HTTP. A gateway answers so with status 200: an HTML page, a JSON document, a sentence.
"""

from worker.codecs.events import Failed
from worker.codecs.provider_errors import failure_of
from worker.codecs.sse import SseUnknownLine
from worker.codecs.wirejson import parse

_BODY_BYTES = 64 * 1024
_EXCERPT_CHARS = 200
SENTENCE_BYTES = 8192
"""How much is kept of an error that is no JSON."""
_MOST_LINES = 100_000
_MOST_TRIES = 64
"""Lines of a stream that are tried as an error document of their own."""
_CUT_FIELDS = (b"data", b"event", b"id", b"retry", b"error", b"\xef\xbb\xbf")


class ForeignLines:
    """Reads the unknown lines of one stream. `raw_error`: the error object that they held.

    `document_bytes`: how long a body that begins as a JSON object may grow. `has_body`: so far the body is something
    else than an event stream.
    """

    def __init__(self, document_bytes: int) -> None:
        self.raw_error: object = None
        self.has_body = False
        self._document_bytes = document_bytes
        self._body: list[bytes] | None = []
        self._body_bytes = 0
        self._tries = 0
        self._saw_comment = False

    def saw_stream(self) -> None:
        """A field or an event came: the body is an event stream after all."""
        self._body = None
        self.has_body = False

    def saw_comment(self) -> None:
        """A comment came. What follows may still be one JSON object: some servers write comments while they wait."""
        self._saw_comment = True
        if self._body and not self._body[0].startswith(b"{"):
            self.saw_stream()

    def take(self, item: SseUnknownLine) -> Failed | None:
        """The failure that the line alone tells, if any."""
        line = item.line.strip()
        field, colon, value = line.partition(b":")
        if field == b"error" and colon:
            return self._error_field(value.strip(), whole=item.whole)
        if line.startswith(b"{") and line.endswith(b"}") and self._tries < _MOST_TRIES:
            self._tries += 1
            if failure := self._error_document(line):
                return failure
        if not line or (not item.whole and any(name.startswith(line) for name in _CUT_FIELDS)):
            return None
        if self._saw_comment and not self._body and not line.startswith(b"{"):
            self.saw_stream()
        return self._add(line)

    def document(self) -> dict[str, object] | None:
        """The one JSON object that the body is, once the stream is over. None where it is no object, or an error."""
        document = self._parsed()
        return document if isinstance(document, dict) and not error_in(document) else None

    def end(self) -> Failed | None:
        """The failure that the body as a whole tells, once the stream is over. None where it was cut inside JSON."""
        if not self._body:
            return None
        body = b"\n".join(self._body)
        if failure := self._error_document(body):
            return failure
        return None if body.startswith(b"{") and self._parsed() is None else _not_a_stream(body)

    def _parsed(self) -> object:
        if not self._body:
            return None
        try:
            return parse(b"\n".join(self._body))[0]
        except ValueError:
            return None

    def _add(self, line: bytes) -> Failed | None:
        if self._body is None:
            return None
        self._body.append(line)
        self.has_body = True
        self._body_bytes += len(line) + 1
        if line.startswith(b"<"):
            return _not_a_stream(line)
        if not self._body[0].startswith(b"{"):
            return _not_a_stream(self._body[0]) if self._body_bytes > _BODY_BYTES else None
        if self._body_bytes > self._document_bytes:
            return Failed("protocol", f"the answer is longer than {self._document_bytes} bytes", "event_too_long")
        if len(self._body) > _MOST_LINES:
            return Failed("protocol", f"the answer has more than {_MOST_LINES} lines", "event_too_long")
        return None

    def _error_field(self, value: bytes, *, whole: bool) -> Failed | None:
        try:
            error, _ = parse(value)
        except ValueError:
            if not whole:
                return None
            error = value[:SENTENCE_BYTES].decode("utf-8", "replace")
        around = error if isinstance(error, dict) else {}
        self.raw_error = around.get("error") or error
        return failure_of(self.raw_error, around)

    def _error_document(self, body: bytes) -> Failed | None:
        try:
            document, _ = parse(body)
        except ValueError:
            return None
        error = error_in(document)
        if not error:
            return None
        self.raw_error = error
        return failure_of(error, document if isinstance(document, dict) else None)


def error_in(document: object) -> object:
    """The error that a JSON document holds or is, or None."""
    if not isinstance(document, dict):
        return None
    is_error = document.get("object") == "error" or document.get("type") == "error"
    return document.get("error") or (document if is_error else None)


def _not_a_stream(body: bytes) -> Failed:
    excerpt = body[: 4 * _EXCERPT_CHARS].decode("utf-8", "replace")[:_EXCERPT_CHARS]
    return Failed("refused", f"the answer is not an event stream; it begins: {excerpt}", "not_a_stream")
