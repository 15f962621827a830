r"""JSON as peers really send it.

What belongs here: how the JSON of a stream is read, and what becomes of characters that were cut in two. What must
not be known here: which fields mean what.

Whole and valid JSON takes the fast path. Three flaws are read all the same, because nothing of the answer is in
doubt: NaN and infinities (log probabilities), bytes that are not UTF-8 (replaced, as the SSE standard asks), and
`\ud83d` escapes without their other half (a proxy that cuts text by UTF-16 units). Everything else is an error.
"""

import json

import orjson

_HIGH_HALVES = ("\ud800", "\udbff")


def parse(data: bytes, pieces_below: tuple[str, ...] | None = None) -> tuple[object, bool]:
    """The JSON value of `data`, and whether it had a flaw. Raises ValueError when it is no JSON.

    `pieces_below`: the keys on the way to where a flawed value may keep halves of a surrogate pair, as its strings
    there are pieces of a longer text; lists on the way do not count. Everywhere else halves become U+FFFD.
    """
    try:
        return orjson.loads(data), False
    except orjson.JSONDecodeError:
        pass
    try:
        return _repaired(json.loads(data.decode("utf-8", "replace")), pieces_below), True
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None


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
