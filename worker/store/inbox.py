"""The durable inbox: a message is a turn before anyone is told that it was taken.

What belongs here: submitting, and what is fixed when a store is first used. What must not be known here: who drives a
turn, what the message is about.
"""

import hashlib
import json
from dataclasses import dataclass, field
from time import monotonic
from typing import Literal

import redis.asyncio
from redis.exceptions import OutOfMemoryError

from worker import ids
from worker.errors import ConfigurationError, LastwordError, LocalProtocolError, StoreFull, StoreUnavailable
from worker.store import keys
from worker.store.cancels import INTERRUPTED, end_of
from worker.store.records import RECORD_VERSION, RETENTION_S
from worker.store.repeat import UNANSWERED, until_answered
from worker.store.script import Script

IDEMPOTENCY_S = 24 * 3600
LOG_CAP = 1_000_000
"""Log entries that no relay has read yet, above which a partition takes no new turn: some 150 MB."""

PATIENCE_S = 5.0
"""How long a submit is repeated while Redis does not answer."""

_submit = Script("worker.store", "submit")


OnBusy = Literal["queue", "reject", "interrupt"]
"""What becomes of a message whose session has a turn that runs or waits: it waits behind it; it is refused; it waits,
and the turn at the head of the queue is cancelled."""


class SessionBusy(LastwordError):
    """The session has a turn that runs or waits, and the message was not to wait. Nothing was stored."""

    def __init__(self, session: str, turn: str) -> None:
        super().__init__(
            f"session {session} is busy with {turn}, and nothing was stored: submit again once that one has ended, or "
            "with on_busy = queue or interrupt"
        )
        self.session = session
        self.turn = turn


class InterruptBarred(LastwordError):
    """The message was to interrupt a turn of an agent whose turns it may not end. Nothing was stored."""

    def __init__(self, session: str, turn: str) -> None:
        super().__init__(
            f"session {session} is busy with {turn}, a turn of another agent, and nothing was stored: submit again "
            "once that one has ended, or with on_busy = queue"
        )
        self.session = session
        self.turn = turn


class IdempotencyConflict(LastwordError):
    """The idempotency key stands for another message. Names the key and the turn that it stands for."""

    def __init__(self, message: str, turn: str) -> None:
        super().__init__(message)
        self.turn = turn


class QuotaSpent(LastwordError):
    """As many turns as the quota allows were taken of late. Nothing was stored. `wait_s`: until one more is taken."""

    def __init__(self, quota: "Quota", wait_s: float) -> None:
        super().__init__(
            f"quota {quota.name}: {quota.most} turns were taken within {quota.window_s:g} s, and nothing was stored: "
            f"submit it again in {wait_s:.1f} s"
        )
        self.wait_s = wait_s


