"""The receiver of the webhook benchmark: takes every POST as cheaply as Python can, and knows how old each was.

What belongs here: reading a request off a socket, answering 200, hanging where it is told to. What must not be known
here: who sends, what is good enough.

It does what a line on its standard input says. `hang N`: the first N endpoints never answer. `reset`: forget all.
`count`: {"received", "unique"} so far. `figures`: first and last arrival (unix s), and ages (ms) of what came to
endpoints that answer, from the timestamp in the body (when the turn was sealed) to the last byte in hand.
"""

import asyncio
import json
import sys
import time
from datetime import datetime
from typing import Any

from ops.bench.concurrency_figures import spread, without_nan

_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Book:
    """All that came. `hanging`: so many endpoints, from number 0, never answer."""

    def __init__(self) -> None:
        self.hanging = 0
        self.came: list[tuple[float, int, bytes, bytes]] = []

    def figures(self) -> dict[str, Any]:
        """What came since the last reset."""
        arrivals = [at for at, *_ in self.came] or [float("nan")]
        ages = [(at - _sealed_at(body)) * 1000 for at, number, _, body in self.came if number >= self.hanging]
        span = {"first": min(arrivals), "last": max(arrivals)}
        return {**self.count(), **span, "age_ms": spread(ages), "ages": len(ages)}

    def count(self) -> dict[str, Any]:
        """How many came."""
        return {"received": len(self.came), "unique": len({identity for _, _, identity, _ in self.came})}


class Peer(asyncio.Protocol):
    """One connection."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._data = bytearray()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        """It is open."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Some bytes came."""
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end])
            lower = head.lower()
            length = int(_header(lower, b"content-length") or 0)
            if len(self._data) < end + 4 + length:
                return
            number = int(head.split(b" ", 2)[1].rpartition(b"/")[2])
            body = bytes(self._data[end + 4 : end + 4 + length])
            del self._data[: end + 4 + length]
            at = time.time()  # noqa: TID251 - the body tells the seal in it
            self._book.came.append((at, number, _header(lower, b"webhook-id"), body))
            assert self._transport is not None
            if number >= self._book.hanging:
                self._transport.write(_ANSWER)


def _sealed_at(body: bytes) -> float:
    return datetime.fromisoformat(json.loads(body)["timestamp"]).timestamp()


def _header(lower: bytes, name: bytes) -> bytes:
    at = lower.find(b"\r\n" + name + b":")
    return lower[at + len(name) + 3 :].partition(b"\r\n")[0].strip() if at >= 0 else b""


async def main() -> None:
    """Listen, say where, and do what is said until the standard input ends."""
    book = Book()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Peer(book), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).split():
        if line[0] == "hang":
            book.hanging = int(line[1])
        elif line[0] == "reset":
            book.came.clear()
        else:
            print(json.dumps(without_nan(book.figures() if line[0] == "figures" else book.count())), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
