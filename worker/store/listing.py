"""Finding turns by how they are or ended, when, for whom and with which labels.

What belongs here: going through the indexes of turns in order, within bounds. What must not be known here: who asks,
how the answer looks.

Turns that have not ended come the oldest first, by their submit; after them those that have, the latest first, by their
end.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

import redis.asyncio

from worker.output.events import Outcome
from worker.store import keys
from worker.store.merged import Merged
from worker.store.records import TurnRecord, read_heads
from worker.store.script import Script

LIVE = ("queued", "running", "parked")
"""The states of a turn that has not ended."""

OUTCOMES: tuple[str, ...] = get_args(Outcome)

MOST = 10_000
"""Turns that are looked at for one answer."""

_PAGE = 200
_peek = Script("worker.store", "peek")
_FIELDS = ("state", "outcome", "agent", "session", "labels", "created_ms", "sealed_ms")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which turns: in one of `states` (of `LIVE`), or ended with one of `outcomes`; and all of the rest, where given.

    `since_ms`: submitted, or if it has ended, ended since then, UTC milliseconds of the store's clock. `sessions`: what
    the name of its session begins with.
    """

    states: Sequence[str] = LIVE
    outcomes: Sequence[str] = ()
    since_ms: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    agent: str | None = None
    sessions: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """The turns that were found, without their messages. `looked_at`: how many were looked at.

    `stopped`: there are more than could be looked at. `more`: more were found than were asked for.
    """

    turns: list[TurnRecord]
    looked_at: int
    stopped: bool
    more: bool


async def find(redis: redis.asyncio.Redis, partitions: int, wanted: Wanted, limit: int, *, most: int = MOST) -> Found:
    """At most `limit` turns. No more than `most` are looked at."""
    sources = []
    if wanted.states:
        live = [keys.live(partition) for partition in range(partitions)]
        sources.append(Merged(redis, live, wanted.since_ms, greatest_first=False))
    if wanted.outcomes:
        ended = [keys.ended(partition, outcome) for partition in range(partitions) for outcome in wanted.outcomes]
        sources.append(Merged(redis, ended, wanted.since_ms, greatest_first=True))
    found: list[str] = []
    looked_at = 0
    for source in sources:
        while len(found) <= limit and looked_at < most and (page := await source.take(min(_PAGE, most - looked_at))):
            looked_at += len(page)
            found += await _matching(redis, [turn for _, turn in page], wanted)
    # A turn that ends meanwhile is in both indexes, or was found as what it is no more.
    unique = list(dict.fromkeys(found))
    left = [source for source in sources if await source.take(1)] if looked_at >= most and len(found) <= limit else []
    told = {*wanted.states, *wanted.outcomes}
    heads = await read_heads(redis, unique[:limit])
    kept = [head for head in heads if (head.outcome if head.state == "sealed" else head.state) in told]
    return Found(kept, looked_at, stopped=bool(left), more=len(unique) > limit)


async def peek(redis: redis.asyncio.Redis, turns: Sequence[str], fields: Sequence[str]) -> list[list[bytes | None]]:
    """Some fields of the records of these turns, in order."""
    return await _peek(redis, [keys.turn_record(turn) for turn in turns], fields) if turns else []


async def _matching(redis: redis.asyncio.Redis, turns: Sequence[str], wanted: Wanted) -> list[str]:
    stored = zip(turns, await peek(redis, turns, _FIELDS), strict=True)
    return [turn for turn, values in stored if values[0] and _matches(values, wanted)]


def _matches(values: Sequence[bytes | None], wanted: Wanted) -> bool:
    state, outcome, agent, session, labels, created_ms, sealed_ms = values
    told = (outcome or b"").decode() if state == b"sealed" else (state or b"").decode()
    if told not in (wanted.outcomes if state == b"sealed" else wanted.states):
        return False
    if int((sealed_ms if state == b"sealed" else created_ms) or 0) < wanted.since_ms:
        return False
    if wanted.agent is not None and (agent or b"").decode() != wanted.agent:
        return False
    if not (session or b"").decode().startswith(wanted.sessions):
        return False
    has: dict[str, str] = json.loads(labels or b"{}") if wanted.labels else {}
    return all(has.get(name) == value for name, value in wanted.labels.items())
