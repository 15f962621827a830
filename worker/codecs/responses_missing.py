"""The documented events that a Responses server left out, made up from what it sent.

What belongs here: the form of those events, and which are missing before one that came. What must not be known here:
where an event belongs, the response as a whole.

Generators, because each event is taken before the next is asked for: what is missing depends on what was taken.
"""

import json
from collections.abc import Generator, Iterator

from worker.codecs.responses_fields import Fields, name_in
from worker.codecs.responses_items import Item
from worker.codecs.responses_output import ITEM_ADDED, ITEM_DONE
from worker.codecs.responses_parts import BY_PART, CALLS, INDEX_OF, MESSAGE, PART_EVENT, PLACES, Channel, Streamed


def inner_id(index: object) -> str:
    """The id that an item has inside, whatever the provider calls it."""
    return f"#{index}" if type(index) is int else "#"


def announcement(index: object, item: Fields) -> Fields:
    """The event that announces `item`, as far as it is known yet."""
    announced = {**item, "id": inner_id(index)}
    announced.pop("status", None)
    if item.get("type") == MESSAGE and item.get("role") is None:
        announced["role"] = "assistant"
    return {"type": ITEM_ADDED, "output_index": index, "item": announced}


def bare(item: Fields) -> Fields:
    """`item` without what it streams."""
    streamed = PLACES.get(name_in(item, "type") or "", ())
    return {key: value for key, value in item.items() if key not in streamed}


def declaration(item: Item, channel: Channel, index: int) -> Iterator[Fields]:
    """The event that adds a part, where it did not come."""
    part = item.parts[channel.place].get(index)
    if channel.place in INDEX_OF and (part is None or not part.declared):
        yield _part_event(item, channel, index, "added", "" if part is None else part.value())


def final_value(item: Item, channel: Channel, index: int, text: str) -> Generator[Fields, None, str]:
    """The delta that a final value stands for, where nothing was streamed. Returns the value: an empty one is none."""
    part = item.parts[channel.place][index]
    streamed = part.value()
    if not text:
        return streamed
    if not part.done and not streamed:
        yield {"type": f"{channel.event}.delta", **_place(item, channel, index), "delta": text}
    return text


def whole_value(item: Item, channel: Channel, index: int, text: str) -> Generator[Fields, None, str]:
    """All that is missing up to the final value of one text. Returns it."""
    yield from declaration(item, channel, index)
    part = item.parts[channel.place][index]
    if part.channel is channel:  # the check says what is wrong otherwise
        text = yield from final_value(item, channel, index, text)
        if not part.done:
            yield {"type": f"{channel.event}.done", **_place(item, channel, index), channel.value: text}
    return text


def completion(item: Item, given: Fields) -> Generator[Fields, None, Fields]:
    """All that is missing before an item is done. `given`: its final form. Returns the event that says so."""
    final = named(item, given)
    for place in item.parts:
        if place in INDEX_OF:
            yield from _parts(item, place, final)
        else:
            channel = BY_PART[place]
            text = as_text(final.get(place))
            final[place] = (yield from whole_value(item, channel, 0, text)) if isinstance(text, str) else text
    return {"type": ITEM_DONE, "output_index": item.index, "item": final}


def named(item: Item, given: Fields) -> Fields:
    """`given` with the identity that the item has inside, and with what it leaves out of it."""
    final = {**given, "id": item.item_id}
    if item.kind == MESSAGE and given.get("role") is None:
        final["role"] = "assistant"
    if item.kind in CALLS:
        final["call_id"] = name_in(given, "call_id") or item.call_id or name_in(given, "id")
        final["name"] = name_in(given, "name") or item.name
    return final


def filled(item: Item, given: Fields) -> Fields:
    """The repetition of an item that is done, with what it leaves empty. The identity of a call is the streamed one."""
    final = item.final or {}
    repeated = named(item, given)
    if item.kind in CALLS:
        repeated["call_id"] = item.call_id
    for place, parts in item.parts.items():
        value = repeated.get(place)
        if not value:
            repeated[place] = final.get(place)
        elif place not in INDEX_OF:
            repeated[place] = as_text(value)
        elif isinstance(value, list) and len(value) == len(parts):
            repeated[place] = [_filled_part(parts[index], entry) for index, entry in enumerate(value)]
    return repeated


def is_unsaid_call(item: Item) -> bool:
    """Whether an item is a tool call that was announced, and nothing else: whether it has arguments is not known."""
    return item.kind in CALLS and not any(
        part.done or part.value().strip() for part in item.parts[PLACES[item.kind][0]].values()
    )


def channel_of(part: object) -> Channel | None:
    """What a part streams, by its type."""
    return BY_PART.get(name_in(part, "type") or "") if isinstance(part, dict) else None


def as_text(value: object) -> object:
    """Arguments as text, also where a server sends the object itself."""
    if value is None:
        return ""
    return json.dumps(value) if isinstance(value, dict | list) else value


def _parts(item: Item, place: str, final: Fields) -> Generator[Fields, None, None]:
    given = final.get(place)
    if given and not isinstance(given, list):
        return
    entries: list[object] = list(given) if isinstance(given, list) else []
    if not entries:
        entries += ({"type": part.channel.part} for _, part in sorted(item.parts[place].items()))
    whole: list[object] = []
    for index, entry in enumerate(entries):
        channel = channel_of(entry)
        text = entry.get(channel.value) or "" if channel is not None and isinstance(entry, dict) else None
        if channel is None or channel.holder != item.kind or channel.place != place or not isinstance(text, str):
            whole.append(entry)  # nothing that could be streamed here: the check says so
            continue
        assert isinstance(entry, dict)
        text = yield from whole_value(item, channel, index, text)
        if not item.parts[place][index].closed:
            yield _part_event(item, channel, index, "done", text)
        whole.append({**entry, channel.value: text})
    final[place] = whole


def _filled_part(part: Streamed, entry: object) -> object:
    if not isinstance(entry, dict) or entry.get(part.channel.value):
        return entry
    return {**entry, part.channel.value: part.value()}


def _part_event(item: Item, channel: Channel, index: int, verb: str, text: str) -> Fields:
    part = {"type": channel.part, channel.value: text}
    return {"type": f"{PART_EVENT[channel.place]}.{verb}", **_place(item, channel, index), "part": part}


def _place(item: Item, channel: Channel, index: int) -> Fields:
    place: Fields = {"output_index": item.index, "item_id": item.item_id}
    if channel.place in INDEX_OF:
        place[INDEX_OF[channel.place]] = index
    return place
