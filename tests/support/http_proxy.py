"""A small HTTP proxy on the loopback: absolute URLs, CONNECT, and a password if it is told one.

What belongs here: what a proxy does. `seen` are the request lines that came, `credentials` what they were sent with.
"""

import asyncio
import base64
import contextlib
import re
from types import TracebackType
from typing import Self

_CHUNK = 65536
_TARGET = re.compile(rb"^(\w+) (?:http://)?([^/ ]+)(\S*) HTTP")


class Proxy:
    """Listens within its `async with`. `password`: USER:PASSWORD that it asks for. `answer`: to every CONNECT."""

    def __init__(self, *, password: str = "", answer: bytes = b"200 OK", names: dict[str, str] | None = None) -> None:
        self.seen: list[str] = []
        self.credentials: list[str] = []
        self.url = ""
        self.address = ""
        self._password = password
        self._answer = answer
        self._names = names or {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self.url = f"http://{self.address}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.get_running_loop().create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                self.seen.append(head.split(b"\r\n")[0].decode())
                if not self._admits(head):
                    writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                    await writer.drain()
                    return
                await self._forward(head, reader, writer)
        finally:
            writer.close()

    def _admits(self, head: bytes) -> bool:
        sent = re.search(rb"(?i)\r\nproxy-authorization: basic (\S+)", head)
        if sent:
            self.credentials.append(base64.b64decode(sent[1]).decode())
        return not self._password or self.credentials[-1:] == [self._password]

    async def _forward(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = _TARGET.match(head)
        assert asked is not None
        host, _, port = asked[2].decode().rpartition(":")
        if asked[1] == b"CONNECT":
            writer.write(b"HTTP/1.1 " + self._answer + b"\r\n\r\n")
            await writer.drain()
            if not self._answer.startswith(b"200"):
                return
            head = b""
        else:
            head = head.replace(b"http://" + asked[2], b"", 1)
        there, on = await asyncio.open_connection(self._names.get(host, host), int(port))
        on.write(head)
        try:
            await asyncio.gather(_copy(reader, on), _copy(there, writer))
        finally:
            on.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read(_CHUNK):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof() if target.can_write_eof() else target.close()
