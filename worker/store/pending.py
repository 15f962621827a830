"""Finding the approval requests that wait for a person.

What belongs here: going through what waits in order, within bounds. What must not be known here: who asks, how a
request is answered.

The one that expires first comes before all others. A place is where a request stands in that order: it stays one when
the request is decided.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from worker import ids
from worker.output.events import ApprovalOption, ApprovalRequestOutput, decode
from worker.store import keys
from worker.store.merged import Merged

MOST = 10_000
"""Requests that are looked at for one answer."""

MOST_BYTES = 4_000_000
"""Of requests as they are stored: one answer that holds so many ends."""

Place = tuple[int, str]
"""When a request expires, UTC milliseconds, and its id."""

BEGINNING: Place = (0, "")
"""Before the first request."""

_PLACE = re.compile(r"([1-9][0-9]{0,14})-(appr_\w{1,64})", re.ASCII)
_PAGE = 200
_BATCH = 10


@dataclass(frozen=True, slots=True)
class PendingApproval:
    """A request that waits for a person. `requester`: who alone may decide; None: anybody may.

    `arguments`: the JSON text that the model wrote. Times are UTC milliseconds of the store's clock.
    """

    approval: str
    turn: str
    session: str
    agent: str
    tool: str
    arguments: str = field(repr=False)
    requester: str | None
    options: tuple[ApprovalOption, ...]
    asked_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Found:
    """The requests that were found. `end`: the place behind which to go on; None: there is no more."""

    approvals: list[PendingApproval]
    end: Place | None


@dataclass(frozen=True, slots=True)
class _Stored:
    """A request that nobody has decided, its turn's session and agent, and the entry that tells the rest."""

    place: Place
    turn: str
    session: str
    agent: str
    entry: str


def parse_place(text: str) -> Place | None:
    """The place that is shown so, or None when it is none."""
    match = _PLACE.fullmatch(text)
    return (int(match[1]), match[2]) if match else None


def shown_place(place: Place) -> str:
    """A place as text."""
    return f"{place[0]}-{place[1]}"


async def find(  # noqa: PLR0913 - what a request may be found by
    redis: redis.asyncio.Redis,
    partitions: int,
    limit: int,
    *,
    after: Place = BEGINNING,
    agent: str = "",
    sessions: str = "",
    most: int = MOST,
    most_bytes: int = MOST_BYTES,
) -> Found:
    """At most `limit` requests behind a place, of turns of `agent` in sessions that begin so; empty: of all.

    There may be fewer, and more behind them: no more than `most` are looked at, and but for the first, none is added
    that would make them longer than `most_bytes`.
    """
    source = Merged(redis, [keys.waiting(partition) for partition in range(partitions)], after[0], greatest_first=False)
    found: list[_Stored] = []
    looked_at = 0
    end = after
    while len(found) <= limit and looked_at < most and (page := await source.take(min(_PAGE, most - looked_at))):
        end = page[-1]
        behind = [place for place in page if place > after]
        looked_at += len(behind)
        stored = await _look(redis, behind)
        found += [one for one in stored if agent in ("", one.agent) and one.session.startswith(sessions)]
    kept = found[:limit]
    approvals, read = await _read(redis, kept, most_bytes)
    if read < len(found):
        return Found(approvals, found[read - 1].place)
    return Found(approvals, end if await source.take(1) else None)


async def find_all(redis: redis.asyncio.Redis, partitions: int) -> list[PendingApproval]:
    """All requests that nobody has decided."""
    waiting: list[PendingApproval] = []
    after: Place | None = BEGINNING
    while after is not None:
        found = await find(redis, partitions, MOST, after=after)
        waiting += found.approvals
        after = found.end
    return waiting


async def _look(redis: redis.asyncio.Redis, places: Sequence[Place]) -> list[_Stored]:
    """Those of these requests that can be decided still."""
    parsed = [(place, known) for place in places if (known := ids.parse_approval(place[1])) is not None]
    pipeline = redis.pipeline(transaction=False)
    for _, (turn, call, index) in parsed:
        pipeline.hget(keys.approvals(turn), f"{call}_{index}:asked")
        pipeline.hmget(keys.turn_record(turn), "session", "agent", "state")
    answers = iter(await pipeline.execute())
    return [
        _Stored(place, turn, record[0].decode(), record[1].decode(), entry.decode())
        for (place, (turn, _, _)), entry, record in zip(parsed, answers, answers, strict=True)
        if entry is not None and record[2] not in (None, b"sealed")
    ]


async def _read(
    redis: redis.asyncio.Redis, stored: Sequence[_Stored], most_bytes: int
) -> tuple[list[PendingApproval], int]:
    """The requests themselves, and how many were read."""
    found: list[PendingApproval] = []
    read = size = 0
    for batch in _batches(stored):
        pipeline = redis.pipeline(transaction=False)
        for one in batch:
            pipeline.xrange(keys.out(one.turn), one.entry, one.entry)
        for one, entries in zip(batch, await pipeline.execute(), strict=True):
            data: Any = entries[0][1].get(b"o") if entries else None
            if size and size + len(data or b"") > most_bytes:
                return found, read
            size += len(data or b"")
            read += 1
            request = decode(data) if data is not None else None
            if isinstance(request, ApprovalRequestOutput):
                found.append(_pending(one, request))
    return found, read


def _batches(stored: Sequence[_Stored]) -> list[Sequence[_Stored]]:
    """A request's arguments may be long: so many of them are read at once."""
    return [stored[begin : begin + _BATCH] for begin in range(0, len(stored), _BATCH)]


def _pending(one: _Stored, request: ApprovalRequestOutput) -> PendingApproval:
    return PendingApproval(
        approval=one.place[1],
        turn=one.turn,
        session=one.session,
        agent=one.agent,
        tool=request.name,
        arguments=request.arguments,
        requester=request.requester,
        options=request.options,
        asked_ms=int(one.entry.partition("-")[0]),
        expires_ms=request.expires_at_ms,
    )
