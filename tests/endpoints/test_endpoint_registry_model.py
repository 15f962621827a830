"""A random life of the stored endpoints beside a model of it: made, changed, rotated, deleted, by several at once.

What is stored is what the model holds, no version comes twice, a directory that lives all along knows no more and no
less, and of several who change one version one does.
"""

import asyncio
import secrets
from dataclasses import dataclass, field, replace
from typing import Any

import fakeredis
import pytest
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from channels.delivery.model import Withdrawn
from channels.endpoints.directory import Directory
from channels.endpoints.model import Endpoint
from channels.endpoints.record import Stored
from channels.endpoints.registry import (
    Change,
    EndpointExists,
    Idempotency,
    KeyReused,
    Registry,
    UnknownEndpoint,
    VersionConflict,
)
from channels.endpoints.signing_keys import MAX_KEYS
from channels.endpoints.subscription import Event
from channels.endpoints.vault import MasterKey, Ring, Vault
from channels.outbox import leaving
from channels.settings import Settings
from worker.errors import ConfigurationError

NAMES = ("a", "b", "c")
PATTERNS = ("turn.*", "call.completed", "*")
names = st.sampled_from(NAMES)
patterns = st.sampled_from(PATTERNS)


@dataclass(frozen=True, slots=True)
class Known:
    """An endpoint as the model holds it. `made`: the version it was made in. `keys`: of all that sign, newest first."""

    made: int
    version: int
    pattern: str
    keys: tuple[bytes, ...]
    path: int = 0


