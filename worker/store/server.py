"""What a server may lose of what it has acknowledged, and where it may refuse to write.

What belongs here: judging a server by what it says of itself, each finding with its fix. What must not be known here:
what is stored, who is told.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis.exceptions import ResponseError

from worker.observability import warn
from worker.store.repeat import is_unanswered


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself. `appendfsync`: empty where it may not be asked."""

    info: dict[str, Any]
    has_waitaof: bool
    appendfsync: str = ""


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """One thing in which a server falls short. `about`: persistence, durability, eviction, role or failover.

    `serious`: something can be lost or refused as it is; else it takes a failover.
    """

    about: str
    finding: str
    fix: str
    serious: bool = True


async def server_facts(client: redis.asyncio.Redis) -> ServerFacts:
    """Ask the server. Raises redis-py's exceptions."""
    ask: Any = client.execute_command  # it has no types
    info = await client.info()
    known = await ask("COMMAND", "INFO", "WAITAOF")
    try:
        setting = await client.config_get("appendfsync")
    except ResponseError as error:  # managed servers do not tell
        if is_unanswered(error):
            raise
        setting = {}
    return ServerFacts(dict(info), bool(known) and any(known), str(setting.get("appendfsync", "")))


def shortcomings(facts: ServerFacts) -> Iterator[Shortcoming]:
    """Judge a server."""
    info = facts.info
    if info.get("role", "master") != "master":
        yield Shortcoming("role", "it is a replica and refuses to write", "set redis_url to the primary")
    yield from _of_its_file(facts)
    policy = str(info.get("maxmemory_policy", "unknown"))
    if policy != "noeviction":
        yield Shortcoming(
            "eviction", f"{policy}: turns may be evicted", "set `maxmemory-policy noeviction` in its configuration"
        )
    if int(info.get("connected_slaves", 0)) and not int(info.get("min_slaves_good_slaves", 0)):
        yield Shortcoming(
            "failover",
            "a failover to a replica that lags loses what that has not got: WAITAOF vouches for one disk alone",
            "set `min-replicas-to-write 1` and a small `min-replicas-max-lag`; ops/runbooks/redis.md says what happens",
            serious=False,
        )


def _of_its_file(facts: ServerFacts) -> Iterator[Shortcoming]:
    info = facts.info
    if not info.get("aof_enabled"):
        finding = "appendonly is off: what was acknowledged is lost when the server stops"
        yield Shortcoming("persistence", finding, "set `appendonly yes` in its configuration")
    elif info.get("aof_last_write_status", "ok") != "ok":
        finding = "the last write of its append-only file failed"
        yield Shortcoming("persistence", finding, "free disk space on its machine; its log names the error")
    elif facts.appendfsync == "no" and facts.has_waitaof:
        finding = "appendfsync is no: it never says that a write is on disk, and nothing that waits for that is taken"
        yield Shortcoming("persistence", finding, "set `appendfsync everysec`, or always, in its configuration")
    if not facts.has_waitaof:
        finding = "WAITAOF is not known: a crash may lose the last second of what was acknowledged"
        yield Shortcoming("durability", finding, "use Redis 7.2 or Valkey, or newer")


async def warn_of_shortcomings(client: redis.asyncio.Redis) -> None:
    """Say at the start of a process what `lastword doctor` would say of its server. It starts all the same."""
    try:
        facts = await server_facts(client)
    except Exception as error:  # noqa: BLE001 - whatever it was, INFO that is not permitted, say: turns run without
        warn("redis_not_looked_at", error=type(error).__name__)
        return
    for one in shortcomings(facts):
        warn("redis_falls_short", about=one.about, finding=one.finding, fix=one.fix)
