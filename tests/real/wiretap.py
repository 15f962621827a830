"""What a server really answered: a TCP proxy that keeps the bytes in the order in which they came.

What belongs here: copying, and cutting the record into HTTP answers. It knows no wire format.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tests.support.plain_reader import body_of

_CHUNK = 65536
_HEAD = b"HTTP/1.1 "


@dataclass(frozen=True, slots=True)
class Answered:
    """One HTTP answer, as far as it came."""

    status: int
    body: bytes


class Wiretap:
    """Listens on a free loopback port within its `async with`, and passes all on to `target`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self._heard: list[bytearray] = []
        self._server: asyncio.Server
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def forget(self) -> None:
        """Begin a new record."""
        self._heard.clear()

    def answers(self) -> list[Answered]:
        """The answers since the last `forget`, in the order in which they began."""
        return [Answered(int(heard[len(_HEAD) : len(_HEAD) + 3]), body_of(heard)) for heard in self._heard]

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            async with asyncio.TaskGroup() as group:
                group.create_task(_copy(reader, far_writer))
                group.create_task(self._copy_back(far_reader, writer))
        except OSError:
            writer.transport.abort()
        finally:
            self._tasks.discard(task)

    async def _copy_back(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = bytearray()
        with suppress(OSError):
            while data := await reader.read(_CHUNK):
                # An answer begins with a read of its own: its request came only after the answer before had ended.
                if data.startswith(_HEAD):
                    answer = bytearray()
                    self._heard.append(answer)
                answer += data
                writer.write(data)
                await writer.drain()
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
    writer.close()
