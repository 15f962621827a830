"""Sends deliveries to their endpoints: a batch is prepared with few questions, then each is signed and posted.

What belongs here: who is asked for what, the headers of a request, and that one delivery's bad configuration fails that
delivery only. What must not be known here: where endpoints, turns and deliveries are stored, sockets, when the next
attempt is made.

The bytes that are signed are the bytes that are sent; timestamp and signature are fresh on each attempt, and of the
endpoint's keys those sign that count at that moment, or did just before. The id is the delivery's own.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from channels.delivery.model import Delivered, Delivery, Failed, Hopeless, Outcome, Unsent, Withdrawn
from channels.endpoints.headers import check_headers
from channels.endpoints.model import Endpoint
from channels.webhook.attempt import Attempts
from channels.webhook.signature import TOLERANCE_S, signed_headers
from worker.errors import ConfigurationError, LocalProtocolError, NewerRecord, StoreUnavailable

Found = Endpoint | Withdrawn | Failed
Find = Callable[[Sequence[str]], Awaitable[Sequence[Found]]]
"""Endpoints of destinations, in their order."""

Bodies = Callable[[Sequence[tuple[Delivery, bool]]], Awaitable[Sequence[bytes | Hopeless | Unsent]]]
"""What deliveries tell, in their order; True: in full."""

_NEWER_S = 5.0
"""For so long a delivery that only a newer release can read is left to others."""

_CLOCKS_APART_MS = TOLERANCE_S * 1000
"""The end of a key is set by the store's clock and judged by ours. A key signs so much longer, so that none ends early:
no receiver takes a request of a clock that is further ahead. An overlap of 0, after a leak, removes the key itself."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """A delivery made ready: where it goes, and its body."""

    endpoint: Endpoint
    body: bytes = field(repr=False)


class WebhookSender:
    """Sends deliveries. `clock`: unix seconds, as receivers count them."""

    def __init__(self, attempts: Attempts, *, find: Find, bodies: Bodies, clock: Callable[[], float]) -> None:
        self._attempts = attempts
        self._find = find
        self._bodies = bodies
        self._clock = clock

    async def prepare(self, batch: Sequence[Delivery]) -> Sequence[Parcel | Outcome | Unsent]:
        """What to send for each delivery, in order, or why nothing can be."""
        try:
            return await self._prepared(batch)
        except StoreUnavailable as error:
            unsent = Unsent(str(error))
        except NewerRecord:
            unsent = Unsent("what it tells was written by a newer release: left to a process of that release", _NEWER_S)
        return [unsent] * len(batch)

    async def _prepared(self, batch: Sequence[Delivery]) -> Sequence[Parcel | Outcome | Unsent]:
        names = list(dict.fromkeys(delivery.destination for delivery in batch))
        found = dict(zip(names, await self._find(names), strict=True))
        targets = [found[delivery.destination] for delivery in batch]
        asked = [(each, to.full) for each, to in zip(batch, targets, strict=True) if isinstance(to, Endpoint)]
        bodies = iter(await self._bodies(asked) if asked else ())
        return [_parcel(to, next(bodies)) if isinstance(to, Endpoint) else to for to in targets]

    async def send(self, delivery: Delivery, prepared: Parcel, lease_ends: float) -> Delivered | Failed | Unsent:
        """Make one attempt, unless the rest of the lease is shorter than it may last.

        `lease_ends`: by the loop's clock.
        """
        endpoint = prepared.endpoint
        if lease_ends - asyncio.get_running_loop().time() <= endpoint.timeout_s:
            return Unsent("the rest of the lease is shorter than an attempt may last")
        now = self._clock()
        now_ms = int(now * 1000)
        try:
            headers = {**own_headers(endpoint.headers), "content-type": "application/json"}
            headers |= signed_headers(endpoint.keys, delivery.id, int(now), prepared.body, now_ms - _CLOCKS_APART_MS)
        except ConfigurationError as error:
            return Failed("permanent", "bad_header", str(error), "no")
        except LocalProtocolError as error:
            return Failed("ours", "cannot_sign", str(error), "no")
        headers |= {"user-agent": "lastword", "accept-encoding": "identity"}
        return await self._attempts.post(endpoint, headers, prepared.body)

    async def close(self) -> None:
        """Close every connection."""
        await self._attempts.close()


def _parcel(endpoint: Endpoint, body: bytes | Hopeless | Unsent) -> Parcel | Hopeless | Unsent:
    return Parcel(endpoint, body) if isinstance(body, bytes) else body


@lru_cache(1024)
def own_headers(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """An endpoint's own headers, with names in lower case. Raises `ConfigurationError`, which never repeats a value."""
    check_headers("headers", dict(headers))
    return {name.lower(): value for name, value in headers}
