"""Connections to Redis, built the one way in which our scripts may be sent.

What belongs here: pools, timeouts, the pinned protocol. What must not be known here: what is stored.

redis-py repeats a command whose reply was lost. For our verbs that would be blind: only the op number knows whether a
step was taken, and only the owner of the lease may still repeat it. So its retries are off.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.asyncio.connection import AbstractConnection
from redis.backoff import NoBackoff

REPLY_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
_POOL_SIZE = 64
_POOL_WAIT_S = 20.0
_HEALTH_CHECK_S = 15
_PROTOCOL = 2  # RESP3 gives some replies another shape

_Packed = bytes | str | Iterable[bytes]


class _KeepsCancels(AbstractConnection):
    """A connection of redis-py that sends without `asyncio.wait_for`.

    Needed with Python 3.11, and with no later one: there `wait_for` loses a cancel that comes as what it waits for has
    just ended, and redis-py (8.1 still) sends through it where a timeout is set. Who was cancelled would go on.
    """

    async def send_packed_command(self, command: _Packed, check_health: bool = True) -> None:
        """Connect if need be, and send. Raises redis-py's exceptions."""
        if not self.is_connected:
            await self.connect_check_health(check_health=False)
        if check_health:
            await self.check_health()  # type: ignore[no-untyped-call]
        limit_s, self.socket_timeout = self.socket_timeout, None  # with a limit of its own it would use `wait_for`
        try:
            async with asyncio.timeout(limit_s):
                await super().send_packed_command(command, check_health=False)
        except TimeoutError:  # it has disconnected
            raise redis.TimeoutError("Timeout writing to socket") from None
        finally:
            self.socket_timeout = limit_s


class _Tcp(_KeepsCancels, redis.asyncio.Connection):
    pass


class _Tls(_KeepsCancels, redis.asyncio.SSLConnection):
    pass


_KEEPING_CANCELS: dict[type[AbstractConnection], type[AbstractConnection]] = {
    redis.asyncio.Connection: _Tcp,
    redis.asyncio.SSLConnection: _Tls,
}


class _Pool(redis.asyncio.BlockingConnectionPool):
    """A pool in which a cancelled caller does not take the wake-up of another with it.

    Needed before Python 3.13: there a `Condition` wakes nobody else when the one that it has woken is cancelled in the
    same moment, and the next would wait for a connection that is free.
    """

    async def get_connection(self, *args: Any, **options: Any) -> AbstractConnection:
        """As redis-py."""
        try:
            connection: AbstractConnection = await super().get_connection(*args, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            async with self._condition:
                self._condition.notify()
            raise
        return connection


def open_redis(url: str, *, block_s: float = 0.0, connections: int = _POOL_SIZE) -> redis.asyncio.Redis:
    """A client for asyncio. `block_s`: the longest blocking read that it will be asked for, in seconds.

    `connections`: how many commands may be under way at once; more of them wait for their turn.
    """
    pool = _Pool.from_url(
        url,
        **_options(block_s),
        max_connections=connections,
        timeout=_POOL_WAIT_S,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
    )
    pool.connection_class = _KEEPING_CANCELS[pool.connection_class]
    return redis.asyncio.Redis.from_pool(pool)


def open_redis_sync(url: str, *, block_s: float = 0.0) -> redis.Redis:
    """A blocking client, for a thread of its own."""
    pool = redis.BlockingConnectionPool.from_url(
        url,
        **_options(block_s),
        max_connections=_POOL_SIZE,
        timeout=_POOL_WAIT_S,
        retry=redis.retry.Retry(NoBackoff(), 0),
    )
    return redis.Redis.from_pool(pool)


def _options(block_s: float) -> dict[str, Any]:
    return {
        "protocol": _PROTOCOL,
        "decode_responses": False,
        "socket_timeout": REPLY_TIMEOUT_S + block_s,
        "socket_connect_timeout": CONNECT_TIMEOUT_S,
        "socket_keepalive": True,
        "health_check_interval": _HEALTH_CHECK_S,
    }
