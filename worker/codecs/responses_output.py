"""The output of a Responses answer: its items as their events come, told in our words.

What belongs here: which event may come when, and what it says. What must not be known here: the events of the response
as a whole, repairs.

One check for both profiles: `compat` brings its events into the documented form before. `strict` decides only where
that form has nothing to repair with: identities that come later, and fields that mean nothing to the answer.
"""

from collections.abc import Iterable
from sys import maxsize

from worker.codecs.answer_text import AnswerText
from worker.codecs.events import (
    ReasoningDelta,
    RefusalDelta,
    StreamEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallCompleted,
    ToolCallOpened,
)
from worker.codecs.limits import LimitPassedError, RuleBrokenError, StreamLimits
from worker.codecs.responses_fields import Fields, index_in, object_in, objects_in, text_in
from worker.codecs.responses_items import Item, check_part
from worker.codecs.responses_order import TextOrder
from worker.codecs.responses_parts import (
    CALLS,
    DELTAS,
    INDEX_OF,
    MESSAGE,
    PART_ADDED,
    PART_DONE,
    REASONING,
    VALUES,
    Channel,
    Streamed,
)
from worker.codecs.toolargs import bounded_name

ITEM_ADDED = "response.output_item.added"
ITEM_DONE = "response.output_item.done"
_MOST_PARTS = 8192
_LAST_PART = maxsize


