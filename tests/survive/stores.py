"""The stores in which turns survive: a fake one, and a real one that brings each write to disk at once.

What belongs here: connections. It knows no turn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import fakeredis
import redis
import redis.asyncio

from tests.store.turns import Redis


@dataclass(frozen=True)
class Store:
    """Connections to one store: `connect` opens one a process, `sync` is what a heartbeat has."""

    connect: Callable[[], Redis]
    sync: redis.Redis


@dataclass(frozen=True)
class NewStore:
    """Gives an empty store."""

    kind: Literal["fake", "real"]
    make: Callable[[], Store]

    def __call__(self) -> Store:
        return self.make()


def fake_store() -> Store:
    """An empty one in this process."""
    server = fakeredis.FakeServer(version=(7,))
    return Store(lambda: fakeredis.FakeAsyncRedis(server=server), fakeredis.FakeRedis(server=server))


def real_store(url: str, client: redis.Redis) -> Store:
    """The server at `url`, emptied by its own `client`."""
    client.flushall()
    return Store(lambda: redis.asyncio.Redis.from_url(url), client)
