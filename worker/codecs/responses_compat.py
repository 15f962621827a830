"""Known deviations of real servers, brought into the documented form: the profile `compat`.

What belongs here: which deviation becomes which documented events. What must not be known here: what events say, what
the documented form allows; the same check follows for both profiles.

Ids are hints only. Inside, an item's id is made from its output index, because some gateways give each event another
one. What is missing is made up from what came: created, items and parts that were never added, values and ends that
never came. An empty final value takes nothing back. Nothing that contradicts what was streamed is repaired.

Events are given one by one, and each is repaired in the light of those before it: take each before asking for the next.
"""

from collections.abc import Iterator

from worker.codecs.limits import RuleBrokenError
from worker.codecs.responses_fields import Fields, name_in, objects_in
from worker.codecs.responses_items import Item
from worker.codecs.responses_lifecycle import CREATED, FAILED, IN_PROGRESS, QUEUED, TERMINAL, Lifecycle
from worker.codecs.responses_missing import (
    announcement,
    bare,
    channel_of,
    completion,
    declaration,
    filled,
    final_value,
    inner_id,
    is_unsaid_call,
    whole_value,
)
from worker.codecs.responses_output import ITEM_ADDED, ITEM_DONE, Output
from worker.codecs.responses_parts import DELTAS, INDEX_OF, MESSAGE, PART_ADDED, PART_DONE, VALUES, Channel
from worker.codecs.responses_places import Places, part_index

_UNNAMED = "unnamed"
"""The id of a response that has none. Ids of later events are not looked at."""


