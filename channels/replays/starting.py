"""Starting bulk replays: of what a person chooses, and of what an endpoint held while it was paused.

What belongs here: what such a replay is of. What must not be known here: how it is taken on.
"""

from dataclasses import replace

import redis.asyncio

from channels.delivery import replay as decided
from channels.delivery.model import lane_of
from channels.delivery.replay import DAY_MS, Bounds, Filters, Job
from channels.outbox import lanes, reading
from channels.replays.stored import create, new_id
from channels.webhook.address import shown
from worker.errors import ConfigurationError

RATE = 20.0
"""Deliveries a second, where nobody says how many."""

RELEASE_RATE = 100.0
"""As fast goes what was held: the limits of its endpoint hold it up anyhow."""


class EndpointStopped(ConfigurationError):
    """It is paused or disabled: what it holds would be held again at once."""


async def start(  # noqa: PLR0913 - what a replay is made of
    client: redis.asyncio.Redis, filters: Filters, rate_per_s: float, now_ms: int, *, by: str, bounds: Bounds
) -> Job:
    """Make a new replay, which is taken on from now on. `by`: who asked for it. `now_ms`: the store's time.

    `since_ms` 0 is as far back as one may reach. Raises `ConfigurationError` for what no replay may be, and
    `EndpointStopped`.
    """
    if not filters.since_ms:
        filters = replace(filters, since_ms=now_ms - round(bounds.days * DAY_MS))
    job = decided.new(new_id(), filters, rate_per_s, now_ms, by=by, bounds=bounds)
    if "held" in filters.states and filters.destination:
        lane = lane_of(filters.destination)
        standing = (await lanes.standings(client, [lane]))[lane].standing
        if standing != "active":
            raise EndpointStopped(
                f"endpoint {shown(filters.destination)} is {standing}: what it holds would be held again; resume or "
                "enable it first"
            )
    return await create(client, job)


async def release(client: redis.asyncio.Redis, endpoint: str, now_ms: int, *, by: str, bounds: Bounds) -> Job | None:
    """Replay all that an endpoint held while it was paused or disabled, however long ago. None: it holds nothing.

    To be called once the endpoint is active again, with the store's time of then. `bounds`: no more deliveries than
    that at once.
    """
    now_ms += 1  # it takes also what was made in this very millisecond
    oldest_ms = await reading.held_since(client, lane_of(endpoint))
    if oldest_ms is None:
        return None
    since_ms = min(oldest_ms, now_ms - 1)
    filters = Filters(("held",), since_ms, 0, endpoint)
    bounds = replace(bounds, days=(now_ms - since_ms) / DAY_MS + 1)
    return await start(client, filters, RELEASE_RATE, now_ms, by=by, bounds=bounds)
