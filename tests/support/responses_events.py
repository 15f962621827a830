"""Events of the Responses wire format, as a test writes them, and what a decoder says of them."""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from worker.codecs.events import Completed, Failed, StreamEvent, TextDelta
from worker.codecs.limits import DEFAULT_LIMITS, Profile, StreamLimits
from worker.codecs.openai_responses import ResponsesCodec

Event = dict[str, Any]
NO_NAME = "no event: line"
"""A value of `named` in an event: it is framed without its name."""


def event(kind: str, **fields: Any) -> Event:
    """An event; `sequence_number` is added by `framed` unless it is given. `named`: what the stream calls it."""
    return {"type": kind, **fields}


def response(status: str | None = "in_progress", output: Any = (), **fields: Any) -> Event:
    """The response object of a lifecycle event. A status of None is left out."""
    said = {} if status is None else {"status": status}
    return {"id": "resp_1", **said, "output": output, "incomplete_details": None, **fields}


def message(text: str | None = None, item_id: str = "msg_1", **fields: Any) -> Event:
    """A message, without content until it is done."""
    content = [] if text is None else [{"type": "output_text", "text": text}]
    return {"id": item_id, "type": "message", "role": "assistant", "content": content, **fields}


def call(arguments: str = "", item_id: str = "fc_1", call_id: str = "call_1", **fields: Any) -> Event:
    """A function call."""
    named = {"call_id": call_id, "name": "tide", "arguments": arguments}
    return {"id": item_id, "type": "function_call", **named, **fields}


def reasoning(*summary: str, item_id: str = "rs_1", **fields: Any) -> Event:
    """A reasoning item with its summary."""
    parts = [{"type": "summary_text", "text": text} for text in summary]
    return {"id": item_id, "type": "reasoning", "summary": parts, **fields}


def added(index: int, item: Event) -> Event:
    """An item is announced."""
    return event("response.output_item.added", output_index=index, item=item)


def done(index: int, item: Event) -> Event:
    """An item is done."""
    return event("response.output_item.done", output_index=index, item=item)


def message_events(index: int, *pieces: str, item_id: str = "msg_1") -> list[Event]:
    """All events of one message, in the documented order."""
    place = {"item_id": item_id, "output_index": index, "content_index": 0}
    text = "".join(pieces)
    return [
        added(index, message(item_id=item_id)),
        event("response.content_part.added", **place, part={"type": "output_text", "text": ""}),
        *(event("response.output_text.delta", **place, delta=piece) for piece in pieces),
        event("response.output_text.done", **place, text=text),
        event("response.content_part.done", **place, part={"type": "output_text", "text": text}),
        done(index, message(text, item_id)),
    ]


def call_events(index: int, *pieces: str, item_id: str = "fc_1", call_id: str = "call_1") -> list[Event]:
    """All events of one function call, in the documented order."""
    place = {"item_id": item_id, "output_index": index}
    arguments = "".join(pieces)
    return [
        added(index, call("", item_id, call_id)),
        *(event("response.function_call_arguments.delta", **place, delta=piece) for piece in pieces),
        event("response.function_call_arguments.done", **place, arguments=arguments),
        done(index, call(arguments, item_id, call_id)),
    ]


def reasoning_events(index: int, *pieces: str, item_id: str = "rs_1") -> list[Event]:
    """All events of one reasoning item with one summary, in the documented order."""
    place = {"item_id": item_id, "output_index": index, "summary_index": 0}
    text = "".join(pieces)
    return [
        added(index, reasoning(item_id=item_id)),
        event("response.reasoning_summary_part.added", **place, part={"type": "summary_text", "text": ""}),
        *(event("response.reasoning_summary_text.delta", **place, delta=piece) for piece in pieces),
        event("response.reasoning_summary_text.done", **place, text=text),
        event("response.reasoning_summary_part.done", **place, part={"type": "summary_text", "text": text}),
        done(index, reasoning(text, item_id=item_id)),
    ]


def whole(*items: list[Event], **fields: Any) -> list[Event]:
    """The events of a whole answer, from those of its items."""
    output = [events[-1]["item"] for events in items]
    return [
        event("response.created", response=response()),
        event("response.in_progress", response=response()),
        *(entry for events in items for entry in events),
        event("response.completed", response=response("completed", output, **fields)),
    ]


def framed(events: Iterable[Event], *, numbered: bool = True) -> bytes:
    """The events as the bytes of a stream."""
    frames = []
    for number, entry in enumerate(events):
        body = dict(entry)
        name = body.pop("named", body.get("type"))
        if numbered:
            body.setdefault("sequence_number", number)
        line = "" if name == NO_NAME else f"event: {name}\n"
        frames.append(f"{line}data: {json.dumps(body)}\n\n")
    return "".join(frames).encode()


def read(data: bytes, profile: Profile = "compat", limits: StreamLimits = DEFAULT_LIMITS) -> list[StreamEvent]:
    """All that a decoder says of a stream."""
    decoder = ResponsesCodec(limits, profile).decoder()
    return decoder.feed(data) + decoder.close()


def read_in_pieces(data: bytes, size: int, profile: Profile = "compat") -> list[StreamEvent]:
    """All that a decoder says of a stream that comes `size` bytes at a time."""
    decoder = ResponsesCodec(profile=profile).decoder()
    said = [entry for start in range(0, len(data), size) for entry in decoder.feed(data[start : start + size])]
    return said + decoder.close()


def outcome(events: list[StreamEvent]) -> tuple[str, str]:
    """How a stream ended: `completed` with its text, `failed` with its code, or `died` with the text so far."""
    text = "".join(entry.text for entry in events if isinstance(entry, TextDelta))
    match events[-1] if events else None:
        case Completed():
            return "completed", text
        case Failed(code=code):
            return "failed", str(code)
        case _:
            return "died", text


def written(entry: StreamEvent) -> list[Any]:
    """An event as the expectation of a stream has it: its name, then its fields."""
    return [type(entry).__name__, *json.loads(json.dumps(dataclasses.astuple(entry)))]
