"""Types of JSON values, the same for every wire format.

What belongs here: how a value of the wrong type is named, and what counts as a count. What must not be known here:
which fields there are.
"""

from typing import TypeGuard

_WORDS = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}


def described(value: object) -> str:
    """The type of a JSON value, as the message of an error names it."""
    return "a negative number" if type(value) is int and value < 0 else _WORDS.get(type(value), "null")


def is_count(value: object) -> TypeGuard[int]:
    """Whether it is a whole number from 0."""
    return type(value) is int and value >= 0


def count_of(value: object) -> int | None:
    """A count, or None where it is none."""
    return value if is_count(value) else None
