"""Fields of a Responses event: their types, and what some of them mean in our words.

What belongs here: reading one field. What must not be known here: what came before it, when an answer is over.
"""

from worker.codecs.events import Usage
from worker.codecs.field_types import count_of, described, is_count
from worker.codecs.limits import LimitPassedError, RuleBrokenError

Fields = dict[str, object]

_LARGEST_COUNT = 2**53 - 1


def object_in(fields: Fields, key: str) -> Fields:
    """An object that must be there. Raises RuleBrokenError."""
    value = fields.get(key)
    if isinstance(value, dict):
        return value
    raise wrong_type(key, "an object", value)


def text_in(fields: Fields, key: str) -> str:
    """A text that must be there, perhaps empty. Raises RuleBrokenError."""
    value = fields.get(key)
    if isinstance(value, str):
        return value
    raise wrong_type(key, "text", value)


def text_or_none(fields: Fields, key: str) -> str | None:
    """A text, if there is one. Raises RuleBrokenError."""
    return None if fields.get(key) is None else text_in(fields, key)


def objects_in(fields: Fields, key: str) -> list[Fields]:
    """A list of objects; what is not there is empty. Raises RuleBrokenError."""
    values = fields.get(key)
    if values is None:
        return []
    if not isinstance(values, list):
        raise wrong_type(key, "a list", values)
    for value in values:
        if not isinstance(value, dict):
            raise wrong_type(f"{key}[]", "an object", value)
    return values


def index_in(fields: Fields, key: str, limit: int) -> int:
    """An index. Raises RuleBrokenError where it is none, LimitPassedError where it is beyond `limit`."""
    value = fields.get(key)
    if not is_count(value):
        raise RuleBrokenError("wrong_index", f"{key} must be a number from 0, not {described(value)}")
    if value > limit:
        raise LimitPassedError("index_too_high", f"{key} is beyond the limit of {limit}")
    return value


def name_in(fields: Fields, key: str) -> str | None:
    """A text that is not empty, or None where there is no such text. Never raises."""
    value = fields.get(key)
    return value if value and isinstance(value, str) else None


def wrong_type(key: str, wanted: str, value: object) -> RuleBrokenError:
    """The error of a field with a value of the wrong type."""
    return RuleBrokenError("wrong_type", f"{key} must be {wanted}, not {described(value)}")


def usage_of(raw: Fields) -> Usage:
    """The usage in our words. What is no count is None."""
    given, made = raw.get("input_tokens_details"), raw.get("output_tokens_details")
    given = given if isinstance(given, dict) else {}
    made = made if isinstance(made, dict) else {}
    return Usage(
        input_tokens=count_of(raw.get("input_tokens")),
        output_tokens=count_of(raw.get("output_tokens")),
        total_tokens=count_of(raw.get("total_tokens")),
        cached_input_tokens=count_of(given.get("cached_tokens")),
        reasoning_tokens=count_of(made.get("reasoning_tokens")),
        cache_write_input_tokens=count_of(given.get("cache_write_tokens")),
    )


def check_usage(raw: Fields) -> None:
    """Raises RuleBrokenError for a usage that cannot be: a counter that is no count, or more cached than came in."""
    details = [raw.get("input_tokens_details"), raw.get("output_tokens_details")]
    for source in (raw, *(part for part in details if isinstance(part, dict))):
        for key, value in source.items():
            if key.endswith("_tokens") and not (type(value) is int and 0 <= value <= _LARGEST_COUNT):
                raise RuleBrokenError("wrong_usage", f"usage: {key} must be a whole number from 0")
    usage = usage_of(raw)
    cached = usage.cached_input_tokens or 0
    if cached > (usage.input_tokens or 0):
        raise RuleBrokenError("wrong_usage", "usage: cached_tokens cannot be more than input_tokens")
