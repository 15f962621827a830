"""A connection on which nobody but us begins.

What belongs here: what aiohttp leaves open between the socket and its parser, for whoever sends requests. What must not
be known here: what is sent, what an answer means.

aiohttp parses whatever comes, and queues what it parsed, also on a connection that is kept and on which nothing was
asked: a peer fills memory so as fast as it can write, and what it said before a request is taken for its answer. Here
whatever comes while no answer is awaited drops the connection.

aiohttp takes its connections from `_factory`, for want of a public place. The tests of floods fail where it has moved.
"""

import asyncio
import functools
from typing import Any, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

PART_BYTES = 8192
"""So much is parsed at a time, at most."""


def connect_by(session: aiohttp.ClientSession, kind: "type[Connection]") -> None:
    """Let a session, newly opened, make its connections of this kind."""
    connector = session.connector
    assert connector is not None
    make = functools.partial(kind, asyncio.get_running_loop())
    connector._factory = cast("functools.partial[ResponseHandler]", make)  # noqa: SLF001


class Connection(ResponseHandler):
    """Takes one answer for each request. `is_asked`: a request was begun, and its answer has not ended."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.is_asked = False
        self._awaits_head = False

    def set_response_params(self, **params: Any) -> None:
        """Begin a request: aiohttp calls this before it writes one."""
        self.is_asked = self._awaits_head = True
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        """Parse what came, a part at a time, as long as somebody has asked for it."""
        if not data:  # it goes on with what it has
            super().data_received(data)
        start = 0
        while start < len(data) and not self.is_refused():
            part = self.part_of(data, start)
            start += len(part)
            super().data_received(part)

    def part_of(self, data: bytes, start: int) -> bytes:
        """What is parsed next."""
        return data[start : start + PART_BYTES]

    def is_refused(self) -> bool:
        """Whether nothing more is read. Drops the connection when nothing was asked."""
        if self._exception is None and not self.is_asked:
            self.drop()
        return self._exception is not None or not self.is_asked

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take the head of an answer, and its body, from the parser."""
        message, payload = data
        if 100 <= message.code < 200 and message.code != 101:
            super().feed_data(data, size)
        elif self._awaits_head:
            self._awaits_head = False
            super().feed_data(data, size)
            payload.on_eof(self._ended)
        else:
            self.drop()

    def drop(self) -> None:
        """End it at once. What has come before stays, and so does an exception that says why."""
        self.force_close()
        if self.transport is not None:
            self.transport.abort()

    def _ended(self) -> None:
        self.is_asked = False