class Output:
    """Takes the events of items. `halves`: from now on a delta may end in the first half of a character."""

    def __init__(self, limits: StreamLimits, text: AnswerText, *, strict: bool) -> None:
        self.halves = False
        self.items: dict[int, Item] = {}
        """By output index."""
        self.open: dict[str, dict[int, Item]] = {}
        """Those that are not done, by type and output index."""
        self.next_index = 0
        """The first index that no item has, nor any after it."""
        self._limits = limits
        self._strict = strict
        self._text = text
        self._order = TextOrder(text, limits.text_chars)
        self._identities: set[str] = set()
        self._parts = 0
        self._argument_chars = 0
        self._last_part: tuple[Item, int, Streamed]
        self._calls = 0

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come, by output index."""
        return tuple(item.as_call() for item in self.in_order() if item.kind in CALLS)

    def in_order(self) -> Iterable[Item]:
        """The items by output index."""
        return (self.items[index] for index in sorted(self.items))

    def take(self, kind: str, event: Fields, events: list[StreamEvent]) -> None:
        """One event of type `kind`. Raises RuleBrokenError."""
        if kind in DELTAS:
            self._take_delta(event, DELTAS[kind], events)
        elif kind in VALUES:
            self._take_value(event, VALUES[kind], events)
        elif kind in PART_ADDED:
            self._declare(event, PART_ADDED[kind], events)
        elif kind in PART_DONE:
            self._close_part(event, PART_DONE[kind])
        elif kind == ITEM_ADDED:
            self._announce(event, events)
        elif kind == ITEM_DONE:
            self._complete(event, events)
        elif kind.startswith("response.reasoning"):
            raise RuleBrokenError("unsupported_reasoning", "reasoning comes as summary or as text, in no other events")
        elif event.get("output_index") is not None:
            self._open_item(event, needs_id="item_id" in event)

    def take_more(self, delta: str, events: list[StreamEvent]) -> None:
        """The next piece of the text that the last delta was a piece of. Raises RuleBrokenError."""
        item, index, part = self._last_part
        self._say(item, index, part, part.add(delta, halves=self.halves), events)

    def check_output(self, response: Fields, *, needed: bool) -> None:
        """The answer is whole. Raises RuleBrokenError when its items are not, or the response has others.

        `needed`: the response must have an output.
        """
        if any(item.final is None for item in self.items.values()):
            raise RuleBrokenError("item_open", "the response ends before all its items are done")
        if response.get("output") is None:
            if needed:
                raise RuleBrokenError("output_missing", "a completed response must have an output")
            return
        entries = objects_in(response, "output")
        if len(entries) != len(self.items):
            raise RuleBrokenError("output_changed", "the output must have as many items as were streamed")
        for item, entry in zip(self.in_order(), entries, strict=True):
            item.check_repeated(entry, strict=self._strict)

    def _announce(self, event: Fields, events: list[StreamEvent]) -> None:
        index = index_in(event, "output_index", self._limits.index)
        if index in self.items:
            raise RuleBrokenError("index_taken", "an output_index may be given to one item only")
        item = Item(index, object_in(event, "item"), strict=self._strict)
        self._claim(item.item_id)
        if item.call_id:
            self._claim(item.call_id)
        self.items[index] = item
        self.open.setdefault(item.kind, {})[index] = item
        self.next_index = max(self.next_index, index + 1)
        if item.kind in CALLS:
            self._calls += 1
            if self._calls > self._limits.tool_calls:
                message = f"the answer has more than {self._limits.tool_calls} tool calls"
                raise LimitPassedError("too_many_tool_calls", message)
            events.append(ToolCallOpened(index, bounded_name(item.name)))
        elif item.kind == MESSAGE:
            self._order.open((index, _LAST_PART))
        for parts in item.parts.values():
            for part_index, part in parts.items():
                self._count_part()
                self._open_place(item, part_index, part)
                self._say(item, part_index, part, part.value(), events)

    def _complete(self, event: Fields, events: list[StreamEvent]) -> None:
        item = self._open_item(event, needs_id=False)
        announced = item.call_id
        item.complete(object_in(event, "item"))
        if item.call_id != announced:
            self._claim(item.call_id)
        del self.open[item.kind][item.index]
        if item.kind in CALLS and item.whole:
            events.append(ToolCallCompleted(item.index))
        self._order.close((item.index, _LAST_PART), events)

    def _declare(self, event: Fields, place: str, events: list[StreamEvent]) -> None:
        item = self._open_item(event)
        given = object_in(event, "part")
        check_part(given, item.kind, strict=self._strict)
        channel = item.channel(place, given)
        index = index_in(event, INDEX_OF[place], self._limits.index)
        parts = item.parts[place]
        value = text_in(given, channel.value)
        part = parts.get(index)
        if part is None:
            if item.kind == REASONING and index != len(parts):
                raise RuleBrokenError("index_gap", f"{INDEX_OF[place]} must rise by one")
            self._count_part()
            part = parts[index] = Streamed(channel)
            self._open_place(item, index, part)
            self._say(item, index, part, part.add(value, halves=self.halves), events)
        elif part.declared:
            raise RuleBrokenError("part_twice", "a part is added once")
        elif part.channel is not channel or value != part.value():
            raise RuleBrokenError("part_changed", "a part must be added as its item was announced")
        part.declared = True

    def _take_delta(self, event: Fields, channel: Channel, events: list[StreamEvent]) -> None:
        item, index, part = self._last_part = self._part(event, channel)
        self._say(item, index, part, part.add(text_in(event, "delta"), halves=self.halves), events)

    def _take_value(self, event: Fields, channel: Channel, events: list[StreamEvent]) -> None:
        item, index, part = self._part(event, channel)
        value = text_in(event, channel.value)
        self._say(item, index, part, part.rest(), events)
        part.finish(value)
        part.closed = channel.place not in INDEX_OF
        self._order.close((item.index, index), events)

    def _close_part(self, event: Fields, place: str) -> None:
        item = self._open_item(event)
        given = object_in(event, "part")
        channel = item.channel(place, given)
        index = index_in(event, INDEX_OF[place], self._limits.index)
        part = _declared(item, place, index)
        if part.channel is not channel:
            raise RuleBrokenError("kind_mismatch", "a part never changes its type")
        if not part.done:
            raise RuleBrokenError("part_open", "a part is done after its final value")
        if part.closed:
            raise RuleBrokenError("done_twice", "a part is done once")
        part.check(text_in(given, channel.value))
        part.closed = True

    def _part(self, event: Fields, channel: Channel) -> tuple[Item, int, Streamed]:
        item = self._open_item(event)
        if item.kind != channel.holder:
            message = f"an item of type {item.kind[:80]} streams no {channel.part}"
            raise RuleBrokenError("kind_mismatch", message)
        index_field = INDEX_OF.get(channel.place)
        index = 0 if index_field is None else index_in(event, index_field, self._limits.index)
        part = _declared(item, channel.place, index)
        if part.channel is not channel:
            raise RuleBrokenError("kind_mismatch", "a part never changes its type")
        return item, index, part

    def _open_item(self, event: Fields, *, needs_id: bool = True) -> Item:
        index = index_in(event, "output_index", self._limits.index)
        item = self.items.get(index)
        if item is None:
            raise RuleBrokenError("item_unknown", "no item was added at this output_index")
        if item.final is not None:
            raise RuleBrokenError("item_closed", "nothing comes of an item that is done")
        if needs_id and event.get("item_id") != item.item_id:
            raise RuleBrokenError("item_id_changed", "item_id must be the id of the item at this output_index")
        return item

    def _open_place(self, item: Item, index: int, part: Streamed) -> None:
        if part.channel.part == "output_text":
            self._order.open((item.index, index))

    def _say(self, item: Item, index: int, part: Streamed, piece: str, events: list[StreamEvent]) -> None:
        if not piece:
            return
        if part.channel.part == "output_text":
            self._order.say((item.index, index), piece, events)
        elif part.channel.part == "refusal":
            self._text.say(RefusalDelta, piece, events)
        elif item.kind == REASONING:
            self._text.say(ReasoningDelta, piece, events)
        else:
            self._argument_chars += len(piece)
            if self._argument_chars > self._limits.argument_chars:
                message = f"the tool arguments are longer than {self._limits.argument_chars} characters"
                raise LimitPassedError("arguments_too_long", message)
            events.append(ToolCallArguments(item.index, piece))

    def _claim(self, identity: str) -> None:
        if identity in self._identities:
            raise RuleBrokenError("identity_taken", "an id or call_id may belong to one item only")
        self._identities.add(identity)

    def _count_part(self) -> None:
        self._parts += 1
        if self._parts > _MOST_PARTS:
            raise LimitPassedError("too_many_parts", f"the answer has more than {_MOST_PARTS} parts")


def _declared(item: Item, place: str, index: int) -> Streamed:
    part = item.parts[place].get(index)
    if part is None or not part.declared:
        raise RuleBrokenError("part_unknown", f"no part was added to the {place} at this index")
    return part
