"""The store's clock: by it all times are kept that several processes must agree on.

What belongs here: reading it. What must not be known here: what a time means.
"""

import redis.asyncio


async def now_ms(client: redis.asyncio.Redis) -> int:
    """Its time in UTC milliseconds."""
    return ms(await client.time())


def ms(time: tuple[int, int]) -> int:
    """An answer of TIME, in milliseconds."""
    seconds, microseconds = time
    return seconds * 1000 + microseconds // 1000
