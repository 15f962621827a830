"""Fields of an Anthropic Messages event: their types, and what some of them mean in our words.

What belongs here: reading one field. What must not be known here: what came before it, when a message is over.
"""

from worker.codecs.events import Usage
from worker.codecs.field_types import count_of, described, is_count
from worker.codecs.limits import LimitPassedError, RuleBrokenError


def usage_of(raw: dict[str, object]) -> Usage:
    """The usage in our words. What is no count is None; nothing is worked out from counts that were not sent.

    The provider counts input that was read from a cache or written to it apart; our input is all three together.
    """
    fresh, output = count_of(raw.get("input_tokens")), count_of(raw.get("output_tokens"))
    read, written = count_of(raw.get("cache_read_input_tokens")), count_of(raw.get("cache_creation_input_tokens"))
    details = raw.get("output_tokens_details")
    whole = None if fresh is None else fresh + (read or 0) + (written or 0)
    return Usage(
        input_tokens=whole,
        output_tokens=output,
        total_tokens=None if whole is None or output is None else whole + output,
        cached_input_tokens=read,
        reasoning_tokens=count_of(details.get("thinking_tokens")) if isinstance(details, dict) else None,
        cache_write_input_tokens=written,
    )


def index_of(value: object, limit: int) -> int:
    """A block's index. Raises RuleBrokenError where it is none, LimitPassedError where it is beyond `limit`."""
    if not is_count(value):
        raise wrong_type("index", "a number from 0", value)
    if value > limit:
        raise LimitPassedError("index_too_high", f"messages event: index is {value}, beyond the limit of {limit}")
    return value


def object_in(where: str, value: object) -> dict[str, object]:
    """An object that must be there. Raises RuleBrokenError."""
    if isinstance(value, dict):
        return value
    raise wrong_type(where, "an object", value)


def text_in(where: str, value: object) -> str:
    """A text that must be there. Raises RuleBrokenError."""
    if isinstance(value, str):
        return value
    raise wrong_type(where, "text", value)


def text_or_none(where: str, value: object) -> str | None:
    """A text, if there is one. Raises RuleBrokenError."""
    return None if value is None else text_in(where, value)


def wrong_type(where: str, wanted: str, value: object) -> RuleBrokenError:
    """The error of a field with a value of the wrong type."""
    return RuleBrokenError("wrong_type", f"messages event: {where} must be {wanted}, not {described(value)}")
