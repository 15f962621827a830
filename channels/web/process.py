"""The composition root of a web process: settings become connections, routes and one application.

What belongs here: building and owning the parts. What must not be known here: sockets, signals.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from time import monotonic

import redis.asyncio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from channels.endpoint_desk import EndpointDesk
from channels.hook_checks import missing_receivers
from channels.hooks.settings import routes_of
from channels.settings import Settings
from channels.web import tokens
from channels.web.approvals import ApprovalRoutes
from channels.web.deliveries import DeliveryRoutes
from channels.web.endpoints import EndpointRoutes
from channels.web.errors import Refused
from channels.web.events import EventRoutes
from channels.web.health import HealthRoutes
from channels.web.hooks import HookRoutes
from channels.web.live import READ_BLOCK_MS, LiveOutputs
from channels.web.openapi import document
from channels.web.operations import OPERATIONS
from channels.web.rates import Rates
from channels.web.replays import ReplayRoutes
from channels.web.tail import Held
from channels.web.turns import TurnRoutes
from channels.web.way import Call, Guard, Handler, Traced, way_of
from worker.app import make_app, wake_delivery, wake_session
from worker.engine.presence import Doing, Presence
from worker.engine.wakes import Wakes
from worker.errors import StoreUnavailable
from worker.observability import warn
from worker.store import connect
from worker.store.inbox import ensure_meta
from worker.store.repeat import UNANSWERED, is_unanswered, until_answered

_START_PATIENCE_S = 30.0
_STOP_LIMIT_S = 5.0
_MOST_WAKES = 1_000
"""Wake-ups that wait for a broker that hangs; sweeps find the others."""


class WebProcess:
    """Everything of one web process. Made anywhere; started and stopped on one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._open = AsyncExitStack()

    async def start(self) -> ASGIApp:
        """Connect, waiting up to 30 s for Redis; gives the application.

        Raises `ConfigurationError` for a store of other settings, or with a secret that does not open: here, and not at
        the first send. Raises `StoreUnavailable`.
        """
        settings = self._settings
        client = connect.open_redis(settings.redis())
        reading = connect.open_redis(settings.redis(), block_s=READ_BLOCK_MS / 1000, connections=1)
        for one in (client, reading):
            self._open.push_async_callback(one.aclose)
        desk = EndpointDesk(settings, client)
        await _enter(client, settings, desk)
        loop = asyncio.get_running_loop()
        app = make_app(settings, concurrency=1)
        wakes = Wakes(partial(wake_session, app), most=_MOST_WAKES)
        wakes.start()
        held = Held(settings.web.held_bytes)
        self._live = LiveOutputs(client, reading, held, partial(tokens.still_counting, client))
        self._open.push_async_callback(_ended, loop.create_task(self._live.run()))
        presence = self._tell_of(self._live)
        self._open.push_async_callback(asyncio.to_thread, presence.stop)
        presence.start(loop)
        turns = TurnRoutes(settings, client, wakes.add)
        approvals = ApprovalRoutes(settings, client, wakes.add)
        rates = Rates(client, settings.redis(), settings.web)
        await _warn_of_receivers(client, settings)
        hooks = HookRoutes(settings, routes_of(settings.hooks), client, rates, wakes.add, _unix_s)
        handlers: dict[str, Handler] = {
            "submit_turn": turns.submit,
            "list_turns": turns.list,
            "read_turn": turns.read,
            "cancel_turn": turns.cancel,
            "read_events": EventRoutes(settings, client, self._live).read,
            "receive_event": hooks.receive,
            "list_approvals": approvals.list,
            "decide_approval": approvals.decide,
            **_endpoint_handlers(desk),
            **_delivery_handlers(settings, client, partial(wake_delivery, app)),
            **_health_handlers(HealthRoutes(settings, client, self._live)),
        }
        guard = Guard(client, rates, settings.web.body_bytes)
        return _application(handlers, guard)

    def drain(self) -> None:
        """Be ready no more, and send live readers away. To be called on the event loop."""
        self._live.close()

    async def stop(self) -> None:
        """End what `start` began, whether it came to its end or not."""
        await self._open.aclose()

    def _tell_of(self, live: LiveOutputs) -> Presence:
        settings = self._settings
        client = connect.open_redis_sync(settings.redis())
        own_routes = settings.metrics.model_copy(update={"port": 0})
        return Presence(client, "web", lambda: Doing(live.turns, draining=live.closing), own_routes)


