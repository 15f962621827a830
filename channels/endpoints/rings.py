"""Which master keys the delivery processes have that live.

What belongs here: telling it by ids, and who lacks a key. What must not be known here: the keys, what is encrypted.

    lw:vault-rings    sorted set: the ids of a ring, in its order and with commas, a space, and the delivery process
                      that has this ring, by the ms at which it last said so
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import redis.asyncio
from redis.exceptions import OutOfMemoryError, RedisError

from worker.errors import ConfigurationError
from worker.store import clock
from worker.store.repeat import is_unanswered

RINGS = "lw:vault-rings"
LIVES_MS = 60_000
"""A ring that was told of within this time is one of a living process. It is told of every few seconds."""
_WITHDRAWN_S = 1.0


async def tell_ring(client: redis.asyncio.Redis, process: str, key_ids: Sequence[str]) -> None:
    """Say that a delivery process has this ring; what was not told of for long is dropped.

    A server that is full, or cannot write just now, takes no word that can wait: it is told again in a few seconds.
    """
    now_ms = await clock.now_ms(client)
    pipeline = client.pipeline(transaction=False)
    pipeline.zadd(RINGS, {_member(process, key_ids): now_ms})
    pipeline.zremrangebyscore(RINGS, "-inf", now_ms - LIVES_MS)
    try:
        await pipeline.execute()
    except RedisError as error:
        if not (isinstance(error, OutOfMemoryError) or is_unanswered(error)):
            raise


async def withdraw_ring(client: redis.asyncio.Redis, process: str, key_ids: Sequence[str]) -> None:
    """Say that a delivery process ends. Raises nothing: what is not withdrawn is dropped after a minute."""
    with contextlib.suppress(RedisError, OSError, TimeoutError):
        async with asyncio.timeout(_WITHDRAWN_S):
            await client.zrem(RINGS, _member(process, key_ids))


async def living_rings(client: redis.asyncio.Redis) -> list[tuple[str, ...]]:
    """The rings of delivery processes that live, each as the ids of its keys."""
    now_ms = await clock.now_ms(client)
    found: Any = await client.zrangebyscore(RINGS, now_ms - LIVES_MS, now_ms + LIVES_MS)
    return list(dict.fromkeys(tuple(ring.decode().partition(" ")[0].split(",")) for ring in found))


def _member(process: str, key_ids: Sequence[str]) -> str:
    return f"{','.join(key_ids)} {process}"


def check_rings(rings: Sequence[Sequence[str]], key_ids: Sequence[str], place: str) -> None:
    """Raise `ConfigurationError` where what the first of our keys encrypts would not be decrypted, or not by us.

    `place`: where our keys are.
    """
    theirs = dict.fromkeys(ring[0] for ring in rings if ring[0] not in key_ids)
    lacking = [ring for ring in rings if key_ids[0] not in ring]
    if not (theirs or lacking):
        return
    fault = (
        f"the master key {key_ids[0]} of {place} is not among those of a delivery process that runs, or was killed "
        "within the last minute"
    )
    if not lacking:
        fault = f"{place} lacks the master key {', '.join(theirs)}, with which a delivery process encrypts"
    elif others := {identifier for ring in lacking for identifier in ring}:
        fault += f": it has {', '.join(sorted(others))}"
    raise ConfigurationError(
        f"vault: {fault}; give all machines the same keys: copy the key file of one, name it in vault.keys_file on "
        "each, and start the processes anew"
    )
