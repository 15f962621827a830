"""What a delivery is: one event for one destination, with everything that happened to it.

What belongs here: the record, its wire form and the outcomes of an attempt. What must not be known here: which state
follows which, Redis, receivers.

A delivery refers to what it tells (a turn, or an event that is stored once for all who get it) and holds none of its
text. `id` is what the receiver is told on every attempt; `token` names the claim that may settle it; `version` grows
with each stored change.

A log entry of which no delivery could be made is kept as a dead delivery without a destination; its `event_id` is the
place of the entry in the log.

A newer release may add fields with defaults before the log, and raises `RECORD_VERSION` for whatever else it changes,
a new state, too. What is not wholly as this release knows it, it leaves alone.
"""

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import orjson

RECORD_VERSION = 2
"""1: an object with the fields of then. 2: lanes, mailboxes, classes of failures; an array, since millions may wait."""

State = Literal["queued", "in_flight", "waiting", "delivered", "dead", "held", "cancelled"]
"""queued: due now. in_flight: an attempt may be under way until its lease ends. waiting: the next attempt has a time.
held: its endpoint is paused or disabled; not to be sent until someone says so. The others are final; a dead one can be
replayed."""

LANES_OF_URLS = "url-"
"""What the lanes of plain URLs begin with, and no endpoint may be called."""

_PORTS = {"http": 80, "https": 443}

_FEWEST = 20
"""Fields of the first array that was stored."""

_HALF_PAIR = re.compile(r"[\ud800-\udfff]")

LIVE: frozenset[State] = frozenset({"queued", "in_flight", "waiting"})

Sent = Literal["no", "perhaps", "yes"]
"""Whether the receiver got the request: an answer came (yes), nothing was written (no), or nobody knows."""

Kind = Literal["ours", "transient", "permanent", "throttled"]
"""Whose fault a failed attempt was. ours: a fault of Lastword's own; nobody is charged. transient: the receiver's, and
may pass. permanent: the receiver's, and likely to stay: tried again on a shorter budget, since deploys cause 404s.
throttled: the receiver asked to wait; it spends no budget."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt ended. `at_ms`: when that was settled. `took_ms`: from lookup to the end of the answer."""

    number: int
    at_ms: int
    code: str
    message: str
    sent: Sent
    took_ms: int = 0


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. Times are UTC milliseconds of the store's clock.

    `destination`: an endpoint's name, or a URL, which may hold a secret. `lane`: whose limits it waits for (`lane_of`).
    `mailbox`: empty, or what it is in order with: of one mailbox in one lane only the first is ever sent. `attempts`:
    those that began and count, since the delivery was made or last replayed; `hard`: those of them that failed for
    good; `ours`: failures in a row that were ours. `first_ms`: when the first attempt began, or 0. `due_ms`: when to
    look at it next; for one in flight the end of its lease; 0 when final or held. `ended_ms`: when it became final, or
    0. `replayed_ms`: when it was last replayed, or 0. `lease_ms`: in flight, how long its claim holds it.
    `code` and `message`: why the last attempt failed, or why it is
    dead; empty when nothing failed. `log`: the first attempt and the latest ones.
    """

    id: str
    event_id: str
    turn: str
    event_type: str
    destination: str = field(repr=False)
    created_ms: int
    due_ms: int
    lane: str = ""
    mailbox: str = ""
    state: State = "queued"
    attempts: int = 0
    hard: int = 0
    ours: int = 0
    first_ms: int = 0
    version: int = 1
    token: str = ""
    ended_ms: int = 0
    code: str = ""
    message: str = ""
    replayed_ms: int = 0
    lease_ms: int = 0
    log: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an attempt showed. `status`: of the answer. Times in milliseconds; None where it never came to that.

    `lookup_ms`: until an address was found; `connect_ms`: TCP; `tls_ms`; `head_ms`: from the last byte of the request
    to the head of the answer; `total_ms`. A connection that was open already has no lookup, connect and TLS. `reused`:
    it was open already. `address`: what was dialled. `body`: the start of the answer as it came, capped.
    """

    status: int | None
    total_ms: int
    lookup_ms: int | None = None
    connect_ms: int | None = None
    tls_ms: int | None = None
    head_ms: int | None = None
    reused: bool = False
    address: str = ""
    content_type: str = ""
    body: bytes = field(default=b"", repr=False)
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver took it and said so with this HTTP status."""

    status: int
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. `retry_after`: seconds the receiver asked for. `gone`: it wants nothing any more (410)."""

    kind: Kind
    code: str
    message: str
    sent: Sent
    retry_after: float | None = None
    gone: bool = False
    evidence: Evidence | None = None


