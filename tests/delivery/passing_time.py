"""Time for tests of the outbox: it passes by moving every stored time into the past, the same on any server."""

from dataclasses import replace
from typing import Any

from channels.delivery import model


async def let_pass(client: Any, seconds: float) -> None:
    """Move what partition 0 has due, its leases and its claims' memos by so many seconds."""
    by_ms = round(seconds * 1000)
    async for key in client.scan_iter("lw:{p00}:dlv:*"):
        one = model.decode(await client.hget(key, "record"))
        if one is not None and one.due_ms:
            earlier = replace(one, due_ms=max(1, one.due_ms - by_ms))
            await client.hset(key, "record", model.encode(earlier))
            await client.zadd("lw:{p00}:dlv-due", {one.id: earlier.due_ms})
    async for key in client.scan_iter("lw:{p00}:claim:*"):
        left_ms = await client.pttl(key)
        await client.pexpire(key, max(left_ms - by_ms, 1))
    until = await client.hget("lw:{p00}:relay", "exp")
    if until is not None:
        await client.hset("lw:{p00}:relay", "exp", int(until) - by_ms)
