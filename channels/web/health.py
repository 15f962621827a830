"""What a supervisor asks: whether the process lives, whether it should be sent requests, what is counted.

What belongs here: these answers. What must not be known here: what the process does.
"""

import asyncio
from time import monotonic
from typing import Any

import redis
import redis.asyncio
from starlette.responses import Response

from channels import exposition
from channels.settings import Settings
from channels.web.errors import Refused, json_response
from channels.web.live import LiveOutputs
from channels.web.models import Alive, Ready
from channels.web.way import Call
from worker.store.repeat import UNANSWERED

_ANSWER_LIMIT_S = 2.0
_FIGURES_KEPT_S = 1.5


class HealthRoutes:
    """GET /livez, /readyz and /metrics."""

    def __init__(self, settings: Settings, client: redis.asyncio.Redis, live: LiveOutputs) -> None:
        self._settings = settings
        self._client = client
        self._live = live
        self._scrape = asyncio.Lock()
        self._figures = b""
        self._figures_at = -_FIGURES_KEPT_S

    async def livez(self, _: Call) -> Response:
        """The loop runs, or nobody would answer."""
        return json_response(Alive())

    async def readyz(self, _: Call) -> Response:
        """Whether Redis answers and keeps what it is told, and this process goes on."""
        reasons = ["draining"] if self._live.closing else []
        reasons += await self._faults_of_redis()
        answer = Ready(status="not_ready" if reasons else "ready", reasons=reasons)
        return json_response(answer, 503 if reasons else 200)

    async def metrics(self, _: Call) -> Response:
        """What all living processes have counted, and what the store holds."""
        try:
            async with self._scrape:  # one at a time; who waits for another's gets what that one got
                if monotonic() >= self._figures_at + _FIGURES_KEPT_S:
                    self._figures = await exposition.render(self._client, self._settings)
                    self._figures_at = monotonic()
        except UNANSWERED:
            raise Refused("unavailable", "Redis did not answer: there are no figures without it") from None
        return Response(self._figures, media_type=exposition.CONTENT_TYPE)

    async def _faults_of_redis(self) -> list[str]:
        try:
            async with asyncio.timeout(_ANSWER_LIMIT_S):
                persistence: Any = await self._client.info("persistence")
        except (redis.RedisError, OSError, TimeoutError):
            return ["redis_does_not_answer"]
        faults = []
        if persistence.get("loading"):
            faults.append("redis_is_loading")
        if persistence.get("aof_enabled"):
            if persistence.get("aof_last_write_status", "ok") != "ok":
                faults.append("redis_cannot_write_its_file")
        elif persistence.get("rdb_last_bgsave_status", "ok") != "ok":
            faults.append("redis_cannot_write_its_file")
        return faults
