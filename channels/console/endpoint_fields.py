"""Arguments of a command as fields of an endpoint.

What belongs here: reading them, and what is wrong with them. What must not be known here: what is done with the fields.
No error repeats a value: it may be a secret.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from channels.endpoint_settings import Definition
from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import decode_secret
from worker.errors import ConfigurationError
from worker.sources import nearest


@dataclass(frozen=True, slots=True)
class Given:
    """What a command says of an endpoint. None: nothing. `settings`: FIELD=VALUE of the others."""

    url: str | None = None
    events: Sequence[str] | None = None
    source: Sequence[str] | None = None
    labels: Sequence[str] | None = None
    headers: Sequence[str] | None = None
    settings: Sequence[str] = ()
    unset: Sequence[str] = ()

    def fields(self) -> dict[str, Any]:
        """The fields that were given, None for those that were taken back. Raises `ConfigurationError`."""
        lists = {"events": self.events, "source": self.source}
        pairs = {
            "labels": None if self.labels is None else _pairs("--label", self.labels),
            "headers": None if self.headers is None else _headers(self.headers),
        }
        told: dict[str, Any] = {} if self.url is None else {"url": self.url}
        told |= {name: value for name, value in (lists | pairs).items() if value is not None}
        for name, text in _pairs("--set", self.settings).items():
            told[_field("--set", name)] = _value(name, text)
        return told | {_field("--unset", name): None for name in self.unset}


def definition_of(fields: Mapping[str, Any]) -> Definition:
    """The endpoint that these fields say. Raises `ConfigurationError`."""
    try:
        return Definition.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        raise unfit(error) from None


def unfit(error: ValidationError) -> ConfigurationError:
    """What is wrong, field by field, without the values: one may be a secret."""
    faults = []
    for one in error.errors(include_url=False, include_input=False, include_context=False):
        name = ".".join(str(part) for part in one["loc"] if part != "[key]")
        told = one["msg"].removeprefix("Value error, ")
        faults.append(f"{name}: {told}" if name and not told.startswith(name) else told)
    return ConfigurationError("; ".join(faults))


def _field(option: str, name: str) -> str:
    if name not in Definition.model_fields:
        raise ConfigurationError(
            f"{option} {name[:40]!r}: there is no such field; {nearest(name, list(Definition.model_fields))}"
        )
    return name


def _value(name: str, text: str) -> object:
    """JSON where it is some, else the text. A path is that of the working directory."""
    if name.endswith("_file"):
        return str(Path(text).expanduser().absolute())
    try:
        return json.loads(text)
    except ValueError:
        return text


def _pairs(option: str, texts: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name in pairs:  # what stands behind the '=' may be a secret
            fault = "is given twice" if equals else "has no '='"
            raise ConfigurationError(f"{option} {name[:40]!r} {fault}: give NAME=VALUE, each name once")
        pairs[name] = value
    return pairs


def _headers(texts: Sequence[str]) -> dict[str, str]:
    return {
        name: _read(f"--header {name}", Path(value[1:])) if value.startswith("@") else value
        for name, value in _pairs("--header", texts).items()
    }


def key_of(secret_file: Path | None) -> SigningKey | None:
    """The key of the secret in a file. Raises `ConfigurationError`."""
    return None if secret_file is None else decode_secret("secret", _read("--secret-file", secret_file))


def _read(option: str, path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
        raise ConfigurationError(f"{option}: {str(path)!r} cannot be read ({reason}); correct the path") from None
