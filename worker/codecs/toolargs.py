"""Tool calls from their pieces.

What belongs here: to which call a piece belongs, and when arguments are whole. What must not be known here: wire
formats, tools, turns. Pieces are joined once, at the end, so the work is linear in their length.
"""

import hashlib
import json
import re
from typing import NamedTuple

from worker.codecs.call_identity import LONGEST, bounded_id
from worker.codecs.events import ToolCall
from worker.codecs.wirejson import well_formed

MAX_DEPTH = 64
"""How deep objects and lists of arguments may be nested: whatever walks through them later may do so by recursion."""

_STRING_OR_BRACKET = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{\]}]', re.DOTALL)


class _Call:
    __slots__ = ("call_id", "index", "length", "name", "pieces", "position")

    def __init__(self, index: int, position: int) -> None:
        self.index = index
        self.position = position
        self.call_id: str | None = None
        self.name: str | None = None
        self.pieces: list[str] = []
        self.length = 0

    def add(self, piece: str, *, unless_repeated: bool) -> int:
        """Take `piece`, or perhaps not if it repeats whole arguments; the characters that were added."""
        if unless_repeated and len(piece) == self.length and piece.startswith("{") and self._is_whole_and_equals(piece):
            return 0
        self.pieces.append(piece)
        self.length += len(piece)
        return len(piece)

    def joined(self) -> str:
        """All pieces so far."""
        self.pieces = ["".join(self.pieces)]
        return self.pieces[0]

    def _is_whole_and_equals(self, piece: str) -> bool:
        return self.joined() == piece and parse_arguments(piece) is not None


class SaidCall(NamedTuple):
    """A tool call as far as its pieces said it. `order`: its index."""

    order: int
    call_id: str | None
    name: str | None
    arguments: str


class ToolCallPieces:
    """The tool calls of one answer, as they come.

    A piece names its call by index, by id, by both or by neither. Ids and names may be repeated and are never joined.
    `repairs`: whole arguments that come once more, as some servers flush them at the end, count once.
    """

    def __init__(self, *, repairs: bool = True) -> None:
        self.size = 0
        """Characters of arguments so far."""
        self._repairs = repairs
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}
        self._by_id: dict[str, _Call] = {}

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, index: int | None, call_id: str | None, name: str | None, arguments: str) -> int:
        """Take one piece; the place of the call it belongs to, in the order in which the calls were opened."""
        call = self._find(index, call_id, name)
        if call is None:
            place = len(self._calls)
            call = _Call(place if index is None else index, place)
            self._calls.append(call)
            self._by_index[call.index] = call
        if call_id and call.call_id is None:
            call.call_id = call_id
            self._by_id[call_id] = call
        if name and call.name is None:
            call.name = name
        if arguments:
            self.size += call.add(arguments, unless_repeated=self._repairs)
        return call.position

    def said(self) -> list[SaidCall]:
        """The calls as the pieces said them, in the order in which they were opened."""
        return [SaidCall(call.index, call.call_id, call.name, well_formed(call.joined())) for call in self._calls]

    def add_rest(self, place: int, call_id: str | None, name: str | None, rest: str) -> None:
        """Take what the call at `place` lacked."""
        call = self._calls[place]
        call.call_id = call.call_id or call_id
        call.name = call.name or name
        self.size += call.add(rest, unless_repeated=False)

    def _find(self, index: int | None, call_id: str | None, name: str | None) -> _Call | None:
        if index is None:
            found = self._by_id.get(call_id) if call_id else None
        else:
            found = self._by_index.get(index)
            if found and call_id and found.call_id not in (None, call_id):
                # Some servers give every call the index 0: then the id tells them apart.
                found = self._by_id.get(call_id)
                return found if found and found.index == index else None
            if found and found.call_id is None and name and found.name not in (None, name):
                return None  # they give it without ids too: then another name opens another call
        if found is None and not call_id and not name and self._calls:
            return self._calls[-1]
        return found

    def calls(self, answer_id: str) -> tuple[ToolCall, ...]:
        """The calls as far as they have come, by index. `answer_id` seeds ids that the peer left out or gave twice."""
        ordered = sorted(self._calls, key=lambda call: call.index)
        given: set[str] = set()
        calls = []
        for position, call in enumerate(ordered):
            call_id = None if call.call_id is None else bounded_id(well_formed(call.call_id))
            if call_id is None or call_id in given:
                call_id = _made_up_id(answer_id, position)
            given.add(call_id)
            arguments = well_formed("".join(call.pieces))
            calls.append(ToolCall(call_id, bounded_name(call.name or ""), arguments, parse_arguments(arguments)))
        return tuple(calls)


def bounded_name(name: str) -> str:
    """A tool's name as it is kept: no tool has one that is too long."""
    return well_formed(name[:LONGEST])


def parse_arguments(text: str) -> dict[str, object] | None:
    """The object that `text` is, or None when it is not whole JSON, no object, or nested deeper than `MAX_DEPTH`.

    Empty text and `null` are `{}`. The same for the same text, always: the journal keeps only the text.
    """
    if not text.strip():
        return {}
    if _is_too_deep(text):
        return None
    try:
        # Not orjson: it turns integers beyond 64 bits into floats, and these are the arguments of an action.
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False).encode()
    except ValueError:
        return None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def _is_too_deep(text: str) -> bool:
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text):
        if found[0] in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif found[0] in ("]", "}"):
            depth -= 1
    return False


def _made_up_id(answer_id: str, position: int) -> str:
    """The same for the same bytes, and another one in another answer."""
    return "call_" + hashlib.sha256(f"{answer_id}/{position}".encode()).hexdigest()[:16]


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")
