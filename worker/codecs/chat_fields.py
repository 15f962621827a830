"""Fields of a Chat Completions object: their types, and what some of them mean in our words.

What belongs here: reading one field. What must not be known here: what came before it, when an answer is over.
"""

import json
from collections.abc import Iterator
from typing import Literal

from worker.codecs.events import Usage
from worker.codecs.field_types import count_of, described, is_count
from worker.codecs.limits import LimitPassedError, RuleBrokenError

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put reasoning: one of both, or the same in both."""
DELTA = "choices[].delta"
ToolPiece = tuple[int | None, str | None, str | None, str]
"""A piece of a tool call: index, id, name, arguments, as far as it has them."""


def reasoning_in(delta: dict[str, object]) -> str:
    """The reasoning that a delta has: where both fields have some, it is the same."""
    for field in REASONING_FIELDS:
        reasoning = delta.get(field)
        if reasoning and isinstance(reasoning, str):
            return reasoning
    return ""


def usage_of(raw: dict[str, object]) -> Usage:
    """The usage in our words. What is no count is None."""
    prompt, completion = raw.get("prompt_tokens_details"), raw.get("completion_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    return Usage(
        input_tokens=count_of(raw.get("prompt_tokens")),
        output_tokens=count_of(raw.get("completion_tokens")),
        total_tokens=count_of(raw.get("total_tokens")),
        cached_input_tokens=_first_count(prompt.get("cached_tokens"), raw.get("prompt_cache_hit_tokens")),
        reasoning_tokens=count_of(completion.get("reasoning_tokens")),
        cache_write_input_tokens=_first_count(
            prompt.get("cache_write_tokens"),
            prompt.get("cache_creation_input_tokens"),
            raw.get("cache_creation_input_tokens"),
        ),
    )


def index_of(where: str, value: object, limit: int) -> int:
    """An index. Raises RuleBrokenError where it is none, LimitPassedError where it is beyond `limit`."""
    if not is_count(value):
        raise wrong_type(where, "a number from 0", value)
    if value > limit:
        raise LimitPassedError("index_too_high", f"{where} is {value}, beyond the limit of {limit}")
    return value


def text_or_none(where: str, value: object) -> str | None:
    """A text, if there is one. Raises RuleBrokenError."""
    if value is None or isinstance(value, str):
        return value
    raise wrong_type(where, "text", value)


def arguments_text(where: str, value: object) -> str:
    """The arguments of a tool call as text. Raises RuleBrokenError."""
    if isinstance(value, str):
        return value
    if not value:
        return ""
    if isinstance(value, dict | list):  # whole, unescaped: the text is ours then
        return json.dumps(value)
    raise wrong_type(where, "text or an object", value)


def said_in_parts(where: str, parts: object) -> Iterator[tuple[Literal["text", "thinking"], str]]:
    """What the parts of a content say, with the kind of each; other kinds are passed over. Raises RuleBrokenError."""
    if not isinstance(parts, list):
        raise wrong_type(where, "text or a list of parts", parts)
    for part in parts:
        if not isinstance(part, dict):
            raise wrong_type(f"{where}[]", "an object", part)
        if part.get("type") == "text":
            text = part.get("text")
            if text:
                if not isinstance(text, str):
                    raise wrong_type(f"{where}[].text", "text", text)
                yield "text", text
        elif part.get("type") == "thinking":
            pieces = part.get("thinking")
            for piece in pieces if isinstance(pieces, list) else [{"text": pieces}]:
                text = piece.get("text") if isinstance(piece, dict) else None
                if text and isinstance(text, str):
                    yield "thinking", text


def tool_pieces_in(delta: dict[str, object], highest_index: int) -> Iterator[ToolPiece]:
    """The pieces of tool calls that a delta has. Raises RuleBrokenError."""
    calls = delta.get("tool_calls")
    if not calls:
        if function := delta.get("function_call"):  # what tool_calls replaced: one call, without index and id
            yield 0, None, *_name_and_arguments(f"{DELTA}.function_call", function)
        return
    where = f"{DELTA}.tool_calls[]"
    if not isinstance(calls, list):
        raise wrong_type(f"{DELTA}.tool_calls", "a list", calls)
    for call in calls:
        if call is None:
            continue
        if not isinstance(call, dict):
            raise wrong_type(where, "an object", call)
        index = call.get("index")
        if index is not None:
            index = index_of(f"{where}.index", index, highest_index)
        call_id = text_or_none(f"{where}.id", call.get("id"))
        yield index, call_id, *_name_and_arguments(f"{where}.function", call.get("function") or {})


def _name_and_arguments(where: str, function: object) -> tuple[str | None, str]:
    if not isinstance(function, dict):
        raise wrong_type(where, "an object", function)
    name = text_or_none(f"{where}.name", function.get("name"))
    return name, arguments_text(f"{where}.arguments", function.get("arguments"))


def wrong_type(where: str, wanted: str, value: object) -> RuleBrokenError:
    """The error of a field with a value of the wrong type."""
    return RuleBrokenError("wrong_type", f"chat chunk: {where} must be {wanted}, not {described(value)}")


def _first_count(*values: object) -> int | None:
    return next((count for count in map(count_of, values) if count is not None), None)
