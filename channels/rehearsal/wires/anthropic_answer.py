"""One answer as Anthropic's Messages stream it.

What belongs here: events. What must not be known here: scripts, HTTP, time, requests.
"""

from typing import Any

from channels.rehearsal.signatures import signature_of
from channels.rehearsal.wire import JsonObject, comment, framed, token_count

_STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}
_ERROR_KINDS = {"server_error": "api_error"}
_TRANSLATED = (
    "prompt_tokens",
    "completion_tokens",
    "total_tokens",
    "prompt_tokens_details",
    "completion_tokens_details",
)


class AnthropicAnswer:
    """The events of one answer. `usage`: in the words of Chat Completions, what `message_start` can say of it."""

    is_whole_at_finish = False

    def __init__(self, number: int, model: str, usage: JsonObject) -> None:
        self.usage: JsonObject | None = None
        self._number = number
        self._model = model
        self._first_usage = {**spoken_usage(usage), "output_tokens": 0}
        self._has_started = False
        self._block = -1
        self._kind: str | None = None
        self._thinking = ""

    def text(self, piece: str) -> bytes:
        """A piece of the answer."""
        return self._opened("text", {"text": ""}) + self._delta({"type": "text_delta", "text": piece})

    def reasoning(self, piece: str) -> bytes:
        """A piece of the model's thinking."""
        before = self._opened("thinking", {"thinking": "", "signature": ""})
        self._thinking += piece
        return before + self._delta({"type": "thinking_delta", "thinking": piece})

    def open_tool(self, call_id: str, name: str) -> bytes:
        """The head of a tool call."""
        before = self._close() + self._opened("tool_use", {"id": call_id, "name": name, "input": {}})
        return before + self._delta({"type": "input_json_delta", "partial_json": ""})

    def arguments(self, piece: str) -> bytes:
        """A piece of the arguments of the tool call that is open."""
        return self._delta({"type": "input_json_delta", "partial_json": piece})

    def close_tool(self) -> bytes:
        """The tool call is whole."""
        return self._close()

    def keepalive(self, words: str | None) -> bytes:
        """A ping, which comes inside a message only; or a comment."""
        return self._started() + _event("ping") if words is None else comment(words)

    def error(self, error: JsonObject, event: str | None) -> bytes:
        """An error event, or the bare object under an event name."""
        if event is not None:
            return framed(event, error)
        said = {key: value for key, value in error.items() if value is not None}
        kind = said.get("type", "api_error")
        return _event("error", error={**said, "type": _ERROR_KINDS.get(kind, kind)})

    def finish(self, reason: str, usage: JsonObject) -> bytes:
        """The end of the last block, the stop reason and usage."""
        before = self._started() + self._close()
        self.usage = spoken_usage(usage)
        delta = {"stop_reason": _STOP_REASONS.get(reason, reason), "stop_sequence": None}
        return before + _event("message_delta", delta=delta, usage=self.usage)

    def report_usage(self, usage: JsonObject) -> bytes:
        """Nothing: it came with the stop reason."""
        del usage
        return b""

    def end(self) -> bytes:
        """The end mark."""
        return _event("message_stop")

    def _started(self) -> bytes:
        if self._has_started:
            return b""
        self._has_started = True
        message: JsonObject = {
            "id": f"msg_{self._number}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._first_usage,
        }
        return _event("message_start", message=message) + _event("ping")

    def _opened(self, kind: str, block: JsonObject) -> bytes:
        """What makes a block of this kind the open one."""
        if self._kind == kind:
            return b""
        before = self._started() + self._close()
        self._block += 1
        self._kind = kind
        self._thinking = ""
        return before + _event("content_block_start", index=self._block, content_block={"type": kind, **block})

    def _close(self) -> bytes:
        if self._kind is None:
            return b""
        signed = b""
        if self._kind == "thinking":
            signed = self._delta({"type": "signature_delta", "signature": signature_of(self._thinking)})
        self._kind = None
        return signed + _event("content_block_stop", index=self._block)

    def _delta(self, delta: JsonObject) -> bytes:
        return _event("content_block_delta", index=self._block, delta=delta)


def spoken_usage(usage: JsonObject) -> JsonObject:
    """Usage in this wire format's words: here the parts of the input are counted apart. Other keys stay as they are."""
    cached = token_count(usage, "prompt_tokens_details", "cached_tokens")
    written = token_count(usage, "prompt_tokens_details", "cache_write_tokens")
    return {
        "input_tokens": token_count(usage, "prompt_tokens") - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "output_tokens": token_count(usage, "completion_tokens"),
        **{key: value for key, value in usage.items() if key not in _TRANSLATED},
    }


def _event(name: str, **fields: Any) -> bytes:
    return framed(name, {"type": name, **fields})
