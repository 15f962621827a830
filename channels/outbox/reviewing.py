"""Lanes whose rules were changed where nobody tells of it: in the settings.

What belongs here: finding those that wait for what the rules of before let through. What must not be known here: how
rules are read, how often this is done.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import redis.asyncio

from channels.delivery.lane import Rules, put_right
from channels.outbox import keys
from channels.outbox.attempted import Known, looked_at
from channels.outbox.lanes import look_again
from channels.outbox.stored import UNREADABLE, decode_lane
from worker.store import clock

REVIEW_S = 60.0
"""Between two reviews: while processes are started anew, one with the rules of before may be the last to look."""

_NEAR_MS = 1000
_STEP = 200


async def review(client: redis.asyncio.Redis, rules: Callable[[Sequence[str]], Awaitable[Mapping[str, Known]]]) -> int:
    """Let lanes be looked at now that wait for longer than their rules say. Gives how many.

    Of lanes that are looked at within a second anyhow nothing is read. Safe to repeat.
    """
    now_ms = await clock.now_ms(client)
    waiting: Any = await client.zrangebyscore(keys.LANES, now_ms + _NEAR_MS, "+inf")
    names = [name.decode() for name in waiting]
    found = 0
    for begin in range(0, len(names), _STEP):
        some = names[begin : begin + _STEP]
        pipeline = client.pipeline(transaction=False)
        for name in some:
            pipeline.hmget(keys.lane(name), "cap", "free", "record")
        stored = await pipeline.execute()
        known = await rules(some)
        for name, (cap, free, record) in zip(some, stored, strict=True):
            each = known[name]
            if cap and isinstance(each, Rules) and _waits_too_long(int(cap), int(free), record, each, now_ms):
                await look_again(client, name)
                found += 1
    return found


def _waits_too_long(cap: int, free_ms: int, record: bytes | None, rules: Rules, now_ms: int) -> bool:
    stored = decode_lane(record or b"")
    if stored is UNREADABLE:
        return False
    lane = put_right(stored, rules.limits, now_ms)
    right_cap, right_ms = looked_at(lane, rules)
    return right_cap > cap or max(right_ms, now_ms) < free_ms
