"""A prompt, or a session's name, made of an event.

What belongs here: the templates' grammar, and filling them in. What must not be known here: agents, requests, where a
template is set.

`{/issue/title}` stands for what a JSON pointer finds in the payload, `{body}` for the payload as it was sent, `{event}`
for the type of the event; `{{` and `}}` are single braces. What is filled in is data: it is read as no template again.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from channels.delivery.model import well_formed
from channels.hooks.payload import ABSENT, Payload, Pointer, found, parse_pointer, raw_scalar, shown
from worker.errors import ConfigurationError

Word = Literal["body", "event"]
Part = str | Pointer | tuple[Word]
"""Literal text, a place in the payload, or a word in a tuple of its own."""

MAX_TEMPLATE = 100_000
LONGEST_NAME = 60
"""Characters of a session that one placeholder may fill; of what is longer stands a hash."""

_DIGEST = 32
_SEPARATES = re.compile(r"[^A-Za-z0-9_.~%-]")
"""What stands in no value of a session's name, as `_name_of` spells it: where it is read, a value has ended."""


class Unfillable(Exception):
    """A template cannot be filled in from this event. The message names the place and the fix, and no value."""


@dataclass(frozen=True, slots=True)
class Template:
    """A template that was parsed."""

    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """What fills a template in. `type` None: the sender told none."""

    payload: Payload
    type: str | None


def parse_template(field: str, text: str, words: tuple[Word, ...] = ("body", "event")) -> Template:
    """A template. Raises `ConfigurationError` with field, value and fix."""
    if len(text) > MAX_TEMPLATE:
        raise ConfigurationError(f"{field} has {len(text)} characters: a template has at most {MAX_TEMPLATE}")
    parts: list[Part] = []
    literal, at = "", 0
    while at < len(text):
        two, one = text[at : at + 2], text[at]
        if two in ("{{", "}}"):
            literal, at = literal + one, at + 2
        elif one == "{":
            end = text.find("}", at)
            if end < 0:
                raise ConfigurationError(f"{field}: the '{{' at character {at} is never closed; write {{{{ for a brace")
            parts += [literal, _placeholder(field, text[at + 1 : end], words)]
            literal, at = "", end + 1
        elif one == "}":
            raise ConfigurationError(f"{field}: the '}}' at character {at} closes nothing; write }}}} for a brace")
        else:
            literal, at = literal + one, at + 1
    return Template(tuple(part for part in (*parts, literal) if part != ""))


def parse_session(field: str, text: str) -> Template:
    """The template of a session. Raises `ConfigurationError` where different values could make the same name."""
    template = parse_template(field, text, ("event",))
    between = ""
    before: Pointer | tuple[Word] | None = None
    for part in template.parts:
        if isinstance(part, str):
            between = part
            continue
        if before is not None and not _SEPARATES.search(between):
            raise ConfigurationError(
                f"{field}: nothing tells where {_name(before)} ends and {_name(part)} begins, so that different values "
                "would share a session: put a / or : between them"
            )
        between, before = "", part
    return template


def render(template: Template, event: Event, *, missing: str | None, most_bytes: int) -> str:
    """The prompt. `missing`: stands for what the event does not hold; None: it is refused. Raises `Unfillable`."""

    def text_of(part: Pointer | tuple[Word]) -> str:
        value = _value(part, event)
        if value is not ABSENT:
            return shown(value)
        if missing is None:
            raise Unfillable(f"there is nothing at {_name(part)}")
        return missing

    text = _joined(template, text_of)
    size = len(text.encode())
    if size > most_bytes:
        raise Unfillable(f"the prompt has {size} bytes, more than {most_bytes} (prompt_bytes)")
    if not text.strip():
        raise Unfillable("the prompt is empty")
    return text


def render_session(template: Template, event: Event) -> str:
    """The session that an event belongs to. Raises `Unfillable`.

    Different values give different sessions: whatever has a meaning in a name is percent-encoded, and a long value
    becomes `~` and a hash. A value that is absent, empty, or no text, number or truth value is refused.
    """

    def text_of(part: Pointer | tuple[Word]) -> str:
        value = raw_scalar(_value(part, event))
        if not value:
            raise Unfillable(f"there is no text or number at {_name(part)}, which names the session")
        return _name_of(value)

    return _joined(template, text_of)


def longest_session(template: Template) -> str:
    """As long a session as the template can make, of an event whose values are plain words."""
    return _joined(template, lambda _: "x" * LONGEST_NAME)


def _placeholder(field: str, name: str, words: tuple[Word, ...]) -> Part:
    if name.startswith("/"):
        return parse_pointer(field, name)
    for word in words:
        if name == word:
            return (word,)
    known = ", ".join(["{/a/json/pointer}", *(f"{{{word}}}" for word in words)])
    raise ConfigurationError(
        f"{field}: the placeholder {{{name[:80]}}} is not known: use {known}; write {{{{ and }}}} for braces"
    )


def _joined(template: Template, text_of: Callable[[Pointer | tuple[Word]], str]) -> str:
    return "".join(part if isinstance(part, str) else text_of(part) for part in template.parts)


def _value(part: Pointer | tuple[Word], event: Event) -> Any:
    match part:
        case Pointer():
            return found(event.payload, part)
        case ("body",):
            return event.payload.text
        case _:
            return ABSENT if event.type is None else well_formed(event.type)


def _name(part: Pointer | tuple[Word]) -> str:
    return part.text if isinstance(part, Pointer) else f"{{{part[0]}}}"


def _name_of(value: str) -> str:
    raw = value.encode("utf-8", "surrogatepass")
    name = quote(raw, safe="").replace("~", "%7E")
    return name if len(name) <= LONGEST_NAME else "~" + hashlib.sha256(raw).hexdigest()[:_DIGEST]
