"""The outputs of a turn: how they are stored, and how readers get them.

What belongs here: the stored form of an output, attaching, reading on. What must not be known here: who reads, filters,
what a text means.

The stream id of an output is its time and number, <ms>-<seq>. A delta is stored as bare text in a field named after
its attempt (`d1.2`: text of call 1, attempt 2; `h1.2`: thinking); all else as JSON. The text of a completed call stands
once, in the turn's text; its output refers to it, and readers get it whole. Deltas are a view: only the latest 128 kB
of a turn are kept (stage.lua), and a reader that meets a gap in the numbers joins anew.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from worker.errors import NewerRecord
from worker.observability import warn
from worker.output.events import (
    ApprovalRequestOutput,
    Outcome,
    Output,
    TextDeltaOutput,
    TextOutput,
    ThinkingDeltaOutput,
    decode,
)
from worker.store import keys
from worker.store.records import RECORD_VERSION
from worker.store.script import Argument, Script

Entry = tuple[bytes, dict[bytes, bytes]]
_NUMBERED_BY_THE_STORE = {"turn", "seq", "at_ms"}
_READ_COUNT = 500
_DELTAS: dict[str, type[TextDeltaOutput | ThinkingDeltaOutput]] = {"d": TextDeltaOutput, "h": ThinkingDeltaOutput}
_attach = Script("worker.store", "attach")
WATCH = Script("worker.store", "watch")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A turn at one moment. Reading on from `last_id` gives exactly what came after.

    `text`: of the completed calls; `marker`: its UTF-8 bytes. `open_text`: what the open attempt (`call`, `attempt`; 0
    when none is open) has staged. `state`: queued, running, parked or sealed. `seq`: of the last output.
    """

    session: str
    text: str = field(repr=False)
    open_text: str = field(repr=False)
    call: int
    attempt: int
    last_id: str
    state: str
    outcome: Outcome | None
    marker: int
    seq: int
    epoch: int


def encode_output(output: Output) -> str:
    """The stored form of an output that the store will number."""
    return output.model_dump_json(exclude=_NUMBERED_BY_THE_STORE, exclude_none=True)


def encode_request(request: ApprovalRequestOutput) -> str:
    """The stored form of an approval request whose expiry the store will fill in."""
    return request.model_dump_json(exclude={*_NUMBERED_BY_THE_STORE, "expires_at_ms"}, exclude_none=True)


def encode_text_at(output: TextOutput, offset: int, length: int) -> str:
    """The stored form of a completed call's text: where it stands in the turn's text, in bytes."""
    stored = output.model_dump(exclude={*_NUMBERED_BY_THE_STORE, "text"}, exclude_none=True)
    return json.dumps({**stored, "text_at": [offset, length]})


async def attach(redis: redis.asyncio.Redis, turn: str, watch_s: float) -> Snapshot | None:
    """Join a turn, and have its deltas staged for `watch_s` seconds. None: there is no such turn (any more).

    Raises `NewerRecord`.
    """
    names = [
        keys.turn_record(turn),
        keys.text(turn),
        keys.open_text(turn),
        keys.watch(keys.partition_of_turn(turn)),
    ]
    reply = await _attach(redis, names, [turn, round(watch_s * 1000)])
    if not reply:
        return None
    session, state, outcome, epoch, marker, attempt, at_ms, seq, text, open_text, version = reply
    if int(version) > RECORD_VERSION:
        raise NewerRecord(
            f"turn {turn} was written by a newer release of Lastword (its record has version {int(version)}, this "
            f"release reads up to {RECORD_VERSION}): use that release here, too"
        )
    call, _, number = attempt.decode().partition(".")
    return Snapshot(
        session=session.decode(),
        text=text.decode(),
        open_text=open_text.decode(),
        call=int(call or 0),
        attempt=int(number or 0),
        last_id=f"{at_ms.decode()}-{seq.decode()}",
        state=state.decode(),
        outcome=outcome.decode() or None,
        marker=int(marker),
        seq=int(seq),
        epoch=int(epoch),
    )


