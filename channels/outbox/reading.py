"""Reading deliveries: one, the newest, the held ones, what attempts showed, what events tell.

What belongs here: reads. What must not be known here: what any of it leads to.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import redis.asyncio

from channels.delivery.model import Delivery, Evidence, State
from channels.outbox import keys
from channels.outbox.stored import decode, decode_evidence
from worker import ids
from worker.errors import ConfigurationError
from worker.store.script import Script

PAGE = 200
"""So many places are looked at in one step."""

SEEN_MOST = 5_000
"""A page looks at no more deliveries than that, also where hardly any is wanted."""

_FIELD = b"evidence:"

_PLACES = Script("channels.outbox", "page")
_PLACE = re.compile(r"[0-9]{1,16}(\.[0-9]{3})?")


class UnknownDelivery(ConfigurationError):
    """There is no delivery of that id."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some deliveries, the newest first. `after`: what the next page is asked for with; empty: there is none.

    It may hold fewer than were asked for, or none, and still not be the last.
    """

    deliveries: list[Delivery]
    after: str


async def show(client: redis.asyncio.Redis, delivery: str) -> Delivery:
    """The delivery of that id. Raises `UnknownDelivery` when there is none."""
    check_id(delivery)
    [found] = await read(client, [delivery])
    if found is None:
        raise UnknownDelivery(
            f"delivery {delivery} is not known: it has expired or was never made; see `lastword deliveries list`"
        )
    return found


async def listed(  # noqa: PLR0913 - each is one thing to ask for
    client: redis.asyncio.Redis,
    limit: int,
    *,
    state: State | None = None,
    destination: str = "",
    event_type: str = "",
    turn: str = "",
    since_ms: int | None = None,
    until_ms: int | None = None,
    after: str = "",
) -> Page:
    """At most `limit` deliveries, the newest first; dead ones, where these are asked for, by their death.

    None and empty: whichever. `since_ms`, `until_ms` (excluded): of their making, UTC. `after`: of the page before.
    Raises `ConfigurationError` for an `after` that no page has told.
    """
    wanted = {"state": state, "destination": destination, "event_type": event_type, "turn": turn}
    equal = {name: value for name, value in wanted.items() if value}

    def is_wanted(one: Delivery) -> bool:
        in_time = (since_ms or 0) <= one.created_ms and (until_ms is None or one.created_ms < until_ms)
        return in_time and all(getattr(one, name) == value for name, value in equal.items())

    source = keys.DEAD if state == "dead" else keys.INDEX
    score, last = parse_after(after) if after else (float("inf"), "")
    if until_ms is not None and state != "dead":
        score, last = min((score, last), (float(until_ms), ""), key=itemgetter(0))
    found: list[Delivery] = []
    seen = 0
    while seen < SEEN_MOST:
        page = await places(client, source, score, last, down=True)
        for (name, at), one in zip(page, await read(client, [name for name, _ in page]), strict=True):
            if at < (since_ms or 0):
                return Page(found, "")
            if one is not None and is_wanted(one):
                if len(found) == limit:
                    return Page(found, place_of(score, last))
                found.append(one)
            score, last = at, name
        seen += len(page)
        if len(page) < PAGE:
            return Page(found, "")
    return Page(found, place_of(score, last))


async def places(
    client: redis.asyncio.Redis, source: str, score: float, last: str, *, down: bool = False
) -> list[tuple[str, float]]:
    """At most `PAGE` ids of a sorted set with their scores, behind a place; `down`: before it, backwards.

    `last` empty: from that score on.
    """
    words = await _PLACES(client, [source], [repr(score), last, PAGE, "down" if down else ""])
    return [(name.decode(), float(at)) for name, at in zip(words[::2], words[1::2], strict=True)]


async def held(client: redis.asyncio.Redis, lane: str, limit: int) -> list[Delivery]:
    """At most `limit` held deliveries of a lane, the oldest first."""
    names: Any = await client.zrange(keys.held(lane), 0, limit - 1)
    return [one for one in await read(client, [name.decode() for name in names]) if one is not None]


async def held_since(client: redis.asyncio.Redis, lane: str) -> int | None:
    """When the oldest held delivery of a lane was made (ms), also one that only a newer version can read."""
    oldest: Any = await client.zrange(keys.held(lane), 0, 0, withscores=True)
    return int(oldest[0][1]) if oldest else None


async def held_count(client: redis.asyncio.Redis, lane: str) -> int:
    """How many deliveries of a lane are held."""
    count: Any = await client.zcard(keys.held(lane))
    return int(count)


async def evidence(client: redis.asyncio.Redis, delivery: str) -> dict[int, Evidence]:
    """What attempts of a delivery showed, by their number: the first and the last ones."""
    check_id(delivery)
    [shown] = await evidences(client, [delivery])
    return shown


async def evidences(client: redis.asyncio.Redis, deliveries: Sequence[str]) -> list[dict[int, Evidence]]:
    """The same of each of some deliveries."""
    pipeline = client.pipeline(transaction=False)
    for delivery in deliveries:
        pipeline.hgetall(keys.more(delivery))
    return [_evidence(stored) for stored in await pipeline.execute()]


def _evidence(stored: dict[bytes, bytes]) -> dict[int, Evidence]:
    shown = {int(name[len(_FIELD) :]): what for name, what in stored.items() if name.startswith(_FIELD)}
    return {number: decode_evidence(shown[number]) for number in sorted(shown)}


async def contents(client: redis.asyncio.Redis, deliveries: Sequence[Delivery]) -> list[bytes | None]:
    """What the event of each delivery tells (JSON); None: nothing of its own, or it is not stored any more."""
    names = [keys.content_of(one) for one in deliveries]
    found: Any = await client.mget(names) if names else []
    return list(found)


async def counts(client: redis.asyncio.Redis) -> dict[str, dict[State, int]]:
    """How many deliveries have not ended, by lane (empty: of all) and state."""
    found: dict[str, dict[State, int]] = {"": {}}
    stored: dict[Any, Any] = await client.hgetall(keys.COUNTS)
    for field, count in stored.items():
        state: Any
        state, _, lane = field.decode().partition(":")
        if not state.startswith("#"):
            found.setdefault(lane, {})[state] = int(count)
    return found


async def read(client: redis.asyncio.Redis, deliveries: Sequence[str]) -> list[Delivery | None]:
    """The deliveries, in order; None where there is none, or none that this version can read."""
    if not deliveries:
        return []
    records: Any = await client.mget([keys.record(each) for each in deliveries])
    return [decode(record) for record in records]


def check_id(delivery: str) -> None:
    """Raise `UnknownDelivery` for what is no delivery id."""
    if not delivery.startswith("dlv_") or ids.partition_of(delivery) is None:
        raise UnknownDelivery(
            f"delivery {delivery[:80]!r} is no delivery id: give dlv_ and 22 hex digits, as `lastword deliveries list`"
        )


def place_of(score: float, last: str) -> str:
    """A place in a list, as `parse_after` reads it."""
    return f"{score:.3f}-{last}"


def parse_after(after: str) -> tuple[float, str]:
    """Score and id of a place in a list. Raises `ConfigurationError`."""
    score, _, last = after.partition("-")
    if not _PLACE.fullmatch(score) or ids.partition_of(last) is None:
        raise ConfigurationError(f"after {after[:80]!r} is no place in the list: give what the page before told")
    return float(score), last
