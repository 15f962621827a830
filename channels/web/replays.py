"""Bulk replays over HTTP: starting one, seeing how far it is, pausing and ending it.

What belongs here: what requests mean to bulk replays, and these in the API's words. What must not be known here: how a
replay runs.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TypeVar, cast

import redis.asyncio
from starlette.responses import Response

from channels.delivery.replay import Filters, Job
from channels.replays import starting, stored
from channels.replays.starting import EndpointStopped
from channels.replays.stored import UnknownReplay
from channels.settings import Settings
from channels.web.deliveries import check_whole, destination_shown
from channels.web.delivery_models import ReplayList, ReplayRequest, ReplayShown
from channels.web.errors import Refused, json_response
from channels.web.operation import DEFAULT_LIMIT, MOST_LISTED
from channels.web.turns import number
from channels.web.way import Call
from worker.errors import ConfigurationError
from worker.store import clock

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReplayRoutes:
    """The routes of bulk replays."""

    settings: Settings
    client: redis.asyncio.Redis

    async def start(self, call: Call) -> Response:
        """POST /v1/replays."""
        check_whole(call)
        asked = cast("ReplayRequest", call.body)
        filters = Filters(
            tuple(asked.states),
            asked.since_ms or 0,
            asked.until_ms or 0,
            asked.endpoint or "",
            tuple(asked.types),
            asked.turn or "",
        )
        now_ms = await clock.now_ms(self.client)
        bounds = self.settings.delivery.replay_bounds
        job = await _told(
            starting.start(self.client, filters, asked.rate_per_s, now_ms, by=call.token.name, bounds=bounds)
        )
        return json_response(_shown(call, job), 202, {"Location": f"/v1/replays/{job.id}"})

    async def list(self, call: Call) -> Response:
        """GET /v1/replays."""
        check_whole(call)
        found = await stored.listed(self.client, number(call, "limit", DEFAULT_LIMIT, 1, MOST_LISTED))
        return json_response(ReplayList(replays=[_shown(call, job) for job in found]))

    async def read(self, call: Call) -> Response:
        """GET /v1/replays/{replay}."""
        check_whole(call)
        return json_response(_shown(call, await _told(stored.show(self.client, _id(call)))))

    async def pause(self, call: Call) -> Response:
        """POST /v1/replays/{replay}/pause."""
        check_whole(call)
        job = await _told(stored.pause(self.client, _id(call), f"paused by {call.token.name}"))
        return json_response(_shown(call, _in_state(job, "paused")))

    async def resume(self, call: Call) -> Response:
        """POST /v1/replays/{replay}/resume."""
        check_whole(call)
        job = await _told(stored.resume(self.client, _id(call)))
        return json_response(_shown(call, _in_state(job, "running")))

    async def cancel(self, call: Call) -> Response:
        """POST /v1/replays/{replay}/cancel."""
        check_whole(call)
        job = await _told(stored.cancel(self.client, _id(call), f"cancelled by {call.token.name}"))
        return json_response(_shown(call, _in_state(job, "cancelled")))


def _id(call: Call) -> str:
    replay: str = call.request.path_params["replay"]
    return replay


def _in_state(job: Job, state: str) -> Job:
    if job.state != state:
        raise Refused("refused", f"replay {job.id} is {job.state}: it has ended", field="replay", reason=job.state)
    return job


async def _told(step: Awaitable[T]) -> T:
    """What a step gives, or what it refuses in the API's words."""
    try:
        return await step
    except UnknownReplay as error:
        raise Refused("not_found", str(error), field="replay") from None
    except EndpointStopped as error:
        raise Refused("refused", str(error), field="endpoint") from None
    except ConfigurationError as error:
        first = str(error).split()[0]
        field = {"since": "since_ms", "rate": "rate_per_s"}.get(first, first)
        raise Refused("invalid", str(error), field=field if field in ReplayRequest.model_fields else None) from None


def _shown(call: Call, job: Job) -> ReplayShown:
    filters = job.filters
    same = ("id", "state", "why", "by", "rate_per_s", "most", "found", "replayed", "skipped", "created_ms")
    return ReplayShown(
        **{name: getattr(job, name) for name in same},
        ended_ms=job.ended_ms or None,
        states=list(filters.states),
        endpoint=destination_shown(call, filters.destination) or None,
        types=list(filters.event_types),
        turn=filters.turn or None,
        since_ms=filters.since_ms,
        until_ms=filters.until_ms,
    )
