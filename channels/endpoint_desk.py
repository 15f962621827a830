"""What people do to endpoints, by command or HTTP API: those of the settings and the stored ones as one list.

What belongs here: what may be done to which of them, and what follows from it for what is on its way. What must not be
known here: who asks and how he is answered, how endpoints are stored.
"""

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import redis.asyncio
from redis.exceptions import OutOfMemoryError

from channels.delivery.lane import Lane
from channels.delivery.model import lane_of
from channels.delivery_settings import check_definition
from channels.endpoint_settings import Definition, config_of
from channels.endpoint_view import Seen, of_settings, of_store
from channels.endpoints import rings
from channels.endpoints.model import SigningKey
from channels.endpoints.record import Stored
from channels.endpoints.registry import (
    Change,
    EndpointExists,
    EndpointLeaving,
    Idempotency,
    Made,
    Registry,
    SecretsUnreadable,
    sealed_texts,
)
from channels.endpoints.signing_keys import Scheme
from channels.endpoints.vault import Vault, check_stored
from channels.events.content import ENDPOINT_TEST
from channels.events.notices import trial_of
from channels.outbox import lanes, leaving, owing, reading
from channels.replays.starting import release
from channels.settings import Settings
from channels.vault_section import open_vault
from channels.webhook.address import check_url, shown
from worker.errors import ConfigurationError, LastwordError, NewerRecord, StoreFull
from worker.store import clock, keys
from worker.store.log import event_words

_PARTITION = 0
"""Whose log an event stands in that is of no turn."""

_LEAVING_STEPS = 50
"""Somebody waits for an answer: what is left of a deleted endpoint then, delivery processes cancel."""


