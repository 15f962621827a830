"""A port of a process of its own, for those who ask each process by itself: /livez, /readyz and /metrics.

What belongs here: three answers over HTTP. What must not be known here: what live and ready mean, which figures there
are. It answers from threads of its own, so that a loop that hangs is told of.
"""

import contextlib
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from worker.errors import ConfigurationError
from worker.sections import MetricsSettings

_TEXT = "text/plain; charset=utf-8"
_FIGURES = "text/plain; version=0.0.4; charset=utf-8"
_IDLE_LIMIT_S = 5.0
_MOST = 16
"""Connections at once, each of which is a thread; for one more, the oldest is closed."""


class Probes:
    """Answers from `start` to `stop`. Raises `ConfigurationError` when the port cannot be listened on."""

    def __init__(
        self,
        settings: MetricsSettings,
        live: Callable[[], bool],
        ready: Callable[[], bool],
        figures: Callable[[], bytes],
    ) -> None:
        try:
            self._server = _server_of(settings.host)((settings.host, settings.port), _handler_of(live, ready, figures))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise ConfigurationError(
                f"metrics.port = {settings.port} of metrics.host {settings.host!r} cannot be listened on ({reason}): "
                "give each process a port of its own (LASTWORD_METRICS__PORT), or 0 for none"
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="lastword-probes", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more."""
        self._server.shutdown()
        self._server.server_close()


def _handler_of(
    live: Callable[[], bool], ready: Callable[[], bool], figures: Callable[[], bytes]
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_LIMIT_S

        def do_GET(self) -> None:
            match self.path.partition("?")[0]:
                case "/livez":
                    is_live = live()
                    self._answer(200 if is_live else 503, _TEXT, b"live\n" if is_live else b"not live\n")
                case "/readyz":
                    is_ready = ready()
                    self._answer(200 if is_ready else 503, _TEXT, b"ready\n" if is_ready else b"not ready\n")
                case "/metrics":
                    self._answer(200, _FIGURES, figures())
                case _:
                    self._answer(404, _TEXT, b"ask for /livez, /readyz or /metrics\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response_only(status)  # without the versions of what runs here
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: a line for each scrape tells nobody anything."""

    return Handler


def _server_of(host: str) -> type[ThreadingHTTPServer]:
    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True
        block_on_close = False

        def __init__(self, *arguments: Any) -> None:
            self._open: dict[Any, None] = {}
            super().__init__(*arguments)

        def process_request(self, request: Any, client_address: Any) -> None:
            while len(self._open) >= _MOST:
                oldest = next(iter(self._open))
                self._open.pop(oldest, None)
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
            self._open[request] = None
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            self._open.pop(request, None)
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Nothing: one who went away before his answer tells nobody anything."""

    return Server
