"""The Chat Completions wire format, as the stand-in provider sends it.

What belongs here: what a chunk looks like. What must not be known here: scripts, HTTP, time.
"""

import orjson

END_MARK = b"data: [DONE]\n\n"


class ChatWire:
    """The chunks of one answer. `number` makes its id."""

    def __init__(self, number: int, model: str) -> None:
        self._number = number
        self._model = model

    def role(self) -> bytes:
        """The chunk before the first content."""
        return self._delta({"role": "assistant", "content": ""})

    def text(self, piece: str) -> bytes:
        """A piece of the answer."""
        return self._delta({"content": piece})

    def reasoning(self, piece: str) -> bytes:
        """A piece of the model's thinking."""
        return self._delta({"reasoning_content": piece})

    def tool_call(self, index: int, call_id: str, name: str) -> bytes:
        """The head of a tool call."""
        function = {"name": name, "arguments": ""}
        return self._delta({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})

    def arguments(self, index: int, piece: str) -> bytes:
        """A piece of a tool call's arguments."""
        return self._delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})

    def finish(self, reason: str) -> bytes:
        """The chunk with the finish reason."""
        return self._chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})

    def usage(self, usage: dict[str, object]) -> bytes:
        """The chunk that holds usage and no choice."""
        return self._chunk({"choices": [], "usage": usage})

    def _delta(self, delta: dict[str, object]) -> bytes:
        return self._chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})

    def _chunk(self, fields: dict[str, object]) -> bytes:
        head = {"id": f"chatcmpl-{self._number}", "object": "chat.completion.chunk", "created": 0}
        return b"data: " + orjson.dumps({**head, "model": self._model, **fields}) + b"\n\n"


def error_event(error: dict[str, object], event: str | None) -> bytes:
    """An error object inside the stream; under an event name it stands alone, as some servers send it."""
    if event is None:
        return b"data: " + orjson.dumps({"error": error}) + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + orjson.dumps(error) + b"\n\n"


def comment(words: str) -> bytes:
    """A comment, which proves that the connection lives and no more."""
    return b": " + words.encode() + b"\n\n"
