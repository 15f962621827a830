"""From the entries of the log to their deliveries.

What belongs here: which entries are events, of which type, who gets each of them, and in which order. What must not be
known here: Redis, when the log is read, what a body says: an event refers to what is stored, or brings its content.

A turn's end goes to the destinations that the turn named, every event to the endpoints that subscribe to it, an event
that is for one destination to that alone. Who is both named and subscribed gets one delivery. What tells of a call or
an approval refers to it by a few words, which are stored once for all who get it (`Made.content`).

Many entries take one look at the endpoints and at most one round trip, for the turns whose events somebody may get.
With many endpoints a look takes long, so it lets others go on between.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from channels.delivery.model import Delivery, json_bytes, lane_of, well_formed
from channels.endpoints.audience import Audience
from channels.endpoints.model import Endpoint
from channels.endpoints.subscription import Event
from channels.events.content import (
    ABOUT_DELIVERIES,
    APPROVAL_DECIDED,
    APPROVAL_EXPIRED,
    APPROVAL_REQUESTED,
    CALL_COMPLETED,
    ENDPOINT_DISABLED,
)
from channels.made import NOTHING, Made, dead_letter
from worker import ids
from worker.observability import fault
from worker.store import reads
from worker.store.log import Entry, LogEntry, Newer, Unreadable
from worker.store.reads import Decision, Read
from worker.store.records import NewerTurn, TurnRecord

MOST_BYTES = 65536
"""Of the content that an event brings. Whoever tells more of it refers to something stored."""

ENOUGH_MADE = 1000
"""Deliveries after which those of no further entry are made at once."""

_AT_ONCE = 1000
"""Deliveries that are made, and ..."""
_LOOKED_AT = 10_000
"""... endpoints that are looked at, before others go on."""

ReadAll = Callable[[Sequence[Read[Any]]], Awaitable[list[Any]]]
"""What each of some reads gives, or the exception that it ended with; raises what says that nobody answered."""


@dataclass(frozen=True, slots=True)
class _Told:
    """An event and who gets it. `told`: what names it in the ids of its deliveries."""

    type: str
    told: str
    session: str
    destinations: tuple[tuple[str, Endpoint | None], ...]
    content: bytes = field(default=b"", repr=False)


class _Unusable(Exception):
    """Nothing can be made of an entry, for this reason."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code = code


class _Newer(Exception):
    """It is for a newer release to say."""


