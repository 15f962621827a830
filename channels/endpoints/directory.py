"""Finding endpoints, wherever they are defined: by destination, by lane, by event.

What belongs here: settings and Redis as one directory, and what a destination is that names nothing. What must not be
known here: how endpoints are made, how they are sent to.

A change counts from the next attempt on: every question reads the versions in Redis. What is kept here is only what was
worked out of one version, and the versions never come again.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import redis.asyncio

from channels.delivery.lane import Rules
from channels.delivery.model import LANES_OF_URLS, Failed, Withdrawn
from channels.endpoints import record, subscription
from channels.endpoints.audience import Audience
from channels.endpoints.model import Endpoint, SigningKey, Subscription, UnfitUrl
from channels.endpoints.record import CHANGED, INDEX, LAST, LEAVING, Stored, record_key
from channels.endpoints.vault import Vault
from worker.errors import ConfigurationError, NewerRecord, StoreUnavailable
from worker.store.repeat import is_unanswered

_MOST_KEPT = 10_000
_REMOVED = Withdrawn(
    "endpoint_removed",
    "there is no endpoint of that name any more; make it anew with `lastword endpoints create` or as [endpoints.NAME]",
)

Found = Endpoint | Withdrawn | Failed


class Given(Protocol):
    """What settings say. They raise `ConfigurationError`, or OSError, with the fix; `UnfitUrl` for a URL."""

    @property
    def endpoints(self) -> Mapping[str, Any]:
        """What is defined there, by name."""
        ...

    def endpoint(self, name: str) -> Endpoint | None:
        """The endpoint that is defined there."""
        ...

    def plain_endpoint(self, url: str) -> Endpoint:
        """What a URL stands for."""
        ...

    def stored_endpoint(
        self,
        name: str,
        config: Mapping[str, Any],
        keys: tuple[SigningKey, ...],
        headers: Mapping[str, str],
        version: int,
    ) -> Endpoint:
        """What a stored definition stands for."""
        ...

    def unsigned_endpoint(self, name: str) -> Endpoint:
        """The endpoint that is defined there, without its keys. Raises nothing."""
        ...

    def plain_rules(self) -> Rules:
        """What deliveries to URLs are held to. Raises nothing."""
        ...


class Directory:
    """The endpoints that there are. One for a process; its settings do not change while it lives."""

    def __init__(self, client: redis.asyncio.Redis, vault: Vault, given: Given) -> None:
        self._client = client
        self._vault = vault
        self._given = given
        self._files: dict[str, Endpoint] = {}
        self._opened: dict[str, Endpoint] = {}
        self._stored: dict[str, Endpoint] = {}
        self._everybody: tuple[Endpoint, ...] | None = None
        self._version = 0
        self._audience: Audience | None = None

    async def look_up(self, destinations: Sequence[str]) -> list[Found]:
        """What each destination stands for now, in their order; one round trip for all of them.

        Withdrawn: nothing is called so. Failed: it cannot be sent to as this process is set up (ours), or
        nothing may be posted to a URL. Raises `StoreUnavailable`.
        """
        asked = [name for name in dict.fromkeys(destinations) if self._may_be_stored(name)]
        try:
            records = dict(zip(asked, await self._read(asked), strict=True)) if asked else {}
        except Exception as error:
            if is_unanswered(error):
                raise StoreUnavailable("Redis did not answer") from error
            raise
        return [self._given_or_stored(name, records.get(name)) for name in destinations]

    async def rules(self, lanes: Sequence[str]) -> dict[str, Rules | Withdrawn | None]:
        """What each lane is held to. Withdrawn: its endpoint was deleted. None: none of that name is known here."""
        if any(self._may_be_stored(lane) for lane in lanes):
            await self._refresh()
        found: dict[str, Rules | Withdrawn | None] = {lane: self._rules(lane) for lane in lanes}
        unknown = [lane for lane, one in found.items() if one is None]
        if unknown:
            pipeline = self._client.pipeline(transaction=False)
            for lane in unknown:
                pipeline.zscore(LEAVING, lane)
            for lane, since in zip(unknown, await pipeline.execute(), strict=True):
                found[lane] = None if since is None else _REMOVED
        return found

    async def audience(self) -> Audience:
        """All endpoints as they are now; the very same as long as nothing changes."""
        everybody = await self.everybody()
        if self._audience is None or self._audience.endpoints is not everybody:
            self._audience = Audience(everybody)
        return self._audience

    async def everybody(self) -> tuple[Endpoint, ...]:
        """All endpoints, those of the settings first, each by name: the very same tuple as long as nothing changes.

        Their keys, and the headers of stored ones, are left out: they belong to an attempt.
        """
        if await self._refresh() or self._everybody is None:
            files = [self._given.unsigned_endpoint(name) for name in sorted(self._given.endpoints)]
            stored = [self._stored[name] for name in sorted(self._stored) if self._may_be_stored(name)]
            self._everybody = (*files, *stored)
        return self._everybody

    def _may_be_stored(self, destination: str) -> bool:
        is_other = "://" in destination or destination.startswith(LANES_OF_URLS)
        return not is_other and destination not in self._given.endpoints

    async def _read(self, names: Sequence[str]) -> list[dict[bytes, bytes]]:
        pipeline = self._client.pipeline(transaction=False)
        for name in names:
            pipeline.hgetall(record_key(name))
        found: list[dict[bytes, bytes]] = await pipeline.execute()
        return found

    def _given_or_stored(self, destination: str, fields: Mapping[bytes, bytes] | None) -> Found:
        try:
            if fields is not None:
                stored = record.read(destination, fields)
                return _REMOVED if stored is None else self._open(stored)
            if destination in self._given.endpoints:
                return self._file(destination)
            return self._given.plain_endpoint(destination) if "://" in destination else _REMOVED
        except NewerRecord as error:
            return Failed("ours", "endpoint_newer", str(error), "no")
        except UnfitUrl as error:
            return Failed("permanent", error.code, str(error), "no")
        except (ConfigurationError, OSError) as error:
            return Failed("ours", "cannot_sign", str(error), "no")

    def _file(self, name: str) -> Endpoint:
        found = self._files.get(name) or self._given.endpoint(name)
        assert found is not None, f"{name} is defined in the settings"
        self._files[name] = found
        return found

    def _open(self, stored: Stored) -> Endpoint:
        """A stored endpoint with its keys and headers; worked out once for a version."""
        kept = self._opened.get(stored.name)
        if kept is None or kept.version != stored.version:
            keys, headers = record.open_keys(self._vault, stored), record.open_headers(self._vault, stored)
            kept = self._given.stored_endpoint(stored.name, stored.config, keys, headers, stored.version)
            if len(self._opened) >= _MOST_KEPT:
                self._opened.clear()
            self._opened[stored.name] = kept
        return kept

    def _rules(self, lane: str) -> Rules | None:
        if lane.startswith(LANES_OF_URLS):
            return self._given.plain_rules()
        is_given = lane in self._given.endpoints
        endpoint = self._given.unsigned_endpoint(lane) if is_given else self._stored.get(lane)
        return None if endpoint is None else Rules(endpoint.limits, endpoint.backoff, endpoint.timeout_s)

    async def _refresh(self) -> bool:
        """Read what has changed since the last time; False, and one command, where nothing has."""
        version = int(await _hget(self._client, LAST, "version") or 0)
        if version == self._version:
            return False
        changed: Any = await self._client.zrange(CHANGED, 0, -1, withscores=True)
        versions = {name.decode(): int(score) for name, score in changed}
        stored = {name: one for name, one in self._stored.items() if versions.get(name) == one.version}
        missing = [name for name in versions if name not in stored]
        for name, fields in zip(missing, await self._read(missing) if missing else (), strict=True):
            if fields:
                stored[name] = self._sealed(name, fields, versions[name])
        # All at once: who asks meanwhile must not miss an endpoint that is just being read, and cancel what is for it.
        self._stored, self._version, self._everybody = stored, version, None
        return True

    def _sealed(self, name: str, fields: Mapping[bytes, bytes], version: int) -> Endpoint:
        """A stored endpoint without keys and headers.

        One that cannot be read here is told of events all the same, as far as its subscription can be read: its
        deliveries then come to an attempt, which says why, and are kept.
        """
        config: Any = None
        try:
            config, version = json.loads(fields[b"config"]), int(fields[b"version"])
            return self._given.stored_endpoint(name, config, (), {}, version)
        except (ConfigurationError, KeyError, ValueError, RecursionError):
            rules = self._given.plain_rules()
            return Endpoint(
                name,
                "",
                "store",
                (),
                _subscription(config),
                limits=rules.limits,
                backoff=rules.backoff,
                version=version,
            )


async def unknown(client: redis.asyncio.Redis, given: Given, names: Iterable[str]) -> list[str]:
    """Those of some names (no URLs) that no endpoint has."""
    asked = [name for name in names if name not in given.endpoints]
    pipeline = client.pipeline(transaction=False)
    for name in asked:
        pipeline.exists(record_key(name))
    found = await pipeline.execute() if asked else []
    return [name for name, is_there in zip(asked, found, strict=True) if not is_there]


async def known(client: redis.asyncio.Redis, given: Given) -> list[str]:
    """The names of all endpoints."""
    stored: Any = await client.zrange(INDEX, 0, -1)
    return sorted({*given.endpoints, *(name.decode() for name in stored)})


def _subscription(config: Mapping[str, Any]) -> Subscription:
    try:
        source = config.get("source", ())
        sources = (source,) if isinstance(source, str) else source
        return subscription.parse(config.get("events", ()), sources, config.get("labels", {}))
    except (ConfigurationError, AttributeError, TypeError):
        return Subscription()


async def _hget(client: redis.asyncio.Redis, key: str, name: str) -> bytes | None:
    asked: Any = client.hget(key, name)
    found: bytes | None = await asked
    return found
