"""A peer on the loopback that does exactly what a test says, byte by byte: well, badly or not at all.

What belongs here: sockets. What must not be known here: what the code under test makes of them.
"""

import asyncio
import contextlib
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Self

_LINGER_NOT = struct.pack("ii", 1, 0)
_CHUNK = 65536


class Conversation:
    """One connection, seen from the peer. `received`: every byte that came."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.received = bytearray()
        self.ended = asyncio.Event()
        self._reader = reader
        self._writer = writer

    async def request(self) -> bytes:
        """Read one request, head and body."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        self.received += head
        length = re.search(rb"(?i)content-length: *(\d+)", head)
        body = await self._reader.readexactly(int(length[1]) if length else 0)
        self.received += body
        return head + body

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._writer.write(data)
        await self._writer.drain()

    async def head(self, content_type: str = "text/event-stream", status: str = "200 OK", more: str = "") -> None:
        """Send the head of an answer whose body comes in chunks."""
        await self.send(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}Transfer-Encoding: chunked\r\n\r\n".encode()
        )

    async def chunk(self, data: bytes) -> None:
        """Send one chunk of a body."""
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        """End the body in good order."""
        await self.send(b"0\r\n\r\n")

    def finish(self) -> None:
        """Say that nothing more will come."""
        self._writer.write_eof()

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    def reset(self) -> None:
        """Reset the connection."""
        self._writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        self._writer.transport.abort()

    def stop_reading(self) -> None:
        """Take nothing more from the socket."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    async def until_gone(self) -> None:
        """Read until the other side has closed or reset the connection."""
        self._writer.transport.resume_reading()  # type: ignore[attr-defined]
        with contextlib.suppress(ConnectionError):
            while data := await self._reader.read(_CHUNK):
                self.received += data
        self.ended.set()

    async def until_refused(self) -> None:
        """Send without reading until the other side refuses what comes."""
        with contextlib.suppress(ConnectionError):
            while True:
                await self.send(b"x" * _CHUNK)
        self.ended.set()


Act = Callable[[Conversation], Awaitable[None]]


class Peer:
    """Listens within its `async with` and performs `act` on every connection. The connection ends with the act."""

    def __init__(self, act: Act, ssl_context: ssl.SSLContext | None = None) -> None:
        self.conversations: list[Conversation] = []
        self.url = ""
        self.address = ""
        self._act = act
        self._ssl = ssl_context
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, backlog=1024, ssl=self._ssl)
        port = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{port}"
        self.url = f"{'https' if self._ssl else 'http'}://{self.address}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def received(self) -> bytes:
        """Every byte that came, of all connections."""
        return b"".join(bytes(each.received) for each in self.conversations)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = Conversation(reader, writer)
        self.conversations.append(conversation)
        task = asyncio.get_running_loop().create_task(self._perform(conversation, writer))
        self._tasks.add(task)

    async def _perform(self, conversation: Conversation, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._act(conversation)
        finally:
            writer.close()


async def within(seconds: float, awaited: str, event: asyncio.Event) -> None:
    """Wait for an event, and fail with a message that names it."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        raise AssertionError(f"waited {seconds:g} s for {awaited}") from None


async def hang(_: Conversation) -> None:
    """Say nothing for ever."""
    await asyncio.Event().wait()
