"""What a delivery is: one message for one destination, with everything that happened to it.

What belongs here: the record, its wire form and the outcomes of an attempt. What must not be known here: which state
follows which, Redis, receivers.

A delivery refers to the turn that it reports and holds none of its text. `id` is what the receiver is told on every
attempt; `token` names the claim that may settle it; `version` grows with each stored change.

A log entry of which no delivery could be made is kept as a dead delivery without a destination; its `event_id` is the
place of the entry in the log.
"""

import json
import re
from dataclasses import asdict, dataclass, field
from typing import Literal

import orjson

RECORD_VERSION = 1

State = Literal["queued", "in_flight", "waiting", "delivered", "dead", "held", "cancelled"]
"""queued: due now. in_flight: an attempt may be under way until its lease ends. waiting: the next attempt has a time.
held: not to be sent until someone says so. The others are final; a dead one can be replayed."""

_HALF_PAIR = re.compile(r"[\ud800-\udfff]")

LIVE: frozenset[State] = frozenset({"queued", "in_flight", "waiting"})

Sent = Literal["no", "perhaps", "yes"]
"""Whether the receiver got the request: an answer came (yes), nothing was written (no), or nobody knows."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """How one attempt ended. `at_ms`: when that was settled."""

    number: int
    at_ms: int
    code: str
    message: str
    sent: Sent


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery. Times are UTC milliseconds of the store's clock.

    `destination`: a subscriber's name, or a URL, which may hold a secret. `attempts`: attempts begun since the delivery
    was made or last replayed. `due_ms`: when to look at it next; for one in flight the end of its lease; 0 when final.
    `ended_ms`: when it became final, or 0. `code` and `message`: why the last attempt failed, or why it is dead; empty
    when nothing failed. `log`: the first attempt and the latest ones.
    """

    id: str
    event_id: str
    turn: str
    event_type: str
    destination: str = field(repr=False)
    created_ms: int
    due_ms: int
    state: State = "queued"
    attempts: int = 0
    version: int = 1
    token: str = ""
    ended_ms: int = 0
    code: str = ""
    message: str = ""
    log: tuple[Attempt, ...] = ()


@dataclass(frozen=True, slots=True)
class Delivered:
    """The receiver took it and said so with this HTTP status."""

    status: int


@dataclass(frozen=True, slots=True)
class Deferred:
    """It failed in a way that may pass. `retry_after`: seconds the receiver asked for."""

    retry_after: float | None
    code: str
    message: str
    sent: Sent


@dataclass(frozen=True, slots=True)
class Rejected:
    """It failed and would fail again: nothing but a person can help."""

    code: str
    message: str
    sent: Sent = "yes"


Outcome = Delivered | Deferred | Rejected


@dataclass(frozen=True, slots=True)
class Unsent:
    """No attempt was made, for a reason of our own. It does not count, and is due again after `after_s` seconds."""

    reason: str
    after_s: float = 0


def well_formed(text: str) -> str:
    """The text as UTF-8 can hold it: with U+FFFD in place of each half of a surrogate pair."""
    return _HALF_PAIR.sub("\ufffd", text)


def json_bytes(value: object) -> bytes:
    """Compact JSON of what dataclasses, dicts and texts hold, whatever the texts are: they are made `well_formed`."""
    return well_formed(json.dumps(value, default=asdict, ensure_ascii=False, separators=(",", ":"))).encode()


def encode(delivery: Delivery) -> bytes:
    """The stored form: one JSON object with the record version `v`."""
    return json_bytes({"v": RECORD_VERSION, "delivery": delivery})


def decode(data: bytes) -> Delivery | None:
    """Read a stored delivery; None when it is of a newer version or no delivery: leave it to who can read it."""
    try:
        stored = orjson.loads(data)
        if stored["v"] > RECORD_VERSION:
            return None
        fields = stored["delivery"]
        log = tuple(Attempt(**attempt) for attempt in fields.pop("log"))
        return Delivery(**fields, log=log)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
