"""Lanes in Redis: reading them, and what people do to one.

What belongs here: storing what was decided of a lane, and only if nobody changed it meanwhile. What must not be known
here: limits, single deliveries.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import redis.asyncio

from channels.delivery import lane as decided
from channels.delivery.lane import Lane
from channels.outbox import keys
from channels.outbox.stored import UNBOUNDED, LaneStep, SeenLane, decode_lane, settle_words
from worker.errors import NewerRecord, StoreError
from worker.store import clock
from worker.store.script import Script

SETTLE = Script("channels.outbox", "settle")

TRY_S = 30.0
"""For so long a change of a lane is tried that others change all the time."""

_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.05
_chance = random.SystemRandom().random


def tries(limit_s: float = TRY_S) -> Iterator[float]:
    """For each try to change a lane that others change, too: the seconds to wait before the next one.

    Growing, and spread by chance: whoever reads and stores at once has a lane for itself for a millisecond or two.
    """
    loop, wait_s = asyncio.get_running_loop(), _FIRST_WAIT_S
    ends = loop.time() + limit_s
    while loop.time() < ends:
        yield wait_s * _chance()
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


async def read_lanes(client: redis.asyncio.Redis, names: Sequence[str]) -> tuple[int, dict[str, SeenLane]]:
    """The store's time (ms), and the lanes as they are stored; one that is not is a lane of which nothing is known.

    One that this release cannot read says so (`SeenLane.is_readable`), and lets nothing through.
    """
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    for name in names:
        pipeline.hmget(keys.lane(name), "mark", "record")
    time, *found = await pipeline.execute()
    seen = {
        name: SeenLane(name, (mark or b"").decode(), decode_lane(record or b""))
        for name, (mark, record) in zip(names, found, strict=True)
    }
    return clock.ms(time), seen


async def standings(client: redis.asyncio.Redis, lanes: Sequence[str]) -> dict[str, Lane]:
    """The lanes, by name."""
    _, seen = await read_lanes(client, lanes)
    return {name: one.lane for name, one in seen.items()}


async def standing(client: redis.asyncio.Redis, lane: str) -> Lane:
    """One lane. Raises `NewerRecord` where this release cannot read it."""
    _, seen = await read_lanes(client, [lane])
    return _readable(seen[lane])


async def pause(client: redis.asyncio.Redis, lane: str, why: str) -> Lane:
    """Let nothing through any more until somebody resumes it: what is due is held. A disabled one stays disabled."""
    return await _change(client, lane, lambda one, now_ms: decided.pause(one, now_ms, why))


async def disable(client: redis.asyncio.Redis, lane: str, why: str) -> Lane:
    """Let nothing through any more: what is due is held."""
    return await _change(client, lane, lambda one, now_ms: decided.disable(one, now_ms, why))


async def resume(client: redis.asyncio.Redis, lane: str) -> Lane:
    """Let everything through again that comes now. What is held stays so until it is replayed."""
    return await _change(client, lane, lambda one, _: decided.resume(one))


async def look_again(client: redis.asyncio.Redis, lane: str) -> Lane:
    """Let the next claim look at the lane at once: what its endpoint lets through was changed."""
    return await _change(client, lane, lambda one, _: replace(one, version=one.version + 1))


async def _change(client: redis.asyncio.Redis, name: str, change: Callable[[Lane, int], Lane]) -> Lane:
    for wait_s in tries():
        now_ms, seen = await read_lanes(client, [name])
        before = _readable(seen[name])
        after = change(before, now_ms)
        if after == before:
            return before
        # Otherwise a claim that saw the lane before could not tell that it lets nothing through any more.
        step = LaneStep(seen[name], (), lane=after, cap=None if after.standing == "active" else UNBOUNDED)
        ((stored, _),) = await SETTLE(client, [], settle_words([step], now_ms))
        if stored:
            return after
        await asyncio.sleep(wait_s)
    raise StoreError(f"lane {name} was changed by others for {TRY_S:g} s: try again")


def _readable(seen: SeenLane) -> Lane:
    if not seen.is_readable:
        raise NewerRecord(
            f"what is known of endpoint {seen.name} was written by a newer version of Lastword, or is damaged: use "
            "that version, or see what is left alone in ops/runbooks/deploys.md"
        )
    return seen.lane
