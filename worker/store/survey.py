"""What a partition's turns come to: how many run, wait and are parked, how long the oldest waits, how they ended.

What belongs here: counting, within bounds. What must not be known here: who asks, what is too many or too long.

Exact are the numbers that an index holds. States stand in the records alone: those of the oldest turns are counted, at
most so many as are looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from worker.store import clock, keys
from worker.store.listing import MOST, OUTCOMES, peek

_PAGE = 500
_FIELDS = ("state", "session", "created_ms", "at", "lease_ms")


@dataclass(frozen=True, slots=True)
class TurnsSurvey:
    """The turns of one partition. Ages in seconds; 0: there is none.

    `unsealed`: turns that have not ended; of the `looked_at` oldest, `states` says how many are in which. `waiting`:
    those that a process should drive and none does; turns behind another one of their session are none of them. `due`:
    what someone should look at now, and has not. `kept`: of each outcome the turns that are stored; `lately`: those
    that ended within the time that was asked for.
    """

    unsealed: int
    looked_at: int
    states: Mapping[str, int]
    waiting: int
    waiting_oldest_s: float
    due: int
    due_oldest_s: float
    approvals: int
    approval_expires_s: float | None
    kept: Mapping[str, int]
    lately: Mapping[str, int]


@dataclass(slots=True)
class _Counts:
    states: dict[str, int] = field(default_factory=lambda: {"queued": 0, "running": 0, "parked": 0})
    waiting: int = 0
    oldest_ms: int | None = None
    busy: set[bytes] = field(default_factory=set)
    queued: dict[bytes, int] = field(default_factory=dict)

    def wait(self, since_ms: int) -> None:
        self.waiting += 1
        self.oldest_ms = since_ms if self.oldest_ms is None else min(self.oldest_ms, since_ms)


async def survey(redis: redis.asyncio.Redis, partition: int, lately_s: float, *, most: int = MOST) -> TurnsSurvey:
    """Count the turns of a partition; `lately_s`: which ended ones count as late. At most `most` are looked at."""
    now_ms = await clock.now_ms(redis)
    due, live = keys.due(partition), keys.live(partition)
    pipeline = redis.pipeline(transaction=False)
    pipeline.zcard(live)
    pipeline.zcount(due, "-inf", now_ms)
    pipeline.zrangebyscore(due, "-inf", now_ms, start=0, num=1, withscores=True)
    pipeline.zcard(keys.waiting(partition))
    pipeline.zrange(keys.waiting(partition), 0, 0, withscores=True)
    for outcome in OUTCOMES:
        pipeline.zcard(keys.ended(partition, outcome))
        pipeline.zcount(keys.ended(partition, outcome), now_ms - lately_s * 1000, "+inf")
    unsealed, due_now, due_first, approvals, expiring, *ended = await pipeline.execute()
    looked_at, counts = await _count(redis, live, now_ms, most)
    return TurnsSurvey(
        unsealed=unsealed,
        looked_at=looked_at,
        states=counts.states,
        waiting=counts.waiting,
        waiting_oldest_s=0.0 if counts.oldest_ms is None else max(0, now_ms - counts.oldest_ms) / 1000,
        due=due_now,
        due_oldest_s=(now_ms - due_first[0][1]) / 1000 if due_first else 0.0,
        approvals=approvals,
        approval_expires_s=(expiring[0][1] - now_ms) / 1000 if expiring else None,
        kept=dict(zip(OUTCOMES, ended[::2], strict=True)),
        lately=dict(zip(OUTCOMES, ended[1::2], strict=True)),
    )


async def _count(redis: redis.asyncio.Redis, live: str, now_ms: int, most: int) -> tuple[int, _Counts]:
    counts = _Counts()
    looked_at = 0
    while looked_at < most:
        page: list[Any] = await redis.zrange(live, looked_at, min(looked_at + _PAGE, most) - 1)
        if not page:
            break
        for stored in await peek(redis, [turn.decode() for turn in page], _FIELDS):
            _add(counts, stored, now_ms)
        looked_at += len(page)
    for session, since_ms in counts.queued.items():
        if session not in counts.busy:
            counts.wait(since_ms)
    return looked_at, counts


def _add(counts: _Counts, stored: Sequence[bytes | None], now_ms: int) -> None:
    state, session, created_ms, at_ms, lease_ms = stored
    told = (state or b"").decode()
    if told not in counts.states or session is None:
        return
    counts.states[told] += 1
    if told == "queued":  # the first of a session is the one that a process should drive
        counts.queued.setdefault(session, max(int(created_ms or 0), int(at_ms or 0)))
        return
    counts.busy.add(session)
    if told == "running" and int(lease_ms or 0) <= now_ms:  # nobody drives it any more
        counts.wait(int(lease_ms or 0))
