"""Fields of a Chat Completions object: their types, and what some of them mean in our words.

What belongs here: reading one field. What must not be known here: what came before it, when an answer is over.
"""

import json

from worker.codecs.events import Usage
from worker.codecs.limits import LimitPassedError, RuleBrokenError

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put reasoning: one of both, or the same in both."""

DEAD_FINISHES = frozenset({"error", "insufficient_system_resource", "abort", "network_error"})
"""Finish reasons that stand for an error of the server."""

_FINISHES = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "complete": "stop",
    "tool_calls": "tool_calls",
    "tool_call": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "content_filter",
    "content-filter": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "refusal": "refusal",
}
_JSON_TYPES = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}


def finish_in_our_words(word: str | None) -> str | None:
    """The word of `worker.codecs.events.Completed` for a server's finish reason; its own where we have none."""
    return None if word is None else _FINISHES.get(word.lower(), word)


def usage_of(raw: dict[str, object]) -> Usage:
    """The usage in our words. What is no count is None."""
    prompt, completion = raw.get("prompt_tokens_details"), raw.get("completion_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = completion if isinstance(completion, dict) else {}
    return Usage(
        input_tokens=_count(raw.get("prompt_tokens")),
        output_tokens=_count(raw.get("completion_tokens")),
        total_tokens=_count(raw.get("total_tokens")),
        cached_input_tokens=_first_count(prompt.get("cached_tokens"), raw.get("prompt_cache_hit_tokens")),
        reasoning_tokens=_count(completion.get("reasoning_tokens")),
        cache_write_input_tokens=_first_count(
            prompt.get("cache_write_tokens"),
            prompt.get("cache_creation_input_tokens"),
            raw.get("cache_creation_input_tokens"),
        ),
    )


def index_of(where: str, value: object, limit: int) -> int:
    """An index. Raises RuleBrokenError where it is none, LimitPassedError where it is beyond `limit`."""
    if type(value) is not int or value < 0:
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


def wrong_type(where: str, wanted: str, value: object) -> RuleBrokenError:
    """The error of a field with a value of the wrong type."""
    found = "a negative number" if type(value) is int and value < 0 else _JSON_TYPES.get(type(value), "null")
    return RuleBrokenError("wrong_type", f"chat chunk: {where} must be {wanted}, not {found}")


def _first_count(*values: object) -> int | None:
    return next((count for count in map(_count, values) if count is not None), None)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None
