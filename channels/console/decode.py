"""What Lastword makes of a captured stream: the `lastword decode` command, as a pure function.

What belongs here: the form of that answer. What must not be known here: files, the terminal.
"""

from collections.abc import Iterable

from worker.codecs.codec import Decoder
from worker.codecs.events import Completed, Failed, ReasoningDelta, RefusalDelta, StreamEvent, TextDelta, ToolCall
from worker.codecs.wires import WIRES, codec_of
from worker.errors import ConfigurationError

PROFILES = ("compat", "strict")


def check_options(wire: str, profile: str) -> None:
    """Raise ConfigurationError for a wire format or a profile that is not known."""
    for option, name, names in (("--wire", wire, WIRES), ("--profile", profile, PROFILES)):
        if name not in names:
            raise ConfigurationError(f"{option} {name!r} is not known: use {', '.join(names[:-1])} or {names[-1]}")


def decode_file(
    path_label: str, data: bytes, chunk: int | None, wire: str = "chat", profile: str = "compat"
) -> dict[str, object]:
    """The JSON object for one captured stream; `path_label` is given back as `file`.

    `chunk`: bytes fed at a time, None for all at once; the answer is the same for every number. `finish_reason`,
    `usage` and `error` are the provider's own; a fault that we found is told in the form of the wire format's errors.
    `complete` is False when the stream broke off or ended in an error. Raises ConfigurationError for a chunk below 1
    and for a wire format or profile that is not known.
    """
    if chunk is not None and chunk < 1:
        raise ConfigurationError(f"--chunk is {chunk}: give the number of bytes to feed at a time, 1 or more")
    check_options(wire, profile)
    decoder = codec_of(wire, profile="strict" if profile == "strict" else "compat").decoder()
    events = _events(decoder, data, chunk or max(len(data), 1))
    failure = next((event for event in events if isinstance(event, Failed)), None)
    completed = next((event for event in events if isinstance(event, Completed)), None)
    return {
        "file": path_label,
        "text": "".join(event.text for event in events if isinstance(event, TextDelta)),
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)) or None,
        "refusal": _refusal(events, completed),
        "tool_calls": [_tool_call(call) for call in decoder.tool_calls],
        "finish_reason": decoder.finish_reason,
        "usage": decoder.raw_usage,
        "error": decoder.raw_error or (None if failure is None else _fault(failure, wire)),
        "complete": completed is not None,
    }


def _events(decoder: Decoder, data: bytes, size: int) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    for start in range(0, len(data), size):
        events += decoder.feed(data[start : start + size])
    return events + decoder.close()


def _refusal(events: Iterable[StreamEvent], completed: Completed | None) -> str | None:
    said = "".join(event.text for event in events if isinstance(event, RefusalDelta))
    return said or (None if completed is None else completed.refusal)


def _tool_call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments, "arguments_json": call.arguments_json}


def _fault(failure: Failed, wire: str) -> dict[str, object]:
    if wire == "anthropic":
        return {"type": f"{failure.failure}_error", "message": failure.message}
    return {"code": failure.code, "message": failure.message}
