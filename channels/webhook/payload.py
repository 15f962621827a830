"""The body of a webhook: what a receiver learns of an event.

What belongs here: the JSON form, and when a long field is left out of it. What must not be known here: where events are
stored, signatures, HTTP.

A body depends on what was stored once and for all, so every attempt sends the same bytes. What an event brings itself
is sent as it is stored, to the last digit of a number.
"""

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

import orjson

from channels.delivery.model import json_bytes
from channels.events.content import APPROVAL_REQUESTED, LONG, Content

CAP_BYTES = 256 * 1024
"""The longest body where what is left out of it can be fetched, unless the setting says otherwise."""

HARD_CAP_BYTES = 16 * 1024 * 1024
"""The longest body where it cannot: nobody could read what was left out."""


@dataclass(frozen=True, slots=True)
class Form:
    """How bodies are made. `public_url`: of the HTTP API, as receivers reach it; empty: they do not.

    `cap_bytes`: the longest body with its long field.
    """

    public_url: str = ""
    cap_bytes: int = CAP_BYTES


def form_of(public_url: str, cap_bytes: int | None) -> Form:
    """The form of bodies for these settings. `cap_bytes` None: the default, by whether there is a URL to fetch from."""
    if cap_bytes is None:
        cap_bytes = CAP_BYTES if public_url else HARD_CAP_BYTES
    return Form(public_url.rstrip("/"), cap_bytes)


def render(  # noqa: PLR0913 - an event, and how it is to be told
    event_type: str, at_ms: int, content: Content, form: Form, *, full: bool, is_whole: bool = True
) -> bytes:
    """The body, as UTF-8 JSON. `at_ms`: UTC milliseconds; written as RFC 3339 text.

    Unless it is `full`, or if it would be longer than the cap, its long field is left out, and it says where to fetch
    that. `is_whole`: the long field was read; if not, it is longer than the cap. Half a surrogate pair, which UTF-8
    cannot hold, is written as U+FFFD.
    """
    long = LONG.get(type(content))
    values = {field.name: getattr(content, field.name) for field in fields(content)}
    if long is None:
        return _body(event_type, at_ms, values)
    if full and is_whole and len(values[long]) <= form.cap_bytes:
        body = _body(event_type, at_ms, values)
        if len(body) <= form.cap_bytes:
            return body
    del values[long]
    values["fetch_url"] = fetch_url(event_type, values["turn"], form.public_url)
    values["truncated"] = full
    return _body(event_type, at_ms, values)


def render_own(event_type: str, at_ms: int, data: bytes) -> bytes:
    """The body of an event that brings its own content: `data`, a JSON object, as it is."""
    return b'{"type":%s,"timestamp":%s,"data":%s}' % (json_bytes(event_type), json_bytes(_time(at_ms)), data)


def fetch_url(event_type: str, turn: str, public_url: str) -> str | None:
    """Where the HTTP API tells what a body leaves out. None: receivers cannot reach it."""
    if not public_url:
        return None
    return f"{public_url}/v1/approvals" if event_type == APPROVAL_REQUESTED else f"{public_url}/v1/turns/{turn}"


def _body(event_type: str, at_ms: int, values: dict[str, Any]) -> bytes:
    body = {"type": event_type, "timestamp": _time(at_ms), "data": values}
    try:
        return orjson.dumps(body)
    except orjson.JSONEncodeError:  # half a surrogate pair, or a number of more than 64 bits
        return json_bytes(body)


def _time(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")
