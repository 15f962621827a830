"""One attempt of a call over HTTP: the request goes out, events come back.

What belongs here: sending, reading, closing. What must not be known here: wire formats (the codec's), what an answer
without a stream means (`refusal`), deadlines, retries and resumes (the turn machine's).

One read is one batch: what the network gave at once is decoded at once, and nothing waits in between. A read that
completed nothing is one keepalive, and of several keepalives in a row one is told: bytes prove that the connection
lives, however many there are. Neighbouring pieces of one text that came at once are one piece: nobody could tell their
times apart, and each event costs more than its letters. Reading stops at the terminal event, and the connection is
dropped without a look at what may follow. Whoever closes the generator, or cancels the task that reads it, drops the
connection too.

What a body is, its bytes say and not its head: an event stream and a whole answer are read under every type. An answer
or an error that is one whole JSON document is told at once, though the peer holds the connection.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, cast

import httpx

from worker.codecs.codec import Codec, Decoder, EncodedRequest
from worker.codecs.events import SUBSTANTIVE, Completed, Failed, Keepalive, ReasoningDelta, StreamEvent, TextDelta
from worker.codecs.messages import Request
from worker.engine.bodies import DocumentWatch, LinesWatch, first_byte
from worker.engine.quotes import secrets_of
from worker.engine.refusal import Answer, Asked, Refusal, clean, not_a_stream, redirected, refused, unreached
from worker.http import HTTP_FAULTS, address_of, classify, connect_timeout, read_start
from worker.turn.events import DeathKind, Died, Event, Heard, NotAnswered

_ERROR_BODY_BYTES = 64 * 1024
_ERROR_BODY_S = 10.0
_DOCUMENT_BYTES = 1024 * 1024
_LAST_LOOK_S = 0.05
_DEATHS: dict[str, DeathKind] = {"timeout": "timeout", "malformed": "protocol"}
_ENDED_EARLY: tuple[DeathKind, str] = ("end_of_stream", "the stream ended without its terminal mark")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a provider listens, and how it is asked.

    `name`: its `[providers.NAME]`. `base_url`: the path of the wire format is joined to it. `headers` go over our own.
    `connect_timeout_s` bounds lookup, connection and TLS; `finish_grace_s` the wait for usage after the terminal mark,
    or after the last of the answer where some of it came behind that mark.
    """

    name: str
    base_url: str
    api_key: str | None = field(repr=False)
    headers: dict[str, str] = field(repr=False)
    connect_timeout_s: float
    finish_grace_s: float


async def attempt_events(  # noqa: PLR0913, PLR0917 - of whom, in which words, what, and which attempt it is
    client: httpx.AsyncClient, endpoint: Endpoint, codec: Codec, request: Request, call: int, attempt: int
) -> AsyncGenerator[list[Event], None]:
    """Ask `request` and give what comes of it, batch by batch. The last event is terminal.

    That is a `Heard` with `Completed` or `Failed`, a `NotAnswered`, or a `Died`. Never raises for the peer; what the
    codec raises for a request that it cannot write is ours, and passes.
    """
    asked = Asked(endpoint.name, secrets_of(endpoint.api_key, endpoint.headers, endpoint.base_url), request)
    encoded = codec.encode(request)
    try:
        response = await client.send(_http_request(client, endpoint, codec, encoded), stream=True)
    except HTTP_FAULTS as error:
        yield [_not_answered(unreached(classify(error), asked), call, attempt)]
        return
    try:
        async with aclosing(_chunks(response)) as chunks:
            if response.status_code != 200:
                yield [_not_answered(await _refusal(response, chunks, asked), call, attempt)]
                return
            reader = _Reader(chunks, codec.decoder, endpoint.finish_grace_s)
            while not reader.ended:
                heard = await reader.read()
                if reader.is_no_stream:
                    answer = Answer(200, dict(response.headers), bytes(reader.start), address_of(response.request.url))
                    yield [_not_answered(not_a_stream(answer, asked), call, attempt)]
                    return
                batch: list[Event] = [
                    Heard(call, attempt, clean(event, asked) if isinstance(event, Failed) else event) for event in heard
                ]
                if reader.death is not None:
                    batch.append(Died(call, attempt, *reader.death))
                yield batch
    finally:
        with suppress(*HTTP_FAULTS):
            await response.aclose()


