"""A client of the attempt benchmark: makes as many attempts as a line of its standard input says, in one way.

What belongs here: the ways. What must not be known here: how the figures are shown.
"""

import asyncio
import json
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

import aiohttp
import uvloop

from channels.delivery.model import Delivered, Delivery
from channels.endpoints.model import Endpoint, SigningKey
from channels.webhook.attempt import Attempts
from channels.webhook.sender import Parcel, WebhookSender
from channels.webhook.sessions import Sessions
from worker.guard import guard_operator
from worker.http import open_client, trusting_context
from worker.network_section import EgressSettings

IN_FLIGHT = 8
BODY = json.dumps({"type": "turn.completed", "data": {"text": "x" * 950}}).encode()
HEADERS = {
    "content-type": "application/json",
    "webhook-id": "dlv_00" + "a" * 20,
    "webhook-timestamp": "1790000000",
    "webhook-signature": "v1," + "s" * 44,
    "user-agent": "lastword",
    "accept-encoding": "identity",
}
DELIVERY = Delivery(HEADERS["webhook-id"], "evt_1", "turn_1", "turn.completed", "crm", 1, 1)

Post = Callable[[], Awaitable[None]]


class Opened:
    """The ways of posting, opened within the stack."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self._url = url
        self._stack = stack

    async def plain(self) -> Post:
        """A bare session."""
        session = await self._stack.enter_async_context(self._session())

        async def post() -> None:
            async with session.post(self._url, data=BODY, headers=HEADERS) as response:
                await response.read()

        return post

    async def providers(self) -> Post:
        """The client that providers are asked with."""
        client = await self._stack.enter_async_context(
            open_client(connect_timeout_s=5, guard=guard_operator(EgressSettings()))
        )

        async def post() -> None:
            async with asyncio.timeout(5):
                await client.post(self._url, content=BODY, headers=HEADERS)

        return post

    async def attempt(self) -> Post:
        """An attempt, with its deadline and evidence."""
        attempts, endpoint = self._attempts(), self._endpoint()

        async def post() -> None:
            assert isinstance(await attempts.post(endpoint, HEADERS, BODY), Delivered)

        return post

    async def send(self) -> Post:
        """The whole of what a sender does for a delivery."""
        sender = WebhookSender(self._attempts(), find=_nobody, bodies=_nobody, clock=_now)
        parcel, ends = Parcel(self._endpoint(), BODY), asyncio.get_running_loop().time() + 1e6

        async def post() -> None:
            assert isinstance(await sender.send(DELIVERY, parcel, ends), Delivered)

        return post

    def _attempts(self) -> Attempts:
        attempts = Attempts(
            Sessions(direct=self._session, proxied=self._session, context=trusting_context), capture_bytes=16384
        )
        self._stack.push_async_callback(attempts.close)
        return attempts

    def _endpoint(self) -> Endpoint:
        return Endpoint("crm", self._url, "file", (SigningKey("v1", b"k" * 32),))

    def _session(self, context: ssl.SSLContext | None = None) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4, ssl=context or True)
        return aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())


async def _nobody(_: object) -> list[Any]:
    return []


def _now() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251 - receivers count by the wall clock


async def run(way: str, url: str) -> None:
    """Serve the standard input."""
    async with AsyncExitStack() as stack:
        post: Post = await getattr(Opened(url, stack), way)()
        while line := await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await figures(post, int(line))), flush=True)


async def figures(post: Post, count: int) -> dict[str, float]:
    """Make so many attempts, some of them at a time; CPU and time of each, in milliseconds."""
    left = iter(range(count))

    async def some() -> None:
        for _ in left:
            await post()

    cpu, wall = time.process_time(), time.monotonic()
    async with asyncio.TaskGroup() as group:
        for _ in range(IN_FLIGHT):
            group.create_task(some())
    return {
        "cpu_ms": (time.process_time() - cpu) * 1000 / count,
        "wall_ms": (time.monotonic() - wall) * 1000 / count,
    }


if __name__ == "__main__":
    _, way, loop, port = sys.argv
    start = uvloop.run if loop == "uvloop" else asyncio.run
    start(run(way, f"http://127.0.0.1:{port}/hook"))
