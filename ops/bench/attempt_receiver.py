"""The receiver of the attempt benchmark: it answers every request with 200 and two bytes.

What belongs here: HTTP/1.1 on a loopback socket, as little of it as will do. What must not be known here: who posts.

Runs in a process of its own and prints its port; ends with its standard input.
"""

import asyncio
import re
import sys
from typing import cast

import uvloop

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\nok"


class Answering(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
        self._data = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what to write to."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Answer each request that is whole."""
        self._data += data
        while (head := self._data.find(b"\r\n\r\n")) >= 0:
            length = _LENGTH.search(self._data, 0, head)
            end = head + 4 + (int(length[1]) if length else 0)
            if len(self._data) < end:
                return
            self._data = self._data[end:]
            self._transport.write(_ANSWER)


async def serve() -> None:
    """Serve until the standard input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(serve())
