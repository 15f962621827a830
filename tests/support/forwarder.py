"""A TCP forwarder: the network between two real peers, which can fail and can be pointed elsewhere.

What belongs here: copying bytes, remembering what came back, going away. It knows nothing of what it carries.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Self

_CHUNK = 65536


class Forwarder:
    """Listens on a free loopback port within its `async with`; each connection goes to the target of its moment.

    `answers`: the bytes that came back, one entry a connection, in the order in which they were accepted.
    `tls`: spoken with who connects; the target hears what is within.
    """

    def __init__(self, port: int, *, record: bool = False, tls: ssl.SSLContext | None = None) -> None:
        self.target = port
        self.port = 0
        self.answers: list[bytearray] = []
        self._record = record
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    @asynccontextmanager
    async def away(self) -> AsyncIterator[None]:
        """Cut every connection and refuse new ones until the end of the block; then listen on the same port again."""
        await self._leave()
        yield
        await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _leave(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = bytearray()
        self.answers.append(answer)
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(far_writer)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._copy(reader, far_writer, None))
            group.create_task(self._copy(far_reader, writer, answer if self._record else None))
        self._writers -= {writer, far_writer}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: bytearray | None) -> None:
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                if kept is not None:
                    kept += data
                writer.write(data)
                await writer.drain()
        writer.close()
