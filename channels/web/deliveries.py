"""Deliveries over HTTP: searching, inspecting, replaying, cancelling and exporting them.

What belongs here: what requests mean to the outbox, and deliveries in the API's words. What must not be known here: how
deliveries are stored or sent.

A token that speaks for one agent, or for some sessions, may not even look: what is listed is of all.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import redis.asyncio
from starlette.responses import Response

from channels.delivery.model import Attempt, Delivery, Evidence
from channels.outbox import exporting, reading, replaying
from channels.outbox.exporting import Wanted, evidence_object
from channels.outbox.reading import UnknownDelivery
from channels.settings import Settings
from channels.web.delivery_models import AttemptShown, DeliveryDetail, DeliveryList, DeliveryShown, EvidenceShown
from channels.web.delivery_operations import NDJSON, STATES
from channels.web.errors import Refused, json_response
from channels.web.event_stream import EventStream
from channels.web.operation import DEFAULT_LIMIT, MOST_LISTED
from channels.web.turns import number
from channels.web.way import Call
from channels.webhook.address import shown
from channels.webhook.outsiders import is_held_back, told_of_delivery, told_outside
from worker.errors import ConfigurationError

T = TypeVar("T")

_UNBOUNDED = -1
_LATEST = 10**15 - 1


@dataclass(frozen=True, slots=True)
class DeliveryRoutes:
    """The routes of deliveries. `wake`: asks a delivery process to look at the outbox; must not block."""

    settings: Settings
    client: redis.asyncio.Redis
    wake: Callable[[], None]

    async def list(self, call: Call) -> Response:
        """GET /v1/deliveries."""
        check_whole(call)
        limit = number(call, "limit", DEFAULT_LIMIT, 1, MOST_LISTED)
        try:
            page = await _wanted(call).page(self.client, limit, call.request.query_params.get("after", ""))
        except ConfigurationError as error:
            raise Refused("invalid", str(error), field="after") from None
        found = [_shown(call, one) for one in page.deliveries]
        return json_response(DeliveryList(deliveries=found, next=page.after or None))

    async def export(self, call: Call) -> Response:
        """GET /v1/deliveries/export."""
        check_whole(call)
        lines = _lines(call, exporting.exported(self.client, _wanted(call)))
        return EventStream(lines, self.settings.web.write_timeout_s, lambda: None, NDJSON)

    async def read(self, call: Call) -> Response:
        """GET /v1/deliveries/{delivery}."""
        check_whole(call)
        found = await _told(reading.show(self.client, _id(call)))
        return json_response(_detail(call, found, await reading.evidence(self.client, found.id)))

    async def replay(self, call: Call) -> Response:
        """POST /v1/deliveries/{delivery}/replay."""
        check_whole(call)
        found = await _told(replaying.replay(self.client, _id(call)))
        self.wake()
        return json_response(_shown(call, found))

    async def cancel(self, call: Call) -> Response:
        """POST /v1/deliveries/{delivery}/cancel."""
        check_whole(call)
        found = await _told(replaying.cancel(self.client, _id(call), f"cancelled by {call.token.name}"))
        return json_response(_shown(call, found))


def check_whole(call: Call) -> None:
    """Refuse a token that does not speak for all turns."""
    token = call.token
    if token.agent or token.sessions:
        raise Refused("forbidden", "this token speaks for some turns only, and deliveries are of all: use another")


def destination_shown(call: Call, destination: str) -> str:
    """An endpoint's name, or a URL as this token may see it."""
    return destination if "destinations:url" in call.token.scopes else shown(destination)


def _id(call: Call) -> str:
    delivery: str = call.request.path_params["delivery"]
    return delivery


def _wanted(call: Call) -> Wanted:
    query = call.request.query_params
    state = next((one for one in STATES if one == query.get("state")), None)
    if state is None and "state" in query:
        raise Refused("invalid", f"state: use one of {', '.join(STATES)}", field="state")
    since_ms, until_ms = (number(call, name, _UNBOUNDED, 0, _LATEST) for name in ("since_ms", "until_ms"))
    return Wanted(
        state,
        _chosen(call, "endpoint"),
        _chosen(call, "type"),
        _chosen(call, "turn"),
        None if since_ms == _UNBOUNDED else since_ms,
        None if until_ms == _UNBOUNDED else until_ms,
    )


def _chosen(call: Call, name: str) -> str:
    text: str | None = call.request.query_params.get(name)
    if text == "":  # taken as left out, it would choose everything
        raise Refused("invalid", f"{name}: it is empty; give what it is to choose, or leave it out", field=name)
    return text or ""


async def _told(step: Awaitable[T]) -> T:
    """What a step gives, or what it refuses in the API's words."""
    try:
        return await step
    except UnknownDelivery as error:
        raise Refused("not_found", str(error), field="delivery") from None
    except ConfigurationError as error:
        raise Refused("refused", str(error), field="delivery") from None


async def _lines(
    call: Call, found: AsyncGenerator[tuple[Delivery, dict[int, Evidence]], None]
) -> AsyncGenerator[bytes, None]:
    async with aclosing(found):
        async for one, evidence in found:
            yield _detail(call, one, evidence).model_dump_json().encode() + b"\n"


def _shown(call: Call, one: Delivery) -> DeliveryShown:
    return DeliveryShown(**_fields(call, one))


def _detail(call: Call, one: Delivery, evidence: Mapping[int, Evidence]) -> DeliveryDetail:
    log = [_attempt(attempt, evidence.get(attempt.number)) for attempt in one.log]
    return DeliveryDetail(**_fields(call, one), log=log)


def _fields(call: Call, one: Delivery) -> dict[str, Any]:
    code, message = told_of_delivery(one)
    same = ("id", "event_id", "event_type", "turn", "state", "attempts", "created_ms")
    return {
        **{name: getattr(one, name) for name in same},
        **{name: getattr(one, name) or None for name in ("due_ms", "ended_ms", "replayed_ms")},
        "destination": destination_shown(call, one.destination),
        "code": code,
        "message": message,
    }


def _attempt(attempt: Attempt, evidence: Evidence | None) -> AttemptShown:
    code, message = told_outside(attempt.code, attempt.message)
    is_hidden = is_held_back(attempt.code)
    return AttemptShown(
        number=attempt.number,
        at_ms=attempt.at_ms,
        code=code,
        message=message,
        sent=attempt.sent,
        took_ms=None if is_hidden else attempt.took_ms,
        evidence=None if is_hidden or evidence is None else _evidence(evidence),
    )


def _evidence(evidence: Evidence) -> EvidenceShown:
    told = evidence_object(evidence)
    del told["address"]  # an inner one is nobody's business but the operator's
    return EvidenceShown(**told)
