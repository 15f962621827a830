"""Reading many small things of many turns in one round trip.

What belongs here: single reads, and taking them together. What must not be known here: what is told of a turn, and to
whom. One that cannot be read costs the others nothing.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import redis.asyncio

from worker import ids
from worker.output.events import (
    ApprovalRequestOutput,
    CallCompletedOutput,
    Output,
    UsageOutput,
    decode,
)
from worker.store import keys
from worker.store.records import HEAD, NewerTurn, TurnRecord, head_of
from worker.store.repeat import is_unanswered

_LAST_OUTPUTS = 4
"""A commit ends with the boundary, perhaps the call's thinking, and its usage."""

T = TypeVar("T")
Pipeline = Any


@dataclass(frozen=True, slots=True)
class Read(Generic[T]):
    """One read. `name`: reads of the same name give the same. `queue` puts one command into a pipeline."""

    name: tuple[str, ...]
    queue: Callable[[Pipeline], Any] = field(repr=False, compare=False)
    taken: Callable[[Any], T] = field(repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How a completed call ended. `usage` None: nothing is known of it."""

    finish_reason: str | None
    usage: UsageOutput | None


@dataclass(frozen=True, slots=True)
class Decision:
    """A decided request. `option`: a key or `expired`. `by` None: nobody decided. Times are UTC milliseconds."""

    tool: str
    option: str
    by: str | None
    asked_ms: int
    expires_ms: int


async def read_all(redis: redis.asyncio.Redis, reads: Sequence[Read[Any]]) -> list[Any]:
    """What each of them gives, or the exception that it ended with; all in one pipeline.

    Raises only what says that the server did not answer.
    """
    if not reads:
        return []
    pipeline = redis.pipeline(transaction=False)
    for read in reads:
        read.queue(pipeline)
    answers: list[Any] = []
    for read, answer in zip(reads, await pipeline.execute(raise_on_error=False), strict=True):
        if isinstance(answer, Exception) and is_unanswered(answer):
            raise answer
        answers.append(answer if isinstance(answer, Exception) else _taken(read, answer))
    return answers


def _taken(read: Read[T], answer: Any) -> T | Exception:
    try:
        return read.taken(answer)
    except Exception as error:  # noqa: BLE001 - whatever is stored there, it is no other read's business
        return error


def head(turn: str) -> Read[TurnRecord | NewerTurn | None]:
    """The record of a turn without its message; None: it is no more."""
    name = keys.turn_record(turn)
    return Read(("head", turn), lambda pipeline: pipeline.hmget(name, HEAD), lambda values: head_of(turn, values))


def text(turn: str, begin: int, end: int) -> Read[bytes]:
    """The committed text from byte `begin` up to `end`, or as much of it as there is."""
    name = keys.text(turn)
    if begin >= end:
        return Read(("no text",), lambda pipeline: pipeline.ping(), lambda _: b"")
    return Read(("text", turn, str(begin), str(end)), lambda pipeline: pipeline.getrange(name, begin, end - 1), bytes)


def stored(name: str) -> Read[bytes | None]:
    """The string under that name; None: there is none."""
    return Read(("stored", name), lambda pipeline: pipeline.get(name), lambda value: value)


def call_end(turn: str, call: int, out: str) -> Read[CallEnd | None]:
    """How a call ended whose last output has the id `out`; None: it is no more."""

    def taken(entries: Sequence[Any]) -> CallEnd | None:
        outputs = [output for _, fields in entries if (output := _output(fields)) is not None and output.call == call]
        ends = [output for output in outputs if isinstance(output, CallCompletedOutput)]
        used = [output for output in outputs if isinstance(output, UsageOutput) and output.purpose is None]
        return CallEnd(ends[0].finish_reason, used[0] if used else None) if ends else None

    name, place = keys.out(turn), ("call", turn, str(call), out)
    return Read(place, lambda pipeline: pipeline.xrevrange(name, max=out, count=_LAST_OUTPUTS), taken)


def request(turn: str, out: str) -> Read[ApprovalRequestOutput | None]:
    """The approval request whose output has the id `out`; None: it is no more."""

    def taken(entries: Sequence[Any]) -> ApprovalRequestOutput | None:
        output = _output(entries[0][1]) if entries else None
        return output if isinstance(output, ApprovalRequestOutput) else None

    name = keys.out(turn)
    return Read(("request", turn, out), lambda pipeline: pipeline.xrange(name, out, out), taken)


def decision(approval: str) -> Read[Decision | None]:
    """What was decided of a request; None: nothing yet, or it is no more."""
    place = ids.parse_approval(approval)
    if place is None:
        return Read(("no decision",), lambda pipeline: pipeline.ping(), lambda _: None)
    turn, call, index = place
    names = [f"{call}_{index}:{what}" for what in ("tool", "option", "by", "asked", "expires")]

    def taken(values: Sequence[bytes | None]) -> Decision | None:
        tool, option, by, asked, expires = ((value or b"").decode() for value in values)
        if not option:
            return None
        return Decision(tool, option, by or None, int(asked.partition("-")[0]), int(expires))

    name = keys.approvals(turn)
    return Read(("decision", approval), lambda pipeline: pipeline.hmget(name, names), taken)


def _output(fields: dict[bytes, bytes]) -> Output | None:
    """A stored output but for text, which stands elsewhere; None: another, or of another version."""
    value = fields.get(b"o")
    if value is None or "text_at" in json.loads(value):
        return None
    return decode(value)
