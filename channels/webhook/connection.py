"""A connection that an attempt is made on: bounded in what it may cost, and observed.

What belongs here: how much may come before the body of an answer, and the times at which a connection got where. What
must not be known here: what is sent, what an answer means.

aiohttp parses whatever the socket had, and queues what it parsed: a peer that sends nothing but `103 Early Hints` fills
memory as fast as it can write, for as long as the attempt may last. Here interim answers are dropped as they come, and
all that comes before the head of the answer is complete is counted.

Closing a connection drops it: aiohttp would first send what is left of a request, which a frozen peer never takes.
"""

import asyncio
import re
import ssl
from contextvars import ContextVar
from time import monotonic
from typing import Any

import aiohttp
from aiohttp import http_exceptions

from worker.connection import Connection, connect_by

MAX_HEAD_BYTES = 65536
"""All that may come before the body of an answer: interim answers and its head."""

_HEAD_END = re.compile(rb"[^\r\n]\r?\n\r?\n")
"""As the parser takes it, which does not insist on the carriage returns. Blank lines before a head end none."""
_END_BYTES = 4
"""So many bytes of such an end may have come before its last one."""


class Notes:
    """What an attempt showed of its connection. Times are of the monotonic clock, in seconds; None: not reached.

    `asked`: a connection was asked for; `found`: an address of the name was known; `shaking`: TLS began; `connected`:
    the request could be written; `sent`: it was; `answered`: the head of the answer was there. `address`: what was
    dialled; `dialled`: it may have been. `through`: the address that a proxy was asked for, if it was an address.
    `heads`: of how many answers, a proxy's among them; `status`: what the last of them says.
    """

    __slots__ = (
        *("address", "answered", "asked", "began", "connected", "dialled", "found", "heads", "reused", "sent"),
        *("shaking", "status", "through"),
    )

    def __init__(self) -> None:
        self.began = self.asked = monotonic()
        self.found: float | None = None
        self.shaking: float | None = None
        self.connected: float | None = None
        self.sent: float | None = None
        self.answered: float | None = None
        self.reused = False
        self.address = ""
        self.dialled = False
        self.through = ""
        self.heads = 0
        self.status: int | None = None


NOTES: ContextVar[Notes | None] = ContextVar("NOTES", default=None)
"""Whose attempt it is. A connection is opened and used in the context of the attempt that asked for it."""


def observed(session: aiohttp.ClientSession) -> aiohttp.ClientSession:
    """The session, newly opened, with connections of this kind."""
    connect_by(session, _Connection)
    lookups = aiohttp.TraceConfig()
    lookups.on_dns_resolvehost_end.append(_found)
    lookups.on_dns_cache_hit.append(_found)
    lookups.freeze()
    session.trace_configs.append(lookups)
    return session


async def _found(*_: object) -> None:
    notes = NOTES.get()
    if notes is not None:
        notes.found = monotonic()


class TimedTls(ssl.SSLObject):
    """TLS that notes when it begins: asyncio tells of a connection only after its handshake."""

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        notes = NOTES.get()
        if notes is not None and notes.shaking is None:
            notes.shaking = monotonic()
        super().do_handshake()


class _Connection(Connection):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._notes: Notes | None = None
        self._address = ""
        self._used = False
        self._head_bytes = 0
        self._line_end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            host, port = peer[:2]
            self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def set_response_params(self, **params: Any) -> None:
        """Begin a request."""
        self._notes = notes = NOTES.get()
        if notes is not None:
            notes.connected, notes.answered = monotonic(), None
            notes.address = self._address
            notes.reused = self._used
        self._used = True
        self._head_bytes = 0
        self._line_end = b""
        super().set_response_params(**params)

    def start_timeout(self) -> None:
        """The request was written."""
        if self._notes is not None:
            self._notes.sent = monotonic()
        super().start_timeout()

    def part_of(self, data: bytes, start: int) -> bytes:
        """What is parsed next. A head by itself: what is wrong with what follows must not undo the status.

        Its end may come in two parts, so the last bytes of the one before are looked at again.
        """
        part = super().part_of(data, start)
        if not self._awaits_head:
            return part
        seen = self._line_end + part
        head_end = _HEAD_END.search(seen)
        if head_end is not None:
            part = part[: head_end.end() - len(self._line_end)]
        self._line_end = seen[-_END_BYTES:] if head_end is None else b""
        self._head_bytes += len(part)
        return part

    def is_refused(self) -> bool:
        """Whether nothing more is read: nobody asked, it breaks HTTP, or its head is longer than any may be."""
        if self._awaits_head and self._head_bytes > MAX_HEAD_BYTES and self._exception is None:
            self.set_exception(http_exceptions.BadHttpMessage("Too many headers"))
            self.drop()
        return super().is_refused()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of an answer from the parser; interim ones are for who asked for them, and nobody did."""
        code = data[0].code
        if 100 <= code < 200 and code != 101:
            return
        if self._awaits_head and self._notes is not None:
            self._notes.answered = monotonic()
            self._notes.heads += 1
            self._notes.status = code
        super().feed_data(data, size)

    def close(self) -> None:
        """Drop the connection."""
        self.abort()
