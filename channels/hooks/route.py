"""What becomes of an event that was posted to a route.

What belongs here: the checks of a body in their order, and what they make of it: a message for an agent, or why there
is none. What must not be known here: HTTP, Redis, settings, the clock.

The order is: JSON, signature, event filter, templates. Whether a route is there and its body not too long was looked at
before, whether the event is a duplicate and the route's rate not spent is decided by the store, in one step with taking
it. The signature is verified first, over the bytes as they came, so that little is spent on strangers: a fault of their
JSON is told before that of their signature only as far as it is found at a glance.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from channels.delivery.model import well_formed
from channels.hooks.payload import NotJson, Payload, Pointer, found, glance, raw_scalar, read_payload, scalar
from channels.hooks.template import Event, Template, Unfillable, render, render_session
from channels.hooks.verification import Headers, Verification

OnBusy = Literal["queue", "reject", "interrupt"]
Fault = Literal["invalid_json", "verification_failed", "payload_refused"]

MAX_TOLD = 200
"""Characters of an event type or a delivery id that an answer repeats."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event tells something of itself: in the payload, if `pointer` is set, else in a header."""

    header: str
    pointer: Pointer | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A route, as it was set.

    `events`: the types that are taken; empty: all. `missing`: what stands for a value that an event lacks; None: such
    an event is refused. `session` None: a fresh one for each event. `labels_from`: labels by their places. `on_busy`
    None: as turns are. `dedupe_s`: how long a delivery id stands for one turn; `dedupe_body_s`: how long a body does,
    of events without an id; 0: never.
    """

    name: str
    agent: str
    verification: Verification
    events: frozenset[str]
    event: Place
    delivery: Place
    prompt: Template = field(repr=False)
    missing: str | None
    prompt_bytes: int
    session: Template | None
    destinations: tuple[str, ...]
    labels: Mapping[str, str]
    labels_from: Mapping[str, Pointer]
    label_characters: int
    on_busy: OnBusy | None
    body_bytes: int
    rate_per_minute: int
    dedupe_s: int
    dedupe_body_s: int

    @property
    def source(self) -> str:
        """What its turns have as their source."""
        return f"hook/{self.name}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """An event that is to become a turn. `key`: equal for what is the same delivery, for `key_s`; None: nothing is."""

    event_type: str | None
    delivery_id: str | None
    prompt: str = field(repr=False)
    session: str | None
    labels: Mapping[str, str] = field(repr=False)
    key: str | None
    key_s: int


@dataclass(frozen=True, slots=True)
class Filtered:
    """An event of a type that the route does not take."""

    event_type: str | None
    delivery_id: str | None


@dataclass(frozen=True, slots=True)
class Faulty:
    """An event that cannot be taken. `message` is for who sent it and repeats nothing of it."""

    fault: Fault
    message: str


NOT_GENUINE = Faulty("verification_failed", "the request does not prove that it comes from this route's sender")
"""The same for whatever was wrong."""


def fault_of_stranger(body: bytes) -> Faulty:
    """What is wrong with an event that is not genuine. No input raises."""
    try:
        glance(body)
    except NotJson as error:
        return _no_json(error)
    return NOT_GENUINE


def judge(route: Route, headers: Headers, body: bytes) -> Wanted | Filtered | Faulty:
    """What becomes of a genuine event. No input raises."""
    try:
        payload = read_payload(body)
    except NotJson as error:
        return _no_json(error)
    delivery_id = _told(route.delivery, payload, headers)
    event_type, delivery = _shown(_told(route.event, payload, headers)), _shown(delivery_id)
    if route.events and event_type not in route.events:
        return Filtered(_cut(event_type, MAX_TOLD), _cut(delivery, MAX_TOLD))
    event = Event(payload, event_type)
    try:
        prompt = render(route.prompt, event, missing=route.missing, most_bytes=route.prompt_bytes)
        session = None if route.session is None else render_session(route.session, event)
    except Unfillable as error:
        return Faulty("payload_refused", f"the payload does not fit the route's templates: {error}")
    key, key_s = _key(route, delivery_id, body)
    told = _cut(event_type, MAX_TOLD), _cut(delivery, MAX_TOLD)
    return Wanted(*told, prompt, session, _labels(route, payload), key, key_s)


def _no_json(error: NotJson) -> Faulty:
    return Faulty("invalid_json", f"the body is not taken: {error}; send JSON in UTF-8")


def _told(place: Place, payload: Payload, headers: Headers) -> bytes | None:
    """The bytes that stand there; none tell nothing. A header that comes several times is one, as HTTP has it."""
    if place.pointer is not None:
        value = raw_scalar(found(payload, place.pointer))
        return None if not value else value.encode("utf-8", "surrogatepass")
    values = headers.get(place.header.lower(), ())
    return b", ".join(values).strip() or None


def _key(route: Route, delivery: bytes | None, body: bytes) -> tuple[str | None, int]:
    """Made of the bytes of the id: two that are shown alike, since neither is UTF-8, are two."""
    if delivery is not None:
        said, stands_s = b"id\n" + delivery, route.dedupe_s
    elif route.dedupe_body_s:
        said, stands_s = b"body\n" + hashlib.sha256(body).hexdigest().encode(), route.dedupe_body_s
    else:
        return None, 0
    return "hook:" + hashlib.sha256(f"{route.name}\n".encode() + said).hexdigest(), stands_s


def _labels(route: Route, payload: Payload) -> Mapping[str, str]:
    """The fixed ones, and those of the payload: a value that is not there, or is no text or number, gives none."""
    told = {name: scalar(found(payload, place)) for name, place in route.labels_from.items()}
    cut = {name: well_formed(value)[: route.label_characters] for name, value in told.items() if value}
    return {**route.labels, **cut}


def _cut(text: str | None, most: int) -> str | None:
    return None if text is None else text[:most]


def _shown(told: bytes | None) -> str | None:
    return None if told is None else told.decode("utf-8", "replace")
