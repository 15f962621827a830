"""The body of a request as bytes, the same for every wire format.

What belongs here: how a body becomes JSON, whatever it holds. What must not be known here: what its fields mean.
"""

import json
from math import isfinite

import orjson

from worker.codecs.codec import EncodedRequest
from worker.codecs.wirejson import well_formed

_DEEPEST = 200
"""Levels of objects and lists; what is nested deeper is sent as null. Servers refuse it anyway."""


def encoded(
    path: str, body: dict[str, object], extra_body: dict[str, object], headers: dict[str, str]
) -> EncodedRequest:
    """The request. `extra_body` is merged over `body`, and a null takes its key out. Never raises."""
    sent = {key: value for key, value in (body | extra_body).items() if value is not None}
    return EncodedRequest(
        path, _json(sent), {"content-type": "application/json", "accept": "text/event-stream", **headers}
    )


def _json(body: dict[str, object]) -> bytes:
    try:
        return memoryview(orjson.dumps(body)).tobytes()  # orjson's own hold several kB more than they say
    except orjson.JSONEncodeError:  # integers beyond 64 bits, halves of characters, and what is nested too deep
        return json.dumps(_sendable(body, _DEEPEST), ensure_ascii=False).encode()


def _sendable(value: object, levels: int) -> object:
    if isinstance(value, dict):
        if not levels:
            return None
        return {well_formed(str(key)): _sendable(entry, levels - 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_sendable(entry, levels - 1) for entry in value] if levels else None
    if isinstance(value, float):
        return value if isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    return well_formed(str(value))  # a text, or a date of a settings file
