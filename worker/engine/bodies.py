"""What the start of a body says that is no event stream: a page, lines of JSON, one JSON document.

What belongs here: looks at bytes, each of bounded cost. What must not be known here: sockets, wire formats, what a
document means.
"""

import orjson

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_PARSED_BYTES = 4_000_000
_TAIL_BYTES = 64


def first_byte(start: bytes | bytearray) -> bytes:
    """The first byte of a body that is no white space; empty where none has come yet."""
    return (
        bytes(start[:_TAIL_BYTES] if start[:1].strip() else start).lstrip().removeprefix(_BYTE_ORDER_MARK).lstrip()[:1]
    )


class DocumentWatch:
    """Says of one growing body whether it is a whole JSON document, though its peer may not have ended it.

    It parses 4 MB in all, however often it is asked; after that it says no.
    """

    def __init__(self) -> None:
        self._left = _PARSED_BYTES

    def is_whole(self, body: bytes | bytearray) -> bool:
        """Whether `body`, the whole of what came so far, is one JSON object or list. Other JSON may always go on."""
        if bytes(body[-_TAIL_BYTES:]).rstrip()[-1:] not in (b"}", b"]") or len(body) > self._left:
            return False
        if first_byte(body) not in (b"{", b"["):
            return False
        self._left -= len(body)
        return _parses(bytes(body).strip().removeprefix(_BYTE_ORDER_MARK))


class LinesWatch:
    """Says of one growing body whether it is JSON objects line by line (NDJSON), which no wire format here streams."""

    def __init__(self) -> None:
        self._decided: bool | None = None

    def is_lines(self, body: bytes | bytearray) -> bool:
        """Whether the first line of `body` is a whole object and another one begins below it."""
        if self._decided is None:
            line, _, rest = bytes(body).lstrip().partition(b"\n")
            below = rest.lstrip()[:1]
            if below or (line and not line.startswith(b"{")):
                self._decided = below == b"{" and line.startswith(b"{") and _parses(line)
        return bool(self._decided)


def _parses(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True
