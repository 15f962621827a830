"""Endpoints that were made by command or HTTP API: making, changing, deleting and listing them in Redis.

What belongs here: each change as one step that checks what it changes. What must not be known here: what a definition
means, who asks, how secrets are sealed.

A secret is shown by `Made` when it is made, and by `keys`; nothing else holds one.
"""

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from channels.endpoints import record
from channels.endpoints.model import SigningKey
from channels.endpoints.record import CHANGED, INDEX, LAST, LEAVING, SEALED, Stored, record_key
from channels.endpoints.signing_keys import OVERLAP_MS, Scheme, counts, fresh_key, rotated
from channels.endpoints.vault import Sealed, Vault
from worker.errors import ConfigurationError, LastwordError
from worker.store import clock
from worker.store.script import Script

MAX_ENDPOINTS = 10_000
IDEMPOTENT_S = 86_400
_PAGE = 500
_RESTLESS = "version: endpoint {} is changed all the time; try again"
_TRIES = 10
"""So often a change is worked out anew because somebody else was first. Each time one of them has done his."""

_Read = Callable[[str, Mapping[bytes, bytes]], Stored | None]

_change = Script("channels.endpoints", "endpoint")
_reseal = Script("channels.endpoints", "reseal")


class EndpointExists(LastwordError):
    """There is one of this name."""


class EndpointLeaving(LastwordError):
    """One of this name was deleted, and something of it could still be sent."""


class UnknownEndpoint(LastwordError):
    """There is none of this name."""


class VersionConflict(LastwordError):
    """It was changed since it was read."""


class SecretsUnreadable(ConfigurationError):
    """Its secrets do not open with the master keys of this process."""


class KeyReused(LastwordError):
    """The idempotency key stands for another endpoint."""


@dataclass(frozen=True, slots=True)
class Idempotency:
    """`key`: made once, however often it is asked for within a day. `fingerprint`: tells what it stands for."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Made:
    """An endpoint and its keys, newest first. `duplicate`: it was made before with the same idempotency key.

    No keys: they are others than that create was told.
    """

    stored: Stored
    keys: tuple[SigningKey, ...] = field(repr=False)
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of an endpoint. None: what it was."""

    config: Mapping[str, Any] | None = field(default=None, repr=False)
    headers: Mapping[str, str] | None = field(default=None, repr=False)
    keys: Sequence[SigningKey] | None = field(default=None, repr=False)


