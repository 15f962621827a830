"""Time for tests of the outbox: it passes by moving every stored time into the past, the same on any server."""

from dataclasses import replace
from typing import Any

from channels.delivery import model
from channels.outbox.stored import UNREADABLE, decode_lane, encode_lane

_OF = "lw:{dlv}:"


async def let_pass(client: Any, seconds: float) -> None:
    """Move what is due, leases, lanes, claims' memos and the relay of partition 0 by so many seconds."""
    by_ms = round(seconds * 1000)
    async for key in client.scan_iter("lw:{p*}:dlv:dlv_*"):
        if key.endswith(b":more"):
            continue
        line, _, record = (await client.get(key)).partition(b"\n")
        one = model.decode(record)
        if one is not None and one.due_ms:
            first_ms = one.first_ms and one.first_ms - by_ms
            one = replace(one, due_ms=max(1, one.due_ms - by_ms), first_ms=first_ms)
            words = line.split()
            words[2] = str(one.due_ms).encode()
            await client.set(key, b" ".join(words) + b"\n" + model.encode(one))
    for pattern in ("lanes", "due:*", "flight:*"):
        async for key in client.scan_iter(_OF + pattern):
            for member, score in await client.zrange(key, 0, -1, withscores=True):
                await client.zadd(key, {member: max(1, score - by_ms)})
    async for key in client.scan_iter(_OF + "clock"):
        await client.set(key, int(await client.get(key)) - by_ms)
    await _let_lanes(client, by_ms)
    async for key in client.scan_iter(_OF + "claim:*"):
        left_ms = await client.pttl(key)
        await client.pexpire(key, max(left_ms - by_ms, 1))
    until = await client.hget("lw:{p00}:relay", "exp")
    if until is not None:
        await client.hset("lw:{p00}:relay", "exp", int(until) - by_ms)


async def _let_lanes(client: Any, by_ms: int) -> None:
    async for key in client.scan_iter(_OF + "lane:*"):
        await _let_lane(client, key, by_ms)


async def _let_lane(client: Any, key: bytes, by_ms: int) -> None:
    for name in ("free", "served"):
        at = await client.hget(key, name)
        if at and int(at):
            await client.hset(key, name, max(1, int(at) - by_ms))
    record = await client.hget(key, "record")
    if record is None:
        return
    lane = decode_lane(record)
    if lane is UNREADABLE:
        return
    moved = {
        name: getattr(lane, name) and max(1, getattr(lane, name) - by_ms)
        for name in (
            "since_ms",
            "rate_ms",
            "not_before_ms",
            "failing_since_ms",
            "window_ms",
            "open_until_ms",
            "told_ms",
            "told_dead_ms",
            "shut_since_ms",
        )
    }
    await client.hset(key, "record", encode_lane(replace(lane, **moved)))