@dataclass(frozen=True, slots=True)
class Quota:
    """At most `most` turns are taken under `name` within any `window_s` seconds. What is refused counts nothing."""

    name: str
    most: int
    window_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms a turn is taken. `key_s`: how long its idempotency key stands. `quota` None: any number is."""

    key_s: int = IDEMPOTENCY_S
    quota: Quota | None = None


@dataclass(frozen=True, slots=True)
class NewTurn:
    """A message that is to become a turn.

    `turn` is minted by `ids.new_turn` for the session's partition. `deadline_s`: seconds from the first claim to the
    turn's end. `watch_s`: seconds for which readers are expected from now on; 0: none are. `requester`: who alone may
    decide the turn's approvals; None: anybody may. `joins`: the message may join a turn that runs, if that one was
    submitted so too. `on_busy`: what is done where another turn of the session runs or waits. `interrupts`: the agent
    whose turns alone it may interrupt; None: those of all. `replay_of`: the turn whose message it is, asked anew.
    """

    turn: str
    session: str
    message: str = field(repr=False)
    agent: str
    source: str
    labels: dict[str, str]
    destinations: tuple[str, ...]
    idempotency_key: str | None
    deadline_s: float
    watch_s: float = 0
    requester: str | None = None
    joins: bool = False
    on_busy: OnBusy = "queue"
    interrupts: str | None = None
    replay_of: str | None = None
    terms: Terms = Terms()


@dataclass(frozen=True, slots=True)
class Submitted:
    """The turn that a message became, or already was: `duplicate`. `interrupted`: the turn that it cancelled."""

    turn: str
    session: str
    duplicate: bool
    interrupted: str | None = None


async def submit(  # noqa: PLR0913 - a message and the limits of its store
    redis: redis.asyncio.Redis,
    new: NewTurn,
    partitions: int,
    *,
    log_cap: int = LOG_CAP,
    retention_s: int = RETENTION_S,
    patience_s: float = PATIENCE_S,
) -> Submitted:
    """Store a message as a turn; when this returns, it is on disk. `partitions`: as fixed by `ensure_meta`.

    While Redis does not answer, the same submit is repeated for `patience_s` seconds; it can happen only once.
    `retention_s`: how long a turn is kept that it interrupts. Raises `IdempotencyConflict`; `QuotaSpent`;
    `SessionBusy`; `InterruptBarred`; `StoreFull` at maxmemory or with `log_cap` entries unread; `StoreUnavailable`.
    """
    partition = ids.partition_of_session(new.session, partitions)
    if ids.partition_of(new.turn) != partition:
        raise LocalProtocolError(f"turn {new.turn} is not of partition {partition}, as its session is")
    names = _keys(new, partition, partitions)
    args = _arguments(new, log_cap, retention_s)
    limit = monotonic() + patience_s
    try:
        reply = await until_answered(lambda: _submit(redis, names, args, durable=True), lambda: monotonic() < limit)
    except UNANSWERED as error:
        message = (
            f"Redis did not answer within {patience_s:.0f} s; the message may be stored or not: submit it again with "
            "an idempotency key"
        )
        raise StoreUnavailable(message) from error
    return _read(reply, new, log_cap)


def _keys(new: NewTurn, partition: int, partitions: int) -> list[str]:
    names = [
        keys.turn_record(new.turn),
        keys.queue(partition, new.session),
        keys.due(partition),
        keys.live(partition),
        keys.watch(partition),
        keys.log(partition),
    ]
    if new.idempotency_key is not None:
        names.append(keys.idempotency(new.idempotency_key, partitions))
    if new.terms.quota is not None:
        names.append(keys.quota(new.terms.quota.name, partitions))
    return names


def _arguments(new: NewTurn, log_cap: int, retention_s: int) -> list[str | bytes | int]:
    quota = new.terms.quota
    record: dict[str, str | bytes | int] = {
        "v": RECORD_VERSION,
        "message": new.message.encode(),
        "agent": new.agent,
        "source": new.source,
        "labels": json.dumps(new.labels),
        "destinations": json.dumps(new.destinations),
        "turn_deadline_ms": round(new.deadline_s * 1000),
        "totals": "{}",
        "requester": new.requester or "",
        "joins": int(new.joins),
        "replay_of": new.replay_of or "",
    }
    return [
        new.turn,
        new.session,
        keys.DUE_LEASE + new.session,
        round(new.watch_s * 1000),
        log_cap,
        _fingerprint(new),
        0 if new.idempotency_key is None else new.terms.key_s,
        new.on_busy,
        keys.beginning(keys.partition_of_turn(new.turn)),
        RECORD_VERSION,
        new.turn,
        retention_s,
        end_of(INTERRUPTED),
        new.interrupts or "",
        0 if quota is None else quota.most,
        0 if quota is None else round(quota.window_s * 1000),
        *(part for pair in record.items() for part in pair),
    ]


def _fingerprint(new: NewTurn) -> str:
    """What must be equal for two submits to be the same message. A session made up for one turn is no part of it."""
    session = None if new.session.startswith(ids.SOLO) else new.session
    said = [session, new.message, new.agent, new.source, new.labels, new.destinations]
    if new.requester is not None:
        said.append(new.requester)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _read(reply: list[bytes], new: NewTurn, log_cap: int) -> Submitted:
    match reply:
        case [b"NEW", turn, session, interrupted]:
            return Submitted(turn.decode(), session.decode(), duplicate=False, interrupted=interrupted.decode() or None)
        case [b"BUSY", turn]:
            raise SessionBusy(new.session, turn.decode())
        case [b"BARRED", turn]:
            raise InterruptBarred(new.session, turn.decode())
        case [b"SAME", turn, session]:
            return Submitted(turn.decode(), session.decode(), duplicate=turn.decode() != new.turn)
        case [b"CONFLICT", turn]:
            message = (
                f"idempotency_key {new.idempotency_key!r} stands for another message, that of {turn.decode()}: use a "
                "key of its own for each message"
            )
            raise IdempotencyConflict(message, turn.decode())
        case [b"SPENT", wait_ms]:
            assert new.terms.quota is not None, "a quota was told of that nobody asked for"
            raise QuotaSpent(new.terms.quota, int(wait_ms) / 1000)
        case [b"FULL", *_]:
            raise StoreFull(
                f"the output log holds {log_cap} entries that no relay has read: start the delivery processes"
            )
        case _:
            raise LocalProtocolError(f"submit answered {reply[:1]!r}")


async def ensure_meta(redis: redis.asyncio.Redis, partitions: int) -> None:
    """Fix the number of partitions at the first start; later on nothing is written, so that a full Redis stays usable.

    Raises `ConfigurationError` when it was fixed as another one, and `StoreFull` at maxmemory.
    """
    first = {"v": str(RECORD_VERSION), "partitions": str(partitions)}
    stored = await redis.hmget(keys.META, list(first))
    for (name, value), known in zip(first.items(), stored, strict=True):
        if known is None:
            await _set_first(redis, name, value)
    fixed = int(stored[1] or await redis.hget(keys.META, "partitions") or 0)
    if fixed != partitions:
        message = (
            f"partitions is {partitions}, but this Redis was first used with {fixed}, and every key depends on it: set "
            f"partitions to {fixed}, or use an empty Redis"
        )
        raise ConfigurationError(message)


async def _set_first(redis: redis.asyncio.Redis, name: str, value: str) -> None:
    try:
        await redis.hsetnx(keys.META, name, value)
    except OutOfMemoryError as error:
        raise StoreFull("Redis is at its maxmemory before its first use: raise maxmemory, or empty it") from error
