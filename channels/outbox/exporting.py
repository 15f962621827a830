"""Deliveries as programs get them: those that are wanted, page by page, with what their attempts showed.

What belongs here: choosing, and the form of what an attempt showed. What must not be known here: who reads it.
"""

import base64
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass, field
from typing import Any

import redis.asyncio

from channels.delivery.model import Delivery, Evidence, State
from channels.outbox.reading import Page, evidences, listed

_PAGE = 200
_AT_A_TIME = 20
"""Of so many deliveries what attempts showed is held at a time: each may have kept a few answers."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which deliveries; None and empty: whichever. Times are of their making, in UTC ms; `until_ms` is excluded."""

    state: State | None = None
    destination: str = field(default="", repr=False)
    event_type: str = ""
    turn: str = ""
    since_ms: int | None = None
    until_ms: int | None = None

    async def page(self, client: redis.asyncio.Redis, limit: int, after: str = "") -> Page:
        """At most `limit` of them, the newest first, as `listed`."""
        return await listed(
            client,
            limit,
            state=self.state,
            destination=self.destination,
            event_type=self.event_type,
            turn=self.turn,
            since_ms=self.since_ms,
            until_ms=self.until_ms,
            after=after,
        )


async def exported(
    client: redis.asyncio.Redis, wanted: Wanted
) -> AsyncGenerator[tuple[Delivery, dict[int, Evidence]], None]:
    """All of them, the newest first, each with what its attempts showed by their number."""
    after = ""
    while True:
        page = await wanted.page(client, _PAGE, after)
        for begin in range(0, len(page.deliveries), _AT_A_TIME):
            some = page.deliveries[begin : begin + _AT_A_TIME]
            for one, shown in zip(some, await evidences(client, [one.id for one in some]), strict=True):
                yield one, shown
        after = page.after
        if not after:
            return


def evidence_object(evidence: Evidence) -> dict[str, Any]:
    """What an attempt showed, as JSON takes it: `body` is text where the answer is UTF-8, else `body_base64` has it."""
    told = asdict(evidence)
    body = told.pop("body")
    try:
        return {**told, "body": body.decode(), "body_base64": None}
    except UnicodeDecodeError:
        return {**told, "body": None, "body_base64": base64.b64encode(body).decode()}
