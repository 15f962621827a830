"""Cancelling: a turn is to end, whatever it does just now.

What belongs here: asking for it, and finding out who was asked. What must not be known here: how a driver does it.

A turn that nobody drives is sealed in the step that asks. One that is driven is flagged in its record: no verb that
would let it go on is taken any more, and whoever drives it seals it.
"""

from collections.abc import Collection
from dataclasses import dataclass
from time import monotonic
from typing import Any, Literal, cast

import redis
import redis.asyncio

from worker import ids
from worker.errors import LocalProtocolError, StoreUnavailable
from worker.output.events import Outcome, TurnCompletedOutput
from worker.store import keys
from worker.store.outputs import encode_output
from worker.store.records import RECORD_VERSION
from worker.store.repeat import UNANSWERED, until_answered
from worker.store.script import Argument, Script

PATIENCE_S = 5.0
"""How long a cancel is repeated while Redis does not answer."""

REQUESTED = "requested"
"""Why a turn was cancelled: somebody asked for it."""
INTERRUPTED = "interrupted"
"""Why a turn was cancelled: a newer message of its session took its place."""

_cancel = Script("worker.store", "cancel")


@dataclass(frozen=True, slots=True)
class Cancellation:
    """What a cancel met.

    `state` cancelled: the turn has ended so, with this step; cancelling: it is driven, and its driver ends it within a
    second, or whoever drives it next; ended: it had ended before, with `outcome`, and nothing was changed; newer: a
    newer version of Lastword has written it, and nothing was changed.
    """

    turn: str
    session: str
    state: Literal["cancelled", "cancelling", "ended", "newer"]
    outcome: Outcome | None = None


def end_of(reason: str) -> str:
    """The stored form of the last output of a turn that is cancelled while nobody drives it."""
    return encode_output(TurnCompletedOutput(outcome="cancelled", reason=reason))


async def cancel(  # noqa: PLR0913 - a cancel consists of these
    client: redis.asyncio.Redis,
    turn: str,
    by: str,
    retention_s: int,
    *,
    reason: str = REQUESTED,
    patience_s: float = PATIENCE_S,
) -> Cancellation | None:
    """Ask for the end of a turn; when this returns, that is on disk. None: there is no such turn (any more).

    While Redis does not answer, the same request is repeated for `patience_s` seconds. Raises `StoreUnavailable`, and
    `ConfigurationError` for what is no turn id.
    """
    beginning = keys.beginning(keys.partition_of_turn(turn))
    args: list[Argument] = [turn, beginning, RECORD_VERSION, ids.new_nonce(), reason, by, retention_s, end_of(reason)]
    limit = monotonic() + patience_s
    try:
        reply = await until_answered(
            lambda: _cancel(client, [keys.turn_record(turn)], args, durable=True), lambda: monotonic() < limit
        )
    except UNANSWERED as error:
        message = f"Redis did not answer within {patience_s:.0f} s; the turn may be cancelled or not: ask again"
        raise StoreUnavailable(message) from error
    match reply:
        case [b"NONE"]:
            return None
        case [b"NEWER"]:
            return Cancellation(turn, "", "newer")
        case [b"ENDED", session, outcome]:
            return Cancellation(turn, session.decode(), "ended", cast("Outcome", outcome.decode()))
        case [b"SEALED", session]:
            return Cancellation(turn, session.decode(), "cancelled", "cancelled")
        case [b"FLAGGED", session]:
            return Cancellation(turn, session.decode(), "cancelling")
        case _:
            raise LocalProtocolError(f"cancel answered {reply[:1]!r}")


def flagged(client: redis.Redis, partition: int, turns: Collection[str]) -> dict[str, str]:
    """Of these driven turns those that are to end, with the reason of each."""
    wanted: Any = client.zrange(keys.cancels(partition), 0, -1)
    mine = [turn.decode() for turn in wanted if turn.decode() in turns]
    reasons: list[Any] = [client.hget(keys.turn_record(turn), "cancel") for turn in mine]
    return {turn: reason.decode() for turn, reason in zip(mine, reasons, strict=True) if reason}
