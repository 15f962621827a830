"""The body of one answer on its way to the client.

What belongs here: sending bytes, counting them, and ending the body well or badly. What must not be known here:
scripts, wire formats.
"""

import asyncio
import socket
import struct

from aiohttp import web

from channels.rehearsal.steps import Page

_LINGER_NOT = struct.pack("ii", 1, 0)


class BodyCut(Exception):
    """The byte at which the script cuts this body has gone out; the connection is closed."""


class Body:
    """Sends the head with the first bytes or with `open`. `cut_at_byte` None: the body is not cut."""

    def __init__(self, request: web.Request, cut_at_byte: int | None) -> None:
        self.bytes_sent = 0
        self._request = request
        self._cut_at_byte = cut_at_byte
        self._response: web.StreamResponse = web.StreamResponse(
            headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        )

    @property
    def response(self) -> web.StreamResponse:
        """What the handler returns."""
        return self._response

    async def send_page(self, page: Page, body: bytes) -> None:
        """Send an answer that is no stream."""
        self._response = web.Response(
            status=page.status, body=body, headers={"Content-Type": page.content_type, **page.headers}
        )
        await self._response.prepare(self._request)
        await self._response.write_eof()
        self.bytes_sent = len(body)

    async def open(self) -> None:
        """Send the head, and cut at once if the body is cut at byte 0."""
        await self._response.prepare(self._request)
        if self._cut_at_byte == 0:
            await self.write(b"")

    async def write(self, data: bytes) -> None:
        """Send bytes. Raises BodyCut after the last byte that may go out; ConnectionError when the client has left."""
        rest = None if self._cut_at_byte is None else self._cut_at_byte - self.bytes_sent
        part = data if rest is None else data[:rest]
        if part:
            await self._response.write(part)
            self.bytes_sent += len(part)
        if rest is not None and len(data) >= rest:
            self.cut()
            raise BodyCut

    async def close(self) -> None:
        """End the body in good order."""
        await self._response.write_eof()

    def cut(self) -> None:
        """Close the connection where it stands: what was sent arrives, the end of the body does not."""
        transport = self._request.transport
        if transport is not None:
            transport.close()

    def reset(self) -> None:
        """Reset the connection: the client's next read fails."""
        transport = self._request.transport
        if isinstance(transport, asyncio.Transport):
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            transport.abort()
