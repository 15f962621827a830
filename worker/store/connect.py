"""Connections to Redis, built the one way in which our scripts may be sent.

What belongs here: pools, timeouts, the pinned protocol. What must not be known here: what is stored.

redis-py repeats a command whose reply was lost. For our verbs that would be blind: only the op number knows whether a
step was taken, and only the owner of the lease may still repeat it. So its retries are off.
"""

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff

REPLY_TIMEOUT_S = 5.0
CONNECT_TIMEOUT_S = 5.0
_POOL_SIZE = 64
_POOL_WAIT_S = 20.0
_HEALTH_CHECK_S = 15
_PROTOCOL = 2  # RESP3 gives some replies another shape


def open_redis(url: str, *, block_s: float = 0.0, connections: int = _POOL_SIZE) -> redis.asyncio.Redis:
    """A client for asyncio. `block_s`: the longest blocking read that it will be asked for, in seconds.

    `connections`: how many commands may be under way at once; more of them wait for their turn.
    """
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        **_options(block_s),
        max_connections=connections,
        timeout=_POOL_WAIT_S,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
    )
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
