"""`lastword web`: the HTTP server of one process, from its socket to its drain.

What belongs here: listening, signals, the order in which it ends. What must not be known here: routes.

SIGTERM: not ready, and live readers are sent away at once; after web.drain_s nobody new is taken; requests under way
may end within web.stop_s. A second signal two seconds later or more, or SIGINT, ends it at once. SIGHUP is a SIGTERM.
"""

import asyncio
import logging
import signal
import socket
from math import ceil
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from channels.settings import Settings, WebSettings
from channels.web.connections import fitted, protocol_of
from channels.web.process import WebProcess
from worker.engine.loop import new_event_loop
from worker.engine.shutdown import Words
from worker.engine.started import tell_started
from worker.errors import ConfigurationError
from worker.observability import configure_logging, configure_sentry, info

_BACKLOG = 512
_KEEP_ALIVE_S = 75
"""Longer than that of the proxies in front of it, which would else meet a connection that is just closing."""


def run_web(settings: Settings) -> int:
    """Serve until a signal ends it; returns the exit code. Raises `ConfigurationError` and `StoreUnavailable`."""
    configure_logging(settings.log_level)
    configure_sentry(settings.sentry())
    # Its lines hold addresses and exceptions' words; ours say what is to be said.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve(settings))
    return 0


async def _serve(settings: Settings) -> None:
    web, connections = fitted(settings.web)
    settings = settings.model_copy(update={"web": web})
    listening = listen(settings.web.host, settings.web.port, settings.web.write_timeout_s)
    process = WebProcess(settings)
    try:
        app = await process.start()
        host, port = listening.getsockname()[:2]
        tell_started("web_process_started", host=host, port=port)
        server = _Server(config_of(app, settings.web, connections), process, settings.web.drain_s)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
            signal.signal(signal.SIGHUP, server.handle_exit)
        await server.serve([listening])
    finally:
        listening.close()
        await process.stop()
    info("web_process_stopped")


def config_of(app: ASGIApp, web: WebSettings, connections: int) -> uvicorn.Config:
    """How the server is run. `connections`: how many it may have."""
    return uvicorn.Config(
        app,
        http=protocol_of(connections, web.write_timeout_s),
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        proxy_headers=bool(web.trusted_proxies),
        forwarded_allow_ips=list(web.trusted_proxies),
        timeout_graceful_shutdown=ceil(web.stop_s),
        timeout_keep_alive=_KEEP_ALIVE_S,
    )


def listen(host: str, port: int, write_timeout_s: float) -> socket.socket:
    """A socket that waits for connections. Raises `ConfigurationError` with the setting and the fix."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(f"web.host {host!r} is no address of this machine ({error.strerror})") from None
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # else one who takes nothing would keep his connection for hours
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(write_timeout_s * 1000))
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"web.host {host!r}, web.port {port}: nothing can listen there ({error.strerror}); set another "
            "LASTWORD_WEB__PORT, or stop what uses it"
        ) from None
    return listening


class _Server(uvicorn.Server):
    """Ends in our order instead of uvicorn's."""

    def __init__(self, config: uvicorn.Config, process: WebProcess, drain_s: float) -> None:
        super().__init__(config)
        self._process = process
        self._drain_s = drain_s
        self._words = Words()
        self._loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - what a signal handler is given
        """A signal has come."""
        name = signal.Signals(sig).name
        word = self._words.hear(name)
        if word == "again":
            self.should_exit = True
            self.force_exit = True
        elif word == "first":
            self._loop.call_soon_threadsafe(self._drain, name)

    def _drain(self, name: str) -> None:
        info("web_process_draining", signal=name)
        self._process.drain()
        self._loop.call_later(self._drain_s, self._stop_listening)

    def _stop_listening(self) -> None:
        self.should_exit = True