class Addressing:
    """Makes the deliveries of one partition. `audience`: the endpoints as they are now."""

    def __init__(self, partition: int, read: ReadAll, audience: Callable[[], Awaitable[Audience]]) -> None:
        self._partition = partition
        self._read = read
        self._audience = audience

    async def made_of(self, entries: Sequence[Entry], now_ms: int) -> list[Made | None]:
        """The deliveries of each entry, in order; None: it is to be put aside for a newer release.

        Only of the first of them, where they have more than `ENOUGH_MADE` together. Of an entry that nobody can use it
        is a dead letter with its reason. Raises what says that the store did not answer.
        """
        audience = await self._audience()
        asked = [_reads(entry, audience) for entry in entries]
        reads_by_name = {read.name: read for wanted in asked if not isinstance(wanted, Exception) for read in wanted}
        answers = await self._read(list(reads_by_name.values())) if reads_by_name else []
        found = dict(zip(reads_by_name, answers, strict=True))
        made: list[Made | None] = []
        count = looked_at = 0
        for entry, wanted in zip(entries, asked, strict=True):
            given = [wanted] if isinstance(wanted, Exception) else [found[read.name] for read in wanted]
            each = await self._made(entry, given, audience, now_ms)
            made.append(each)
            count += 0 if each is None else len(each.deliveries)
            looked_at += len(audience.endpoints)
            if count >= ENOUGH_MADE:
                break
            if looked_at >= _LOOKED_AT:
                looked_at = await asyncio.sleep(0, 0)
        return made

    async def _made(self, entry: Entry, given: Sequence[Any], audience: Audience, now_ms: int) -> Made | None:
        if isinstance(entry, Newer):
            return None
        if isinstance(entry, Unreadable):
            return dead_letter(self._partition, entry.id, "unreadable_entry", entry.why, now_ms)
        try:
            told = _told(entry, given, audience)
        except _Newer:
            return None
        except Exception as error:  # noqa: BLE001 - one entry must not stop all that come after it
            code, why = _fault_of(entry, error)
            event_type = event_of(entry) or "unknown"
            return dead_letter(self._partition, entry.id, code, why, now_ms, turn=entry.turn, event_type=event_type)
        if told is None or not told.destinations:
            return NOTHING
        # The ids of a log never go back, so after the clock was put back its entries bear the time that was.
        at_ms = min(entry.at_ms, now_ms)
        deliveries: list[Delivery] = []
        for begin in range(0, len(told.destinations), _AT_ONCE):
            if begin:
                await asyncio.sleep(0)
            goes_to = told.destinations[begin : begin + _AT_ONCE]
            deliveries += [self._delivery(entry, told, *to, at_ms) for to in goes_to]
        return Made(tuple(deliveries), entry.event_id if told.content else "", told.content)

    def _delivery(
        self, entry: LogEntry, told: _Told, destination: str, endpoint: Endpoint | None, at_ms: int
    ) -> Delivery:
        return Delivery(
            id=ids.delivery_of(self._partition, told.told, destination),
            event_id=entry.event_id,
            turn=entry.turn,
            event_type=told.type,
            destination=destination,
            created_ms=at_ms,
            due_ms=at_ms,
            lane=lane_of(destination),
            mailbox=mailbox_of(endpoint, told.session),
        )


def mailbox_of(endpoint: Endpoint | None, session: str) -> str:
    """What a delivery to an endpoint is in order with. Empty: with nothing, as what is for one destination alone."""
    if endpoint is None or endpoint.order == "none":
        return ""
    if endpoint.order == "endpoint":
        return "all"
    return hashlib.sha256(well_formed(session).encode()).hexdigest()[:16] if session else ""


def event_of(entry: LogEntry) -> str | None:
    """The type of the event that an entry tells, as far as the entry shows it."""
    match entry.kind:
        case "seal" if entry.outcome != "merged":
            return f"turn.{entry.outcome}"
        case "commit":
            return CALL_COMPLETED
        case "approval":
            return APPROVAL_REQUESTED
        case "decision":
            return APPROVAL_DECIDED
        case "event":
            return entry.event_type
    return None


def _fault_of(entry: LogEntry, error: Exception) -> tuple[str, str]:
    if isinstance(error, _Unusable):
        return error.code, str(error)
    fault("log_entry_unusable", error, turn=entry.turn)
    return "unusable_turn", f"the record of its turn cannot be read: {type(error).__name__}"


def _reads(entry: Entry, audience: Audience) -> Sequence[Read[Any]] | Exception:
    """What has to be read of an entry that somebody may get."""
    if not isinstance(entry, LogEntry):
        return ()
    is_wanted = False
    match entry.kind:
        case "seal":
            is_wanted = entry.outcome != "merged"
        case "commit":
            is_wanted = bool(entry.out) and audience.wants(CALL_COMPLETED)
        case "approval":
            is_wanted = bool(entry.out) and audience.wants(APPROVAL_REQUESTED)
        case "decision":
            is_wanted = audience.wants(APPROVAL_DECIDED) or audience.wants(APPROVAL_EXPIRED)
    if not is_wanted:
        return ()
    try:
        head = reads.head(entry.turn)
        return (head, reads.decision(entry.approval or "")) if entry.kind == "decision" else (head,)
    except Exception as error:  # noqa: BLE001 - its ids are none
        return error


