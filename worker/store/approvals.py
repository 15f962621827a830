"""Approval requests: who answers them, and that each is decided once.

What belongs here: answering, expiring. What must not be known here: how a person is asked or told, what a turn does
with the answer. Asking is a verb of the turn's owner (`worker.store.accumulator`).

An answer, the end of the time to answer and the end of the turn race in scripts: one of them counts. Times are the
server's.
"""

import json
from dataclasses import dataclass
from time import monotonic
from typing import get_args

import redis
import redis.asyncio

from worker import ids
from worker.errors import ConfigurationError, LocalProtocolError, StoreFull
from worker.observability import warn
from worker.output.approvals import APPROVE_SESSION, EXPIRY, REFUSALS, Refusal
from worker.output.events import ApprovalDecidedOutput, TextOutput
from worker.store import keys
from worker.store.journal import encode_decision
from worker.store.outputs import encode_output
from worker.store.records import RECORD_VERSION
from worker.store.repeat import is_unanswered, until_answered
from worker.store.script import Argument, Script

PATIENCE_S = 5.0
"""How long an answer is repeated while Redis does not answer."""

MOST_REFUSALS = 100
"""Refused answers to one request that are told to the turn's readers and remembered."""

MOST_EXPIRED = 100
"""Turns whose requests expire in one go: whoever looks has leases to renew."""

FURTHEST_MS = 31 * 86_400_000
"""No request waits longer than this, a day more than can be set: what expires later does so by another clock."""

_MOST_LOOKS = 10_000
_MOST_FAR_LOOKS = 1_000
_AGAIN_MS = 10_000
"""An expiry that a vanished process had taken up is taken up again after this time."""

_NOTICED: tuple[Refusal, ...] = ("prompt_expired", "wrong_requester", "option_unavailable")
_resolve = Script("worker.store", "resolve")
_expire = Script("worker.store", "expire")
_sweep = Script("worker.store", "sweep")


@dataclass(frozen=True, slots=True)
class Resolution:
    """An answer that counts. `option`: its key; `by`: who gave it."""

    approval: str
    turn: str
    session: str
    option: str
    by: str


async def resolve(
    redis: redis.asyncio.Redis, approval: str, option: str, by: str, *, patience_s: float = PATIENCE_S
) -> Resolution | Refusal:
    """Answer a request; when this returns a resolution, the answer is on disk and may be shown.

    The same answer by the same person gives the same result, however often. While Redis does not answer, it is repeated
    for `patience_s` seconds. A turn in which a newer version has written takes no answer here: `persist_failed`.
    """
    place = ids.parse_approval(approval)
    if place is None:
        return "no_history"
    turn, call, index = place
    args = [
        *_common(turn),
        keys.beginning(keys.partition_of_turn(turn)),
        f"{call}_{index}",
        option,
        by,
        encode_decision(option, by),
        _decided(option, by),
        int(option == APPROVE_SESSION),
        MOST_REFUSALS,
        *(part for code in _NOTICED for part in (code, _notice(code, REFUSALS[code]))),
    ]
    limit = monotonic() + patience_s
    try:
        reply = await until_answered(
            lambda: _resolve(redis, _names(turn), args, durable=True), lambda: monotonic() < limit
        )
    except StoreFull:
        return "persist_failed"
    except Exception as error:
        if not is_unanswered(error):
            raise
        return "persist_failed"
    match reply:
        case [b"OK", session]:
            return Resolution(approval, turn, session.decode(), option, by)
        case [b"NO", code] if code.decode() in get_args(Refusal):
            refusal: Refusal = code.decode()
            return refusal
        case _:
            raise LocalProtocolError(f"resolve answered {reply[:1]!r}")


def expire_due(redis: redis.Redis, partition: int) -> None:
    """Decide as expired what nobody has answered in time, of at most `MOST_EXPIRED` turns, the oldest first.

    A request that another clock has given a time beyond all is given a new one, as if it were asked now. It takes two
    round trips, however many they are. A turn whose requests cannot be read is left as it is and logged,
    so that it keeps no other one from its expiry.
    """
    args: list[Argument] = [MOST_EXPIRED, _AGAIN_MS, keys.DUE_APPROVAL, _MOST_LOOKS, FURTHEST_MS, _MOST_FAR_LOOKS]
    swept = _sweep.run(redis, [keys.due(partition), keys.far_look(partition, keys.DUE_APPROVAL)], args)
    found = [turn.decode(errors="replace") for turn in swept]
    known = [turn for turn in found if ids.partition_of(turn) is not None]
    calls = [(_names(turn), [*_common(turn), FURTHEST_MS]) for turn in known]
    answers = dict(zip(known, _expire.run_each(redis, calls), strict=True))
    for turn in found:
        match answers.get(turn, ConfigurationError("no turn id")):
            case [_, 0]:
                pass
            case [_, unreadable]:
                warn("approval_not_readable", turn=turn, entries=unreadable)
            case error:  # Redis is there: it is this turn that is broken
                warn("approval_not_expired", turn=turn, error=type(error).__name__)


# What the scripts are told.


def _names(turn: str) -> list[str]:
    partition = keys.partition_of_turn(turn)
    return [
        keys.turn_record(turn),
        keys.approvals(turn),
        keys.journal(turn),
        keys.out(turn),
        keys.due(partition),
        keys.waiting(partition),
        keys.log(partition),
    ]


def _common(turn: str) -> list[Argument]:
    return [
        turn,
        ids.approvals_of(turn),
        keys.DUE_APPROVAL + turn,
        keys.DUE_LEASE,
        _notice("prompt_expired", EXPIRY),
        RECORD_VERSION,
    ]


def _notice(code: Refusal, words: str) -> str:
    return encode_output(TextOutput(text=words, is_call_boundary=False, notice=code))


def _decided(option: str, by: str) -> str:
    """The output of a decision without what its script puts before it."""
    output = ApprovalDecidedOutput(approval="", option=option, by=by)
    kept = output.model_dump(exclude={"turn", "seq", "at_ms", "call", "attempt", "approval"})
    return json.dumps(kept)