async def watch(redis: redis.asyncio.Redis, turn: str, watch_s: float) -> bool:
    """Go on watching for `watch_s` seconds. False: the turn has ended."""
    return bool((await WATCH(redis, *watching(turn, watch_s)))[0])


def watching(turn: str, watch_s: float) -> tuple[list[str], list[Argument]]:
    """Keys and arguments of `WATCH`."""
    return [keys.turn_record(turn), keys.watch(keys.partition_of_turn(turn))], [turn, round(watch_s * 1000)]


async def outputs_after(redis: redis.asyncio.Redis, turn: str, last_id: str, block_ms: int) -> list[tuple[str, Output]]:
    """The next outputs after `last_id` ("0-0": from the first), with their ids; waits for them up to `block_ms`.

    An output that this version does not know is passed over and counted in a log line. Empty: none came in time.
    """
    while True:
        streams: Any = await redis.xread({keys.out(turn): last_id}, count=_READ_COUNT, block=block_ms or None)
        if not streams:
            return []
        entries: list[Entry] = streams[0][1]
        known = _known(turn, await read_entries(redis, turn, entries))
        if known:
            return known
        last_id = entries[-1][0].decode()


async def all_outputs(redis: redis.asyncio.Redis, turn: str) -> list[Output]:
    """Every output of a turn so far that this version knows, in order."""
    entries: Any = await redis.xrange(keys.out(turn))
    return [output for _, output in _known(turn, await read_entries(redis, turn, entries))]


async def read_entries(
    redis: redis.asyncio.Redis, turn: str, entries: Sequence[Entry]
) -> list[tuple[str, Output | None]]:
    """The outputs in entries of a turn's stream, with their ids; None for one that this version does not know."""
    stored = [(entry.decode(), _parse(turn, entry, fields)) for entry, fields in entries]
    await _hydrate(redis, turn, [output for _, output in stored if isinstance(output, dict)])
    return [(entry, decode(json.dumps(output)) if isinstance(output, dict) else output) for entry, output in stored]


def size_of(fields: dict[bytes, bytes]) -> int:
    """Bytes of a stored output, with the text that it refers to."""
    size = sum(map(len, fields.values()))
    try:
        return size + max(0, int(json.loads(fields[b"o"])["text_at"][1]))
    except (ValueError, KeyError, TypeError, IndexError):  # it refers to none, or is of another version
        return size


def count_unknown(turn: str, read: Sequence[tuple[Any, Output | None]]) -> int:
    """How many of these outputs this version does not know; told in a log line, if there are any."""
    count = sum(output is None for _, output in read)
    if count:
        warn("outputs_unknown", turn=turn, count=count)
    return count


def _known(turn: str, read: Sequence[tuple[str, Output | None]]) -> list[tuple[str, Output]]:
    count_unknown(turn, read)
    return [(entry, output) for entry, output in read if output is not None]


def _parse(turn: str, entry: bytes, fields: dict[bytes, bytes]) -> Output | dict[str, Any] | None:
    try:
        return _parsed(turn, entry, fields)
    except (ValueError, KeyError, TypeError, StopIteration):  # a kind, or a form, of another version
        return None


def _parsed(turn: str, entry: bytes, fields: dict[bytes, bytes]) -> Output | dict[str, Any]:
    at_ms, _, seq = entry.decode().partition("-")
    name, value = next(iter(fields.items()))
    where: dict[str, Any] = {"turn": turn, "seq": int(seq), "at_ms": int(at_ms)}
    if name == b"o":
        return {**json.loads(value), **where}
    call, _, attempt = name[1:].decode().partition(".")
    return _DELTAS[chr(name[0])](call=int(call), attempt=int(attempt), text=value.decode(), **where)


async def _hydrate(redis: redis.asyncio.Redis, turn: str, stored: Sequence[dict[str, Any]]) -> None:
    referring = [output for output in stored if "text_at" in output]
    if not referring:
        return
    pipeline = redis.pipeline(transaction=False)
    for output in referring:
        offset, length = output["text_at"]
        pipeline.getrange(keys.text(turn), offset, offset + length - 1)
    for output, text in zip(referring, await pipeline.execute(), strict=True):
        output["text"] = text.decode() if output.pop("text_at")[1] else ""
