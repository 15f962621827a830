"""How MCP servers are reached over HTTP, and what can go wrong there.

What belongs here: the client that the MCP library is given. What must not be known here: sessions, tools.

The library takes a request that raises for the end of the session, and with it of every call that runs on it. So a
request that got no answer is answered here, with an error that names the reason, and costs only its own call.
"""

import asyncio
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2

from worker.guard import Guard
from worker.tools.mcp_dial import GuardedTransport, blocked

NOT_SENT = -31001
BROKE = -31002
SESSION_GONE = -31003
"""Codes of our own, outside of JSON-RPC's: the request was not sent; it was sent, perhaps, and the answer was lost; the
server does not know our session any more, and has not run anything."""

_SESSION = "mcp-session-id"
_LONGEST_GOODBYE_S = 2.0
_WRITE_S = 60.0
_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)


@dataclass(frozen=True, slots=True)
class HttpFault:
    """The last request that went wrong. `status` None: there was no answer, for the reason `kind`.

    `is_blocked`: the guard let nothing be dialled; `kind` are its words.
    """

    place: str
    status: int | None = None
    kind: str = ""
    is_blocked: bool = False

    def words(self, name: str) -> str:
        """What went wrong, and the fix; never a path, a query or a header. `name`: of the server in the settings."""
        if self.is_blocked:
            return f"{self.place}: {self.kind}; correct mcp.{name}.url"
        if self.status is None:
            return f"no connection to {self.place} ({self.kind}); start the server, or correct mcp.{name}.url"
        if self.status in (401, 403):
            return f"{self.place} refused us (HTTP {self.status}); correct mcp.{name}.headers"
        if self.status in (404, 405):
            return f"there is no MCP server there (HTTP {self.status}); correct mcp.{name}.url, it often ends in /mcp"
        return f"{self.place} answered HTTP {self.status}; see to the server, or correct mcp.{name}.url"


def place_of(url: str) -> str:
    """Scheme, host and port of a URL: its path may hold a secret."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def open_client(
    headers: dict[str, str], connect_timeout_s: float, guard: Guard
) -> tuple[httpx2.AsyncClient, "AnsweringTransport"]:
    """A client and its transport. It asks no proxy, and waits for an answer as long as its caller does."""
    transport = AnsweringTransport(GuardedTransport(guard, httpx2.create_ssl_context()))
    timeout = httpx2.Timeout(connect=connect_timeout_s, read=None, write=_WRITE_S, pool=None)
    return httpx2.AsyncClient(transport=transport, headers=headers, timeout=timeout, trust_env=False), transport


class AnsweringTransport(httpx2.AsyncBaseTransport):
    """Gives an answer to every POST. `fault`: the last that went wrong, None when the last went well."""

    def __init__(self, inner: httpx2.AsyncBaseTransport) -> None:
        self._inner = inner
        self.fault: HttpFault | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. A POST that gets no answer, or none that can be read, is given one."""
        if request.method == "DELETE":  # the end of a session: a courtesy
            async with asyncio.timeout(_LONGEST_GOODBYE_S):
                return await self._inner.handle_async_request(request)
        if request.method != "POST":
            return await self._inner.handle_async_request(request)
        place = place_of(str(request.url))
        try:
            response = await self._inner.handle_async_request(request)
            if response.headers.get("content-type", "").startswith("application/json"):
                await response.aread()
        except httpx2.TransportError as error:
            refusal = blocked(error)
            kind = type(error).__name__ if refusal is None else str(refusal.forbidden)
            self.fault = HttpFault(place, kind=kind, is_blocked=refusal is not None)
            never_sent = isinstance(error, _NEVER_SENT)
            return _answer(request, NOT_SENT if never_sent else BROKE, f"no answer ({type(error).__name__})")
        if not response.is_error:
            self.fault = None
            return response
        self.fault = HttpFault(place, response.status_code)
        if response.status_code == httpx2.codes.NOT_FOUND and _SESSION in request.headers:
            await response.aclose()
            return _answer(request, SESSION_GONE, "the session is gone")
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()


def _answer(request: httpx2.Request, code: int, message: str) -> httpx2.Response:
    """An error as the library reads it: one without an id belongs to the request that it answers."""
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return httpx2.Response(httpx2.codes.BAD_GATEWAY, json=error, request=request)
