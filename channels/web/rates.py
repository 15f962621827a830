"""How often a token may ask, and an address fail. Counted in Redis, so all web processes count together.

What belongs here: the limits and their counting. What must not be known here: requests, tokens.

A limit protects the process and its neighbours; it decides nothing. Where Redis is full and cannot count, requests
pass.
"""

import time
from math import ceil

import redis.asyncio
from limits import RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.exceptions import OutOfMemoryError

from channels.settings import WebSettings
from channels.web.errors import Refused

_TOO_MANY_FAILURES = "too many requests without a valid token"


class Rates:
    """The limits of one installation, counted through `client`."""

    def __init__(self, client: redis.asyncio.Redis, url: str, settings: WebSettings) -> None:
        pool: object = client.connection_pool
        storage = RedisStorage(
            f"async+{url}",
            implementation="redispy",
            key_prefix="lw:limits",
            connection_pool=pool,  # type: ignore[arg-type]
        )
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._requests = RateLimitItemPerMinute(settings.requests_per_minute)
        self._failures = RateLimitItemPerMinute(settings.failures_per_minute)

    async def count_request(self, token: str) -> None:
        """Count a request of a token, by its id. Raises `Refused`."""
        await self._count(self._requests, "token", token, "this token asks too often")

    async def count_stranger(self, address: str) -> None:
        """Count a request that needs no token. Raises `Refused`."""
        await self._count(self._requests, "stranger", address, "this address asks too often")

    async def count_failure(self, address: str) -> None:
        """Count a request without a valid token. Raises `Refused`."""
        await self._count(self._failures, "address", address, _TOO_MANY_FAILURES)

    async def check_failures(self, address: str) -> None:
        """Refuse an address that has failed too often, without counting this request. Raises `Refused`."""
        await self._count(self._failures, "address", address, _TOO_MANY_FAILURES, counts=False)

    async def _count(
        self, item: RateLimitItemPerMinute, kind: str, who: str, what: str, *, counts: bool = True
    ) -> None:
        asked = self._limiter.hit if counts else self._limiter.test
        try:
            if await asked(item, kind, who):
                return
            window = await self._limiter.get_window_stats(item, kind, who)
        except OutOfMemoryError:
            return
        wait_s = min(max(1, ceil(window.reset_time - time.time())), 60)  # noqa: TID251 - the clock that `limits` counts by
        message = f"{what}: at most {item.amount} a minute; ask again in {wait_s} s"
        raise Refused("rate_limited", message, headers={"Retry-After": str(wait_s)})