def _told(entry: LogEntry, given: Sequence[Any], audience: Audience) -> _Told | None:
    """The event of an entry and who gets it; None: it is none. `given`: what its reads gave."""
    if entry.kind == "event":
        return _own(entry, audience)
    if not given:
        return None
    head, decided = _given(given)
    match entry.kind:
        case "seal":
            return _end(entry, head, audience)
        case "commit":
            begin, end = entry.span
            reference = {"call": entry.call, "out": entry.out, "begin": begin, "end": end}
            return _of_turn(entry, CALL_COMPLETED, head, audience, reference)
        case "approval":
            reference = {"call": entry.call, "out": entry.out}
            return _of_turn(entry, APPROVAL_REQUESTED, head, audience, reference)
        case _:
            if decided is None:
                raise _Unusable("unusable_turn", "its approval is not stored any more")
            event_type = APPROVAL_EXPIRED if decided.option == "expired" else APPROVAL_DECIDED
            return _of_turn(entry, event_type, head, audience, {"call": entry.call, "approval": entry.approval})


def _given(given: Sequence[Any]) -> tuple[TurnRecord, Decision | None]:
    """What was read of a turn, and of a decision."""
    for answer in given:
        if isinstance(answer, Exception):
            raise answer
    head = given[0]
    if isinstance(head, NewerTurn):
        raise _Newer
    if head is None:
        raise _Unusable("unusable_turn", "its turn is not stored any more")
    return head, given[1] if len(given) > 1 else None


def _end(entry: LogEntry, head: TurnRecord, audience: Audience) -> _Told:
    event_type = f"turn.{entry.outcome}"
    goes_to = {name: audience.named(name) for name in map(well_formed, head.destinations)}
    for endpoint in audience.subscribed(Event(event_type, head.source, head.labels)):
        goes_to.setdefault(endpoint.name, endpoint)
    return _Told(event_type, ids.end_of(entry.turn), head.session, tuple(goes_to.items()))


def _of_turn(
    entry: LogEntry, event_type: str, head: TurnRecord, audience: Audience, reference: dict[str, object]
) -> _Told:
    endpoints = audience.subscribed(Event(event_type, head.source, head.labels))
    destinations = tuple((endpoint.name, endpoint) for endpoint in endpoints)
    return _Told(event_type, entry.event_id, head.session, destinations, json_bytes(reference))


def _own(entry: LogEntry, audience: Audience) -> _Told | None:
    """Of an event that brings its content. How an endpoint fares is not told to that endpoint, which fails.

    Nor is it told at all of what tells of deliveries itself, except that an endpoint was disabled by it.
    """
    content = _content(entry)
    if entry.to:
        return _Told(entry.event_type, entry.event_id, "", ((entry.to, None),), entry.data)
    about = ""
    if entry.event_type.startswith(ABOUT_DELIVERIES):
        is_of_itself = str(content.get("event_type", "")).startswith(ABOUT_DELIVERIES)
        if is_of_itself and entry.event_type != ENDPOINT_DISABLED:
            return None
        about = str(content.get("endpoint", ""))
    endpoints = audience.subscribed(Event(entry.event_type))
    destinations = tuple((endpoint.name, endpoint) for endpoint in endpoints if endpoint.name != about)
    return _Told(entry.event_type, entry.event_id, "", destinations, entry.data)


def _content(entry: LogEntry) -> dict[str, object]:
    """What an event brings. Raises `_Unusable`: nobody could read a body that was made of it."""
    if len(entry.data) > MOST_BYTES:
        raise _Unusable("unusable_event", f"its content has {len(entry.data)} bytes, at most {MOST_BYTES} are taken")
    try:
        content = orjson.loads(entry.data)
    except orjson.JSONDecodeError:
        raise _Unusable("unusable_event", "its content is no JSON") from None
    if not isinstance(content, dict) or not entry.event_type:
        raise _Unusable("unusable_event", "it has no type, or its content is no JSON object")
    return content
