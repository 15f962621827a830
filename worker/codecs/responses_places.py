"""To which item and part of a Responses answer an event belongs, where the event does not say it as documented.

What belongs here: finding places by output index, by id, by what is open, and by what was streamed. What must not be
known here: what events mean, what they lack besides a place.
"""

from collections import deque
from collections.abc import Iterable

from worker.codecs.limits import RuleBrokenError
from worker.codecs.responses_fields import Fields, name_in
from worker.codecs.responses_items import Item
from worker.codecs.responses_output import Output
from worker.codecs.responses_parts import BY_PART, INDEX_OF, PLACES, Channel


class Places:
    """The places of one answer. It reads `output`, and remembers which ids the provider gave to which item."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._by_id: dict[str, int] = {}
        self._named: set[int] = set()

    def remember(self, item: Fields, index: object) -> None:
        """The provider's id of the item at `index`."""
        name = name_in(item, "id")
        if name is not None and type(index) is int:
            self._by_id[name] = index
            self._named.add(index)

    def of_id(self, item: Fields) -> int | None:
        """The index of an item that the provider named before."""
        name = name_in(item, "id")
        return None if name is None else self._by_id.get(name)

    def of_new(self, event: Fields, item: Fields) -> object:
        """The index of an item that is announced: its own, or the next one that is free."""
        index = event.get("output_index")
        if index is not None:
            return index
        known = self.of_id(item)
        return self._output.next_index if known is None else known

    def of_done(self, event: Fields, item: Fields) -> object:
        """The index of an item that is done, announced or not. Raises RuleBrokenError for two of them."""
        return self._find(event, self.of_id(item), name_in(item, "type") or "")

    def of_event(self, event: Fields, holder: str, *, opens: bool) -> object:
        """The index of the item, of type `holder`, that an event is about. Raises RuleBrokenError for two of them.

        `opens`: the event may be the first of its item, as a delta may; a final value never is if its item is open.
        """
        name = name_in(event, "item_id")
        known = None if name is None else self._by_id.get(name)
        unnamed_only = opens and name is not None
        index = self._find(event, known, holder, unnamed_only=unnamed_only)
        if name is not None and known is None and type(index) is int and index not in self._named:
            self.remember({"id": name}, index)
        return index

    def of_output(self, entries: list[Fields]) -> list[int | None]:
        """For each entry of the output at the end, the index of the streamed item that it repeats, if there is one.

        By id or call_id, else by what was streamed, else by its position, else the next item of its type. Raises
        RuleBrokenError for an item that stands there twice: its text would be given once more.
        """
        named = self._by_identity(entries)
        found: list[int | None] = []
        taken: set[int] = set()
        for index in named:
            found.append(None if index in taken else index)
            taken |= set() if index is None else {index}
        items = [item for item in self._output.in_order() if item.index not in taken]
        _pair(found, map(_said, entries), ((_streamed(item), item.index) for item in items), taken)
        places = ((_kind(entry), number) for number, entry in enumerate(entries))
        _pair(found, places, (((item.kind, item.index), item.index) for item in items), taken)
        _pair(found, map(_kind, entries), ((item.kind, item.index) for item in items), taken)
        if any(index is None and known is not None for index, known in zip(found, named, strict=True)):
            raise RuleBrokenError("output_changed", "an item must not stand in the output twice")
        return found

    def _by_identity(self, entries: list[Fields]) -> list[int | None]:
        calls = {item.call_id: item.index for item in self._output.in_order() if item.call_id}
        known = (self.of_id(entry) for entry in entries)
        return [
            calls.get(name_in(entry, "call_id") or "") if index is None else index
            for entry, index in zip(entries, known, strict=True)
        ]

    def _find(self, event: Fields, known: int | None, kind: str, *, unnamed_only: bool = False) -> object:
        index = event.get("output_index")
        if index is not None:
            if known not in (None, index):
                raise RuleBrokenError("two_items", "output_index and id must not be of two items")
            return index
        if known is not None:
            return known
        candidates = set(self._output.open.get(kind, ()))
        if unnamed_only:
            candidates -= self._named
        if len(candidates) > 1:
            raise RuleBrokenError("two_items", "an event without output_index must not be for several items")
        return next(iter(candidates), self._output.next_index)


def part_index(item: Item, channel: Channel) -> int:
    """The index of the part that an event without one is about: the last one, or the next if that is another."""
    parts = item.parts[channel.place]
    last = parts.get(len(parts) - 1)
    return len(parts) - 1 if last is not None and last.channel is channel and not last.closed else len(parts)


def _pair(
    found: list[int | None], keys: Iterable[object], items: Iterable[tuple[object, int]], taken: set[int]
) -> None:
    """Fill what is not found yet with the first item, not taken yet, that has the same key."""
    left: dict[object, deque[int]] = {}
    for key, index in items:
        if index not in taken:
            left.setdefault(key, deque()).append(index)
    for number, key in enumerate(keys):
        if found[number] is None and left.get(key):
            found[number] = index = left[key].popleft()
            taken.add(index)


def _kind(entry: Fields) -> str:
    return name_in(entry, "type") or ""


def _streamed(item: Item) -> tuple[str, ...]:
    return (
        item.kind,
        item.name,
        *(part.value() for place in item.parts for _, part in sorted(item.parts[place].items())),
    )


def _said(entry: Fields) -> tuple[str, ...]:
    texts: list[str] = []
    for place in PLACES.get(_kind(entry), ()):
        parts = entry.get(place) if place in INDEX_OF else [entry]
        for part in parts if isinstance(parts, list) else []:
            channel = BY_PART.get(place) or (BY_PART.get(_kind(part)) if isinstance(part, dict) else None)
            text = part.get(channel.value) if isinstance(part, dict) and channel is not None else None
            texts.append(text if isinstance(text, str) else "")
    return _kind(entry), name_in(entry, "name") or "", *texts