class DefinedInSettings(LastwordError):
    """It stands in the settings, and is changed there."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """An endpoint that is sent to again. `held`: what it holds. `replay`: the bulk replay of that; empty: none."""

    lane: Lane
    held: int
    replay: str


class EndpointDesk:
    """One for a process. Where the master keys cannot be had, all but `check` raise `SecretsUnreadable`."""

    def __init__(self, settings: Settings, client: redis.asyncio.Redis) -> None:
        self._settings = settings
        self._client = client

    async def check(self) -> None:
        """For the start of a process: raise `ConfigurationError` with all stored secrets that do not open.

        Where none is stored no master key is needed, and none is made.
        """
        stored = await sealed_texts(self._client)
        if stored:
            check_stored(self._vault, stored)

    @cached_property
    def _vault(self) -> Vault:
        try:
            return open_vault(self._settings.vault, self._settings.data_dir)
        except (ConfigurationError, OSError) as error:
            raise SecretsUnreadable(str(error)) from None

    @cached_property
    def _registry(self) -> Registry:
        return Registry(self._client, self._vault)

    async def create(
        self,
        name: str,
        definition: Definition,
        *,
        key: SigningKey | None = None,
        scheme: Scheme = "v1",
        idempotency: Idempotency | None = None,
    ) -> Made:
        """Make an endpoint.

        Raises as `Registry.create`, and `ConfigurationError` for what contradicts the settings, or for a secret that no
        delivery process could open. `EndpointLeaving`: only where something of a deleted one of that name could still
        be sent, and says what.
        """
        if name in self._settings.endpoints:
            raise EndpointExists(f"name {name!r}: there is an endpoint of that name in the settings; take another")
        self._check(definition)
        await self._check_rings()
        make = partial(
            self._registry.create,
            name,
            config_of(definition),
            headers=definition.plain_headers,
            key=key,
            scheme=scheme,
            idempotency=idempotency,
        )
        try:
            return await make()
        except EndpointLeaving as error:
            in_flight = await leaving.finish(self._client, name, _LEAVING_STEPS)
            if in_flight is not None:
                what = f"{in_flight} attempts to it are under way" if in_flight else "what waits for it is cancelled"
                raise EndpointLeaving(f"{error}, and {what}: try again in a moment, or take another name") from None
            return await make()

    async def update(self, name: str, fields: Mapping[str, Any], expected: int | None = None) -> Seen:
        """Change fields of an endpoint; None: as if it were not said. Headers are replaced as a whole.

        Raises as `Registry.change`, `DefinedInSettings`, and pydantic's ValidationError for fields that are none.
        `ConfigurationError` also for another scheme, host or port without saying what of its secrets goes there.
        """
        self._check_stored(name)
        headers = (fields["headers"] or {}) if "headers" in fields else None
        if headers is not None:
            await self._check_rings()

        async def merged(before: Stored, _: int) -> Change:
            _check_move(before, fields)
            config = {**before.config, **{each: value for each, value in fields.items() if each != "headers"}}
            definition = Definition.model_validate(
                {each: value for each, value in config.items() if value is not None} | {"headers": headers or {}}
            )
            self._check(definition)
            return Change(config_of(definition), None if headers is None else definition.plain_headers)

        await self._registry.change(name, merged, expected)
        with suppress(NewerRecord):  # who can read the lane looks at it by itself
            await lanes.look_again(self._client, name)
        return await self.show(name)

    async def rotate(
        self,
        name: str,
        *,
        overlap_s: float,
        key: SigningKey | None = None,
        scheme: Scheme | None = None,
        expected: int | None = None,
    ) -> Made:
        """Give an endpoint a new key. Raises as `Registry.rotate`, and `DefinedInSettings`."""
        self._check_stored(name)
        await self._check_rings()
        return await self._registry.rotate(
            name, overlap_ms=round(overlap_s * 1000), key=key, scheme=scheme, expected=expected
        )

    async def keys(self, name: str) -> tuple[SigningKey, ...]:
        """The keys that sign: secrets. Raises as `Registry.keys`, and `DefinedInSettings`."""
        self._check_stored(name)
        return await self._registry.keys(name)

    async def delete(self, name: str, expected: int | None = None) -> None:
        """Delete an endpoint; what waits for it is cancelled. Raises as `Registry.delete`, and `DefinedInSettings`.

        What is left after some steps, or if this process dies, delivery processes cancel; until then its name is taken.
        """
        self._check_stored(name)
        await self._registry.delete(name, expected)
        await leaving.finish(self._client, name, _LEAVING_STEPS)

    async def show(self, name: str) -> Seen:
        """An endpoint. Raises `UnknownEndpoint` and `NewerRecord`."""
        stored = None if name in self._settings.endpoints else await self._registry.look(name)
        (seen,) = await self._seen({name: stored})
        return seen

    async def page(self, after: str, limit: int) -> list[Seen]:
        """The endpoints whose names follow `after`, by name, at most `limit`."""
        files = [name for name in sorted(self._settings.endpoints) if name > after][:limit]
        stored = {one.name: one for one in await self._registry.listed(after, limit + len(files))}
        names = sorted({*files, *stored})[:limit]
        return await self._seen({name: None if name in self._settings.endpoints else stored[name] for name in names})

    async def pause(self, name: str, by: str) -> Lane:
        """Hold what is for an endpoint, and what comes. Raises `UnknownEndpoint`."""
        await self._check_known(name)
        return await lanes.pause(self._client, name, by)

    async def disable(self, name: str, by: str) -> Lane:
        """As `pause`, and it reads as disabled. Raises `UnknownEndpoint`."""
        await self._check_known(name)
        return await lanes.disable(self._client, name, by)

    async def resume(self, name: str, by: str, *, replay: bool = False) -> Resumed:
        """Send again what comes, to an endpoint that was paused or disabled. Raises `UnknownEndpoint`.

        What a paused one held is replayed. What a disabled one held may be days old: only if `replay` says so. Safe to
        repeat, also where it was broken off anywhere.
        """
        await self._check_known(name)
        standing = (await lanes.standing(self._client, name)).standing
        owes = replay or standing == "paused" or (standing == "active" and await owing.is_owed(self._client, name))
        await owing.owe(self._client, name, owes=owes)
        lane = await lanes.resume(self._client, name)
        held, job = await reading.held_count(self._client, name), None
        if owes:
            bounds = self._settings.delivery.replay_bounds
            job = await release(self._client, name, await clock.now_ms(self._client), by=by, bounds=bounds)
            await owing.owe(self._client, name, owes=False)
        return Resumed(lane, held, "" if job is None else job.id)

    async def test(self, name: str) -> str:
        """Send an endpoint a test event, whatever it subscribes to; gives its id.

        Raises `UnknownEndpoint` and `StoreFull`.
        """
        await self._check_known(name)
        event_id = f"evt_{secrets.token_hex(12)}"
        data = trial_of(name, await clock.now_ms(self._client))
        words = event_words(event_id, ENDPOINT_TEST, data, to=name)
        execute: Any = self._client.execute_command
        try:
            await execute("XADD", keys.log(_PARTITION), "*", *words)
        except OutOfMemoryError as error:
            raise StoreFull("Redis is at its maxmemory: try again later, or raise maxmemory") from error
        return event_id

    def _check(self, definition: Definition) -> None:
        try:
            check_definition(definition, self._settings.delivery)
            check_url("url", definition.url, self._settings.egress.for_outsiders)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None

    async def _check_rings(self) -> None:
        """Before a secret is stored: raise `SecretsUnreadable` where delivery processes could not open it."""
        try:
            rings.check_rings(await rings.living_rings(self._client), self._vault.key_ids, self._vault.place)
        except ConfigurationError as error:
            raise SecretsUnreadable(str(error)) from None

    def _check_stored(self, name: str) -> None:
        if name in self._settings.endpoints:
            raise DefinedInSettings(
                f"endpoint {name} stands in the settings: change [endpoints.{name}] of lastword.toml, or the variables "
                f"LASTWORD_ENDPOINTS__{name.upper()}__..., and start the processes anew"
            )

    async def _check_known(self, name: str) -> None:
        if name not in self._settings.endpoints:
            await self._registry.get(name)

    async def _seen(self, found: Mapping[str, Stored | None]) -> list[Seen]:
        now_ms, seen = await lanes.read_lanes(self._client, list(found))
        return [
            of_settings(name, self._settings, seen[name].lane, now_ms)
            if stored is None
            else of_store(stored, self._settings, seen[name].lane, now_ms)
            for name, stored in found.items()
        ]


def _check_move(before: Stored, fields: Mapping[str, Any]) -> None:
    """What was given for one host is not sent to another: who may write an endpoint may not read its headers."""
    old, new = str(before.config.get("url", "")), fields.get("url")
    if not isinstance(new, str) or lane_of(old) == lane_of(new):
        return
    where = f"stands for {shown(old)}, and the url is another one now"
    if before.header_names and "headers" not in fields:
        names = ", ".join(before.header_names)
        raise ConfigurationError(f"headers: {names} {where}; give those for {shown(new)} with it, or none ({{}})")
    if before.config.get("cert_file") and "cert_file" not in fields:
        raise ConfigurationError(
            f"cert_file {where}; set or unset it with it (`lastword endpoints update --url URL --set cert_file=PATH`)"
        )
