"""The turn record as others read it.

What belongs here: reading what is stored of a turn. What must not be known here: how it came to be.
"""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import redis.asyncio

from worker.output.events import Outcome
from worker.store import keys
from worker.store.journal import decode_failure, decode_totals
from worker.turn.commands import Failure
from worker.turn.usage import UsageTotals

RECORD_VERSION = 3
"""The newest turn record, journal included, that this code reads and the one that it writes.

1: the first. 2: approvals, compaction, who answered a call and what its provider wants back. 3: messages that join a
running turn, cancels.
"""

RETENTION_S = 7 * 24 * 3600
"""How long the keys of a sealed turn are kept, unless the setting says otherwise."""

State = Literal["queued", "running", "parked", "sealed"]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn. Times are UTC milliseconds of the store's clock.

    `state` queued: nobody drives it, though somebody may have; parked: it waits for a person. `outcome`, `reason`,
    `failure`, `correlation_id` and `sealed_ms` are set by the seal. `marker`: UTF-8 bytes of committed text.
    `discards`: attempts that died. `requester`: who alone may decide the turn's approvals; None: anybody.
    `cancelled_by`: who wanted the turn to end (a turn where that was submitted to interrupt it), whether or not it did
    so; None: nobody. `merged_into`: the turn that its message joined.
    """

    turn: str
    session: str
    state: State
    outcome: Outcome | None
    reason: str | None
    failure: Failure | None
    correlation_id: str | None
    agent: str
    source: str
    labels: dict[str, str]
    destinations: tuple[str, ...]
    message: str = field(repr=False)
    created_ms: int
    sealed_ms: int | None
    totals: UsageTotals
    marker: int
    discards: int
    calls: int
    crashes: int
    requester: str | None = None
    cancelled_by: str | None = None
    merged_into: str | None = None


async def read_turn(redis: redis.asyncio.Redis, turn: str) -> TurnRecord | None:
    """The record of a turn, or None when there is none (any more)."""
    stored: Any = await redis.hgetall(keys.turn_record(turn))
    return _record(turn, stored) if stored else None


async def unsealed_turns(redis: redis.asyncio.Redis, partitions: int, limit: int) -> list[TurnRecord]:
    """The turns that have not ended, the oldest first, at most `limit`."""
    turns: list[tuple[float, str]] = []
    for partition in range(partitions):
        live: Any = await redis.zrange(keys.live(partition), 0, limit - 1, withscores=True)
        turns += [(submitted_ms, turn.decode()) for turn, submitted_ms in live]
    oldest = [turn for _, turn in sorted(turns)[:limit]]
    pipeline = redis.pipeline(transaction=False)
    for turn in oldest:
        pipeline.hgetall(keys.turn_record(turn))
    found = zip(oldest, await pipeline.execute(), strict=True)
    return [_record(turn, stored) for turn, stored in found if stored and stored[b"state"] != b"sealed"]


def _record(turn: str, stored: dict[bytes, bytes]) -> TurnRecord:
    def told(name: str) -> Any:
        return stored.get(name.encode(), b"").decode() or None

    sealed_ms = told("sealed_ms")
    return TurnRecord(
        turn=turn,
        session=stored[b"session"].decode(),
        state=told("state"),
        outcome=told("outcome"),
        reason=told("reason"),
        failure=decode_failure(stored.get(b"failure", b"")),
        correlation_id=told("correlation_id"),
        agent=stored[b"agent"].decode(),
        source=stored[b"source"].decode(),
        labels=json.loads(stored[b"labels"]),
        destinations=tuple(json.loads(stored[b"destinations"])),
        message=stored[b"message"].decode(),
        created_ms=int(stored[b"created_ms"]),
        sealed_ms=None if sealed_ms is None else int(sealed_ms),
        totals=decode_totals(stored[b"totals"]),
        marker=int(stored[b"marker"]),
        discards=int(stored[b"discards"]),
        calls=int(stored[b"calls"]),
        crashes=int(stored[b"crashes"]),
        requester=told("requester"),
        cancelled_by=told("cancelled_by"),
        merged_into=told("merged_into"),
    )


async def read_text(redis: redis.asyncio.Redis, turn: str) -> str:
    """The committed text of a turn; empty when nothing is committed (or known)."""
    text: Any = await redis.get(keys.text(turn))
    return (text or b"").decode()
