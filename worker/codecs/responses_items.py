"""One item of a Responses answer: what was announced, what was streamed, and how it was completed.

What belongs here: the rules between an item's announcement, its streamed texts, its final form and its repetition at
the end. What must not be known here: other items, the order of events, repairs.
"""

from worker.codecs.call_identity import bounded_id
from worker.codecs.events import ToolCall
from worker.codecs.limits import RuleBrokenError
from worker.codecs.responses_fields import Fields, name_in, objects_in, text_in, text_or_none, wrong_type
from worker.codecs.responses_parts import BY_PART, CALLS, INDEX_OF, MESSAGE, PLACES, REASONING, Channel, Streamed
from worker.codecs.toolargs import MAX_DEPTH, bounded_name, parse_arguments
from worker.codecs.wirejson import is_nested_deeper

_PART_FIELDS = {"type", "text"}
_NOT_WHOLE = ("incomplete", "failed", "cancelled")
_STREAMING = (*CALLS, MESSAGE, REASONING)


class Item:
    """An item that was announced. `parts`: its texts, by place and index. `final`: its form when it was done.

    `whole`: it was done, and no form of it says that it was cut off.
    """

    __slots__ = ("call_id", "final", "index", "item_id", "kind", "name", "parts", "whole")

    def __init__(self, index: int, announced: Fields, *, strict: bool) -> None:
        """Raises RuleBrokenError where `announced` is no announcement. Its texts are taken as already streamed."""
        _check_depth(announced)
        self.index = index
        self.kind = _identity(announced, "type")
        self.item_id = _identity(announced, "id")
        self.call_id = ""
        self.name = ""
        self.final: Fields | None = None
        self.whole = False
        self.parts: dict[str, dict[int, Streamed]] = {place: {} for place in PLACES.get(self.kind, ())}
        _check_announced(announced, self.kind, strict=strict)
        if self.kind in CALLS:
            read = _identity if strict else _identity_or_empty
            self.call_id, self.name = read(announced, "call_id"), read(announced, "name")
        for place in self.parts:
            self._seed(place, announced, strict=strict)

    def channel(self, place: str, part: Fields) -> Channel:
        """What a part of this item streams. Raises RuleBrokenError for a part that it cannot have."""
        channel = BY_PART.get(name_in(part, "type") or "")
        if channel is None or channel.holder != self.kind or channel.place != place:
            raise RuleBrokenError("kind_mismatch", f"an item of type {self.kind[:80]} has no such part in its {place}")
        return channel

    def complete(self, given: Fields) -> None:
        """The item is done. Raises RuleBrokenError when that is not what was announced and streamed."""
        _check_depth(given)
        self._check_identity(given, "item_changed")
        if self.kind in CALLS:
            self.call_id, self.name = self._final(given, "call_id", self.call_id), self._final(given, "name", self.name)
            if self.call_id == self.item_id:
                raise RuleBrokenError("identity_taken", "call_id must not be the id of the item")
        for parts in self.parts.values():
            if not all(part.closed for part in parts.values()):
                raise RuleBrokenError("part_open", "the item is done before all its parts are")
        self._check_texts(given, empty_reasoning=True)
        self.final = given
        self.whole = given.get("status") not in _NOT_WHOLE

    def check_repeated(self, given: Fields, *, strict: bool) -> None:
        """The item is repeated at the end. Raises RuleBrokenError when it is another one."""
        self._check_identity(given, "output_changed")
        if self.kind in CALLS and (given.get("call_id"), given.get("name")) != (self.call_id, self.name):
            raise RuleBrokenError("output_changed", "call_id and name of an item must be those that were streamed")
        self._check_texts(given, empty_reasoning=not strict)
        self.whole = self.whole and given.get("status") not in _NOT_WHOLE

    def as_call(self) -> ToolCall:
        """The tool call as far as it has come."""
        text = self.parts[PLACES[self.kind][0]][0].value()
        # A call that was cut asks for nothing, nor does one that nobody has said anything of yet; and a free text is no
        # object even if it reads so.
        readable = self.kind == CALLS[0] and (self.whole or (self.final is None and bool(text.strip())))
        arguments = parse_arguments(text) if readable else None
        return ToolCall(bounded_id(self.call_id), bounded_name(self.name), text, arguments)

    def _seed(self, place: str, announced: Fields, *, strict: bool) -> None:
        if place not in INDEX_OF:
            part = Streamed(BY_PART[place])
            part.declared = True
            part.add(text_or_none(announced, place) or "", halves=False)
            self.parts[place][0] = part
            return
        for index, entry in enumerate(objects_in(announced, place)):
            check_part(entry, self.kind, strict=strict)
            part = Streamed(self.channel(place, entry))
            part.add(text_in(entry, part.channel.value), halves=False)
            self.parts[place][index] = part

    def _check_identity(self, given: Fields, code: str) -> None:
        if given.get("type") != self.kind:
            raise RuleBrokenError(code, "the type of an item must be the one that was announced")
        if given.get("id") != self.item_id:
            raise RuleBrokenError(code, "the id of an item must be the one that was announced")
        if self.kind == MESSAGE and given.get("role") != "assistant":
            raise RuleBrokenError("wrong_role", "the role of a message must be assistant")

    def _final(self, given: Fields, key: str, announced: str) -> str:
        value = name_in(given, key)
        if value is None:
            raise RuleBrokenError("no_identity", f"a tool call that is done must have a {key}")
        if announced not in ("", value):
            raise RuleBrokenError("item_changed", f"the {key} of a tool call must be the one that was announced")
        return value

    def _check_texts(self, given: Fields, *, empty_reasoning: bool) -> None:
        for place, parts in self.parts.items():
            if place not in INDEX_OF:
                parts[0].check(text_in(given, place))
                continue
            entries = objects_in(given, place)
            if self.kind == MESSAGE and given.get(place) is None:
                raise wrong_type(place, "a list", None)
            if self.kind == REASONING and not entries and empty_reasoning:
                continue  # what was streamed stands
            if len(entries) != len(parts):
                raise RuleBrokenError("content_changed", f"the {place} must have as many parts as were streamed")
            for index, entry in enumerate(entries):
                part = parts.get(index)
                if part is None or entry.get("type") != part.channel.part:
                    raise RuleBrokenError("content_changed", f"the parts of the {place} must be those streamed")
                part.check(text_in(entry, part.channel.value))


