"""The answer that the chunks of a Chat Completions stream add up to.

What belongs here: what each field of a chunk means, its type, and the limits on what may add up. What must not be
known here: how chunks are framed, when the stream is over, what an error object means.

Only the choice with index 0 is the answer; the others are counted. A field of the wrong type breaks a rule when the
answer depends on it, and is passed over when it does not.
"""

import json
from dataclasses import dataclass

from worker.codecs.events import (
    Completed,
    Failed,
    ReasoningDelta,
    RefusalDelta,
    StreamEvent,
    TextDelta,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from worker.codecs.toolargs import ToolCallPieces
from worker.codecs.wirejson import HalfCharacter

_REASONING_FIELDS = ("reasoning_content", "reasoning")
_MOST_CHOICES = 128
_JSON_TYPES = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}


@dataclass(frozen=True, slots=True)
class ChatLimits:
    """What one answer may grow to. `text_chars` counts text, reasoning and refusal; `argument_chars` all tool calls."""

    text_chars: int = 16 * 1024 * 1024
    argument_chars: int = 4 * 1024 * 1024
    tool_calls: int = 128


class RuleBrokenError(Exception):
    """The peer broke a rule of the wire format. `code` for programs; the message names the rule."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LimitPassedError(RuleBrokenError):
    """The answer outgrew a limit of ours, so a part of it would be lost."""


class ChatAnswer:
    """Takes chunks, gives events, and keeps what belongs to the whole answer."""

    def __init__(self, limits: ChatLimits) -> None:
        self.finish_reason: str | None = None
        self.raw_usage: dict[str, object] | None = None
        self._limits = limits
        self._answer_id = ""
        self._choices: set[int] = set()
        self._text_chars = 0
        self._refusal: list[str] = []
        self._calls = ToolCallPieces()
        self._halves: dict[type[TextDelta | ReasoningDelta | RefusalDelta], HalfCharacter] | None = None

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come."""
        return self._calls.calls(self._answer_id)

    def expect_half_characters(self) -> None:
        """From now on a piece of text may end in the first half of a character."""
        if self._halves is None:
            self._halves = {kind: HalfCharacter() for kind in (TextDelta, ReasoningDelta, RefusalDelta)}

    def take_usage(self, chunk: dict[str, object]) -> None:
        """Keep the chunk's usage: it may come in any chunk, and the last one counts."""
        usage = chunk.get("usage")
        if usage and isinstance(usage, dict):
            self.raw_usage = usage

    def take_choices(self, chunk: dict[str, object], events: list[StreamEvent]) -> None:
        """Append what the chunk's choices say. Raises RuleBrokenError."""
        choices = chunk.get("choices")
        if not choices:
            return
        if not isinstance(choices, list):
            raise _wrong_type("choices", "a list", choices)
        if not self._answer_id and isinstance(chunk.get("id"), str):
            self._answer_id = str(chunk["id"])
        for choice in choices:
            if choice is None:
                continue
            if not isinstance(choice, dict):
                raise _wrong_type("choices[]", "an object", choice)
            if self._index_of(choice) == 0:
                self._take_first_choice(choice, events)

    def end(self, events: list[StreamEvent]) -> None:
        """The terminal mark was seen: append what is still held back, then the `Completed`."""
        if self._choices and 0 not in self._choices:
            events.append(Failed("protocol", "no choice of the answer has the index 0", "no_first_choice"))
            return
        for kind, half in (self._halves or {}).items():
            if rest := half.rest():
                if kind is RefusalDelta:
                    self._refusal.append(rest)
                events.append(kind(rest))
        refusal = "".join(self._refusal) or None
        usage = None if self.raw_usage is None else usage_of(self.raw_usage)
        events.append(Completed(self.finish_reason, self.tool_calls, usage, len(self._choices), refusal))

    def _index_of(self, choice: dict[str, object]) -> int:
        index = choice.get("index")
        if index is None:
            index = 0
        if not isinstance(index, int) or isinstance(index, bool):
            raise _wrong_type("choices[].index", "a number", index)
        if index not in self._choices:
            if len(self._choices) >= _MOST_CHOICES:
                raise RuleBrokenError("too_many_choices", f"the answer has more than {_MOST_CHOICES} choices")
            self._choices.add(index)
        return index

    def _take_first_choice(self, choice: dict[str, object], events: list[StreamEvent]) -> None:
        delta = choice.get("delta")
        if delta is None and not self._text_chars and not self._calls:
            delta = choice.get("message")  # a whole answer in one chunk; after deltas it would only repeat them
        if delta:
            if not isinstance(delta, dict):
                raise _wrong_type("choices[].delta", "an object", delta)
            self._take_delta(delta, events)
        finish = choice.get("finish_reason")
        if finish:
            if not isinstance(finish, str):
                raise _wrong_type("choices[].finish_reason", "text", finish)
            if finish != "null":  # the word, as some servers send it in every chunk
                self.finish_reason = finish

    def _take_delta(self, delta: dict[str, object], events: list[StreamEvent]) -> None:
        for field in _REASONING_FIELDS:
            reasoning = delta.get(field)
            if reasoning and isinstance(reasoning, str):
                self._say(ReasoningDelta, reasoning, events)
                break  # both fields hold the same
        content = delta.get("content")
        if content:
            if isinstance(content, str):
                self._say(TextDelta, content, events)
            else:
                self._take_parts(content, events)
        refusal = delta.get("refusal")
        if refusal:
            if not isinstance(refusal, str):
                raise _wrong_type("choices[].delta.refusal", "text", refusal)
            self._say(RefusalDelta, refusal, events)
        calls = delta.get("tool_calls")
        if calls:
            if not isinstance(calls, list):
                raise _wrong_type("choices[].delta.tool_calls", "a list", calls)
            for call in calls:
                self._take_tool_call(call, events)

    def _take_parts(self, parts: object, events: list[StreamEvent]) -> None:
        if not isinstance(parts, list):
            raise _wrong_type("choices[].delta.content", "text or a list of parts", parts)
        for part in parts:
            if not isinstance(part, dict):
                raise _wrong_type("choices[].delta.content[]", "an object", part)
            if part.get("type") == "text":
                text = part.get("text")
                if text:
                    if not isinstance(text, str):
                        raise _wrong_type("choices[].delta.content[].text", "text", text)
                    self._say(TextDelta, text, events)
            elif part.get("type") == "thinking":
                pieces = part.get("thinking")
                for piece in pieces if isinstance(pieces, list) else [{"text": pieces}]:
                    text = piece.get("text") if isinstance(piece, dict) else None
                    if text and isinstance(text, str):
                        self._say(ReasoningDelta, text, events)

    def _take_tool_call(self, call: object, events: list[StreamEvent]) -> None:
        where = "choices[].delta.tool_calls[]"
        if call is None:
            return
        if not isinstance(call, dict):
            raise _wrong_type(where, "an object", call)
        function = call.get("function") or {}
        if not isinstance(function, dict):
            raise _wrong_type(f"{where}.function", "an object", function)
        index = call.get("index")
        if index is not None and (not isinstance(index, int) or isinstance(index, bool)):
            raise _wrong_type(f"{where}.index", "a number", index)
        call_id = _text_or_none(f"{where}.id", call.get("id"))
        name = _text_or_none(f"{where}.function.name", function.get("name"))
        arguments = _arguments_text(f"{where}.function.arguments", function.get("arguments"))
        before = (len(self._calls), self._calls.size)
        position = self._calls.add(index, call_id, name, arguments)
        if before != (len(self._calls), self._calls.size):
            events.append(ToolCallDelta(position))
        if len(self._calls) > self._limits.tool_calls:
            raise LimitPassedError(
                "too_many_tool_calls", f"the answer has more than {self._limits.tool_calls} tool calls"
            )
        if self._calls.size > self._limits.argument_chars:
            message = f"the tool arguments are longer than {self._limits.argument_chars} characters"
            raise LimitPassedError("arguments_too_long", message)

    def _say(self, kind: type[TextDelta | ReasoningDelta | RefusalDelta], text: str, events: list[StreamEvent]) -> None:
        if self._halves is not None:
            text = self._halves[kind].join(text)
            if not text:
                return
        self._text_chars += len(text)
        if self._text_chars > self._limits.text_chars:
            raise LimitPassedError("text_too_long", f"the answer is longer than {self._limits.text_chars} characters")
        if kind is RefusalDelta:
            self._refusal.append(text)
        events.append(kind(text))


def usage_of(raw: dict[str, object]) -> Usage:
    """The usage in our words. What is no count is None."""
    prompt, completion = raw.get("prompt_tokens_details"), raw.get("completion_tokens_details")
    cached = _count(prompt.get("cached_tokens")) if isinstance(prompt, dict) else None
    return Usage(
        input_tokens=_count(raw.get("prompt_tokens")),
        output_tokens=_count(raw.get("completion_tokens")),
        total_tokens=_count(raw.get("total_tokens")),
        cached_input_tokens=_count(raw.get("prompt_cache_hit_tokens")) if cached is None else cached,
        reasoning_tokens=_count(completion.get("reasoning_tokens")) if isinstance(completion, dict) else None,
    )


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _text_or_none(where: str, value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise _wrong_type(where, "text", value)


def _arguments_text(where: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if not value:
        return ""
    if isinstance(value, dict | list):  # whole, unescaped: the text is ours then
        return json.dumps(value)
    raise _wrong_type(where, "text or an object", value)


def _wrong_type(where: str, wanted: str, value: object) -> RuleBrokenError:
    found = _JSON_TYPES.get(type(value), "null")
    return RuleBrokenError("wrong_type", f"chat chunk: {where} must be {wanted}, not {found}")
