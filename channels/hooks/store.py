"""Taking an event: durable before it is acknowledged, once for each delivery, within the route's rate.

What belongs here: asking the worker for the turn, and what its answers mean for a delivery. What must not be known
here: HTTP, how the store does it, how an event was checked.

Dedupe, rate and the turn itself are one step of the store: there is no moment at which one is known without the others,
and each survives whatever dies. So who sends an event again until he is answered makes one turn.
"""

from collections.abc import Callable
from dataclasses import dataclass

import redis.asyncio

from channels.hooks.route import Route, Wanted
from worker import api
from worker.observability import info, warn
from worker.settings import WorkerSettings
from worker.store.inbox import IdempotencyConflict, Quota, Terms

_MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Taken:
    """The turn of an event. `session` None: of a duplicate whose first delivery made another message of it."""

    turn: str
    session: str | None
    duplicate: bool


async def take(
    settings: WorkerSettings, client: redis.asyncio.Redis, route: Route, wanted: Wanted, wake: Callable[[str], None]
) -> Taken:
    """Make an event a turn, on disk when this returns.

    Raises what `worker.api.submit` raises, `IdempotencyConflict` aside: the delivery id alone says what is a duplicate.
    """
    try:
        submitted = await api.submit(
            settings,
            client,
            prompt=wanted.prompt,
            source=route.source,
            wake=wake,
            agent=route.agent,
            session=wanted.session,
            labels=wanted.labels,
            destinations=route.destinations,
            idempotency_key=wanted.key,
            terms=Terms(wanted.key_s, Quota(route.source, route.rate_per_minute, _MINUTE_S)),
            on_busy=route.on_busy,
            interrupts=route.agent,
        )
    except IdempotencyConflict as conflict:
        warn("hook_delivery_differs", route=route.name, turn=conflict.turn)
        return Taken(conflict.turn, None, duplicate=True)
    if not submitted.duplicate:
        info("hook_accepted", route=route.name, turn=submitted.turn, session=submitted.session)
    return Taken(submitted.turn, submitted.session, submitted.duplicate)
