"""The turn record as others read it.

What belongs here: reading what is stored of a turn. What must not be known here: how it came to be.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import redis.asyncio

from worker.errors import NewerRecord
from worker.output.events import Outcome
from worker.store import keys
from worker.store.journal import decode_failure, decode_totals
from worker.turn.commands import Failure
from worker.turn.usage import UsageTotals

RECORD_VERSION = 3
"""The newest turn record, journal included, that this code reads and the one that it writes.

1: the first. 2: approvals, compaction, who answered a call and what its provider wants back. 3: messages that join a
running turn, cancels, suspects.
"""

RETENTION_S = 7 * 24 * 3600
"""How long the keys of a sealed turn are kept, unless the setting says otherwise."""

State = Literal["queued", "running", "parked", "sealed"]

HEAD = (
    *("v", "session", "state", "outcome", "reason", "failure", "correlation_id", "agent", "source", "labels"),
    *("destinations", "created_ms", "sealed_ms", "totals", "marker", "discards", "calls", "crashes", "requester"),
    *("cancelled_by", "merged_into", "suspect", "suspect_crashes", "replay_of"),
)
"""The fields of a record without its message, which may be a megabyte."""


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """A turn. Times are UTC milliseconds of the store's clock.

    `state` queued: nobody drives it, though somebody may have; parked: it waits for a person. `outcome`, `reason`,
    `failure`, `correlation_id` and `sealed_ms` are set by the seal. `marker`: UTF-8 bytes of committed text.
    `discards`: attempts that died. `crashes`: drivers that vanished; `suspect_crashes`: those of them that ran this
    turn alone; `suspect`: it runs alone, or did last. `replay_of`: the turn whose message is asked anew. `requester`:
    who alone may decide the turn's approvals; None: anybody.
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
    suspect: bool = False
    suspect_crashes: int = 0
    replay_of: str | None = None


@dataclass(frozen=True, slots=True)
class NewerTurn:
    """A turn that a newer release has written. `state`: its outcome, where it has one; maybe one not known here."""

    turn: str
    state: str
    agent: str
    session: str
    version: int

    @property
    def error(self) -> NewerRecord:
        """What is said to who wants to know more of it."""
        return NewerRecord(
            f"turn {self.turn} was written by a newer release of Lastword (its record has version {self.version}, this "
            f"release reads up to {RECORD_VERSION}): use that release here, too"
        )


async def read_turn(redis: redis.asyncio.Redis, turn: str) -> TurnRecord | None:
    """The record of a turn, or None when there is none (any more). Raises `NewerRecord`."""
    stored: Any = await redis.hgetall(keys.turn_record(turn))
    newer = _newer(turn, stored)
    if newer is not None:
        raise newer.error
    return record_of(turn, stored) if stored else None


async def read_heads(redis: redis.asyncio.Redis, turns: Sequence[str]) -> list[TurnRecord | NewerTurn]:
    """The records of these turns with an empty `message`, which is not read. Those that are no more are left out."""
    pipeline = redis.pipeline(transaction=False)
    for turn in turns:
        pipeline.hmget(keys.turn_record(turn), HEAD)
    heads = (head_of(turn, values) for turn, values in zip(turns, await pipeline.execute(), strict=True))
    return [head for head in heads if head is not None]


def head_of(turn: str, values: Sequence[bytes | None]) -> TurnRecord | NewerTurn | None:
    """The record of a turn whose `HEAD` was read; None: there is none."""
    told = zip(HEAD, values, strict=True)
    stored = {name.encode(): value for name, value in told if value is not None}
    return (_newer(turn, stored) or record_of(turn, stored)) if stored else None


def _newer(turn: str, stored: dict[bytes, bytes]) -> NewerTurn | None:
    version = int(stored.get(b"v", b"1"))
    if version <= RECORD_VERSION:
        return None
    state, outcome, agent, session = (
        stored.get(name, b"").decode() for name in (b"state", b"outcome", b"agent", b"session")
    )
    return NewerTurn(turn, outcome if state == "sealed" else state, agent, session, version)


def record_of(turn: str, stored: dict[bytes, bytes]) -> TurnRecord:
    """The record of a turn, as its hash holds it, or the part of it that was read."""

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
        message=stored.get(b"message", b"").decode(),
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
        suspect=told("suspect") == "1",
        suspect_crashes=int(told("suspect_crashes") or 0),
        replay_of=told("replay_of"),
    )


async def read_text(redis: redis.asyncio.Redis, turn: str) -> str:
    """The committed text of a turn; empty when nothing is committed (or known)."""
    text: Any = await redis.get(keys.text(turn))
    return (text or b"").decode()
