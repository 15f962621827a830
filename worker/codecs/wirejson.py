r"""JSON as peers really send it.

What belongs here: how the JSON of a stream is read, and what becomes of characters that were cut in two. What must
not be known here: which fields mean what.

Whole and valid JSON takes the fast path. Three flaws are read all the same, because nothing of the answer is in
doubt: NaN and infinities (log probabilities), bytes that are not UTF-8 (replaced, as the SSE standard asks), and
`\ud83d` escapes without their other half (a proxy that cuts text by UTF-16 units). Everything else is an error, and so
is JSON nested deeper than `MAX_DEPTH`: whatever walks through a value later may do so by recursion.
"""

import json

import orjson

MAX_DEPTH = 128
"""How deep objects and lists of a peer's JSON may be nested."""

_MOST_FLAWED_BYTES = 2 * 1024 * 1024
_MOST_FLAWED_VALUES = 128 * 1024
"""What is longer, or of more values, and has a flaw is no JSON: it is repaired value by value, which takes long."""
_VALUE_MARKS = (b"[", b"{", b",", b":", b"\\ud", b"\\uD")
"""Begin a value, a key or a half character: each of them costs about the same."""
_HIGH_HALVES = ("\ud800", "\udbff")


def parse(data: bytes, pieces_below: tuple[str, ...] | None = None) -> tuple[object, bool]:
    """The JSON value of `data`, and whether it had a flaw. Raises ValueError when it is no JSON.

    `pieces_below`: the keys on the way to where a flawed value may keep halves of a surrogate pair, as its strings
    there are pieces of a longer text; lists on the way do not count. Everywhere else halves become U+FFFD.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError:
        return _repaired(_flawed(data), pieces_below), True
    if len(data) > 2 * MAX_DEPTH and data.count(b"[") + data.count(b"{") > MAX_DEPTH:  # else it cannot be too deep
        _check_depth(value)
    return value, False


def is_nested_deeper(value: object, depth: int) -> bool:
    """Whether objects and lists of `value` are nested deeper than `depth`."""
    level = [value]
    for _ in range(depth + 1):
        nested = [entry for entry in level if isinstance(entry, dict | list)]
        if not nested:
            return False
        level = [below for entry in nested for below in (entry.values() if isinstance(entry, dict) else entry)]
    return True


def well_formed(text: str) -> str:
    """`text` as UTF-8 can carry it: pairs of surrogates joined, lone ones replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class HalfCharacter:
    """Joins the two halves of a character that came in two pieces of text."""

    def __init__(self) -> None:
        self._held = ""

    def join(self, text: str) -> str:
        """`text` after what was held back; a first half at its end is held for the next piece."""
        text = self._held + text
        self._held = ""
        if text and _HIGH_HALVES[0] <= text[-1] <= _HIGH_HALVES[1]:
            self._held = text[-1]
            text = text[:-1]
        return well_formed(text)

    def rest(self) -> str:
        """What is still held when nothing more can come: U+FFFD, or nothing."""
        return well_formed(self._held)


def _flawed(data: bytes) -> object:
    if len(data) > _MOST_FLAWED_BYTES:
        raise ValueError(f"no JSON, or JSON with a flaw and longer than {_MOST_FLAWED_BYTES} bytes")
    if sum(map(data.count, _VALUE_MARKS)) > _MOST_FLAWED_VALUES:
        raise ValueError(f"no JSON, or JSON with a flaw and of more than {_MOST_FLAWED_VALUES} values")
    try:
        value = json.loads(data.decode("utf-8", "replace"))
    except RecursionError:
        raise _too_deep() from None
    _check_depth(value)
    return value


def _check_depth(value: object) -> None:
    if is_nested_deeper(value, MAX_DEPTH):
        raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"JSON nested deeper than {MAX_DEPTH} levels")


def _repaired(value: object, way: tuple[str, ...] | None) -> object:
    if isinstance(value, str):
        return value if way == () else well_formed(value)
    if isinstance(value, list):
        return [_repaired(entry, way) for entry in value]
    if isinstance(value, dict):
        return {well_formed(key): _repaired(entry, _below(key, way)) for key, entry in value.items()}
    return value


def _below(key: str, way: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if not way:
        return way
    return way[1:] if way[0] == key else None
