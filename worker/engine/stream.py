"""One attempt of a call over HTTP: the request goes out, events come back.

What belongs here: sending, reading, closing. What must not be known here: wire formats (the codec's), what an answer
without a stream means (`refusal`), deadlines, retries and resumes (the turn machine's).

One read is one batch: what the network gave at once is decoded at once, and nothing waits in between. Reading stops at
the terminal event, and the connection is dropped without a look at what may follow. Whoever closes the generator,
or cancels the task that reads it, drops the connection too.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import cast

import httpx

from worker.codecs.codec import Codec, Decoder, EncodedRequest
from worker.codecs.events import Completed, Failed, StreamEvent
from worker.codecs.messages import Request
from worker.engine.refusal import Answer, Asked, Refusal, clean, not_a_stream, redirected, refused, unreached
from worker.http import HTTP_FAULTS, address_of, classify, connect_timeout, read_start
from worker.turn.events import DeathKind, Died, Event, Heard, NotAnswered

_ERROR_BODY_BYTES = 64 * 1024
_ERROR_BODY_S = 10.0
_NO_STREAMS = ("text/html", "application/json", "application/problem+json", "application/xhtml+xml")
_DEATHS: dict[str, DeathKind] = {"timeout": "timeout", "malformed": "protocol"}
_ENDED_EARLY: tuple[DeathKind, str] = ("end_of_stream", "the stream ended without its terminal mark")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a provider listens, and how it is asked.

    `name`: its `[providers.NAME]`. `base_url`: the path of the wire format is joined to it. `headers` go over our own.
    `connect_timeout_s` bounds lookup, connection and TLS; `finish_grace_s` the wait for usage after the terminal mark.
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

    That is a `Heard` with `Completed` or `Failed`, a `NotAnswered`, or a `Died`. Never raises for the peer.
    """
    asked = Asked(endpoint.name, (endpoint.api_key or "", *endpoint.headers.values()), request)
    try:
        response = await client.send(_http_request(client, endpoint, codec.encode(request)), stream=True)
    except HTTP_FAULTS as error:
        yield [_not_answered(unreached(classify(error), asked), call, attempt)]
        return
    try:
        async with aclosing(_chunks(response)) as chunks:
            opening = await _opening(response, chunks, asked)
            if isinstance(opening, Refusal):
                yield [_not_answered(opening, call, attempt)]
                return
            reader = _Reader(chunks, codec.decoder(), endpoint.finish_grace_s)
            heard = reader.take(opening)
            while True:
                batch: list[Event] = [
                    Heard(call, attempt, clean(event, asked) if isinstance(event, Failed) else event) for event in heard
                ]
                if reader.death is not None:
                    batch.append(Died(call, attempt, *reader.death))
                if batch:
                    yield batch
                if reader.ended:
                    return
                heard = await reader.read()
    finally:
        with suppress(*HTTP_FAULTS):
            await response.aclose()


class _Reader:
    """Feeds the decoder what the network gives. `ended`: nothing follows. `death`: its kind and why, if it was one."""

    def __init__(self, chunks: AsyncIterator[bytes], decoder: Decoder, finish_grace_s: float) -> None:
        self.ended = False
        self.death: tuple[DeathKind, str] | None = None
        self._chunks = chunks
        self._decoder = decoder
        self._finish_grace_s = finish_grace_s
        self._deadline: float | None = None

    async def read(self) -> list[StreamEvent]:
        """What the next bytes say, or what the end of the stream says."""
        try:
            if self._deadline is None:
                data = await anext(self._chunks, None)
            else:
                async with asyncio.timeout_at(self._deadline):
                    data = await anext(self._chunks, None)
        except TimeoutError:  # the grace is over: the call is whole, and usage does not come
            return self._end(_ENDED_EARLY)
        except HTTP_FAULTS as error:
            fault = classify(error)
            return self._end((_DEATHS.get(fault.code, "reset"), fault.message))
        return self._end(_ENDED_EARLY) if data is None else self.take(data)

    def take(self, data: bytes) -> list[StreamEvent]:
        """What these bytes say."""
        heard = self._decoder.feed(data)
        self.ended = _is_terminal(heard)
        if self._deadline is None and self._decoder.finishing:
            self._deadline = asyncio.get_running_loop().time() + self._finish_grace_s
        return heard

    def _end(self, death: tuple[DeathKind, str]) -> list[StreamEvent]:
        heard = self._decoder.close()
        self.ended = True
        if not _is_terminal(heard):
            self.death = death
        return heard


def _is_terminal(heard: list[StreamEvent]) -> bool:
    return bool(heard) and isinstance(heard[-1], Completed | Failed)


async def _opening(response: httpx.Response, chunks: AsyncIterator[bytes], asked: Asked) -> bytes | Refusal:
    """The first bytes of the stream, or why there is none. A head that promises a stream is taken at its word."""
    status, kind = response.status_code, response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if status == 200 and kind == "text/event-stream":
        return b""
    first = b""
    if status == 200 and kind not in _NO_STREAMS:  # some servers say plain text, or nothing
        first = await _first(chunks)
        if not first.startswith((b"<", b"{", b"[")):
            return first
    body = first + await read_start(chunks, _ERROR_BODY_BYTES, _ERROR_BODY_S)
    answer = Answer(status, dict(response.headers), body, address_of(response.request.url))
    if status >= 400:
        return refused(answer, asked)
    if status >= 300:
        return redirected(answer, _target(response), asked)
    return not_a_stream(answer, asked)


async def _first(chunks: AsyncIterator[bytes]) -> bytes:
    """The first bytes that are no white space; empty where the body ends or breaks before them."""
    with suppress(*HTTP_FAULTS):
        async for chunk in chunks:
            if first := chunk.lstrip():
                return first
    return b""


def _target(response: httpx.Response) -> str:
    following = response.next_request
    return "nowhere" if following is None else f"{following.url.scheme}://{address_of(following.url)}"


def _chunks(response: httpx.Response) -> AsyncGenerator[bytes, None]:
    """The body, unpacked where a gateway compressed what we asked for plain."""
    packed = "content-encoding" in response.headers
    return cast("AsyncGenerator[bytes, None]", response.aiter_bytes() if packed else response.aiter_raw())


def _http_request(client: httpx.AsyncClient, endpoint: Endpoint, encoded: EncodedRequest) -> httpx.Request:
    headers = httpx.Headers({"Accept": "text/event-stream"})
    headers.update(encoded.headers)
    if endpoint.api_key:
        headers["Authorization"] = f"Bearer {endpoint.api_key}"
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
