"""The body of an event as JSON, and the places in it.

What belongs here: reading a body strictly, JSON pointers (RFC 6901), and values as text. What must not be known here:
what an event means, where its body came from.

A number stays the text that it was sent as: 18446744073709551616 and 1.10 come out as they came in. Of a name that
an object holds twice the last value counts, as in most readers.
"""

import json
import re
from array import array
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from typing import Any

from channels.delivery.model import well_formed
from worker.errors import ConfigurationError

MAX_DEPTH = 100
"""Lists and objects within each other. Events of the known senders have less than twenty."""

GLANCE_BYTES = 65536
"""Of a body that proves nothing no more is parsed: it costs a few milliseconds."""

MAX_POINTER = 500
_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
_ESCAPE = re.compile(r"~(?![01])")
_BRACKETS = b"[]{}"
_OTHERS = bytes(set(range(256)) - set(_BRACKETS))
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Of each bracket, as a signed byte: one level down, or up again."""

_NO_JSON = "it is no JSON text"
_ENDS = (b"{}", b"[]", b'""')


class Absent(Enum):
    """There is nothing at that place; null is something."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


class NotJson(Exception):
    """A body that is no JSON text. The message says why, without a word of the body."""


class Number(str):
    """A number, as it was written."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, repr=False)
class Payload:
    """A body: its text, and what that says (dict, list, str, Number, bool or None)."""

    text: str
    value: Any


@dataclass(frozen=True, slots=True)
class Pointer:
    """A place in a payload. `text` as it was written; `steps`: names and indexes, unescaped."""

    text: str
    steps: tuple[str, ...]


def read_payload(body: bytes) -> Payload:
    """A body as JSON. Raises `NotJson`."""
    text = _decoded(body)
    if is_too_deep(body):  # before it is parsed, which would cost far more
        raise NotJson(f"it is nested deeper than {MAX_DEPTH}")
    try:
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=_no_constant)
    except ValueError:
        raise NotJson(_NO_JSON) from None
    return Payload(text, value)


def glance(body: bytes) -> None:
    """Look whether a body is JSON, as far as that costs little. Raises `NotJson`.

    Of one longer than `GLANCE_BYTES` that is only its encoding, and that it begins and ends like an object, a list or
    a text.
    """
    if len(body) <= GLANCE_BYTES:
        read_payload(body)
        return
    _decoded(body)
    stripped = body.strip(b" \t\r\n")
    if stripped[:1] + stripped[-1:] not in _ENDS:
        raise NotJson(_NO_JSON)


def is_too_deep(body: bytes) -> bool:
    """Whether lists and objects lie deeper within each other than `MAX_DEPTH`, in a text that is JSON so far."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:  # nearly always
        return False
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    return max(accumulate(array("b", outside.translate(_STEPS, _OTHERS))), default=0) > MAX_DEPTH


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError:
        raise NotJson("it is not UTF-8") from None


def parse_pointer(field: str, text: str) -> Pointer:
    """A JSON pointer. Raises `ConfigurationError` with field, value and fix."""
    if len(text) > MAX_POINTER:
        raise ConfigurationError(f"{field} has {len(text)} characters: a pointer has at most {MAX_POINTER}")
    if not text.startswith("/") or _ESCAPE.search(text):
        raise ConfigurationError(
            f"{field} {text!r} is no JSON pointer: begin with '/', put one between names, as in /issue/title, and "
            "write '~' in a name as ~0 and '/' as ~1"
        )
    steps = tuple(step.replace("~1", "/").replace("~0", "~") for step in text[1:].split("/"))
    return Pointer(text, steps)


def found(payload: Payload, pointer: Pointer) -> Any:
    """The value at a place, or `ABSENT`."""
    value = payload.value
    for step in pointer.steps:
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and _INDEX.fullmatch(step) and int(step) < len(value):
            value = value[int(step)]
        else:
            return ABSENT
    return value


def scalar(value: Any) -> str | None:
    """A text, number or truth value as text; None for everything else."""
    raw = raw_scalar(value)
    return None if raw is None else well_formed(raw)


def raw_scalar(value: Any) -> str | None:
    """The same with the halves of surrogate pairs that it may hold, so that different ones stay different."""
    if isinstance(value, str):
        return value
    return None if not isinstance(value, bool) else "true" if value else "false"


def shown(value: Any) -> str:
    """A value as text: a text as it is, everything else as JSON."""
    return well_formed(value) if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    match value:
        case Number():
            return str(value)
        case str():
            return json.dumps(well_formed(value), ensure_ascii=False)
        case list():
            return "[" + ", ".join(map(_json, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_json(str(name))}: {_json(each)}" for name, each in value.items()) + "}"
        case _:
            return json.dumps(value)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
