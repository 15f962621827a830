"""The server of the stream benchmark: it answers every request with a prepared stream, at once or at a pace.

What belongs here: HTTP/1.1 on a loopback socket, one HTTP chunk an event as real providers send, and the pace. What
must not be known here: who asks.

A request says in its `model` what it wants: `burst-20000` is 20,000 deltas as fast as they are read, `paced-200` is
200 deltas at 50 a second. Runs in a process of its own and prints its port; ends with its standard input.
"""

import asyncio
import contextlib
import json
import sys

import uvloop

from ops.bench.stream_events import PATHS, events

RATE = 50
"""Deltas a second of a paced stream."""
_BLOCK = 256 * 1024
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_END = b"0\r\n\r\n"
_prepared: dict[tuple[str, int], list[bytes]] = {}


def chunks(wire: str, count: int) -> list[bytes]:
    """The HTTP chunks of an answer; made once."""
    if (wire, count) not in _prepared:
        _prepared[wire, count] = [b"%x\r\n%s\r\n" % (len(event), event) for event in events(wire, count)]
    return _prepared[wire, count]


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            request, *headers = head.decode("latin-1").split("\r\n")
            sizes = [line.partition(":")[2] for line in headers if line.lower().startswith("content-length:")]
            model = json.loads(await reader.readexactly(int(sizes[0])))["model"]
            path = request.split(" ")[1]
            wire = next(wire for end, wire in PATHS.items() if path.endswith(end))
            mode, _, count = model.partition("-")
            writer.write(_HEAD)
            await (_burst if mode == "burst" else _paced)(writer, chunks(wire, int(count)))
    writer.transport.abort()


async def _burst(writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
    body = b"".join(parts) + _END
    for start in range(0, len(body), _BLOCK):
        writer.write(body[start : start + _BLOCK])
        await writer.drain()


async def _paced(writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
    loop = asyncio.get_running_loop()
    start = loop.time()
    for number, part in enumerate(parts):
        await asyncio.sleep(start + number / RATE - loop.time())
        writer.write(part)
        await writer.drain()
    writer.write(_END)


async def serve() -> None:
    """Serve until the standard input ends."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
