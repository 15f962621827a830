"""The documented life of an Anthropic message, event by event: what profile `strict` takes and nothing else.

What belongs here: the order of events and what each must hold. What must not be known here: what an answer says, the
repairs of profile `compat`.

A message starts, its blocks follow one after the other by index, each with its start, deltas and stop; then its stop
reason is told, and it stops. A ping may come anywhere.
"""

from worker.codecs.anthropic_blocks import check_fields, is_documented, is_documented_delta, is_tool_use
from worker.codecs.anthropic_fields import object_in, text_in, wrong_type
from worker.codecs.field_types import is_count
from worker.codecs.limits import RuleBrokenError


class MessageRules:
    """Watches one stream. `check` raises RuleBrokenError for the first event that breaks a rule."""

    def __init__(self) -> None:
        self._has_started = False
        self._open: int | None = None
        self._next = 0
        self._tool_ids: set[str] = set()
        self._is_ending = False
        self._stop_reason: str | None = None

    def check(self, name: str, event: dict[str, object]) -> None:
        """Check the next event. `name`: what the stream called it."""
        match self._kind_of(name, event):
            case "ping":
                pass
            case "message_start":
                self._check_start(event)
            case "content_block_start":
                self._check_block_start(event)
            case "content_block_delta":
                self._check_delta(event)
            case "content_block_stop":
                self._check_is_open(event)
                self._open = None
            case "message_delta":
                self._check_message_delta(event)
            case "message_stop":
                if self._stop_reason is None:
                    raise RuleBrokenError("no_stop_reason", "message_stop came before a stop reason")
            case kind:
                raise RuleBrokenError("unknown_event", f"the type {kind[:40]!r} is not documented")

    def check_done(self) -> None:
        """`[DONE]` came."""
        raise RuleBrokenError("unknown_event", "[DONE] is not documented")

    def _kind_of(self, name: str, event: dict[str, object]) -> str:
        kind = text_in("type", event.get("type"))
        if name != kind:
            raise RuleBrokenError("wrong_name", f"the event is called {name[:40]!r}, and its type is {kind[:40]!r}")
        if kind not in {"ping", "message_start"} and not self._has_started:
            raise RuleBrokenError("message_not_started", f"{kind[:40]!r} came before message_start")
        return kind

    def _check_start(self, event: dict[str, object]) -> None:
        if self._has_started:
            raise RuleBrokenError("second_message", "a second message_start came")
        self._has_started = True
        message = object_in("message", event.get("message"))
        if not text_in("message.id", message.get("id")):
            raise wrong_type("message.id", "text that is not empty", "")
        if (role := text_in("message.role", message.get("role"))) != "assistant":
            raise RuleBrokenError("wrong_role", f"message.role is {role[:40]!r}, not 'assistant'")
        if message.get("content") != []:
            raise RuleBrokenError("content_in_message_start", "message.content must be an empty list")
        usage = object_in("message.usage", message.get("usage"))
        _check_count("message.usage.input_tokens", usage.get("input_tokens"))
        _check_count("message.usage.output_tokens", usage.get("output_tokens"))

    def _check_block_start(self, event: dict[str, object]) -> None:
        if self._is_ending:
            raise RuleBrokenError("content_after_message_delta", "content_block_start came after message_delta")
        if self._open is not None:
            raise RuleBrokenError("block_still_open", f"block {self._open} was not stopped before the next one")
        index = event.get("index")
        if not is_count(index):
            raise wrong_type("index", "a number from 0", index)
        if index != self._next:
            raise RuleBrokenError("wrong_index", f"block {index} came where block {self._next} was due")
        begun = object_in("content_block", event.get("content_block"))
        kind = text_in("content_block.type", begun.get("type"))
        if not is_documented(kind):
            raise RuleBrokenError("unknown_block", f"the kind of block {kind[:40]!r} is not documented")
        check_fields(kind, begun)
        if is_tool_use(kind):
            tool_id = str(begun["id"])
            if tool_id in self._tool_ids:
                raise RuleBrokenError("tool_id_repeated", "two blocks have the same tool id")
            self._tool_ids.add(tool_id)
        self._open, self._next = index, index + 1

    def _check_delta(self, event: dict[str, object]) -> None:
        self._check_is_open(event)
        kind = text_in("delta.type", object_in("delta", event.get("delta")).get("type"))
        if not is_documented_delta(kind):
            raise RuleBrokenError("unknown_delta", f"the kind of delta {kind[:40]!r} is not documented")

    def _check_is_open(self, event: dict[str, object]) -> None:
        index = event.get("index")
        if not is_count(index):
            raise wrong_type("index", "a number from 0", index)
        if index != self._open:
            raise RuleBrokenError("block_not_open", f"{event['type']} came for block {index}, which is not open")

    def _check_message_delta(self, event: dict[str, object]) -> None:
        if self._open is not None:
            raise RuleBrokenError("block_still_open", f"block {self._open} was not stopped before message_delta")
        self._is_ending = True
        delta = object_in("delta", event.get("delta"))
        if "stop_reason" not in delta:
            raise wrong_type("delta.stop_reason", "text or null", None)
        reason = delta["stop_reason"]
        if reason is not None:
            reason = text_in("delta.stop_reason", reason)
        if self._stop_reason is not None and reason != self._stop_reason:
            raise RuleBrokenError("stop_reason_changed", "a second message_delta tells another stop reason")
        self._stop_reason = reason
        usage = object_in("usage", event.get("usage"))
        _check_count("usage.output_tokens", usage.get("output_tokens"))


def _check_count(where: str, value: object) -> None:
    if not is_count(value):
        raise wrong_type(where, "a number from 0", value)