class _Reader:
    """Feeds the decoder what the network gives.

    `ended`: nothing follows. `death`: its kind and why, if it was one. `is_no_stream`: the body was neither an event
    stream nor an answer, and `start` is how it began.
    """

    def __init__(self, chunks: AsyncIterator[bytes], new_decoder: Callable[[], Decoder], finish_grace_s: float) -> None:
        self.ended = False
        self.death: tuple[DeathKind, str] | None = None
        self.is_no_stream = False
        self.start = bytearray()
        self._first = b""
        """The first byte that is no white space, once it has come."""
        self._said_something = False
        self._chunks = chunks
        self._new_decoder = new_decoder
        self._decoder = new_decoder()
        self._document = DocumentWatch()
        self._lines = LinesWatch()
        self._finish_grace_s = finish_grace_s
        self._deadline: float | None = None
        self._gives_up_at: float | None = None
        """Once this process has seen the deadline pass: when it has looked at what came before."""

    async def read(self) -> list[StreamEvent]:
        """What the next bytes say, or what the end of the stream says. Empty only where `death` is set."""
        try:
            data = await (anext(self._chunks, None) if self._deadline is None else self._next_until(self._deadline))
        except TimeoutError:  # the grace is over: the call is whole, and usage does not come
            return self._end(_ENDED_EARLY)
        except HTTP_FAULTS as error:
            fault = classify(error)
            return self._end((_DEATHS.get(fault.code, "reset"), fault.message), broken=True)
        return self._end(_ENDED_EARLY) if data is None else self._take(data)

    async def _next_until(self, deadline: float) -> bytes | None:
        """What comes before the deadline, or has come by the time that this process looks. Raises `TimeoutError`."""
        loop = asyncio.get_running_loop()

        def pass_deadline() -> None:
            # A process that slept or was busy finds it passed before it has read what came meanwhile.
            if self._gives_up_at is None:
                self._gives_up_at = loop.time() + _LAST_LOOK_S
                limit.reschedule(self._gives_up_at)

        async with asyncio.timeout_at(self._gives_up_at) as limit:
            passed = loop.call_at(deadline, pass_deadline)
            try:
                return await anext(self._chunks, None)
            finally:
                passed.cancel()

    def _take(self, data: bytes) -> list[StreamEvent]:
        heard = self._decoder.feed(data)
        if not self._said_something:
            self._first = self._first or first_byte(self.start + data)
            room = (_DOCUMENT_BYTES if self._first == b"{" else _ERROR_BODY_BYTES) - len(self.start)
            self.start += data[:room]
            if len(data) <= room and not _is_terminal(heard) and self._is_told_whole():
                heard += self._decoder.close()
            self._look_at_start(heard)
        self.ended = _is_terminal(heard)
        self._bound_wait(heard)
        return _told_once(heard) or [Keepalive()]

    def _bound_wait(self, heard: list[StreamEvent]) -> None:
        """Usage does not put the deadline off, and what is said of the answer does: the mark before it was none."""
        if not self._decoder.finishing:
            self._deadline = self._gives_up_at = None
        elif self._deadline is None or any(isinstance(event, SUBSTANTIVE) for event in heard):
            self._gives_up_at = None
            self._deadline = asyncio.get_running_loop().time() + self._finish_grace_s

    def _is_told_whole(self) -> bool:
        """Whether the body so far is one document that is an answer or an error; another decoder is asked."""
        if self._first != b"{" or not self._document.is_whole(self.start):
            return False
        decoder = self._new_decoder()
        told = [*decoder.feed(bytes(self.start)), *decoder.close()]
        return _is_terminal(told) and not (isinstance(told[-1], Failed) and told[-1].code == "not_a_stream")

    def _end(self, death: tuple[DeathKind, str], *, broken: bool = False) -> list[StreamEvent]:
        heard = self._decoder.close(broken=broken)
        self._look_at_start(heard)
        self.ended = True
        if not _is_terminal(heard):
            self.death = death
        return _told_once(heard)

    def _look_at_start(self, heard: list[StreamEvent]) -> None:
        if self._said_something:
            return
        if heard and isinstance(failed := heard[-1], Failed):
            is_error_document = self._first in (b"{", b"[") and self._decoder.raw_error is not None
            self.is_no_stream = failed.code == "not_a_stream" or is_error_document
        elif self._first == b"<" or self._lines.is_lines(self.start):  # no need to wait for the end
            self.is_no_stream = True
        self._said_something = any(not isinstance(event, Keepalive) for event in heard)


