"""The content blocks of an Anthropic message: which pieces each kind takes, and how it is sent back.

What belongs here: one block. What must not be known here: the order of events, what an answer says in our words.
"""

import json
from collections.abc import Iterable
from typing import Literal

from worker.codecs.anthropic_fields import object_in, text_in, wrong_type
from worker.codecs.events import ToolCall
from worker.codecs.limits import RuleBrokenError
from worker.codecs.toolargs import MAX_DEPTH, parse_arguments
from worker.codecs.wirejson import is_nested_deeper, well_formed

TEXT, THINKING, TOOL_USE = "text", "thinking", "tool_use"

_FIELDS = {
    TEXT: "text",
    THINKING: "thinking",
    "redacted_thinking": "data",
    TOOL_USE: "id",
    "server_tool_use": "id",
    "mcp_tool_use": "id",
    "container_upload": "file_id",
    "compaction": None,
    "fallback": None,
}
"""The documented kinds, each with a field of text that a block of it begins with."""

_DELTAS = {
    "text_delta": (TEXT, "text"),
    "citations_delta": (TEXT, "citation"),
    "thinking_delta": (THINKING, "thinking"),
    "signature_delta": (THINKING, "signature"),
    "input_json_delta": (TOOL_USE, "partial_json"),
    "compaction_delta": ("compaction", "content"),
}
"""The documented deltas, each with the kind of block that it belongs to and its field."""


class Block:
    """One block as it comes. `call`: the place of its tool call in the answer, None where it is none of ours.

    `state`: `open`, `stopped` by its own event, or `cut` by the end of the message. `has_pieces`: some delta filled it.
    """

    def __init__(self, kind: str, begun: dict[str, object], call: int | None = None) -> None:
        self.kind = kind
        self.begun = begun
        self.call = call
        self.state: Literal["open", "stopped", "cut"] = "open"
        self.has_pieces = False
        self._pieces: dict[str, list[str]] = {}
        self._citations: list[object] = []
        self._is_readable = True

    def add(self, delta_kind: str, delta: dict[str, object], *, flawed: bool) -> str:
        """Take a delta; the text that it adds to an answer or to arguments. Raises RuleBrokenError.

        `flawed`: strings of the delta may hold half characters.
        """
        belongs, field = _DELTAS[delta_kind]
        if not is_documented(self.kind):
            self._is_readable = False
            return ""
        if self.kind != belongs and not (belongs == TOOL_USE and is_tool_use(self.kind)):
            raise RuleBrokenError("wrong_delta", f"a {self.kind} block takes no {delta_kind}")
        if delta_kind == "citations_delta":
            self._citations.append(_citation(delta.get(field), flawed=flawed))
            return ""
        if delta_kind == "compaction_delta":
            for name, value in delta.items():
                if name != "type" and isinstance(value, str):
                    self.put(name, value)
            return ""
        piece = text_in(f"delta.{field}", delta.get(field))
        self.put(field, piece)
        return "" if delta_kind == "signature_delta" else piece

    def put(self, field: str, piece: str) -> None:
        """Take a piece of a field. The arguments of our tool calls are kept elsewhere."""
        if not piece:
            return
        self.has_pieces = True
        if self.call is None:
            self._pieces.setdefault(field, []).append(piece)

    def sent_back(self, calls: tuple[ToolCall, ...]) -> dict[str, object] | None:
        """The block as the provider wants it in later requests; None for one that it would refuse there.

        That is a text without a word, thinking without its signature, and what was cut before it was whole.
        """
        form = dict(self.begun)
        if self.call is not None:
            call = calls[self.call]
            return {**form, "id": call.id, "name": call.name, "input": call.arguments_json or {}}
        joined = {field: well_formed("".join(pieces)) for field, pieces in self._pieces.items()}
        arguments = joined.pop("partial_json", None)
        form |= joined
        if arguments is not None:
            form["input"] = parse_arguments(arguments) or {}
        if self._citations:
            form["citations"] = self._citations
        if self.kind == TEXT:
            return form if str(form.get("text") or "").strip() else None
        if self.kind == THINKING:
            return form if form.get("signature") else None
        return form if self.state == "stopped" and self._is_readable else None


def echo_of(blocks: Iterable[Block], calls: tuple[ToolCall, ...]) -> tuple[dict[str, object], ...]:
    """The answer's blocks as they are sent back, if one of them is of the provider's own making; else nothing.

    `calls`: the tool calls of the answer.
    """
    forms = [(block.kind, form) for block in blocks if (form := block.sent_back(calls)) is not None]
    return tuple(form for _, form in forms) if any(kind not in (TEXT, TOOL_USE) for kind, _ in forms) else ()


def block_begun(value: object) -> tuple[str, dict[str, object]]:
    """The kind and the form that a block begins with. Raises RuleBrokenError."""
    begun = object_in("content_block", value)
    kind = text_in("content_block.type", begun.get("type"))
    _check_depth("content_block", begun)
    return kind, begun


def block_for(delta_kind: str) -> tuple[str, dict[str, object]]:
    """What a block must have begun with, to judge by its first delta. Raises RuleBrokenError where that is not known.

    Arguments alone do not tell which tool they are for.
    """
    belongs, field = _DELTAS[delta_kind]
    if belongs == TOOL_USE:
        raise RuleBrokenError("block_not_started", "arguments came for a block that was not started")
    return belongs, {"type": belongs} if belongs == "compaction" else {"type": belongs, field: ""}


def is_documented(kind: str) -> bool:
    """Whether blocks of this kind are documented."""
    return kind in _FIELDS or kind.endswith("_tool_result")


def is_tool_use(kind: str) -> bool:
    """Whether blocks of this kind ask for a tool, ours or the provider's."""
    return kind == TOOL_USE or kind.endswith("_tool_use")


def is_documented_delta(kind: str) -> bool:
    """Whether deltas of this kind are documented."""
    return kind in _DELTAS


def check_fields(kind: str, begun: dict[str, object]) -> None:
    """Raise RuleBrokenError unless a block of a documented kind begins with what it must."""
    field = "tool_use_id" if kind.endswith("_tool_result") else _FIELDS[kind]
    if field is not None:
        text_in(f"content_block.{field}", begun.get(field))
    if is_tool_use(kind):
        for field in ("id", "name"):
            if not text_in(f"content_block.{field}", begun.get(field)):
                raise wrong_type(f"content_block.{field}", "text that is not empty", "")


def _check_depth(where: str, value: object) -> None:
    if is_nested_deeper(value, MAX_DEPTH):
        raise RuleBrokenError("nested_too_deep", f"{where} is nested deeper than {MAX_DEPTH} levels")


def _citation(value: object, *, flawed: bool) -> object:
    _check_depth("delta.citation", value)
    return json.loads(well_formed(json.dumps(value, ensure_ascii=False))) if flawed else value