def check_part(part: Fields, kind: str, *, strict: bool) -> None:
    """Raises RuleBrokenError when a part of a reasoning item has more than its type and its text."""
    if strict and kind == REASONING and set(part) != _PART_FIELDS:
        raise RuleBrokenError("part_fields", "a part of a reasoning item has a type and a text, and nothing else")


def _check_depth(item: Fields) -> None:
    """The item may have to go back to its provider, inside a request that can be written."""
    if is_nested_deeper(item, MAX_DEPTH + 1):
        raise RuleBrokenError("nested_too_deep", f"an item must not be nested deeper than {MAX_DEPTH} levels")


def _check_announced(announced: Fields, kind: str, *, strict: bool) -> None:
    if kind == MESSAGE and announced.get("role") != "assistant":
        raise RuleBrokenError("wrong_role", "the role of a message must be assistant")
    if kind == REASONING:
        text_or_none(announced, "encrypted_content")
    if strict and kind in _STREAMING and announced.get("status") not in (None, "in_progress"):
        raise RuleBrokenError("item_status", "the status of an item that is announced must be in_progress")


def _identity(announced: Fields, key: str) -> str:
    value = name_in(announced, key)
    if value is None:
        raise RuleBrokenError("item_incomplete", f"an item that is announced must have a {key}")
    return value


def _identity_or_empty(announced: Fields, key: str) -> str:
    return text_or_none(announced, key) or ""
