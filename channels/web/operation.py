"""What a route is, for the table of all of them.

What belongs here: what a route takes, gives, refuses, and who may ask; what many routes share. What must not be known
here: the routes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from channels.web.errors import Code
from channels.web.tokens import Scope

DEFAULT_LIMIT, MOST_LISTED = 100, 1000
"""How many a list holds where the request does not say, and at most."""

EVERY_ERROR: tuple[Code, ...] = ("internal", "unavailable")
GUARDED_ERRORS: tuple[Code, ...] = ("unauthorized", "forbidden", "rate_limited", "invalid")
BODY_ERRORS: tuple[Code, ...] = ("not_json", "media_type", "too_large", "body_timeout")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value in path, query or header."""

    name: str
    where: Literal["path", "query", "header"]
    meaning: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """A route. `scope` None: no token is needed. `answers`: by status; a text instead of a model is a media type.

    `is_local`: on the same machine no token is needed. `is_counted`: without a token, requests count by address.
    `takes_json`: any JSON, which the handler reads itself.
    """

    name: str
    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    summary: str
    scope: Scope | None
    answers: Mapping[int, type[BaseModel] | str | None]
    request: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    errors: tuple[Code, ...] = ()
    is_local: bool = False
    is_counted: bool = False
    takes_json: bool = False

    @property
    def all_errors(self) -> tuple[Code, ...]:
        """All that it may be refused with."""
        guarded = GUARDED_ERRORS if self.scope else ("rate_limited",) if self.is_counted else ()
        return (*EVERY_ERROR, *guarded, *(BODY_ERRORS if self.request else ()), *self.errors)


TEXT: Mapping[str, Any] = {"type": "string"}
LIMIT = Parameter(
    "limit",
    "query",
    f"At most so many; not set: {DEFAULT_LIMIT}.",
    {"type": "integer", "minimum": 1, "maximum": MOST_LISTED},
)
