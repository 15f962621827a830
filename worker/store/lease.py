"""The lease: one driver at a time for a session.

What belongs here: claiming, renewing, and finding what nobody drives. What must not be known here: what a driver does,
threads, when to renew.

The fence is a random nonce in the turn record, compared for equality: a counter could be given out twice after a
failover. All times are the server's.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

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

FURTHEST_MS = 600_000
"""No lease reaches further ahead than this, twice the longest that can be set: what does is of another clock."""

_MOST_LOOKS = 10_000
"""Members that one sweep looks at to find those of its kind."""

_MOST_FAR_LOOKS = 1_000
"""Members that one sweep looks at to find those of its kind that another clock has made due."""

_RESERVE_MS = 15_000
"""How long others leave a suspect alone while a process starts for it: far longer than that takes."""

SUSPECT_AFTER = 2
"""From how many vanished drivers on a turn is a suspect, unless the setting says otherwise."""

_GRANT = b"grant:"
"""What the session record's field of an approved tool begins with."""

_claim = Script("worker.store", "claim")
_renew = Script("worker.store", "renew")
_pulse = Script("worker.store", "pulse")
_sweep = Script("worker.store", "sweep")

Came = Literal["first", "takeover", "resumed"]
"""How a turn came to its driver: nobody had it before; the driver before vanished; it was given back."""

_CAME: dict[bytes, Came] = {b"takeover": "takeover", b"resumed": "resumed"}


