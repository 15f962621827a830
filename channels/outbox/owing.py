"""Whether what a lane holds is to be sent by whoever resumes it.

What belongs here: keeping that beside the lane. What must not be known here: who resumes, how what is held is sent.

It is kept before a lane lets anything through again, and until what it held is taken care of: whoever comes after one
who died in between finds the lane active, and could not tell otherwise that it was paused.
"""

from typing import Any

import redis.asyncio

from channels.outbox import keys
from worker.store.script import Script

_OWE = Script("channels.outbox", "owe")


async def owe(client: redis.asyncio.Redis, lane: str, *, owes: bool) -> None:
    """Keep that what a lane holds is to be sent, or not."""
    await _OWE(client, [keys.lane(lane)], [int(owes)])


async def is_owed(client: redis.asyncio.Redis, lane: str) -> bool:
    """Whether what a lane holds is to be sent."""
    found: Any = await client.hget(keys.lane(lane), "owed")
    return found is not None
