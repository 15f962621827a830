"""What the fields of settings are made of: names, paths, addresses, headers, amounts.

What belongs here: kinds of fields that the worker's and the channels' settings share. What must not be known here: any
setting. A wrong value raises ValueError with the fix; `worker.sources` adds field, value and place, of a `refused_url`
scheme and host only.
"""

import re
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, StringConstraints
from pydantic_core import PydanticCustomError

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*")
_OURS = frozenset({"host", "content-length", "content-type", "transfer-encoding", "connection"})

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9]*([_-][a-z0-9]+)*$", max_length=60)]
"""The name of a provider, agent or endpoint. Lower case, so that a variable can spell it."""

ExpandedPath = Annotated[Path, AfterValidator(Path.expanduser)]


def amount(default: float | None, low: float, high: float, unit: str, meaning: str) -> Any:
    """A field for a number: its default, least and greatest value, unit and meaning."""
    return Field(default=default, ge=low, le=high, description=meaning, json_schema_extra={"unit": unit})


def _host_of(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.port != 0 else None
    except ValueError:  # its own words might repeat a part of a password
        return None


def _checked_base_url(url: str) -> str:
    if not url.startswith(("http://", "https://")) or not _host_of(url):
        raise PydanticCustomError(
            "refused_url", "it must begin with http:// or https:// and name a host, as in http://127.0.0.1:8080/v1"
        )
    if "@" in urlsplit(url).netloc:
        raise PydanticCustomError("refused_url", "it must not hold a user or password; use api_key or headers")
    if "?" in url or "#" in url:
        raise PydanticCustomError("refused_url", "it must end with its path; remove what follows '?' or '#'")
    return url.rstrip("/")


def _checked_endpoint(url: str) -> str:
    if not url.startswith(("http://", "https://")) or not _host_of(url):
        raise PydanticCustomError(
            "refused_url", "it must begin with http:// or https:// and name a host, as in http://127.0.0.1:8080/mcp"
        )
    if "@" in urlsplit(url).netloc:
        raise PydanticCustomError("refused_url", "it must not hold a user or password; use headers")
    if "#" in url:
        raise PydanticCustomError("refused_url", "remove what follows '#'")
    return url


def _checked_server(url: str) -> str:
    if not url.startswith(("redis://", "rediss://", "amqp://", "amqps://")) or not _host_of(url):
        raise ValueError(
            "it must look like redis://HOST:PORT/0 or rediss://HOST:PORT/0, broker_url also like amqp://HOST; write "
            "special characters of a password percent-encoded"
        )
    return url


def _checked_headers(headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _OURS:
            raise ValueError(
                f"{name[:80]!r} is no header that may be set; use letters, digits and '-', none of {sorted(_OURS)}"
            )
        if not _HEADER_VALUE.fullmatch(value.get_secret_value()):
            raise ValueError(f"the value of {name} holds a character that no header may hold; use printable ASCII")
    return headers


BaseUrl = Annotated[str, AfterValidator(_checked_base_url)]
EndpointUrl = Annotated[str, AfterValidator(_checked_endpoint)]
"""An address that is asked as it stands, to its last slash and with its query."""
ServerUrl = Annotated[str, AfterValidator(_checked_server)]
Headers = Annotated[dict[str, SecretStr], AfterValidator(_checked_headers)]


class Section(BaseModel):
    """What all parts of the settings share: they are frozen and refuse what they do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def filled_from_file(values: object, name: str) -> object:
    """The values of a section, with `name` read from the file that `<name>_file` points to.

    Only the line end after the last line is cut. Raises ValueError when both are given or the file cannot be read.
    """
    if not isinstance(values, dict) or values.get(f"{name}_file") is None:
        return values
    if values.get(name) is not None:
        raise ValueError(f"{name} and {name}_file are both set; remove one of them")
    path = Path(str(values[f"{name}_file"])).expanduser()
    try:
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
        raise ValueError(
            f"{name}_file = {str(path)!r} cannot be read ({reason}); correct the path or its rights"
        ) from None
    if not text:
        raise ValueError(f"{name}_file = {str(path)!r} is empty; write the value into it or remove the setting")
    return {**values, name: text}
