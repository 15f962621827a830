"""The body of a request as a model: read within its bounds, checked field by field.

What belongs here: size, type, time and form of a body, and of a query. What must not be known here: what it means.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from channels.web.errors import Refused
from channels.web.operation import Operation

_READ_LIMIT_S = 30.0
CLOSE = {"Connection": "close"}
"""What is left of a body that is not read would be taken for the next request."""


async def read_model(request: Request, model: type[BaseModel], most_bytes: int) -> BaseModel:
    """The body as a model. Raises `Refused`."""
    _check_type(request)
    data = await read_bytes(request, most_bytes, "web.body_bytes")
    try:
        json.loads(data.decode())  # else it would be read as UTF-16 or UTF-32, too
    except (ValueError, RecursionError):
        raise Refused("not_json", "the body is no JSON in UTF-8: send one JSON object") from None
    try:
        return model.model_validate_json(data, strict=True)  # as the document says it: true and "5" are no numbers
    except ValidationError as error:
        raise refusal_of(error) from None


def refusal_of(error: ValidationError) -> Refused:
    """The first fault of a body, with its field."""
    first: Any = error.errors(include_url=False, include_input=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"] if part != "[key]")
    if first["type"] == "extra_forbidden":
        message = f"{field[:80]}: there is no such field; remove it"
    else:
        told = first["msg"].removeprefix("Value error, ")
        message = f"{field[:80]}: {told}" if field else f"the body: {told}"
    return Refused("invalid", message, field=field[:80] or None)


def check_query(request: Request, operation: Operation) -> None:
    """Refuse a query that names what the operation does not know, or one thing twice that counts once."""
    known = {one.name for one in operation.parameters if one.where == "query"}
    for name in request.query_params:
        if name not in known:
            fix = f"use {', '.join(sorted(known))}" if known else "it takes none"
            raise Refused("invalid", f"{name[:80]}: there is no such parameter; {fix}", field=name[:80])
        if name != "label" and len(request.query_params.getlist(name)) > 1:
            raise Refused("invalid", f"{name}: it is given twice; give it once", field=name)


def _check_type(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused("media_type", "send the body with Content-Type: application/json", field="Content-Type")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused("media_type", "send the body as it is, without Content-Encoding", field="Content-Encoding")


def told_length(request: Request) -> int:
    """How long the body says that it is; 0 where it says nothing that can be read."""
    told = request.headers.get("content-length", "")
    return int(told) if told.isascii() and told.isdigit() else 0


async def read_bytes(
    request: Request, most_bytes: int, setting: str | None = None, keep: Callable[[int], None] = lambda _: None
) -> bytes:
    """The body as it came. Raises `Refused`.

    `setting`: the one that says how long it may be, where that is told. `keep`: told of bytes before they are kept.
    """
    named = "" if setting is None else f" ({setting})"
    too_large = Refused("too_large", f"the body is longer than {most_bytes} bytes{named}", headers=CLOSE)
    if told_length(request) > most_bytes:
        raise too_large
    data = bytearray()
    try:
        async with asyncio.timeout(_READ_LIMIT_S):
            async for chunk in request.stream():
                if len(data) + len(chunk) > most_bytes:
                    raise too_large
                keep(len(chunk))
                data += chunk
    except TimeoutError:
        message = f"the body did not come within {_READ_LIMIT_S:.0f} s"
        raise Refused("body_timeout", message, headers=CLOSE) from None
    except ClientDisconnect:
        raise Refused("body_timeout", "the connection was closed in the middle of the body") from None
    return bytes(data)
