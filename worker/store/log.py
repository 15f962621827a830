"""The output log of a partition: what happened, in order, for the relay.

What belongs here: reading. What must not be known here: who subscribes, what is made of an entry.

The verbs commit, discard and seal write one entry each, in the same step as what it tells; so does each approval that
is asked for, and each decision. An entry holds references, no text. The log is never trimmed by length: only up to
where its reader has come, in the reader's own step.
"""

from dataclasses import dataclass
from typing import Any, Literal, get_args

import redis.asyncio

from worker.output.events import Outcome
from worker.store import keys

LOG_VERSION = 1
Kind = Literal["commit", "discard", "seal", "approval", "decision"]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event. `id`: its place in the log. `event_id`: the same however often the event is told.

    `approval`: the one that was asked for or decided; None of other kinds.
    """

    id: str
    kind: Kind
    event_id: str
    turn: str
    call: int
    at_ms: int
    outcome: Outcome | None
    approval: str | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that this version cannot read, and why."""

    id: str
    why: str


async def read_log(
    redis: redis.asyncio.Redis, partition: int, after: str, count: int, block_ms: int
) -> list[LogEntry | Unreadable]:
    """The next entries after the one with the id `after` ("0-0": from the first), at most `count`.

    Waits up to `block_ms` for the first; empty when none came.
    """
    streams: Any = await redis.xread({keys.log(partition): after}, count=count, block=block_ms or None)
    return [_read(entry, fields) for entry, fields in streams[0][1]] if streams else []


async def behind(redis: redis.asyncio.Redis, partition: int, cursor: str) -> tuple[int, int | None]:
    """How many entries the log holds, and since when (UTC ms) the first after `cursor` stands there.

    None: there is none after it.
    """
    pipeline = redis.pipeline(transaction=False)
    pipeline.xlen(keys.log(partition))
    pipeline.xrange(keys.log(partition), min=f"({cursor}", count=1)
    entries, following = await pipeline.execute()
    return entries, int(following[0][0].partition(b"-")[0]) if following else None


def _read(entry: bytes, fields: dict[bytes, bytes]) -> LogEntry | Unreadable:
    place = entry.decode()
    try:
        version = int(fields[b"v"])
        kind: Any = fields[b"kind"].decode()
        outcome: Any = fields.get(b"outcome", b"").decode()
        if version > LOG_VERSION:
            return Unreadable(place, f"its version is {version}, this code reads up to {LOG_VERSION}")
        if kind not in get_args(Kind):
            return Unreadable(place, f"its kind {kind[:40]!r} is not known")
        if outcome and outcome not in get_args(Outcome):
            return Unreadable(place, f"its outcome {outcome[:40]!r} is not known")
        return LogEntry(
            id=place,
            kind=kind,
            event_id=fields[b"event"].decode(),
            turn=fields[b"turn"].decode(),
            call=int(fields[b"call"]),
            at_ms=int(place.partition("-")[0]),
            outcome=outcome or None,
            approval=fields.get(b"approval", b"").decode() or None,
        )
    except (KeyError, ValueError) as error:
        return Unreadable(place, f"{type(error).__name__}: {error}")
