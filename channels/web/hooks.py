"""Inbound routes over HTTP: `POST /hooks/{route}`.

What belongs here: reading an event within its bounds, and what each answer of the checks is in HTTP. What must not be
known here: how an event is checked and filled in, how it is stored.

The checks have one order, and the first that fails answers: the route is there (404), its body is not too long (413),
it is JSON (400), it proves whence it comes (401), its type is wanted (202, ignored), it fits the templates (422), it
was not taken before (202, ignored), the rate allows it (429); then it is taken (202). What strangers fail at counts by
address. Of an address that failed too often only what may prove itself is read, and what does not is not looked into.
Until a body has proved itself it is one of a stranger, and there is only so much room for those (503).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Literal, TypeVar

import redis.asyncio
from starlette.requests import Request
from starlette.responses import Response

from channels.hooks import store
from channels.hooks.route import Faulty, Filtered, Route, Wanted, fault_of_stranger, judge
from channels.hooks.verification import Headers, is_genuine, may_be_genuine
from channels.settings import Settings
from channels.web import metrics
from channels.web.body import CLOSE, read_bytes, told_length
from channels.web.errors import Refused, away, json_response
from channels.web.models import HookAnswer
from channels.web.rates import Rates
from channels.web.strangers import Full, Room
from channels.web.way import Call, address_of
from worker.errors import ConfigurationError, StoreFull, StoreUnavailable
from worker.observability import info
from worker.store.inbox import InterruptBarred, QuotaSpent, SessionBusy
from worker.store.repeat import is_unanswered

_BUSY_WAIT_S = 10
_ROOM_WAIT_S = 5
_SMALL_BYTES = 65536
"""What is longer is looked at in a thread, so that others are answered meanwhile."""

_REALM = 'Webhook realm="lastword"'

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HookRoutes:
    """The inbound routes. `wake`: asks a turns process to look at a session; must not block. `clock`: unix seconds."""

    settings: Settings
    routes: Mapping[str, Route]
    client: redis.asyncio.Redis
    rates: Rates
    wake: Callable[[str], None]
    clock: Callable[[], float]
    room: Room = field(default_factory=Room)

    async def receive(self, call: Call) -> Response:
        """POST /hooks/{route}."""
        request = call.request
        route = self.routes.get(request.path_params["route"])
        if route is None:
            unknown = Refused("not_found", "route: there is none of this name", field="route", headers=CLOSE)
            raise await self._failed(request, "none", "route_not_found", unknown)
        headers = _headers(request)
        if not may_be_genuine(route.verification, headers):
            await self._admitted(route, self.rates.check_failures(address_of(request)))
        body = await self._proved(request, route, headers)
        met = await _looked_at(body, lambda: judge(route, headers, body))
        match met:
            case Faulty(fault="payload_refused"):
                metrics.hook_received(route.name, met.fault)
                info("hook_refused", route=route.name, result=met.fault)
                raise _refusal(met)
            case Faulty():
                raise await self._failed(request, route.name, met.fault, _refusal(met))
            case Filtered():
                metrics.hook_received(route.name, "event_filtered")
                return _ignored(route, met, "event_filtered")
            case Wanted():
                return await self._taken(route, met)

    async def _proved(self, request: Request, route: Route, headers: Headers) -> bytes:
        """The body of an event that is genuine. Raises `Refused`; for want of room at once."""
        told = told_length(request)
        try:
            # What is told to be too long is refused as that, whether or not there is room for it.
            with self.room.place(address_of(request), told if told <= route.body_bytes else 0) as keep:
                body = await self._body(request, route, keep)
                await self._prove(request, route, headers, body)
                return body
        except Full:
            metrics.hook_received(route.name, "no_room")
            info("hook_refused", route=route.name, result="no_room")
            full = away("too many events are on their way at a time: send it again later", retry_after_s=_ROOM_WAIT_S)
            full.headers |= CLOSE
            raise full from None

    async def _prove(self, request: Request, route: Route, headers: Headers, body: bytes) -> None:
        """Refuse an event that is not genuine; one of an address that fails too often without a look into it."""
        now_s = self.clock()
        if await _looked_at(body, lambda: is_genuine(route.verification, headers, body, now_s)):
            return
        await self._admitted(route, self.rates.count_failure(address_of(request)))
        fault = fault_of_stranger(body)
        metrics.hook_received(route.name, fault.fault)
        info("hook_refused", route=route.name, result=fault.fault)
        raise _refusal(fault)

    async def _admitted(self, route: Route, asked: Awaitable[None]) -> None:
        try:
            await asked
        except Refused as refused:
            metrics.hook_received(route.name, "verification_failed")
            info("hook_refused", route=route.name, result="verification_failed")
            refused.headers |= CLOSE  # whether or not its body was read
            raise

    async def _body(self, request: Request, route: Route, keep: Callable[[int], None]) -> bytes:
        try:
            return await read_bytes(request, route.body_bytes, keep=keep)
        except Refused as refused:
            result = "body_too_large" if refused.status == 413 else "body_timeout"
            raise await self._failed(request, route.name, result, refused) from None

    async def _taken(self, route: Route, wanted: Wanted) -> Response:
        try:
            taken = await store.take(self.settings, self.client, route, wanted, self.wake)
        except QuotaSpent as spent:
            metrics.hook_received(route.name, "rate_limited")
            wait_s = max(1, ceil(spent.wait_s))
            message = f"at most {route.rate_per_minute} events of this route are taken a minute; send it again later"
            raise Refused("rate_limited", message, headers={"Retry-After": str(wait_s)}) from None
        except (SessionBusy, InterruptBarred):
            metrics.hook_received(route.name, "session_busy")
            message = f"a turn of the session goes on, and route {route.name} lets it: send the event again later"
            raise Refused("busy", message, headers={"Retry-After": str(_BUSY_WAIT_S)}) from None
        except ConfigurationError:  # whose words may repeat what was filled in
            metrics.hook_received(route.name, "payload_refused")
            raise Refused("invalid", "the payload makes no message that can be taken") from None
        except Exception as error:
            metrics.hook_received(route.name, _result_of(error))
            raise
        if taken.duplicate:
            metrics.hook_received(route.name, "duplicate_delivery")
            return _ignored(route, wanted, "duplicate_delivery", turn=taken.turn, session=taken.session)
        metrics.hook_received(route.name, "accepted")
        answer = HookAnswer(
            status="accepted",
            route=route.name,
            event_type=wanted.event_type,
            delivery_id=wanted.delivery_id,
            turn=taken.turn,
            session=taken.session,
        )
        return json_response(answer, 202)

    async def _failed(self, request: Request, route: str, result: str, refused: Refused) -> Refused:
        """The refusal, once it was counted. Raises the one of an address that fails too often."""
        metrics.hook_received(route, result)
        info("hook_refused", route=route, result=result)
        await self.rates.count_failure(address_of(request))
        return refused


async def _looked_at(body: bytes, look: Callable[[], T]) -> T:
    return look() if len(body) <= _SMALL_BYTES else await asyncio.to_thread(look)


def _ignored(
    route: Route,
    event: Wanted | Filtered,
    reason: Literal["event_filtered", "duplicate_delivery"],
    turn: str | None = None,
    session: str | None = None,
) -> Response:
    answer = HookAnswer(
        status="ignored",
        reason=reason,
        route=route.name,
        event_type=event.event_type,
        delivery_id=event.delivery_id,
        turn=turn,
        session=session,
    )
    return json_response(answer, 202)


def _refusal(met: Faulty) -> Refused:
    match met.fault:
        case "invalid_json":
            return Refused("not_json", met.message)
        case "verification_failed":
            return Refused("unauthorized", met.message, headers={"WWW-Authenticate": _REALM})
        case "payload_refused":
            return Refused("invalid", met.message)


def _result_of(error: Exception) -> str:
    if isinstance(error, StoreFull):
        return "store_full"
    return "store_unavailable" if isinstance(error, StoreUnavailable) or is_unanswered(error) else "internal"


def _headers(request: Request) -> Headers:
    headers: dict[str, list[bytes]] = {}
    for name, value in request.headers.raw:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value)
    return headers
