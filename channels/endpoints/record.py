"""A stored endpoint: what is kept of it in Redis, and how its secrets are sealed.

What belongs here: names of keys, fields, sealing and opening. What must not be known here: who changes a record and
when, what its config means, how sealing works.

    lw:endpoints              sorted set: every name, all with the same score, so that they are in order
    lw:endpoints-changed      sorted set: every name, by the version that it has
    lw:endpoints-last         hash: version and op of the last change to any of them
    lw:endpoints-leaving      sorted set: deleted ones of which something could still be sent, by the ms of that
    lw:endpoint:<name>        hash: v, version, config (JSON), secrets, headers (sealed), key_ends, header_names (JSON:
                              what may be shown of them), created_ms, updated_ms, made, keyed (versions in which it was
                              made, and in which its secrets were last changed)
    lw:endpoint-idem:<key>    hash: what an idempotency key stands for: fingerprint, name, version

Versions grow over all endpoints, and by the clock: none comes again, neither of an endpoint that is made anew
nor after the server lost its last writes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from channels.delivery.model import LANES_OF_URLS
from channels.endpoints.encoding import from_base64, to_base64
from channels.endpoints.model import SigningKey
from channels.endpoints.signing_keys import KEY_BYTES, Scheme
from channels.endpoints.vault import Vault, context_of
from worker.errors import ConfigurationError, NewerRecord

INDEX = "lw:endpoints"
CHANGED = "lw:endpoints-changed"
LAST = "lw:endpoints-last"
LEAVING = "lw:endpoints-leaving"
RECORD_VERSION = 1
MAX_NAME = 60
SECRETS, HEADERS = "secrets", "headers"
SEALED = (SECRETS, HEADERS)
"""The fields whose values are sealed."""

_LAST_MS = 253_402_300_799_999
"""No calendar shows a later time."""

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[_-][a-z0-9]+)*")


class DamagedRecord(ConfigurationError):
    """What is stored of an endpoint cannot be read by any version."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored endpoint as it is read. Times are UTC ms of the store's clock.

    `secrets`, `headers`: sealed. `key_ends`: scheme of each key, and the ms from which on it signs no more or None;
    newest first. `header_names`: of the headers. `made`, `keyed`: the versions in which it was made, and in which its
    keys were last changed. `fault`: what is wrong with the record, which then tells only its name; else empty.
    """

    name: str
    version: int
    config: Mapping[str, Any] = field(repr=False)
    secrets: str = field(repr=False)
    headers: str = field(repr=False)
    key_ends: tuple[tuple[Scheme, int | None], ...]
    header_names: tuple[str, ...]
    created_ms: int
    updated_ms: int
    made: int
    keyed: int
    fault: str = ""


def record_key(name: str) -> str:
    """Where an endpoint is stored."""
    return f"lw:endpoint:{name}"


def idempotency_key(key: str) -> str:
    """Where it is stored what a key stands for."""
    return f"lw:endpoint-idem:{key}"


def check_name(name: str) -> str:
    """Give `name` back when an endpoint may be called so; else raise `ConfigurationError`."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        raise ConfigurationError(
            f"name {name[:80]!r} is none: use 1 to {MAX_NAME} of a-z, 0-9, and single - or _ between them, beginning "
            "with a letter"
        )
    if name.startswith(LANES_OF_URLS):
        raise ConfigurationError(
            f"name {name!r}: names that begin with {LANES_OF_URLS} are those of plain URLs; take another"
        )
    return name


def key_fields(vault: Vault, name: str, keys: Sequence[SigningKey]) -> dict[str, str]:
    """The fields that hold keys."""
    plain = _json([[key.scheme, to_base64(key.key), key.until_ms] for key in keys])
    return {
        SECRETS: vault.seal(plain.encode(), context_of(name, SECRETS)),
        "key_ends": _json([[key.scheme, key.until_ms] for key in keys]),
    }


def header_fields(vault: Vault, name: str, headers: Mapping[str, str]) -> dict[str, str]:
    """The fields that hold headers."""
    return {
        HEADERS: vault.seal(_json(dict(headers)).encode(), context_of(name, HEADERS)),
        "header_names": _json(list(headers)),
    }


def open_keys(vault: Vault, stored: Stored) -> tuple[SigningKey, ...]:
    """The keys of an endpoint, newest first. Raises as `Vault.open`."""
    opened = json.loads(vault.open(stored.secrets, context_of(stored.name, SECRETS)))
    return tuple(SigningKey(scheme, from_base64(key), until_ms) for scheme, key, until_ms in opened)


def open_headers(vault: Vault, stored: Stored) -> dict[str, str]:
    """The headers of an endpoint. Raises as `Vault.open`."""
    opened: dict[str, str] = json.loads(vault.open(stored.headers, context_of(stored.name, HEADERS)))
    return opened


def config_field(config: Mapping[str, Any]) -> dict[str, str]:
    """The field that holds what is no secret."""
    return {"config": _json(dict(config))}


def is_readable(fields: Mapping[bytes, bytes]) -> bool:
    """Whether this version can read a hash: that of no endpoint, too."""
    version = fields.get(b"v", b"")
    return not version.isdigit() or int(version) <= RECORD_VERSION


def read(name: str, fields: Mapping[bytes, bytes]) -> Stored | None:
    """What stands in the hash of `name`; None: nothing. Raises `NewerRecord` for one of a newer release.

    Raises `DamagedRecord` with the fix where it is not as any release writes it.
    """
    if not fields:
        return None
    if not is_readable(fields):
        raise NewerRecord(f"endpoint {name} was written by a newer version of Lastword: use that version")
    try:
        return _read(name, fields)
    except (KeyError, TypeError, ValueError, RecursionError):
        raise DamagedRecord(_fault(name)) from None


def look(name: str, fields: Mapping[bytes, bytes]) -> Stored | None:
    """As `read`, but for a damaged record, of which `fault` tells."""
    try:
        return read(name, fields)
    except DamagedRecord:
        version = fields.get(b"version", b"")
        return Stored(name, int(version) if version.isdigit() else 0, {}, "", "", (), (), 0, 0, 0, 0, _fault(name))


def _fault(name: str) -> str:
    return f"endpoint {name} is damaged in the store; delete it with `lastword endpoints delete`, and make it anew"


def _read(name: str, fields: Mapping[bytes, bytes]) -> Stored:
    int(fields[b"v"])
    config = json.loads(fields[b"config"])
    if not isinstance(config, dict):
        raise TypeError
    return Stored(
        name=name,
        version=int(fields[b"version"]),
        config=config,
        secrets=fields[SECRETS.encode()].decode(),
        headers=fields[HEADERS.encode()].decode(),
        key_ends=tuple(map(_key_end, json.loads(fields[b"key_ends"]))),
        header_names=tuple(map(_text, json.loads(fields[b"header_names"]))),
        created_ms=_time(int(fields[b"created_ms"])),
        updated_ms=_time(int(fields[b"updated_ms"])),
        made=int(fields[b"made"]),
        keyed=int(fields[b"keyed"]),
    )


def _key_end(value: Any) -> tuple[Scheme, int | None]:
    scheme, until_ms = value
    if scheme not in KEY_BYTES:
        raise ValueError
    return scheme, None if until_ms is None else _time(until_ms)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _time(value: Any) -> int:
    if not isinstance(value, int) or not 0 <= value <= _LAST_MS:
        raise ValueError
    return value


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
