"""The processes that live: what each tells of itself now and then, kept only until it should have told again.

What belongs here: telling and reading it. What must not be known here: what a process does, what its figures mean.

Times are the server's.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

import redis
import redis.asyncio

from worker.observability import warn
from worker.store import keys
from worker.store.script import Script

MISSED = 3
"""Reports that a process may miss before it is taken for gone."""

_VERSION = 1
_report = Script("worker.store", "report")


@dataclass(frozen=True, slots=True)
class Told:
    """What a process tells of itself.

    `role`: turns, delivery or web. `turns`: how many it drives, or deliveries that it attempts, now. `loop_lag_s`: how
    long its event loop last took to answer. `stopped`: this is its last report.
    """

    role: str
    name: str
    host: str
    pid: int
    version: str
    turns: int
    draining: bool
    stopped: bool
    loop_lag_s: float


@dataclass(frozen=True, slots=True)
class LivingProcess:
    """A process that has told of itself lately. `since_ms`, `seen_ms`: its first and its last report, UTC."""

    id: str
    told: Told
    since_ms: int
    seen_ms: int


def report(redis: redis.Redis, process: str, told: Told, figures: bytes, every_s: float) -> None:
    """Tell what a process does, and its figures. `every_s`: seconds to its next report."""
    names = [keys.process(process), keys.PROCESSES]
    _report.run(redis, names, [process, round(every_s * MISSED * 1000), json.dumps(asdict(told)), figures])


async def living(redis: redis.asyncio.Redis) -> list[LivingProcess]:
    """The processes that live, by their ids."""
    found = await _read(redis, ["v", "record", "since", "seen"])
    return [
        LivingProcess(process, told, int(since or 0), int(seen or 0))
        for process, (version, record, since, seen) in found
        if version == b"%d" % _VERSION and (told := _told(process, record)) is not None
    ]


async def figures(redis: redis.asyncio.Redis) -> dict[str, tuple[str, bytes]]:
    """The role of every process that lives, and its figures as it told them, by its id."""
    found = await _read(redis, ["v", "record", "figures"])
    return {
        process: (told.role, figures or b"")
        for process, (version, record, figures) in found
        if version == b"%d" % _VERSION and (told := _told(process, record)) is not None
    }


async def _read(redis: redis.asyncio.Redis, fields: list[str]) -> list[tuple[str, list[Any]]]:
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.zrange(keys.PROCESSES, 0, -1, withscores=True)
    (seconds, microseconds), known = await pipeline.execute()
    now_ms = seconds * 1000 + microseconds // 1000
    names = sorted(name.decode() for name, until_ms in known if until_ms > now_ms)
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hmget(keys.process(name), fields)
    return [(name, stored) for name, stored in zip(names, await pipeline.execute(), strict=True) if stored[0]]


def _told(process: str, record: bytes | None) -> Told | None:
    """What it tells; None where a field is missing: the others are worth being seen."""
    try:
        stored = json.loads(record or b"")
        return Told(**{name: stored[name] for name in Told.__slots__})
    except (ValueError, KeyError, TypeError) as error:
        warn("process_unreadable", process=process, error=type(error).__name__)
        return None
