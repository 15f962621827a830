"""What Lastword makes of a captured stream: the `lastword decode` command, as a pure function.

What belongs here: the form of that answer. What must not be known here: files, the terminal.
"""

from worker.codecs.events import Completed, Failed, ReasoningDelta, RefusalDelta, StreamEvent, TextDelta, ToolCall
from worker.codecs.openai_chat import ChatCodec
from worker.errors import ConfigurationError


def decode_file(path_label: str, data: bytes, chunk: int | None) -> dict[str, object]:
    """The JSON object for one captured chat stream; `path_label` is given back as `file`.

    `chunk`: bytes fed at a time, None for all at once; the answer is the same for every number. `usage` and `error`
    are the provider's own objects; a fault that we found is `{"code", "message"}`. `complete` is False when the
    stream broke off or ended in an error. Raises ConfigurationError for a chunk below 1.
    """
    if chunk is not None and chunk < 1:
        raise ConfigurationError(f"--chunk is {chunk}: give the number of bytes to feed at a time, 1 or more")
    decoder = ChatCodec().decoder()
    size = chunk or max(len(data), 1)
    events: list[StreamEvent] = []
    for start in range(0, len(data), size):
        events += decoder.feed(data[start : start + size])
    events += decoder.close()
    failure = next((event for event in events if isinstance(event, Failed)), None)
    return {
        "file": path_label,
        "text": "".join(event.text for event in events if isinstance(event, TextDelta)),
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)) or None,
        "refusal": "".join(event.text for event in events if isinstance(event, RefusalDelta)) or None,
        "tool_calls": [_tool_call(call) for call in decoder.tool_calls],
        "finish_reason": decoder.finish_reason,
        "usage": decoder.raw_usage,
        "error": decoder.raw_error or _fault(failure),
        "complete": any(isinstance(event, Completed) for event in events),
    }


def _tool_call(call: ToolCall) -> dict[str, object]:
    return {"id": call.id, "name": call.name, "arguments": call.arguments, "arguments_json": call.arguments_json}


def _fault(failure: Failed | None) -> dict[str, object] | None:
    return None if failure is None else {"code": failure.code, "message": failure.message}
