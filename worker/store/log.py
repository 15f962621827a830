"""The output log of a partition: what happened, in order, for the relay.

What belongs here: reading. What must not be known here: who subscribes, what is made of an entry.

The verbs commit, discard and seal write one entry each, in the same step as what it tells; so does each approval that
is asked for, and each decision. An entry holds references, no text. The log is never trimmed by length: only up to
where its reader has come, in the reader's own step. What the reader cannot read, because a newer release wrote it, is
put aside in that step, and stays there until a reader of that release has dealt with it.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import redis.asyncio

from worker.output.events import Outcome
from worker.store import clock, keys

LOG_VERSION = 2
"""1: what happened to turns. 2: events that bring their own content. An entry has the lowest that can hold it."""

Kind = Literal["commit", "discard", "seal", "approval", "decision", "event"]


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event. `id`: its place in the log. `event_id`: the same however often the event is told.

    `approval`: the one that was asked for or decided; None of other kinds. `out`: of a commit or a request, the id of
    the last output that tells it; `span`: of a commit, where its text stands in that of the turn, in UTF-8 bytes; both
    are missing where a release has written it that told nobody of calls. Of an event: `event_type`, `data` (JSON
    object, its content), `to` (the one destination that it is for, or empty: whoever subscribes); `turn` may be empty.
    """

    id: str
    kind: Kind
    event_id: str
    turn: str
    call: int
    at_ms: int
    outcome: Outcome | None
    approval: str | None = None
    out: str = ""
    span: tuple[int, int] = (0, 0)
    event_type: str = ""
    data: bytes = field(default=b"", repr=False)
    to: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An entry that this version cannot read, and why."""

    id: str
    why: str


@dataclass(frozen=True, slots=True)
class Newer:
    """An entry in a form of a newer release, which is for that release to read."""

    id: str
    version: int


Entry = LogEntry | Unreadable | Newer


@dataclass(frozen=True, slots=True)
class Aside:
    """An entry that was put aside. `id`: its place among those; `now_ms`: the store's time, UTC."""

    id: str
    entry: Entry
    now_ms: int


async def read_log(redis: redis.asyncio.Redis, partition: int, after: str, count: int, block_ms: int) -> list[Entry]:
    """The next entries after the one with the id `after` ("0-0": from the first), at most `count`.

    Waits up to `block_ms` for the first; empty when none came.
    """
    streams: Any = await redis.xread({keys.log(partition): after}, count=count, block=block_ms or None)
    return [_read(entry, fields) for entry, fields in streams[0][1]] if streams else []


async def read_aside(redis: redis.asyncio.Redis, partition: int, after: str, count: int) -> list[Aside]:
    """The next entries that were put aside after the one with the id `after` ("0-0": from the first)."""
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    pipeline.xrange(keys.log_aside(partition), min=f"({after}", count=count)
    time, found = await pipeline.execute()
    now_ms = clock.ms(time)
    return [Aside(entry.decode(), _read(fields[b"aside:place"], fields), now_ms) for entry, fields in found]


async def waits_aside(redis: redis.asyncio.Redis, partition: int) -> tuple[int, int | None]:
    """How many entries wait for a newer release, and since when (UTC ms) the first does; None: there is none."""
    pipeline = redis.pipeline(transaction=False)
    pipeline.xlen(keys.log_aside(partition))
    pipeline.xrange(keys.log_aside(partition), count=1)
    entries, first = await pipeline.execute()
    return entries, int(first[0][0].partition(b"-")[0]) if first else None


async def behind(redis: redis.asyncio.Redis, partition: int, cursor: str) -> tuple[int, int | None]:
    """How many entries the log holds, and since when (UTC ms) the first after `cursor` stands there.

    None: there is none after it.
    """
    pipeline = redis.pipeline(transaction=False)
    pipeline.xlen(keys.log(partition))
    pipeline.xrange(keys.log(partition), min=f"({cursor}", count=1)
    entries, following = await pipeline.execute()
    return entries, int(following[0][0].partition(b"-")[0]) if following else None


def event_words(event_id: str, event_type: str, data: bytes, to: str = "", turn: str = "") -> list[str | bytes]:
    """The words of a log entry that tells an event: what follows the id in XADD. `data`: a JSON object."""
    entry = {"v": "2", "kind": "event", "event": event_id, "turn": turn, "call": "0", "type": event_type}
    return [*(word for pair in entry.items() for word in pair), "data", data, "to", to]


def _read(entry: bytes, fields: dict[bytes, bytes]) -> Entry:
    place = entry.decode()
    try:
        version = int(fields[b"v"])
        kind: Any = fields[b"kind"].decode()
        outcome: Any = fields.get(b"outcome", b"").decode()
        if version > LOG_VERSION:
            return Newer(place, version)
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
            out=fields.get(b"out", b"").decode(),
            span=(int(fields.get(b"begin", b"0")), int(fields.get(b"end", b"0"))),
            event_type=fields.get(b"type", b"").decode(),
            data=fields.get(b"data", b""),
            to=fields.get(b"to", b"").decode(),
        )
    except (KeyError, ValueError) as error:
        return Unreadable(place, f"{type(error).__name__}: {error}")
