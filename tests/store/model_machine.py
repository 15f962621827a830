"""What the models of the store have in common: a loop, clients over a bad line, sealed turns that must not change.

What belongs here: setting up one example and running many. What must not be known here: what a model says of a turn.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import fakeredis
import redis
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.store.lossy import Lossy, dump
from tests.store.turns import Redis

T = TypeVar("T")
FAULTS = st.lists(st.sampled_from(["request lost", "reply lost"]), max_size=2)

Clients = Callable[[], tuple[Redis, redis.Redis]]
"""Opens two clients of one server without keys; the blocking one has a good line."""


class StoreMachine(RuleBasedStateMachine):
    """A model beside the store. `sealed`: the keys of turns that have ended, by turn, as they were at the end."""

    clients: Clients

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.client, self.blocking = self.clients()
        self.lossy = Lossy(self.client)
        self.sealed: dict[str, dict[str, Any]] = {}

    def run(self, work: Awaitable[T]) -> T:
        """Wait for something that the client does."""
        return self.loop.run_until_complete(work)

    def teardown(self) -> None:
        """Look at what has ended for the last time."""
        for turn, before in self.sealed.items():
            assert self.run(self.keys_of(turn)) == before, "a sealed turn changed"
        self.run(self.client.aclose())
        self.blocking.close()
        self.loop.close()

    async def keys_of(self, turn: str) -> dict[str, Any]:
        """All that is stored of a turn."""
        return {name: value for name, value in (await dump(self.client)).items() if turn in name}


def run_on_the_fake(machine: type[StoreMachine], examples: int) -> None:
    """Check that the fake does what the model does."""
    _run(machine, _of_a_fake, examples)


def run_on_the_server(machine: type[StoreMachine], url: str, examples: int) -> None:
    """Check that the real server does what the model does."""
    with redis.Redis.from_url(url) as client:
        client.config_set("appendfsync", "always")  # else each wait for the disk takes a good part of a second
        try:
            _run(machine, partial(_of_the_server, url), examples)
        finally:
            client.config_set("appendfsync", "everysec")


def _run(machine: type[StoreMachine], clients: Clients, examples: int) -> None:
    connected: Any = type(machine.__name__, (machine,), {"clients": staticmethod(clients)})
    limits = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    run_state_machine_as_test(connected, settings=limits)


def _of_a_fake() -> tuple[Redis, redis.Redis]:
    server = fakeredis.FakeServer(version=(7,))
    return fakeredis.FakeAsyncRedis(server=server), fakeredis.FakeRedis(server=server)


def _of_the_server(url: str) -> tuple[Redis, redis.Redis]:
    blocking = redis.Redis.from_url(url)
    blocking.flushall()
    return redis.asyncio.Redis.from_url(url), blocking