class Repairs:
    """The repairs of one stream. It reads `lifecycle` and `output`, and changes neither."""

    def __init__(self, lifecycle: Lifecycle, output: Output) -> None:
        self._originals: dict[int, Fields] = {}
        self._lifecycle = lifecycle
        self._output = output
        self._places = Places(output)
        self._early: dict[int, Fields] = {}
        self._reached = 0
        self._created_is_due = False

    def events(self, name: str, event: Fields) -> Iterator[Fields]:
        """The documented events that `event` stands for. `name`: what the stream called it. Raises RuleBrokenError."""
        kind = event.get("type")
        if not isinstance(kind, str):
            event["type"] = kind = name
        if not kind.startswith("response."):
            return
        if kind == CREATED:
            yield from self._created(event)
            return
        if not self._lifecycle.response_id:
            self._created_is_due = True
            yield {"type": CREATED, "response": {"id": _UNNAMED}}
        if kind in (IN_PROGRESS, QUEUED):
            response = event.get("response")
            if isinstance(response, dict):
                response["id"] = self._lifecycle.response_id
            yield event
        elif kind in TERMINAL:
            yield from self._end(kind, event)
        else:
            if kind == ITEM_ADDED:
                yield from self._added(event)
            elif kind == ITEM_DONE:
                yield from self._done(event)
            else:
                yield from self._inside(kind, event)
            yield from self._late()

    def original(self, item: Item) -> Fields:
        """An item that is done as the provider sent it. One that it never sent whole has no id of its own."""
        original = self._originals.get(item.index)
        if original is None:
            original = {key: value for key, value in (item.final or {}).items() if key != "id"}
        return original

    def _created(self, event: Fields) -> Iterator[Fields]:
        if self._created_is_due:
            self._created_is_due = False
            return
        response = event.get("response")
        if not isinstance(response, dict):
            event["response"] = response = {}
        if name_in(response, "id") is None:
            response["id"] = _UNNAMED
        if response.get("status") == "queued":
            response["status"] = "in_progress"
        yield event

    def _added(self, event: Fields) -> Iterator[Fields]:
        item = event.get("item")
        if not isinstance(item, dict):
            yield event
            return
        index = self._places.of_new(event, item)
        yield announcement(index, item)
        self._places.remember(item, index)

    def _done(self, event: Fields) -> Iterator[Fields]:
        item = event.get("item")
        if not isinstance(item, dict):
            yield event
            return
        index = self._places.of_done(event, item)
        if type(index) is int and index not in self._output.items and index > self._first_missing():
            # Never announced, and not its turn: what comes whole is given in the order of the output.
            if index in self._early:
                raise RuleBrokenError("item_closed", "an item is done once")
            self._early[index] = item
            return
        yield from self._complete(index, item)

    def _complete(self, index: object, given: Fields, *, sent: bool = True) -> Iterator[Fields]:
        """The item at `index` is done. `given`: its final form; `sent`: the provider sent it so."""
        known = self._item(index)
        if known is None:
            yield announcement(index, bare(given))
            known = self._item(index)
        assert known is not None
        self._places.remember(given, index)
        if known.final is not None or known.kind != given.get("type"):
            yield {"type": ITEM_DONE, "output_index": index, "item": {**given, "id": known.item_id}}
            return
        done = yield from completion(known, given)
        yield done
        if sent:
            self._originals[known.index] = given

    def _late(self) -> Iterator[Fields]:
        """The items that came whole before their turn, as far as it has come."""
        reached = self._reached
        if not self._early or self._first_missing() == reached:
            return
        for index in sorted(self._early):
            if index <= self._first_missing():
                yield from self._complete(index, self._early.pop(index))

    def _first_missing(self) -> int:
        while self._reached in self._output.items:
            self._reached += 1
        return self._reached

    def _item(self, index: object) -> Item | None:
        return self._output.items.get(index) if type(index) is int else None

    def _inside(self, kind: str, event: Fields) -> Iterator[Fields]:
        """An event of a text or a part. Events that we do not know say nothing of the answer."""
        channel = DELTAS.get(kind) or VALUES.get(kind)
        place = PART_ADDED.get(kind) or PART_DONE.get(kind)
        if place is not None:
            part = event.get("part")
            channel = channel_of(part)
            if channel is None or channel.place != place or not isinstance(part, dict):
                raise RuleBrokenError("kind_mismatch", f"there is no such part in the {place} of an item")
            event["part"] = {**part, channel.value: part.get(channel.value) or ""}
        if channel is None:
            return
        index = self._places.of_event(event, channel.holder, opens=kind in DELTAS or kind in PART_ADDED)
        event |= {"output_index": index, "item_id": inner_id(index)}
        if self._item(index) is None:
            yield announcement(index, {"type": channel.holder})
        item = self._item(index)
        if item is None or item.final is not None or item.kind != channel.holder:
            yield event  # the check says what is wrong
            return
        yield from self._of_part(kind, event, item, channel)

    def _of_part(self, kind: str, event: Fields, item: Item, channel: Channel) -> Iterator[Fields]:
        field = INDEX_OF.get(channel.place)
        if field is not None and event.get(field) is None:
            event[field] = part_index(item, channel)
        index = 0 if field is None else event[field]
        if type(index) is not int or kind in PART_ADDED:
            yield event
            return
        yield from declaration(item, channel, index)
        if item.parts[channel.place][index].channel is channel:
            part = event.get("part")
            if kind in PART_DONE and isinstance(part, dict) and isinstance(text := part[channel.value], str):
                part[channel.value] = yield from whole_value(item, channel, index, text)
            elif kind in VALUES and isinstance(text := event.get(channel.value) or "", str):
                event[channel.value] = yield from final_value(item, channel, index, text)
        yield event

    def _end(self, kind: str, event: Fields) -> Iterator[Fields]:
        response = event.get("response")
        if not isinstance(response, dict):
            yield event
            return
        response["id"] = self._lifecycle.response_id
        if response.get("status") is None:
            said = "completed" if kind == "response.done" else kind.removeprefix("response.")
            response["status"] = "failed" if response.get("error") else said
        if not isinstance(response.get("incomplete_details"), dict):
            response["incomplete_details"] = None
        if response["status"] not in FAILED:
            for index in sorted(self._early):
                yield from self._complete(index, self._early.pop(index))
            yield from self._reconcile(response)
        yield event

    def _reconcile(self, response: Fields) -> Iterator[Fields]:
        """What the output at the end has, and the stream had not, comes now; what it lacks of the stream is added."""
        entries = objects_in(response, "output")
        repeated: dict[int, Fields] = {}
        last = -1
        for position, (entry, found) in enumerate(zip(entries, self._places.of_output(entries), strict=True)):
            index = found
            if index is None:
                index = self._output.next_index if position in self._output.items else position
            if entry.get("type") == MESSAGE:
                if index < last:
                    raise RuleBrokenError(
                        "output_reordered", "messages must end in the order in which they were streamed"
                    )
                last = index
            item = self._item(index)
            if item is None or item.final is None:
                yield from self._complete(index, entry)
            repeated[index] = entry
        status = "incomplete" if response["status"] == "incomplete" else "completed"
        for item in list(self._output.in_order()):
            if item.final is None:
                ended = "incomplete" if is_unsaid_call(item) else status
                yield from self._complete(item.index, {"type": item.kind, "status": ended}, sent=False)
        response["output"] = [
            filled(item, repeated.get(item.index) or item.final or {}) for item in self._output.in_order()
        ]
