"""What a receiver of webhooks does when it does it badly, as acts of a `Peer`.

What belongs here: bytes, and when they come. What must not be known here: what the sender makes of them.
"""

import asyncio
import gzip
from collections.abc import Sequence

from tests.support.peer import Act, Conversation

_PACE_S = 0.05


def answering(status: int = 200, head: str = "", body: bytes = b"ok", *, version: str = "1.1") -> Act:
    """Answer every request on the connection in good order. `head`: more lines of it, each with its end."""
    answer = f"HTTP/{version} {status} X\r\n{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def act(peer: Conversation) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return act


def saying(*parts: bytes, stay: bool = True) -> Act:
    """Read a request and say this; then stay silent, or close the connection."""

    async def act(peer: Conversation) -> None:
        await peer.request()
        for part in parts:
            await peer.send(part)
        if stay:
            await peer.until_gone()

    return act


def in_turn(*acts: Act) -> Act:
    """One act for each connection, the last for all further ones."""
    left = list(acts)

    async def act(peer: Conversation) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(peer)

    return act


async def drip_head(peer: Conversation) -> None:
    """Send the head of an answer a byte at a time, without an end."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nX-Drip: ")
    while True:
        await peer.send(b"x")
        await asyncio.sleep(_PACE_S)


async def drip_body(peer: Conversation) -> None:
    """Send a body a byte at a time, without an end."""
    await peer.request()
    await peer.head("text/plain")
    while True:
        await peer.chunk(b"x")
        await asyncio.sleep(_PACE_S)


async def drip_hints(peer: Conversation) -> None:
    """Send `103 Early Hints` again and again, at leisure."""
    await peer.request()
    while True:
        await peer.send(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        await asyncio.sleep(_PACE_S)


async def flood_hints(peer: Conversation) -> None:
    """Send `103` as fast as it is read."""
    await peer.request()
    while True:
        await peer.send(b"HTTP/1.1 103 E\r\n\r\n" * 4096)


async def flood_body(peer: Conversation) -> None:
    """Send a body as fast as it is read, without an end."""
    await peer.request()
    await peer.head("application/octet-stream")
    while True:
        await peer.chunk(b"x" * 65536)


_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


async def flood_answers(peer: Conversation) -> None:
    """Answer a request again and again, as fast as it is read."""
    await peer.request()
    while True:
        await peer.send(_ANSWER * 4096)


def late(*parts: bytes) -> Act:
    """Answer a request; a moment later, when nobody has asked for anything, say this again and again."""

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.send(_ANSWER)
        await asyncio.sleep(_PACE_S)
        while True:
            for part in parts:
                await peer.send(part)

    return act


LATE: dict[str, Act] = {
    "answers": late(_ANSWER * 4096),
    "hints": late(b"HTTP/1.1 103 E\r\n\r\n" * 4096),
    "bytes": late(b"x" * 65536),
    "body": late(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n", b"x" * 65536),
    "blank_lines": late(b"\r\n" * 32768),
}
"""They go on when they have answered."""


async def huge_head(peer: Conversation) -> None:
    """Answer 200 with a head of 300 kB, each of its lines an ordinary one."""
    await peer.request()
    lines = b"".join(b"X-%d: %b\r\n" % (number, b"x" * 2980) for number in range(100))
    await peer.send(b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 2\r\n\r\nok")
    await peer.until_gone()


def gzip_bomb() -> Act:
    """Answer 200 with 100 kB that unpack to 100 MB."""
    body = gzip.compress(b"\0" * 100 * 1024**2, 9)
    return answering(200, "Content-Encoding: gzip\r\n", body)


async def half_open(peer: Conversation) -> None:
    """Take the connection, and nothing that comes on it."""
    peer.stop_reading()
    await asyncio.Event().wait()


async def reset_before_answer(peer: Conversation) -> None:
    """Read the request and reset the connection."""
    await peer.request()
    peer.reset()


async def reset_in_body(peer: Conversation) -> None:
    """Answer 200, begin a body, and reset the connection."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await asyncio.sleep(_PACE_S)
    peer.reset()


async def reset_when_used_again(peer: Conversation) -> None:
    """Answer one request; when the next comes on the same connection, reset it without a word."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await peer.request()
    peer.reset()


ENDLESS: Sequence[Act] = (drip_head, drip_hints, flood_hints, half_open)
"""They never come to an answer."""
