"""An answer of many pieces, as server-sent events, that ends by itself, or when nobody takes it any more.

What belongs here: writing at the pace of the one who reads, and noticing that he is gone. What must not be known here:
what is written.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

HEADERS = {"x-accel-buffering": "no"}  # nginx would hold back what is to be seen at once

_PIECE_BYTES = 65_536
_CANCEL_AGAIN_S = 0.1


class EventStream(Response):
    """Sends `events` one by one; `write_timeout_s`: the longest time that one may wait to be taken.

    `ended` is called when it is over, however it came to that.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        write_timeout_s: float,
        ended: Callable[[], None],
        media_type: str = "text/event-stream; charset=utf-8",
    ) -> None:
        super().__init__(headers=HEADERS | {"content-type": media_type})
        del self.headers["content-length"]
        self._events = events
        self._write_timeout_s = write_timeout_s
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - as ASGI has it
        """Answer."""
        loop = asyncio.get_running_loop()
        writing, leaving = loop.create_task(self._write(send)), loop.create_task(self._until_gone(receive))
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            try:
                await _end(writing)
                await _end(leaving)
            finally:
                self._ended()
        if not writing.cancelled():
            writing.result()  # raises what went wrong

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async with aclosing(self._events) as events:
                async for event in events:
                    await self._send(send, event, more=True)
                    del event
            await self._send(send, b"", more=False)
        except (TimeoutError, OSError):
            pass  # nobody takes it; the connection is closed behind an unfinished answer

    async def _send(self, send: Send, data: bytes, *, more: bool) -> None:
        """Send piece by piece: the server waits between two of them, and else copies all of it for who never reads.

        Where it need not wait, others have their turn between two.
        """
        for begin in range(0, max(len(data), 1), _PIECE_BYTES):
            piece = data if len(data) <= _PIECE_BYTES else data[begin : begin + _PIECE_BYTES]
            if begin:
                await asyncio.sleep(0)
            async with asyncio.timeout(self._write_timeout_s):
                await send({"type": "http.response.body", "body": piece, "more_body": more})

    @staticmethod
    async def _until_gone(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass


async def _end(task: asyncio.Task[None]) -> None:
    """Cancel until it is done: on the way a cancel may be lost, as in `asyncio.wait_for` before Python 3.12."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_CANCEL_AGAIN_S)
