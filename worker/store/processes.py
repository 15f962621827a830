"""The processes that live: what each tells of itself now and then, kept only until it should have told again.

What belongs here: telling and reading it. What must not be known here: what a process does, what its figures mean.

Times are the server's.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import redis
import redis.asyncio
from pydantic import TypeAdapter
from redis.exceptions import ResponseError

from worker.observability import warn
from worker.store import clock, keys
from worker.store.repeat import is_unanswered
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


_TOLD = TypeAdapter(Told)


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
    found = []
    for process, told, (since, seen) in await _read(redis, ["since", "seen"]):
        try:
            found.append(LivingProcess(process, told, int(since or 0), int(seen or 0)))
        except ValueError as error:
            _cannot_read(process, error)
    return found


async def figures(redis: redis.asyncio.Redis) -> dict[str, tuple[str, bytes]]:
    """The role of every process that lives, and its figures as it told them, by its id."""
    return {process: (told.role, figures or b"") for process, told, (figures,) in await _read(redis, ["figures"])}


async def _read(redis: redis.asyncio.Redis, fields: Sequence[str]) -> list[tuple[str, Told, Sequence[Any]]]:
    """What each process tells, and those fields of it. One that cannot be read is left out: the others are worth it."""
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.zrange(keys.PROCESSES, 0, -1, withscores=True)
    time, known = await pipeline.execute()
    now_ms = clock.ms(time)
    names = sorted(name.decode(errors="replace") for name, until_ms in known if until_ms > now_ms)
    pipeline = redis.pipeline(transaction=False)
    for name in names:
        pipeline.hmget(keys.process(name), ["v", "record", *fields])
    readable = []
    for name, stored in zip(names, await pipeline.execute(raise_on_error=False), strict=True):
        try:
            if isinstance(stored, Exception):
                raise stored
            version, record, *rest = stored
            if version == b"%d" % _VERSION:
                readable.append((name, _TOLD.validate_json(record or b""), rest))
        except (ValueError, ResponseError) as error:
            if is_unanswered(error):
                raise
            _cannot_read(name, error)
    return readable


def _cannot_read(process: str, error: Exception) -> None:
    warn("process_unreadable", process=process, error=type(error).__name__)
