"""Attempts over plain sessions: what tests of the sender post with.

What belongs here: opening, counting and closing. What must not be known here: what is expected of an attempt.
"""

import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from channels.delivery.model import Delivered, Failed
from channels.endpoints.model import Endpoint, SigningKey
from channels.webhook.attempt import Attempts
from channels.webhook.proxied import CheckTarget, Judge
from channels.webhook.sessions import MOST, Sessions

KEY = b"k" * 32


def endpoint(url: str, **values: Any) -> Endpoint:
    """An endpoint with one key."""
    return Endpoint(**({"name": "crm", "url": url, "origin": "file", "keys": (SigningKey("v1", KEY),)} | values))


def trusting_nobody() -> ssl.SSLContext:
    """Quickly made: the bundled certificates take some time to read."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Opened:
    """Opens sessions. `sessions`: those it opened; `contexts`: with which TLS."""

    def __init__(
        self,
        resolver: aiohttp.abc.AbstractResolver | None = None,
        socket_factory: Callable[..., socket.socket] | None = None,
    ) -> None:
        self.sessions: list[aiohttp.ClientSession] = []
        self.contexts: list[ssl.SSLContext] = []
        self._resolver = resolver
        self._socket_factory = socket_factory

    def __call__(self, context: ssl.SSLContext) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=4, ssl=context, resolver=self._resolver, socket_factory=self._socket_factory
        )
        session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        self.sessions.append(session)
        self.contexts.append(context)
        return session

    @property
    def still_open(self) -> list[aiohttp.ClientSession]:
        """Those that are not closed."""
        return [session for session in self.sessions if not session.closed]


@asynccontextmanager
async def attempts(
    *,
    resolver: aiohttp.abc.AbstractResolver | None = None,
    direct: Opened | None = None,
    proxied: Opened | None = None,
    check_target: CheckTarget | None = None,
    proxy_looks_up: bool = False,
    context: Callable[[], ssl.SSLContext] = trusting_nobody,
    most: int = MOST,
) -> AsyncIterator[Attempts]:
    """Attempts for the running loop."""
    sessions = Sessions(
        direct=direct or Opened(resolver), proxied=proxied or Opened(resolver), context=context, most=most
    )
    judge = None if check_target is None else Judge(check_target, looks_up=proxy_looks_up)
    made = Attempts(sessions, judge=judge)
    try:
        yield made
    finally:
        await made.close()


async def one(url: str, *, timeout_s: float = 5.0, body: bytes = b"{}", **values: Any) -> Delivered | Failed:
    """The outcome of one attempt."""
    async with attempts() as made:
        return await made.post(endpoint(url, timeout_s=timeout_s, **values), {"x-test": "1"}, body)