@dataclass(frozen=True, slots=True)
class Hopeless:
    """There is nothing to send: what was to be told is not stored any more. No attempt was made; it is dead."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """There is nobody to send it to any more: its endpoint was removed. No attempt was made; it is cancelled."""

    code: str
    message: str


Outcome = Delivered | Failed | Hopeless | Withdrawn


@dataclass(frozen=True, slots=True)
class Unsent:
    """No attempt was made, for a reason of our own. It does not count, and is due again after `after_s` seconds."""

    reason: str
    after_s: float = 0


def lane_of(destination: str) -> str:
    """Whose limits a destination waits for: an endpoint's own, or of a plain URL those of its scheme, host and port."""
    if "://" not in destination:
        return destination
    try:
        parts = urlsplit(destination)
        port = parts.port or _PORTS.get(parts.scheme)
        origin = f"{parts.scheme}://{(parts.hostname or '').rstrip('.')}:{port}"
    except ValueError:
        origin = destination
    return f"{LANES_OF_URLS}{hashlib.sha256(origin.encode(errors='replace')).hexdigest()[:16]}"


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: with U+FFFD in place of each half of a surrogate pair."""
    return _HALF_PAIR.sub("\ufffd", text)


def json_bytes(value: object) -> bytes:
    """Compact JSON of what dataclasses, dicts and texts hold, whatever the texts are: they are made `well_formed`."""
    return well_formed(json.dumps(value, default=asdict, ensure_ascii=False, separators=(",", ":"))).encode()


_delivery_values = attrgetter(*(one.name for one in fields(Delivery)))
_attempt_values = attrgetter(*(one.name for one in fields(Attempt)))

_DELIVERY_TYPES, _ATTEMPT_TYPES = (
    tuple(one.type if one.type is int else str for one in fields(kind) if one.name != "log")
    for kind in (Delivery, Attempt)
)
_STATE = [one.name for one in fields(Delivery)].index("state")
_STATES = frozenset(get_args(State))


def encode(delivery: Delivery) -> bytes:
    """The stored form: a JSON array of the record version, and the fields in their order."""
    *values, log = _delivery_values(delivery)
    stored = [RECORD_VERSION, *values, [_attempt_values(attempt) for attempt in log]]
    try:
        return orjson.dumps(stored)
    except TypeError:  # half a surrogate pair
        return json_bytes(stored)


def decode(data: bytes) -> Delivery | None:
    """Read a stored delivery; None when it is of a newer version or no delivery: leave it to who can read it."""
    try:
        stored = orjson.loads(data)
        if isinstance(stored, dict):
            return _decode_first(stored)
        version, *values = stored
        # A field that was added since stands before the log, and has a default.
        if version != RECORD_VERSION or not _FEWEST <= len(values) <= len(fields(Delivery)):
            return None
        *values, log = values
        return _delivery_of(values, log)
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def _delivery_of(values: list[Any], log: list[list[Any]]) -> Delivery:
    """The delivery of these values. Raises `TypeError` where one is of another type, or of no state that is known."""
    if tuple(map(type, values)) != _DELIVERY_TYPES[: len(values)] or values[_STATE] not in _STATES:
        raise TypeError
    if any(tuple(map(type, attempt)) != _ATTEMPT_TYPES[: len(attempt)] for attempt in log):
        raise TypeError
    # By name, since an older record lacks some of the values before it.
    last: dict[str, Any] = {"log": tuple(Attempt(*attempt) for attempt in log)}
    return Delivery(*values, **last)


def _decode_first(stored: dict[str, Any]) -> Delivery | None:
    """A record of version 1, or None: of a newer one."""
    if stored["v"] > 1:
        return None
    values = dict(stored["delivery"])
    log = tuple(Attempt(**attempt) for attempt in values.pop("log"))
    # When its attempts began was not kept: it has all its time from now on.
    first_ms = values["due_ms"] if values["attempts"] else 0
    delivery = Delivery(**values, log=log, lane=lane_of(values["destination"]), first_ms=first_ms)
    *known, attempts = _delivery_values(delivery)
    return _delivery_of(known, [list(_attempt_values(each)) for each in attempts])
