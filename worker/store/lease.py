"""The lease: one driver at a time for a session.

What belongs here: claiming, renewing, and finding what nobody drives. What must not be known here: what a driver does,
threads, when to renew.

The fence is a random nonce in the turn record, compared for equality: a counter could be given out twice after a
failover. All times are the server's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio

from worker import ids
from worker.store import keys
from worker.store.journal import decode_facts, decode_totals
from worker.store.records import RECORD_VERSION
from worker.store.script import Argument, Script
from worker.turn.facts import Fact, Joined, Progress

_SWEEP_AGAIN_MS = 10_000
"""A session whose wake-up was lost is woken again after this time."""

_GRANT = b"grant:"
"""What the session record's field of an approved tool begins with."""

_claim = Script("worker.store", "claim")
_renew = Script("worker.store", "renew")
_sweep = Script("worker.store", "sweep")


@dataclass(frozen=True, slots=True)
class Grant:
    """A turn that is ours to drive, and all that was committed of it.

    `op`: number of the last op that this nonce took (0: none yet). `marker`: UTF-8 bytes of committed text.
    `remaining_s`: seconds to the turn's deadline, negative when it has passed. `unreadable`: why the journal could not
    be read, or None; then `facts` are empty, and the turn can only be ended. `requester`: who alone may decide the
    approvals of the turn; None: anybody. `cancelled`: why the turn is to end as cancelled; None: it is not. `joins`,
    `carried`: as in `TurnStart`.
    """

    turn: str
    session: str
    nonce: str
    epoch: int
    op: int
    message: str = field(repr=False)
    agent: str
    source: str
    labels: dict[str, str]
    destinations: tuple[str, ...]
    watched: bool
    marker: int
    remaining_s: float
    progress: Progress
    facts: tuple[Fact, ...] = field(repr=False)
    unreadable: str | None = None
    requester: str | None = None
    cancelled: str | None = None
    joins: bool = False
    carried: tuple[Joined, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of one lease: still `held`, and whether readers watch the turn."""

    turn: str
    held: bool
    watched: bool


async def claim(redis: redis.asyncio.Redis, session: str, nonce: str, ttl_s: float, partitions: int) -> Grant | None:
    """Become the driver of the session's next turn, for `ttl_s` seconds unless renewed.

    None: nothing waits, the turn waits for a person, a living driver holds it, or its record is of a newer version.
    Sent again with the same nonce, it gives the same grant.
    """
    partition = ids.partition_of_session(session, partitions)
    names = [
        keys.queue(partition, session),
        keys.due(partition),
        keys.session_record(partition, session),
        keys.history(partition, session),
        keys.watch(partition),
    ]
    member, beginning = keys.DUE_LEASE + session, keys.beginning(partition)
    reply = await _claim(redis, names, [nonce, round(ttl_s * 1000), RECORD_VERSION, member, beginning])
    return _granted(reply, session, nonce) if reply else None


def _granted(reply: Sequence[Any], session: str, nonce: str) -> Grant:
    pairs, entries, text, of_session, watched, remaining_ms, carried = reply
    stored, session_record = _record(pairs), _record(of_session)
    facts, unreadable = _facts(entries, text)
    return Grant(
        turn=stored[b"turn"].decode(),
        session=session,
        nonce=nonce,
        epoch=int(stored[b"epoch"]),
        op=int(stored[b"op"]),
        message=stored[b"message"].decode(),
        agent=stored[b"agent"].decode(),
        source=stored[b"source"].decode(),
        labels=json.loads(stored[b"labels"]),
        destinations=tuple(json.loads(stored[b"destinations"])),
        watched=bool(watched),
        marker=int(stored[b"marker"]),
        remaining_s=int(remaining_ms) / 1000,
        progress=_progress(stored, session_record),
        facts=facts,
        unreadable=unreadable,
        requester=stored.get(b"requester", b"").decode() or None,
        cancelled=stored.get(b"cancel", b"").decode() or None,
        joins=stored.get(b"joins") == b"1",
        carried=tuple(
            Joined(int(stored[b"call"]), turn.decode(), message.decode())
            for turn, message in zip(carried[::2], carried[1::2], strict=True)
        ),
    )


def _record(pairs: Sequence[bytes]) -> dict[bytes, bytes]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _facts(entries: Sequence[bytes], text: bytes) -> tuple[tuple[Fact, ...], str | None]:
    """The journal, or why it cannot be read: a claim that raised would be made again and again."""
    try:
        return decode_facts(entries, text), None
    except Exception as error:  # noqa: BLE001 - whatever stands there, the turn must end
        return (), type(error).__name__


def _progress(stored: dict[bytes, bytes], session_record: dict[bytes, bytes]) -> Progress:
    last_input_tokens = session_record.get(b"last_input_tokens")
    return Progress(
        call=int(stored[b"call"]),
        attempt=int(stored[b"attempt"]),
        is_open=stored[b"open"] != b"",
        resumes_spent=int(stored[b"resumes"]),
        calls=int(stored[b"calls"]),
        crashes=int(stored[b"crashes"]),
        totals=decode_totals(stored[b"totals"]),
        last_input_tokens=int(last_input_tokens) if last_input_tokens else None,
        streamed=stored.get(b"streamed") == b"1",
        provider=stored.get(b"provider", b"").decode(),
        died=stored.get(b"died", b"").decode(),
        granted=frozenset(name.removeprefix(_GRANT).decode() for name in session_record if name.startswith(_GRANT)),
    )


def renew(redis: redis.Redis, partition: int, holders: Sequence[tuple[str, str]], ttl_s: float) -> list[Renewal]:
    """Renew the leases of (turn, nonce) `holders`, all of one partition, in one step."""
    names = [keys.due(partition), keys.watch(partition), *(keys.turn_record(turn) for turn, _ in holders)]
    args: list[Argument] = [round(ttl_s * 1000), keys.DUE_LEASE, *(nonce for _, nonce in holders)]
    reply = _renew.run(redis, names, args)
    return [
        Renewal(turn, held=bool(held), watched=bool(watched))
        for (turn, _), held, watched in zip(holders, reply[::2], reply[1::2], strict=True)
    ]


def sweep(redis: redis.Redis, partition: int, limit: int = 100) -> list[str]:
    """Sessions that should be woken now, at most `limit`; each is due again in 10 s unless someone claims it."""
    reply = _sweep.run(redis, [keys.due(partition)], [limit, _SWEEP_AGAIN_MS, keys.DUE_LEASE])
    return [session.decode() for session in reply]