def _told_once(heard: list[StreamEvent]) -> list[StreamEvent]:
    """What one read said, with neighbours as one: keepalives, and pieces of one text."""
    if len(heard) < 2:
        return heard
    told: list[StreamEvent] = []
    for kind, neighbours in groupby(heard, type):
        if kind is TextDelta or kind is ReasoningDelta:
            pieces = cast("Iterator[TextDelta]", neighbours)
            told.append(kind("".join([piece.text for piece in pieces])))
        elif kind is Keepalive:
            told.append(next(neighbours))
        else:
            told += neighbours
    return told


def _is_terminal(heard: list[StreamEvent]) -> bool:
    return bool(heard) and isinstance(heard[-1], Completed | Failed)


async def _refusal(response: httpx.Response, chunks: AsyncIterator[bytes], asked: Asked) -> Refusal:
    """Why an answer with another status than 200 gives no stream."""
    body = await read_start(chunks, _ERROR_BODY_BYTES, _ERROR_BODY_S, DocumentWatch().is_whole)
    answer = Answer(response.status_code, dict(response.headers), body, address_of(response.request.url))
    if response.status_code >= 400:
        return refused(answer, asked)
    if response.status_code >= 300:
        return redirected(answer, _target(response), asked)
    return not_a_stream(answer, asked)


def _target(response: httpx.Response) -> str:
    following = response.next_request
    return "nowhere" if following is None else f"{following.url.scheme}://{address_of(following.url)}"


def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body, unpacked where a gateway compressed what we asked for plain."""
    packed = "content-encoding" in response.headers
    # `aiter_raw` would only cut these parts anew, at a price for each of them.
    return cast(
        "AsyncGenerator[bytes, None]", response.aiter_bytes() if packed else aiter(cast("Any", response.stream))
    )


def _http_request(
    client: httpx.AsyncClient, endpoint: Endpoint, codec: Codec, encoded: EncodedRequest
) -> httpx.Request:
    headers = httpx.Headers({"Accept": "text/event-stream"})
    headers.update(encoded.headers)
    if endpoint.api_key:
        headers.update(codec.authorization(endpoint.api_key))
    headers.update(endpoint.headers)
    base = httpx.URL(endpoint.base_url)
    path, _, query = base.raw_path.partition(b"?")
    raw_path = path.rstrip(b"/") + b"/" + encoded.path.lstrip("/").encode() + (b"?" + query if query else b"")
    return client.build_request(
        "POST",
        base.copy_with(raw_path=raw_path),
        content=encoded.body,
        headers=headers,
        timeout=connect_timeout(endpoint.connect_timeout_s),
    )


def _not_answered(refusal: Refusal, call: int, attempt: int) -> NotAnswered:
    return NotAnswered(
        call, attempt, refusal.status, refusal.retryable, refusal.code, refusal.message, refusal.retry_after
    )
