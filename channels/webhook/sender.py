"""One attempt to post a delivery to its webhook.

What belongs here: the request, its hard deadline, and what an answer means. What must not be known here: where
deliveries and turns are stored, when the next attempt is made.

The bytes that are signed are the bytes that are sent; timestamp and signature are fresh on each attempt, the id is the
delivery's own. The deadline holds for everything from the lookup of the name to the end of the body.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx

from channels.delivery.model import Deferred, Delivered, Delivery, Outcome, Rejected, Unsent
from channels.webhook.payload import TurnEnd, render
from channels.webhook.signature import signed_headers
from worker.errors import ConfigurationError
from worker.http import HTTP_FAULTS, address_of, classify, read_start, retry_after_s

MAX_BODY_BYTES = 65536

# The status has decided; the rest of the answer is read only so that the connection can be used again.
_BODY_GRACE_S = 1.0

_TRY_AGAIN = frozenset({408, 425, 429})
_HOPELESS = frozenset({"invalid_url", "bad_header", "bad_redirect"})
"""Faults that only a person can mend. All others may pass: certificates are renewed, and proxies come back."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a delivery goes. `keys`: signing keys, newest first. `headers`: what the subscriber wants added."""

    url: str = field(repr=False)
    keys: tuple[bytes, ...] = field(repr=False)
    headers: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What a delivery tells: the end of a turn, and when it was (UTC milliseconds)."""

    at_ms: int
    end: TurnEnd


class WebhookSender:
    """Sends deliveries, each within `deadline_s` seconds.

    `target`: where a destination is; raises `ConfigurationError`, and OSError for a file that it cannot use just now.
    `sealed`: reads a turn's end; None when it is not known any more. `clock`: unix seconds, as receivers count them.
    """

    def __init__(
        self,
        client: httpx.AsyncClient,
        *,
        deadline_s: float,
        target: Callable[[str], Target],
        sealed: Callable[[str], Awaitable[Sealed | None]],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._deadline_s = deadline_s
        self._target = target
        self._sealed = sealed
        self._clock = clock

    async def send(self, delivery: Delivery, lease_ends: float) -> Outcome | Unsent:
        """Make one attempt, unless the rest of the lease is shorter than the deadline.

        `lease_ends`: by the loop's clock. Raises only what reading the turn raises.
        """
        try:
            target = self._target(delivery.destination)
        except ConfigurationError as error:
            return Rejected("unknown_destination", str(error), "no")
        except OSError as error:
            return Deferred(None, "cannot_sign", str(error), "no")
        sealed = await self._sealed(delivery.turn)
        if sealed is None:
            return Rejected("turn_expired", f"turn {delivery.turn} is not stored any more", "no")
        body = render(delivery.event_type, sealed.at_ms, sealed.end)
        if lease_ends - asyncio.get_running_loop().time() <= self._deadline_s:
            return Unsent("the rest of the lease is shorter than an attempt may last")
        headers = httpx.Headers(target.headers)
        headers["content-type"] = "application/json"
        headers.update(signed_headers(target.keys, delivery.id, int(self._clock()), body))
        return await self._post(target.url, headers, body)

    async def _post(self, url: str, headers: httpx.Headers, body: bytes) -> Outcome:
        outcome: Outcome | None = None
        limit = asyncio.timeout(self._deadline_s)
        try:
            async with limit, self._client.stream("POST", url, headers=headers, content=body) as response:
                outcome = meaning_of(response)
                await read_start(response.aiter_raw(), MAX_BODY_BYTES, _BODY_GRACE_S)
        except HTTP_FAULTS as error:
            if outcome is not None:
                return outcome
            if limit.expired():
                message = f"{address_of(httpx.URL(url))} gave no answer within {self._deadline_s:g} s"
                return Deferred(None, "timeout", message, "perhaps")
            fault = classify(error)
            if fault.code in _HOPELESS:
                return Rejected(fault.code, fault.message, fault.sent)
            return Deferred(None, fault.code, fault.message, fault.sent)
        return outcome


def meaning_of(response: httpx.Response) -> Outcome:
    """What an answer says about its delivery, by its status alone."""
    status, at = response.status_code, address_of(response.request.url)
    code, message = f"http_{status}", f"{at} answered {status}"
    if 200 <= status < 300:
        return Delivered(status)
    if 300 <= status < 400:
        return Rejected("redirect", f"{message}, a redirect {_to(response)}; give the URL that answers itself")
    if status in _TRY_AGAIN or status >= 500:
        return Deferred(retry_after_s(response.headers), code, message, "yes")
    if status == 410:
        message += ": the receiver is gone for good; remove it from the subscribers"
    return Rejected(code, message)


def _to(response: httpx.Response) -> str:
    location = response.headers.get("location", "")
    try:
        return f"to {address_of(response.request.url.join(location))}" if location else "to nowhere"
    except httpx.InvalidURL:
        return "to an address that cannot be read"