async def _enter(client: redis.asyncio.Redis, settings: Settings, desk: EndpointDesk) -> None:
    """Wait for the store, and see that it is ours and that the secrets in it open."""

    async def look() -> None:
        await ensure_meta(client, settings.partitions)
        await desk.check()

    patience_ends = monotonic() + _START_PATIENCE_S
    try:
        await until_answered(look, lambda: monotonic() < patience_ends)
    except UNANSWERED as error:
        raise StoreUnavailable(f"Redis did not answer within {_START_PATIENCE_S:.0f} s: start it first") from error


async def _ended(reading: asyncio.Task[None]) -> None:
    reading.cancel()
    await asyncio.wait({reading}, timeout=_STOP_LIMIT_S)


async def _warn_of_receivers(client: redis.asyncio.Redis, settings: Settings) -> None:
    """Of those that routes name and nobody is: what goes to them will be cancelled."""
    try:
        missing = await missing_receivers(client, settings)
    except Exception as error:
        if not is_unanswered(error):
            raise
        return  # and the rest of the start says so
    for route, endpoint_name in missing:
        warn("hook_receiver_unknown", route=route, endpoint=endpoint_name)


def _endpoint_handlers(desk: EndpointDesk) -> dict[str, Handler]:
    routes = EndpointRoutes(desk)
    return {
        "create_endpoint": routes.create,
        "list_endpoints": routes.list,
        "read_endpoint": routes.read,
        "update_endpoint": routes.update,
        "delete_endpoint": routes.delete,
        "rotate_endpoint": routes.rotate,
        "pause_endpoint": routes.pause,
        "resume_endpoint": routes.resume,
        "test_endpoint": routes.test,
    }


def _health_handlers(health: HealthRoutes) -> dict[str, Handler]:
    return {
        "openapi": partial(_openapi, bytes(JSONResponse(document()).body)),
        "livez": health.livez,
        "readyz": health.readyz,
        "metrics": health.metrics,
    }


def _delivery_handlers(settings: Settings, client: redis.asyncio.Redis, wake: Callable[[], None]) -> dict[str, Handler]:
    """`wake`: asks a delivery process to look at the outbox; it may block."""
    deliver = Wakes(lambda _: wake(), most=1)
    deliver.start()
    deliveries = DeliveryRoutes(settings, client, partial(deliver.add, "deliveries"))
    replays = ReplayRoutes(settings, client)
    return {
        "list_deliveries": deliveries.list,
        "export_deliveries": deliveries.export,
        "read_delivery": deliveries.read,
        "replay_delivery": deliveries.replay,
        "cancel_delivery": deliveries.cancel,
        "start_replay": replays.start,
        "list_replays": replays.list,
        "read_replay": replays.read,
        "pause_replay": replays.pause,
        "resume_replay": replays.resume,
        "cancel_replay": replays.cancel,
    }


def _application(handlers: dict[str, Handler], guard: Guard) -> ASGIApp:
    routes = []
    for operation in OPERATIONS:
        way = way_of(operation, handlers[operation.name], guard)
        route = Route(operation.path, way, methods=[operation.method], name=operation.name)
        route.methods = {operation.method}  # HEAD would come with GET
        routes.append(route)
    app = Starlette(routes=routes, exception_handlers={404: _nothing_here, 405: _not_so})
    app.router.redirect_slashes = False
    return Traced(app)


def _unix_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251 - senders sign by their own clocks


async def _openapi(body: bytes, _: Call) -> Response:
    return Response(body, media_type="application/json")


async def _nothing_here(_: Request, __: Exception) -> Response:
    return Refused("not_found", "there is nothing at this path: /v1/openapi.json lists what there is").response()


async def _not_so(_: Request, error: Exception) -> Response:
    allowed = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    return Refused("method_not_allowed", "this path does not take that method", headers=allowed).response()
