"""What the live readers of many turns ask of Redis: a few commands, however many readers and turns there are.

What belongs here: reading many turns at once, going on watching them, whether a place is still known. What must not be
known here: who reads, how they are told.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio
from redis import exceptions as redis_errors
from redis.exceptions import NoScriptError

from worker.observability import fault
from worker.output.events import ErrorOutput, Output, TurnCompletedOutput
from worker.output.snapshot import NOWHERE, Place, parse_place, shown_place
from worker.store import keys
from worker.store.outputs import WATCH, read_entries, size_of, watching

Entry = tuple[Place, Output | None]
"""An output and its place; None for one that this version does not know."""

_PAGE = 200
_LAST = 4


@dataclass(frozen=True, slots=True)
class Watched:
    """What became of a watched turn: whether it goes on, and the place of its last output."""

    going_on: bool
    last: Place


async def read_on(redis: redis.asyncio.Redis, after: Mapping[str, Place], block_ms: int) -> dict[str, list[Entry]]:
    """What has come in each of these turns after a place; waits up to `block_ms` for the first of it.

    At most 200 outputs of each turn; ask again for the rest. Turns in which nothing came are left out. What one turn
    holds is never at the cost of another: outputs that cannot be read are None.
    """
    names = {keys.out(turn): turn for turn in after}
    places: dict[Any, Any] = {name: shown_place(after[turn]) for name, turn in names.items()}
    streams: Any = await redis.xread(places, count=_PAGE, block=block_ms or None)
    found = {}
    for name, stored in streams or ():
        turn = names[name.decode()]
        try:
            found[turn] = await _entries(redis, turn, stored)
        except (redis_errors.RedisError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever is stored there, the readers of other turns wait
            fault("outputs_unreadable", error, turn=turn)
            found[turn] = [(parse_place(entry.decode()) or NOWHERE, None) for entry, _ in stored]
    return found


@dataclass(frozen=True, slots=True)
class Page:
    """Outputs of one turn that follow each other, as they are stored. `size`: their bytes, texts included."""

    stored: Sequence[Any]
    size: int


async def find_page(redis: redis.asyncio.Redis, turn: str, after: Place, most_bytes: int) -> Page:
    """The next outputs of one turn after a place, without waiting; their texts are not read yet.

    At most 200 of them, and `most_bytes` or a single one.
    """
    stored: Any = await redis.xrange(keys.out(turn), f"({shown_place(after)}", "+", count=_PAGE)
    size = count = 0
    for _, fields in stored:
        more = size_of(fields)
        if count and size + more > most_bytes:
            break
        size, count = size + more, count + 1
    return Page(stored[:count], size)


async def read_page(redis: redis.asyncio.Redis, turn: str, page: Page) -> list[Entry]:
    """The outputs of a page."""
    return await _entries(redis, turn, page.stored)


async def is_known(redis: redis.asyncio.Redis, turn: str, place: Place) -> bool:
    """Whether the turn has an output at exactly that place, which nobody has trimmed and no rewind has taken back."""
    at = shown_place(place)
    return bool(await redis.xrange(keys.out(turn), at, at))


async def ended_at(redis: redis.asyncio.Redis, turn: str) -> Place | None:
    """The place of the last output of a sealed turn; None: it goes on, or is no more."""
    state, at_ms, seq = await redis.hmget(keys.turn_record(turn), "state", "at", "seq")
    return (int(at_ms or 0), int(seq or 0)) if state == b"sealed" else None


async def read_ending(redis: redis.asyncio.Redis, turn: str) -> list[Entry]:
    """How a sealed turn ended: its last outputs from the error on, if there is one."""
    stored: Any = await redis.xrevrange(keys.out(turn), count=_LAST)
    entries = await _entries(redis, turn, stored[::-1])
    return [entry for entry in entries if isinstance(entry[1], ErrorOutput | TurnCompletedOutput)]


async def watch_all(redis: redis.asyncio.Redis, watch_s: Mapping[str, float]) -> dict[str, Watched | None]:
    """Go on watching these turns, each for so many seconds (0: only ask), in one pipeline. None: no such turn."""
    turns = list(watch_s)
    answers = await _watch(redis, turns, watch_s)
    if any(isinstance(answer, NoScriptError) for answer in answers):
        await WATCH.load(redis)
        answers = await _watch(redis, turns, watch_s)
    return {turn: _watched(answer) for turn, answer in zip(turns, answers, strict=True)}


async def _watch(redis: redis.asyncio.Redis, turns: Sequence[str], watch_s: Mapping[str, float]) -> list[Any]:
    pipeline = redis.pipeline(transaction=False)
    for turn in turns:
        WATCH.queue(pipeline, *watching(turn, watch_s[turn]))
    answers: list[Any] = await pipeline.execute(raise_on_error=False)
    return answers


def _watched(answer: Any) -> Watched | None:
    if isinstance(answer, Exception):
        raise answer
    if len(answer) == 1:
        return None
    return Watched(bool(answer[0]), (int(answer[1]), int(answer[2])))


async def _entries(redis: redis.asyncio.Redis, turn: str, stored: Sequence[Any]) -> list[Entry]:
    return [(parse_place(entry) or NOWHERE, output) for entry, output in await read_entries(redis, turn, stored)]
