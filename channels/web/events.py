"""The route of live readers.

What belongs here: what a request to read along says, and how many may. What must not be known here: what a reader is
sent.
"""

from collections import Counter
from collections.abc import Callable
from functools import reduce
from operator import or_

import redis.asyncio
from starlette.responses import Response

from channels.settings import Settings
from channels.web import metrics
from channels.web.errors import Refused, away
from channels.web.event_stream import EventStream
from channels.web.live import LiveOutputs
from channels.web.operations import FILTERS
from channels.web.reader import DELTAS, Reader
from channels.web.tail import Tail
from channels.web.turns import visible_turn
from channels.web.way import Call
from worker.output.filters import OutputFilter
from worker.output.snapshot import parse_place


class EventRoutes:
    """GET /v1/turns/{turn}/events."""

    def __init__(self, settings: Settings, client: redis.asyncio.Redis, live: LiveOutputs) -> None:
        self._settings = settings
        self._client = client
        self._live = live
        self._readers: Counter[str] = Counter()

    async def read(self, call: Call) -> Response:
        """Answer with the events of a turn, as they come."""
        if self._live.closing:
            raise away("this process ends: go on at another one", "draining", 1)
        wanted = _filter(call.request.query_params.get("filter"))
        record = await visible_turn(self._client, self._settings, call)
        named = call.request.headers.get("last-event-id", "")
        last = parse_place(named)
        tail = Tail(record.turn, self._live.held, admission=call.token.id, deltas=bool(wanted & DELTAS))
        reader = Reader(self._client, self._live, tail, wanted)
        if last is not None and await reader.starts_after_end(last):
            return Response(status_code=204)  # which tells a browser's EventSource to stop coming back
        leave = self._enter(call.token.id)
        events = reader.events(last, is_anew=not named, keepalive_s=self._settings.web.keepalive_s)
        return EventStream(events, self._settings.web.write_timeout_s, leave)

    def _enter(self, token: str) -> Callable[[], None]:
        limits = self._settings.web
        if self._readers.total() >= limits.readers:
            raise away("this process has as many readers as it may (web.readers)", "too_many_readers", 5)
        if self._readers[token] >= limits.readers_per_token:
            message = "this token has as many readers as it may (web.readers_per_token)"
            raise away(message, "too_many_readers", 5)
        self._readers[token] += 1
        metrics.reader_came()

        def leave() -> None:
            metrics.reader_left()
            self._readers[token] -= 1
            if not self._readers[token]:
                del self._readers[token]

        return leave


def _filter(text: str | None) -> OutputFilter:
    if text is None:
        return OutputFilter.FULL
    names = [name.strip().upper() for name in text.split(",") if name.strip()]
    known = {**OutputFilter.__members__}
    for name in names:
        if name not in known:
            raise Refused(
                "invalid", f"filter: {name[:40].lower()!r} is none; use {FILTERS}, between commas", field="filter"
            )
    return reduce(or_, (known[name] for name in names), OutputFilter.NONE)