@dataclass
class Model:
    known: dict[str, Known] = field(default_factory=dict)
    made_by: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By idempotency key: what was asked for, and in which version that was made."""
    versions: set[int] = field(default_factory=set)

    def put(self, name: str, known: Known) -> None:
        assert known.version not in self.versions, "a version came twice"
        self.versions.add(known.version)
        self.known[name] = known


def config(pattern: str, path: int = 0) -> dict[str, Any]:
    return {"url": f"https://example.com/{path}", "events": [pattern]}


class RegistryLife(RuleBasedStateMachine):
    url: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.run
        self.model = Model()

    @initialize()
    def open(self) -> None:
        async def open_client() -> redis.asyncio.Redis:
            if self.url is None:
                return fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(version=(7,)))
            client = redis.asyncio.Redis.from_url(self.url)
            await client.flushall()
            return client

        self.client = self.run(open_client())
        vault = Vault(Ring((MasterKey("k", b"k" * 32),), "vault.keys"), secrets.token_bytes)
        self.registry = Registry(self.client, vault)
        self.directory = Directory(self.client, vault, Settings())

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.run(self.client.aclose())
        self.runner.close()

    @rule(name=names, pattern=patterns, key=st.sampled_from([None, "x", "y"]))
    def create(self, name: str, pattern: str, key: str | None) -> None:
        idempotency = None if key is None else Idempotency(key, f"{name} {pattern}")
        told, version = ("", 0) if key is None else self.model.made_by.get(key, ("", 0))
        known = self.model.known.get(name)
        is_there = known is not None and known.made == version  # and not another of that name, made since
        try:
            made = self.run(
                self.registry.create(name, config(pattern), headers={"X-Name": name}, idempotency=idempotency)
            )
        except EndpointExists:
            assert known is not None
            assert not told
            return
        except KeyReused:
            assert told
            assert told != f"{name} {pattern}" or not is_there
            return
        if made.duplicate:
            assert told == f"{name} {pattern}"
            assert is_there
            assert known is not None
            assert made.stored.version == known.version
            return
        assert known is None
        assert not told
        version = made.stored.version
        self.model.put(name, Known(version, version, pattern, tuple(one.key for one in made.keys)))
        if key is not None:
            self.model.made_by[key] = f"{name} {pattern}", version

    @rule(name=names, pattern=patterns, stale=st.booleans(), wants=st.booleans())
    def change(self, name: str, pattern: str, stale: bool, wants: bool) -> None:
        known = self.model.known.get(name)
        expected = None if not wants else (known.version if known else 1) - (1 if stale else 0)

        async def to_pattern(before: Stored, _: int) -> Change:
            return Change(config={**before.config, "events": [pattern]})

        try:
            stored = self.run(self.registry.change(name, to_pattern, expected))
        except UnknownEndpoint:
            assert known is None
        except VersionConflict:
            assert known is not None
            assert wants
            assert stale
        else:
            assert known is not None
            assert not (wants and stale)
            self.model.put(name, replace(known, version=stored.version, pattern=pattern))

    @rule(name=names, many=st.integers(2, 4))
    def change_at_once(self, name: str, many: int) -> None:
        """Several have read one version, and each changes it."""
        known = self.model.known.get(name)
        if known is None:
            return

        async def change(path: int) -> tuple[int, Stored | None]:
            async def to_path(_: Stored, __: int) -> Change:
                return Change(config=config(known.pattern, path))

            try:
                return path, await self.registry.change(name, to_path, known.version)
            except VersionConflict:
                return path, None

        async def all_of_them() -> list[tuple[int, Stored | None]]:
            return list(await asyncio.gather(*(change(path) for path in range(1, many + 1))))

        ((path, stored),) = (one for one in self.run(all_of_them()) if one[1] is not None)
        assert stored is not None
        self.model.put(name, replace(known, version=stored.version, path=path))

    @rule(name=names, at_once=st.booleans())
    def rotate(self, name: str, at_once: bool) -> None:
        known = self.model.known.get(name)
        try:
            made = self.run(self.registry.rotate(name, overlap_ms=0 if at_once else 86_400_000))
        except UnknownEndpoint:
            assert known is None
        except ConfigurationError:
            assert known is not None
            assert len(known.keys) == MAX_KEYS
            assert not at_once
        else:
            assert known is not None
            keys = tuple(key.key for key in made.keys)
            assert keys[1:] == (() if at_once else known.keys)
            self.model.put(name, replace(known, version=made.stored.version, keys=keys))

    @rule(name=names)
    def delete(self, name: str) -> None:
        try:
            self.run(self.registry.delete(name))
        except UnknownEndpoint:
            assert name not in self.model.known
        else:
            del self.model.known[name]
            assert self.run(leaving.finish(self.client, name, 1)) is None

    @invariant()
    def what_is_stored_is_what_is_known(self) -> None:
        if not hasattr(self, "client"):
            return
        stored = self.run(self.registry.listed())
        assert [(one.name, one.version) for one in stored] == sorted(
            (name, one.version) for name, one in self.model.known.items()
        )

    @invariant()
    def the_directory_finds_it_as_it_is_now(self) -> None:
        if not hasattr(self, "client"):
            return
        for name, found in zip(NAMES, self.run(self.directory.look_up(NAMES)), strict=True):
            known = self.model.known.get(name)
            if known is None:
                assert isinstance(found, Withdrawn)
                continue
            assert isinstance(found, Endpoint)
            assert (found.version, found.url) == (known.version, f"https://example.com/{known.path}")
            assert tuple(key.key for key in found.keys) == known.keys
            assert found.headers == (("X-Name", name),)
        for event_type in ("turn.failed", "call.completed"):
            told = self.run(self.directory.audience()).subscribed(Event(event_type))
            wanted = {"turn.failed": ("turn.*", "*"), "call.completed": ("call.completed", "*")}[event_type]
            assert [one.name for one in told] == sorted(
                name for name, known in self.model.known.items() if known.pattern in wanted
            )


@pytest.mark.requirement("endpoints:registry:model")
@pytest.mark.parametrize("kind", ["fake", "real"])
def test_whatever_is_done_to_endpoints_the_store_and_the_directory_know_it(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = None if kind == "fake" else request.getfixturevalue("real_url")
    life = type("Life", (RegistryLife,), {"url": url})
    run_state_machine_as_test(
        life,
        settings=settings(
            max_examples=40 if url is None else 15,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
