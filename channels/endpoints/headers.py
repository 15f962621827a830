"""Which headers an endpoint may add to its requests.

What belongs here: the rules. What must not be known here: where headers come from. A value may be a secret: no error
repeats one.
"""

import re
from collections.abc import Mapping

from worker.errors import ConfigurationError

MAX_HEADERS = 32
MAX_BYTES = 4096

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_VALUE = re.compile(r"[\x20-\x7e]*")
_OF_THE_REQUEST = frozenset({
    "host", "user-agent", "accept-encoding", "expect", "date",
    "connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
    "proxy-authenticate", "proxy-authorization",
})  # fmt: skip
"""Set by whoever sends, or of one connection and not of the request (RFC 9110, 7.6.1)."""
_BEGINNINGS = ("content-", "webhook-")
"""Of the body that is sent, and of its signature."""


def check_headers(field: str, headers: Mapping[str, str]) -> None:
    """Raise `ConfigurationError` with name and fix when these cannot be sent as they are with every request."""
    if len(headers) > MAX_HEADERS:
        raise ConfigurationError(f"{field}: {len(headers)} given, at most {MAX_HEADERS} are taken")
    seen: set[str] = set()
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise ConfigurationError(f"{field}: {name[:80]!r} is no name of a header; use letters, digits and '-'")
        lower = name.lower()
        if lower in _OF_THE_REQUEST or lower.startswith(_BEGINNINGS):
            whose = "the signature" if lower.startswith("webhook-") else "Lastword itself"
            raise ConfigurationError(f"{field}: {name} is set by {whose}; remove it")
        if lower in seen:
            raise ConfigurationError(f"{field}: {name} is given twice; case makes no difference; remove one")
        seen.add(lower)
        if len(value.encode(errors="replace")) > MAX_BYTES:
            raise ConfigurationError(f"{field}: the value of {name} has more than {MAX_BYTES} bytes; shorten it")
        if not _VALUE.fullmatch(value) or value != value.strip(" "):
            raise ConfigurationError(
                f"{field}: the value of {name} holds a character that no header may hold, or a blank at an end; use "
                "printable ASCII"
            )