class Registry:
    """The stored endpoints. Every change is on disk when it is told, where the server can tell."""

    def __init__(self, client: redis.asyncio.Redis, vault: Vault) -> None:
        self._client = client
        self._vault = vault

    async def create(  # noqa: PLR0913 - what an endpoint consists of
        self,
        name: str,
        config: Mapping[str, Any],
        *,
        headers: Mapping[str, str],
        key: SigningKey | None = None,
        scheme: Scheme = "v1",
        idempotency: Idempotency | None = None,
    ) -> Made:
        """Make an endpoint. `config` and `headers` were checked. `key` None: one of `scheme` is made.

        Raises `EndpointExists`, `EndpointLeaving`, `KeyReused`, and `ConfigurationError` for a name that is none or too
        many endpoints.
        """
        record.check_name(name)
        keys = (key or fresh_key(scheme, secrets.token_bytes),)
        fields = self._fields(name, Change(config, headers, keys))
        answer = await self._send(name, "create", 0, fields, idempotency)
        match answer[0]:
            case b"SAME":
                return await self._made_before(answer[1].decode(), answer[2])
            case b"CONFLICT":
                raise KeyReused("this Idempotency-Key stands for another endpoint: use a key of its own for each")
            case b"EXISTS":
                raise EndpointExists(f"name {name!r}: there is an endpoint of that name; update it, or take another")
            case b"LEAVING":
                raise EndpointLeaving(f"name {name!r}: the endpoint of that name was deleted just now")
            case b"FULL":
                raise ConfigurationError(f"name {name!r}: there are {MAX_ENDPOINTS} endpoints; delete one first")
        return Made(await self.get(name), keys)

    async def change(
        self, name: str, work_out: Callable[[Stored, int], Awaitable[Change]], expected: int | None = None
    ) -> Stored:
        """Change an endpoint as `work_out` says, from what it is and the time (UTC ms).

        `expected`: only that version; None: whichever there is, worked out anew where somebody else was first. Raises
        `UnknownEndpoint`, `VersionConflict`, `NewerRecord`, and what `work_out` raises.
        """
        for _ in range(_TRIES):
            before, now_ms = await self._look(name)
            _check_version(before, expected)
            fields = self._fields(name, await work_out(before, now_ms))
            if (await self._send(name, "replace", before.version, fields))[0] == b"DONE":
                return await self.get(name)
        raise VersionConflict(_RESTLESS.format(name))

    async def rotate(
        self,
        name: str,
        *,
        overlap_ms: int = OVERLAP_MS,
        key: SigningKey | None = None,
        scheme: Scheme | None = None,
        expected: int | None = None,
    ) -> Made:
        """Put a new key before the old ones, which sign for `overlap_ms` more. Not given: one of the newest's scheme.

        Raises as `change`; `ConfigurationError` for an overlap out of bounds and for too many keys. With an overlap of
        0 old keys whose master key is lost are given up, and an endpoint without headers then needs it no more.
        """
        keys: tuple[SigningKey, ...] = ()

        async def with_new_key(before: Stored, now_ms: int) -> Change:
            nonlocal keys
            headers: dict[str, str] | None = None
            try:
                old = self._open_keys(before)
            except SecretsUnreadable as error:
                if overlap_ms:
                    raise SecretsUnreadable(f"{error}; or, if that key is lost, rotate with an overlap of 0") from None
                old, headers = (), None if before.header_names else {}
            newest: Scheme = before.key_ends[0][0] if before.key_ends else "v1"
            fresh = key or fresh_key(scheme or newest, secrets.token_bytes)
            keys = rotated(old, fresh, overlap_ms, now_ms=now_ms)
            return Change(None, headers, keys)

        return Made(await self.change(name, with_new_key, expected), keys)

    async def delete(self, name: str, expected: int | None = None) -> None:
        """Delete an endpoint, and keep its name until all that waits for it is cancelled. Raises as `change`."""
        for _ in range(_TRIES):
            before = await self.look(name)
            _check_version(before, expected)
            if (await self._send(name, "delete", before.version, {}))[0] == b"DONE":
                return
        raise VersionConflict(_RESTLESS.format(name))

    async def get(self, name: str) -> Stored:
        """An endpoint. Raises `UnknownEndpoint`, `NewerRecord` and `DamagedRecord`."""
        return (await self._look(name))[0]

    async def look(self, name: str) -> Stored:
        """As `get`, but for a damaged record, of which `fault` tells."""
        return (await self._look(name, record.look))[0]

    async def keys(self, name: str) -> tuple[SigningKey, ...]:
        """The keys that still sign, newest first: secrets. Raises as `get`, and as the vault."""
        stored, now_ms = await self._look(name)
        return tuple(key for key in self._open_keys(stored) if counts(key, now_ms))

    async def listed(self, after: str = "", limit: int = 100) -> list[Stored]:
        """The endpoints whose names follow `after`, in order, at most `limit`. One of a newer version is left out."""
        found: list[Stored] = []
        while len(found) < limit:
            low = f"({after}" if after else "-"
            names: Any = await self._client.zrangebylex(INDEX, low, "+", start=0, num=limit)
            if not names:
                break
            after = names[-1].decode()
            found += await self.several([name.decode() for name in names])
        return found[:limit]

    async def several(self, names: Sequence[str]) -> list[Stored]:
        """Those of some endpoints that there are and that this version can read, or that none can."""
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(record_key(name))
        found = zip(names, await pipeline.execute(), strict=True)
        readable = ((name, fields) for name, fields in found if record.is_readable(fields))
        return [stored for name, fields in readable if (stored := record.look(name, fields)) is not None]

    async def sealed(self) -> list[Sealed]:
        """Every sealed text that is stored, of endpoints that a newer version has written, too."""
        return await sealed_texts(self._client)

    async def put_sealed(self, name: str, field: str, old: str, new: str) -> bool:
        """Replace a sealed text by the same secret sealed anew; False: it is not `old` any more. No new version."""
        return bool((await _reseal(self._client, [record_key(name)], [field, old, new], durable=True))[0])

    async def _look(self, name: str, read: _Read = record.read) -> tuple[Stored, int]:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.hgetall(record_key(name))
        pipeline.time()
        fields, time = await pipeline.execute()
        stored = read(name, fields)
        if stored is None:
            raise UnknownEndpoint(f"name {name[:80]!r}: there is no endpoint of that name")
        return stored, clock.ms(time)

    async def _made_before(self, name: str, version: int) -> Made:
        """What that create was told: nothing of an endpoint that others made anew, and no keys that came later."""
        try:
            stored = await self.get(name)
        except UnknownEndpoint:
            stored = None
        if stored is None or stored.made != version:
            raise KeyReused(f"this Idempotency-Key made the endpoint {name}, which was deleted: use another key")
        return Made(stored, self._open_keys(stored) if stored.keyed == version else (), duplicate=True)

    def _open_keys(self, stored: Stored) -> tuple[SigningKey, ...]:
        try:
            return record.open_keys(self._vault, stored)
        except ConfigurationError as error:
            raise SecretsUnreadable(str(error)) from None

    def _fields(self, name: str, change: Change) -> dict[str, str | int]:
        fields: dict[str, str | int] = {"v": record.RECORD_VERSION}
        if change.config is not None:
            fields |= record.config_field(change.config)
        if change.keys is not None:
            fields |= record.key_fields(self._vault, name, change.keys)
        if change.headers is not None:
            fields |= record.header_fields(self._vault, name, change.headers)
        return fields

    async def _send(
        self,
        name: str,
        mode: str,
        version: int,
        fields: Mapping[str, str | int],
        idempotency: Idempotency | None = None,
    ) -> list[Any]:
        keys = [record_key(name), INDEX, CHANGED, LAST, LEAVING]
        keys += [] if idempotency is None else [record.idempotency_key(idempotency.key)]
        fingerprint = "" if idempotency is None else idempotency.fingerprint
        head: list[str | int] = [secrets.token_hex(16), name, mode, version, MAX_ENDPOINTS, fingerprint, IDEMPOTENT_S]
        words = [word for pair in fields.items() for word in pair]
        return await _change(self._client, keys, [*head, *words], durable=True)


async def sealed_texts(client: redis.asyncio.Redis) -> list[Sealed]:
    """Every sealed text that is stored; no key is needed to read them."""
    found: list[Sealed] = []
    names: Any = await client.zrange(INDEX, 0, -1)
    for begin in range(0, len(names), _PAGE):
        page = [name.decode() for name in names[begin : begin + _PAGE]]
        pipeline = client.pipeline(transaction=False)
        for name in page:
            pipeline.hmget(record_key(name), SEALED)
        for name, texts in zip(page, await pipeline.execute(), strict=True):
            pairs = zip(SEALED, texts, strict=True)
            found += [Sealed(name, field, text.decode(errors="replace")) for field, text in pairs if text is not None]
    return found


def _check_version(before: Stored, expected: int | None) -> None:
    if expected is not None and before.version != expected:
        raise VersionConflict(
            f"version: endpoint {before.name} has version {before.version}, not {expected}: it was changed since"
        )
