"""Fields of a Chat Completions object: their types, and what some of them mean in our words.

What belongs here: reading one field. What must not be known here: what came before it, when an answer is over.
"""

import json

from worker.codecs.events import Usage
from worker.codecs.field_types import count_of, described, is_count
from worker.codecs.limits import LimitPassedError, RuleBrokenError

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Where servers put reasoning: one of both, or the same in both."""


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


def wrong_type(where: str, wanted: str, value: object) -> RuleBrokenError:
    """The error of a field with a value of the wrong type."""
    return RuleBrokenError("wrong_type", f"chat chunk: {where} must be {wanted}, not {described(value)}")


def _first_count(*values: object) -> int | None:
    return next((count for count in map(count_of, values) if count is not None), None)
