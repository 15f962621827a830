"""The sockets under the HTTP client: httpx's transport on aiohttp, with what both leave open closed.

What belongs here: connections, and repairs of the two libraries. What must not be known here: what is sent, what an
error means.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from worker.connection import Connection, connect_by
from worker.connector import Connector, Room
from worker.guard import Guard, GuardedResolver

_DNS_KEPT_S = 10
_PART_BYTES = 256 * 1024


def open_transport(
    idle_s: float, max_connections: int | None, guard: Guard, ssl_context: ssl.SSLContext
) -> httpx.AsyncBaseTransport:
    """A transport for the running event loop. `idle_s`: how long an unused connection is kept, in seconds."""

    def session() -> aiohttp.ClientSession:
        return open_session(idle_s, max_connections, guard, ssl_context)

    return _Transport(verify=ssl_context, trust_env=False, client=session)


def open_session(
    idle_s: float, max_connections: int | None, guard: Guard, ssl_context: ssl.SSLContext, *, room: Room | None = None
) -> aiohttp.ClientSession:
    """A session for the running event loop, which dials what `guard` allows. It keeps no cookie and asks no proxy.

    It follows redirects unless each request says otherwise; `guard` judges where they lead. A request may bring a TLS
    context of its own. What a lookup gave is kept for 10 s; every dial of it is checked again. `room`: where its
    connections count; without one, in a room of its own.
    """
    connector = Connector(
        room or Room(),
        limit=max_connections or 0,
        keepalive_timeout=idle_s,
        ssl=ssl_context,
        resolver=GuardedResolver(guard),
        ttl_dns_cache=_DNS_KEPT_S,
        socket_factory=guard.socket,
    )
    cookies = aiohttp.DummyCookieJar()
    session = aiohttp.ClientSession(connector=connector, cookie_jar=cookies, response_class=_BoundResponse)
    connect_by(session, Connection)
    return session


class _Transport(AiohttpTransport):
    """Hands a large body over in parts: written at once, it would hold up every other stream of the process."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if len(request.content) > _PART_BYTES:
            request = httpx.Request(
                request.method,
                request.url,
                headers=request.headers,
                stream=_Parts(request.content),
                extensions=request.extensions,
            )
        return await super().handle_async_request(request)


class _Parts(httpx.AsyncByteStream):
    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._body), _PART_BYTES):
            yield self._body[start : start + _PART_BYTES]


class _BoundResponse(aiohttp.ClientResponse):
    """A response that shares its connection's end: dropping one drops the other at once.

    An event stream takes its connection with it, however it ended: the next attempt of a stream that died must not
    wait on what may be a dead connection, and one that was whole is mostly dropped before its last byte anyway.

    aiohttp 3.14 leaves both halves open. A body that breaks HTTP closes the connection without a word to the reader,
    who waits for ever. And closing a response first sends what is left of the request, which a frozen peer never takes.
    """

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        beneath = connection.protocol
        await super().start(connection)
        protocol = connection.protocol
        if beneath is not None and _is_event_stream(self.headers):
            beneath.force_close()
            if protocol is None:  # all of the body had come with the head, so the connection was given back already
                beneath.close()
        closed = None if protocol is None else protocol.closed
        if closed is not None and not self.content.is_eof():
            closed.remove_done_callback(_look_at)
            closed.add_done_callback(_look_at)
            closed.add_done_callback(self._end_body)
            self.content.on_eof(lambda: closed.remove_done_callback(self._end_body))
        return self

    def _end_body(self, _closed: asyncio.Future[None]) -> None:
        if not self.content.is_eof() and self.content.exception() is None:
            self.content.set_exception(aiohttp.ClientPayloadError("the body breaks HTTP"))

    def close(self) -> None:
        self._abort()
        super().close()

    def release(self) -> Any:
        if not self.content.is_eof():
            self._abort()
        return super().release()

    def _abort(self) -> None:
        transport = None if self.connection is None else self.connection.transport
        if transport is not None:
            transport.abort()


def _is_event_stream(headers: Mapping[str, str]) -> bool:
    """Whether the head says so. Of what a peer says no more is read than that takes.

    aiohttp's `content_type` is Python's reader of mails: of 8 kB it can make a second, or an exception.
    """
    return headers.get("content-type", "")[:64].partition(";")[0].strip().lower() == "text/event-stream"


def _look_at(closed: asyncio.Future[None]) -> None:
    """Asyncio logs an exception that nobody looked at; whoever reads the body gets this one anyway."""
    if not closed.cancelled():
        closed.exception()
