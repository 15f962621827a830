"""What a claim has left in the store for its claimant, asked after or made to last.

What belongs here: the reservation of a suspect, and a claim that was taken while its answer was lost. What must not be
known here: claiming and leases (`lease`), who starts a process.
"""

from typing import Any

import redis.asyncio

from worker import ids
from worker.store import keys, lease
from worker.store.script import Argument, Script

_reserve = Script("worker.store", "reserve")


async def reserve(redis: redis.asyncio.Redis, session: str, nonce: str, partitions: int) -> bool:
    """Leave the suspect at the head of the session to the claimant that was told of it, for another 15 s.

    `nonce`: of its claim. False: others have reserved or claimed the turn since, or it is to end or has ended.
    """
    partition = ids.partition_of_session(session, partitions)
    names = [keys.queue(partition, session), keys.due(partition)]
    args: list[Argument] = [nonce, lease.RESERVE_MS, keys.DUE_LEASE + session, keys.beginning(partition)]
    return bool((await _reserve(redis, names, args))[0])


async def was_taken(redis: redis.asyncio.Redis, session: str, nonce: str, partitions: int) -> bool:
    """Whether a claim with this nonce made its sender the driver of the session's next turn, and nobody else since."""
    client: Any = redis
    turn = await client.lindex(keys.queue(ids.partition_of_session(session, partitions), session), 0)
    if turn is None:
        return False
    driver, state = await client.hmget(keys.turn_record(turn.decode()), "nonce", "state")
    return bool(driver == nonce.encode() and state == b"running")
