"""The connections of one web process: how many there may be, and how long each may take for the head of a request.

What belongs here: descriptors, the cap, deadlines, and the answer to what is no HTTP. What must not be known here:
routes, what a request asks for.

At the limit of its descriptors a process can accept nobody, not even a probe. So there is a cap below it: beyond it the
connection that has waited longest without a request, or has taken nothing of its answer for longest, is closed for the
new one. One that takes nothing for web.write_timeout_s is closed anyway.
"""

import secrets
from asyncio import TimerHandle, Transport
from operator import itemgetter
from time import monotonic
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from channels.descriptors import raised
from channels.settings import WebSettings
from channels.web import metrics
from channels.web.errors import Refused
from worker.observability import warn

HEAD_LIMIT_S = 10.0
"""Longest time from the first byte of a request's head, or from the connection, to the head's end."""

STUCK_S = 5.0
"""Who has not taken what waits for him so long may be closed for somebody else."""

BESIDE_READERS = 1_000
"""Connections that may be there besides those of live readers."""

_RESERVED = 64
"""Descriptors for Redis, the broker, files and what is just being accepted."""

_TELL_EVERY_S = 60.0


def fitted(web: WebSettings) -> tuple[WebSettings, int]:
    """The settings as this process can keep them, and how many connections it may have.

    Raises its own limit of descriptors as far as it may. Where that is not enough there are fewer readers, and a line
    says so.
    """
    descriptors = raised(web.readers + BESIDE_READERS + _RESERVED)
    most = max(2, min(web.readers + BESIDE_READERS, descriptors - _RESERVED))
    readers = min(web.readers, max(1, most - max(1, min(BESIDE_READERS, most // 4))))
    if readers < web.readers:
        warn("web_readers_reduced", readers=readers, wanted=web.readers, descriptors=descriptors)
    return web.model_copy(update={"readers": readers}), most


class Connection(H11Protocol):
    """One connection, of at most `most`. `write_limit_s`: longest time in which nothing of an answer is taken."""

    most: ClassVar[int]
    write_limit_s: ClassVar[float]
    told_at: ClassVar[float | None] = None
    _head_timer: TimerHandle | None = None
    _write_timer: TimerHandle | None = None
    waits_since: float = 0.0
    stuck_since: float | None = None

    @property
    def waits(self) -> bool:
        """Whether no request of it is being answered."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def idle_since(self, now: float) -> float | None:
        """Since when it may be closed for another one; None: it may not."""
        if self.stuck_since is not None:
            return self.stuck_since if now >= self.stuck_since + STUCK_S else None
        return self.waits_since if self.waits else None

    def close_soon(self) -> None:
        """Close it when what was written is taken, or is not for long."""
        self.transport.close()
        self.loop.call_later(STUCK_S, self.transport.abort)

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Someone has connected."""
        super().connection_made(transport)
        self.waits_since = monotonic()
        self._await_head()
        if len(self.connections) > self.most:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """Something has come: a part of a head, or of a body."""
        super().data_received(data)
        if self.waits:
            self._await_head()
        else:
            self._stop_timer()

    def on_response_complete(self) -> None:
        """A request was answered."""
        self.waits_since = monotonic()
        super().on_response_complete()
        if self.waits and self.conn.trailing_data[0]:  # a part of the next head has come with the last request
            self._await_head()

    def pause_writing(self) -> None:
        """What was written waits to be taken, and no more is written before."""
        super().pause_writing()
        self.stuck_since = monotonic()
        self._write_timer = self.loop.call_later(self.write_limit_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It was taken."""
        super().resume_writing()
        self._be_taken()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        self._stop_timer()
        self._be_taken()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - ours says what to do
        """Answer what is no HTTP/1.1, in the one form of errors."""
        self._send_refusal(Refused("bad_request", "this is no request of HTTP/1.1 that can be read"))

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_LIMIT_S, self._head_is_late)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _be_taken(self) -> None:
        self.stuck_since = None
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self.waits and not self.transport.is_closing():
            self.transport.close()

    def _make_room(self) -> None:
        now, kind = monotonic(), type(self)
        if kind.told_at is None or now - kind.told_at > _TELL_EVERY_S:
            kind.told_at = now
            warn("web_connections_full", connections=len(self.connections))
        others: Any = (one for one in self.connections if one is not self and not one.transport.is_closing())
        idle = [(since, one) for one in others if (since := one.idle_since(now)) is not None]
        if idle:
            _, longest = min(idle, key=itemgetter(0))
            # A close lets go what was written, first: for who takes nothing that is never.
            if longest.stuck_since is None:
                longest.close_soon()
            else:
                longest.transport.abort()
        else:
            self._send_refusal(Refused("unavailable", "this process has as many connections as it may"))

    def _send_refusal(self, refused: Refused) -> None:
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):  # else an answer has begun, and is cut off
            metrics.turned_away(refused.status)
            body = refused.body.model_dump_json(exclude_none=True).encode()
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("cache-control", "no-store"),
                ("x-content-type-options", "nosniff"),
                ("x-request-id", secrets.token_hex(8)),
                ("connection", "close"),
            ]
            for event in (
                h11.Response(status_code=refused.status, headers=headers),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def protocol_of(most: int, write_limit_s: float) -> type[Connection]:
    """The protocol of a process that may have so many connections, and waits so long for who takes nothing."""
    return type("OneOfMany", (Connection,), {"most": most, "write_limit_s": write_limit_s})
