"""What the web process refuses, and the one form in which it says so.

What belongs here: codes, statuses, the form. What must not be known here: routes, Redis.

    {"error": {"code": "...", "message": "...", "field": "..."}}

`code` is for programs, `message` for a person and names the fix, `field` is there where one field is at fault.
"""

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

Code = Literal[
    "bad_request",
    "not_json",
    "invalid",
    "unauthorized",
    "forbidden",
    "not_found",
    "method_not_allowed",
    "body_timeout",
    "conflict",
    "busy",
    "too_large",
    "media_type",
    "refused",
    "rate_limited",
    "internal",
    "unavailable",
    "store_full",
    "too_many_readers",
    "draining",
]

STATUS: Mapping[Code, int] = {
    "bad_request": 400,
    "not_json": 400,
    "invalid": 422,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_timeout": 408,
    "conflict": 409,
    "busy": 409,
    "refused": 409,
    "too_large": 413,
    "media_type": 415,
    "rate_limited": 429,
    "internal": 500,
    "unavailable": 503,
    "store_full": 503,
    "too_many_readers": 503,
    "draining": 503,
}


class Fault(BaseModel):
    """What is wrong, and with which field."""

    model_config = ConfigDict(extra="forbid")

    code: Code
    message: str
    field: str | None = None
    reason: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    model_config = ConfigDict(extra="forbid")

    error: Fault


class Refused(Exception):
    """A request is answered with an error. `reason`: a finer code, where there is one. `headers`: go with it."""

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        field: str | None = None,
        reason: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = STATUS[code]
        self.body = ErrorBody(error=Fault(code=code, message=message, field=field, reason=reason))
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The answer."""
        return json_response(self.body, self.status, self.headers)


def json_response(body: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A model as the JSON of an answer. What is null is left out of errors and kept elsewhere."""
    text = body.model_dump_json(exclude_none=isinstance(body, ErrorBody))
    return Response(text, status, dict(headers or {}), "application/json")


def away(message: str, code: Code = "unavailable", retry_after_s: int = 2) -> Refused:
    """Nothing is wrong with the request: it may be sent again later."""
    return Refused(code, message, headers={"Retry-After": str(retry_after_s)})