@dataclass(frozen=True, slots=True)
class Grant:
    """A turn that is ours to drive, and all that was committed of it.

    `op`: number of the last op that this nonce took (0: none yet). `marker`: UTF-8 bytes of committed text.
    `remaining_s`: seconds to the turn's deadline, negative when it has passed. `unreadable`: why the journal could not
    be read, or None; then `facts` are empty, and the turn can only be ended. `requester`: who alone may decide the
    approvals of the turn; None: anybody. `cancelled`: why the turn is to end as cancelled; None: it is not. `joins`,
    `carried`: as in `TurnStart`. `suspect`: if this driver vanishes, the turn is to blame. `age_s`: seconds since its
    submit. `discards`: attempts that died so far.
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
    came: Came = "first"
    suspect: bool = False
    age_s: float = 0.0
    discards: int = 0


@dataclass(frozen=True, slots=True)
class Suspected:
    """A turn that only a process of its own may run. `crashes`: drivers that vanished.

    `reserved`: for the claimant that was told, while it starts that process.
    """

    turn: str
    crashes: int
    reserved: bool


@dataclass(frozen=True, slots=True)
class Renewal:
    """What became of one lease: still `held`, and whether readers watch the turn."""

    turn: str
    held: bool
    watched: bool


async def claim(  # noqa: PLR0913, PLR0917 - who claims what, for how long, under which rule
    redis: redis.asyncio.Redis,
    session: str,
    nonce: str,
    ttl_s: float,
    partitions: int,
    suspect_after: int = SUSPECT_AFTER,
) -> Grant | None:
    """Become the driver of the session's next turn, for `ttl_s` seconds unless renewed, where no other turn runs.

    None: nothing waits, the turn waits for a person, a living driver holds it (or may, as the store was away until just
    now), or its record is of a newer version. Sent again with the same nonce, it gives the same grant. A turn of which
    `suspect_after` drivers have vanished is granted as a suspect.
    """
    reply = await _claimed(redis, session, nonce, ttl_s, partitions, [suspect_after, 1, 0])
    return _granted(reply, session, nonce) if reply else None


async def claim_among_others(  # noqa: PLR0913, PLR0917 - as `claim`
    redis: redis.asyncio.Redis,
    session: str,
    nonce: str,
    ttl_s: float,
    partitions: int,
    suspect_after: int,
    *,
    may_start_one: bool,
) -> Grant | Suspected | None:
    """As `claim`, for a process that runs other turns, too: a suspect is not granted.

    `may_start_one`: the claimant can start a process for a suspect now, and reserves it meanwhile. None also: another
    process has reserved it.
    """
    reserve_ms = _RESERVE_MS if may_start_one else 0
    reply = await _claimed(redis, session, nonce, ttl_s, partitions, [suspect_after, 0, reserve_ms])
    if reply and reply[0] == b"SUSPECT":
        return Suspected(reply[1].decode(), int(reply[2]), bool(reply[3]))
    return _granted(reply, session, nonce) if reply else None


async def _claimed(  # noqa: PLR0913, PLR0917 - as `claim`
    redis: redis.asyncio.Redis, session: str, nonce: str, ttl_s: float, partitions: int, rest: list[Argument]
) -> list[Any]:
    partition = ids.partition_of_session(session, partitions)
    names = [
        keys.queue(partition, session),
        keys.due(partition),
        keys.session_record(partition, session),
        keys.history(partition, session),
        keys.watch(partition),
        keys.pulse(partition),
        keys.driven(partition),
    ]
    member, beginning = keys.DUE_LEASE + session, keys.beginning(partition)
    terms: list[Argument] = [nonce, round(ttl_s * 1000), RECORD_VERSION, member, beginning, *rest]
    return await _claim(redis, names, [*terms, session, FURTHEST_MS])


def _granted(reply: list[Any], session: str, nonce: str) -> Grant:
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
        came=_CAME.get(stored.get(b"came", b""), "first"),
        suspect=stored.get(b"suspect") == b"1",
        age_s=max(0, int(stored[b"deadline_ms"]) - int(remaining_ms) - int(stored[b"created_ms"])) / 1000,
        discards=int(stored[b"discards"]),
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
        suspect_crashes=int(stored.get(b"suspect_crashes", 0)),
        totals=decode_totals(stored[b"totals"]),
        last_input_tokens=int(last_input_tokens) if last_input_tokens else None,
        streamed=stored.get(b"streamed") == b"1",
        provider=stored.get(b"provider", b"").decode(),
        died=stored.get(b"died", b"").decode(),
        granted=frozenset(name.removeprefix(_GRANT).decode() for name in session_record if name.startswith(_GRANT)),
    )


def renew(redis: redis.Redis, partition: int, holders: Sequence[tuple[str, str]], ttl_s: float) -> list[Renewal]:
    """Renew the leases of (turn, nonce) `holders`, all of one partition, in one step."""
    names = [keys.due(partition), keys.watch(partition), keys.driven(partition)]
    names += [keys.turn_record(turn) for turn, _ in holders]
    args: list[Argument] = [round(ttl_s * 1000), keys.DUE_LEASE, *(nonce for _, nonce in holders)]
    reply = _renew.run(redis, names, args)
    return [
        Renewal(turn, held=bool(held), watched=bool(watched))
        for (turn, _), held, watched in zip(holders, reply[::2], reply[1::2], strict=True)
    ]


def pulse(redis: redis.Redis, partition: int, ttl_s: float) -> bool:
    """Give a sign of life; whether living drivers must first renew, because the server was away until just now."""
    return bool(_pulse.run(redis, [keys.pulse(partition)], [round(ttl_s * 1000)])[0])


async def beat(redis: redis.asyncio.Redis, partitions: int, ttl_s: float) -> None:
    """A sign of life in every partition, by a process that drives no turns: it shows that the store was there."""
    for partition in range(partitions):
        await _pulse(redis, [keys.pulse(partition)], [round(ttl_s * 1000)])


def sweep(redis: redis.Redis, partition: int, limit: int = 100) -> list[str]:
    """Sessions that should be woken now, at most `limit`; each is due again in 10 s unless someone claims it.

    Those whose driver has vanished come before those that only wait.
    """
    names = [keys.due(partition), keys.far_look(partition, keys.DUE_LEASE), keys.driven(partition)]
    args: list[Argument] = [limit, _SWEEP_AGAIN_MS, keys.DUE_LEASE, _MOST_LOOKS, FURTHEST_MS, _MOST_FAR_LOOKS]
    reply = _sweep.run(redis, names, args)
    return [session.decode() for session in reply]
