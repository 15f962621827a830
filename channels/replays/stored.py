"""Bulk replays in Redis: making them, looking at them, changing them, and the lease of who takes one on.

What belongs here: storing what `channels.delivery.replay` decided, and only if nobody changed it meanwhile. What must
not be known here: deliveries, and in which order steps are taken.

    lw:{replays}:of:<id>   hash: version, mark, record (JSON); owner, exp: the lease of who takes it on. It expires 30
                           days after its end
    lw:{replays}:running   set: those that run
    lw:{replays}:index     sorted set: all, by when they were made
"""

import secrets
from collections.abc import Callable
from typing import Any

import redis.asyncio

from channels.delivery import replay as decided
from channels.delivery.replay import Job
from worker import ids
from worker.errors import ConfigurationError, StoreError
from worker.store import clock
from worker.store.script import Argument, Script

KEEP_S = 30 * 86400.0
_FURTHEST_LEASE_MS = 120_000
_TRIES = 20

_OF, _RUNNING, _INDEX = "lw:{replays}:of:", "lw:{replays}:running", "lw:{replays}:index"

_TAKE, _STORE = (Script("channels.replays", name) for name in ("take", "store"))


class UnknownReplay(ConfigurationError):
    """There is no replay of that id."""


class LostReplayError(StoreError):
    """Another process has taken the replay over."""


def new_id() -> str:
    """A fresh id of a replay."""
    return f"rpl_{secrets.token_hex(10)}"


async def create(client: redis.asyncio.Redis, job: Job) -> Job:
    """Store a new replay; from then on it is taken on. Safe to repeat."""
    return job if await store(client, 0, job) else await show(client, job.id)


async def show(client: redis.asyncio.Redis, name: str) -> Job:
    """The replay of that id. Raises `UnknownReplay` when there is none."""
    record: Any = await client.hget(_OF + name, "record")
    job = None if record is None else decided.decode(record)
    if job is None:
        why = "it was never made, or ended more than 30 days ago" if record is None else "a newer release made it"
        raise UnknownReplay(f"replay {name[:80]} is not known: {why}; see `lastword deliveries replays list`")
    return job


async def listed(client: redis.asyncio.Redis, limit: int) -> list[Job]:
    """At most `limit` replays, the newest first."""
    names: list[Any] = await client.zrevrange(_INDEX, 0, limit - 1)
    pipeline = client.pipeline(transaction=False)
    for name in names:
        pipeline.hget(_OF + name.decode(), "record")
    return [job for job in (decided.decode(record) for record in await pipeline.execute() if record) if job]


async def pause(client: redis.asyncio.Redis, name: str, why: str) -> Job:
    """Let a replay wait until somebody resumes it. One that has ended stays as it is."""
    return await change(client, name, lambda job, _: decided.pause(job, why))


async def resume(client: redis.asyncio.Redis, name: str) -> Job:
    """Let a paused replay go on where it was."""
    return await change(client, name, lambda job, _: decided.resume(job))


async def cancel(client: redis.asyncio.Redis, name: str, why: str) -> Job:
    """End a replay; what it has replayed stays so. One that has ended stays as it is."""
    return await change(client, name, lambda job, at_ms: decided.cancel(job, at_ms, why))


async def running(client: redis.asyncio.Redis) -> list[str]:
    """The ids of those that run."""
    names: Any = client.smembers(_RUNNING)
    return sorted(name.decode() for name in await names)


async def take(client: redis.asyncio.Redis, name: str, nonce: str, lease_s: float) -> tuple[Job | None, int] | None:
    """Take or renew the lease of a replay, 0 gives it up. The replay, and the store's time (ms).

    None while another holds it. Instead of a replay of a newer release, None.
    """
    reply = await _TAKE(client, [_OF + name], [nonce, round(lease_s * 1000), _FURTHEST_LEASE_MS])
    return (decided.decode(reply[1]), int(reply[2])) if reply[0] else None


async def change(
    client: redis.asyncio.Redis, name: str, following: Callable[[Job, int], Job], *, nonce: str = ""
) -> Job:
    """Store what follows from a replay at a time (ms), whatever others do to it meanwhile. Gives it.

    `nonce`: only under that lease; raises `LostReplayError` when it is another's.
    """
    for _ in range(_TRIES):
        before = await show(client, name)
        after = following(before, await clock.now_ms(client))
        if after == before or await store(client, before.version, after, nonce=nonce):
            return after
        if nonce and await client.hget(_OF + name, "owner") != nonce.encode():
            raise LostReplayError(name)
    raise StoreError(f"replay {name} was changed by others {_TRIES} times in a row: try again")


async def store(client: redis.asyncio.Redis, version: int, job: Job, *, nonce: str = "") -> bool:
    """Store a replay that was read with that version, 0: none. False: it has another by now, or the lease is lost."""
    forget_ms: Argument = job.ended_ms + round(KEEP_S * 1000) if job.ended_ms else ""
    arguments: list[Argument] = [job.id, version, job.version, ids.new_nonce(), nonce]
    arguments += [decided.encode(job), job.created_ms, forget_ms, int(job.state == "running")]
    return bool((await _STORE(client, [_OF + job.id, _RUNNING, _INDEX], arguments))[0])
