"""A real webhook receiver for tests: it answers by script, records what it got, and lets a test await a request.

What belongs here: acts that a receiver on the internet performs, well or badly. Waits are bounded and name what they
waited for.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from aiohttp import web

_PACE_S = 0.02
_FLOOD_CHUNK = b"x" * 65536


@dataclass(frozen=True, slots=True)
class Received:
    """One request. Header names are in lower case."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer at once."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"ok"


@dataclass(frozen=True, slots=True)
class Hang:
    """Read the request and never answer."""


@dataclass(frozen=True, slots=True)
class Late:
    """Answer once this is set."""

    when: asyncio.Event


@dataclass(frozen=True, slots=True)
class Drip:
    """Answer with this status and a body that goes on for ever, a byte at a time."""

    status: int = 200


@dataclass(frozen=True, slots=True)
class Flood:
    """Answer with this status and a body that goes on for ever, as fast as it is read."""

    status: int = 200


@dataclass(frozen=True, slots=True)
class HangUp:
    """Read the request and drop the connection."""


Act = Answer | Hang | Late | Drip | Flood | HangUp


class Receiver:
    """Listens on the loopback within its `async with`. One act per request, the last one repeats; none: 200."""

    def __init__(self, *acts: Act) -> None:
        self.requests: list[Received] = []
        self.bytes_flooded = 0
        self.url = ""
        self._acts = acts or (Answer(),)
        self._arrived = asyncio.Condition()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=16 * 1024**2)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/hook"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        await self._runner.cleanup()

    async def nth(self, number: int, within_s: float = 10.0) -> Received:
        """The `number`-th request, from 1; fails after `within_s` seconds."""
        try:
            async with asyncio.timeout(within_s), self._arrived:
                await self._arrived.wait_for(lambda: len(self.requests) >= number)
        except TimeoutError:
            message = f"waited {within_s} s for request {number} at {self.url}; {len(self.requests)} came"
            raise AssertionError(message) from None
        return self.requests[number - 1]

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        received = Received(request.path_qs, headers, await request.read())
        act = self._acts[min(len(self.requests), len(self._acts) - 1)]
        async with self._arrived:
            self.requests.append(received)
            self._arrived.notify_all()
        match act:
            case Answer():
                return web.Response(status=act.status, headers=act.headers, body=act.body)
            case Hang():
                await self._closing.wait()
                return web.Response(status=503)
            case Late():
                await act.when.wait()
                return web.Response()
            case HangUp():
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            case Drip() | Flood():
                return await self._stream(request, act)

    async def _stream(self, request: web.Request, act: Drip | Flood) -> web.StreamResponse:
        response = web.StreamResponse(status=act.status)
        with contextlib.suppress(ConnectionError):  # the sender has had enough
            await response.prepare(request)
            while not self._closing.is_set():
                if isinstance(act, Flood):
                    await response.write(_FLOOD_CHUNK)
                    self.bytes_flooded += len(_FLOOD_CHUNK)
                else:
                    await response.write(b".")
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._closing.wait(), _PACE_S)
        return response


@contextlib.contextmanager
def silent_url() -> Iterator[str]:
    """A URL on a port that takes no connection and refuses none, as behind a firewall: those that wait are too many."""
    with contextlib.ExitStack() as opened:
        listener = opened.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            waiting = opened.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"


@contextlib.contextmanager
def refusing_url() -> Iterator[str]:
    """A URL on a port that is taken but that nobody listens on: every connection is refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}/hook"
