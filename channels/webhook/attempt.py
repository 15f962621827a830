"""One attempt to post bytes to an endpoint.

What belongs here: the request, its hard deadline, and the evidence that it leaves. What must not be known here: what
the bytes mean, deliveries, leases, when the next attempt is made.

The deadline holds for everything: the TLS files, the lookup of the name, connection, proxy, TLS, the request, the head
of the answer and its body. Of a body a little is read, raw, so that the connection can be used again; one that has more
to say, or is slow to, is cut off with its connection.
"""

import asyncio
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import monotonic

import aiohttp
from yarl import URL

from channels.delivery.model import Delivered, Evidence, Failed, Kind, Sent, well_formed
from channels.endpoints.model import Endpoint, Tls
from channels.webhook.address import check_proxy, check_url
from channels.webhook.answer import Answer, leads_to, meaning_of, place_of
from channels.webhook.connection import NOTES, Notes
from channels.webhook.proxied import Judge
from channels.webhook.sessions import BadTlsFile, Sessions
from worker.errors import ConfigurationError
from worker.http import HTTP_FAULTS, classify, retry_after_s

CAPTURE_BYTES = 16384
"""So much of an answer's body is evidence."""

MAX_BODY_BYTES = 65536
"""So much of it is read, for the sake of the connection."""

_BODY_GRACE_S = 1.0
"""The status has decided; nobody waits for longer than this to use the connection again."""

_PART_BYTES = 256 * 1024
"""A larger request is written in parts, so that it does not hold up the others."""

_OURS = frozenset({"no_sockets"})
_NO_OTHER_TIMEOUT = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class Attempts:
    """Makes attempts. `judge`: of what is behind a proxy; without one, proxies reach what they like."""

    def __init__(self, sessions: Sessions, *, judge: Judge | None = None, capture_bytes: int = CAPTURE_BYTES) -> None:
        self._sessions = sessions
        self._judge = judge
        self._capture_bytes = capture_bytes

    async def post(self, endpoint: Endpoint, headers: Mapping[str, str], body: bytes) -> Delivered | Failed:
        """Post `body` within `endpoint.timeout_s` seconds. It never raises for what an endpoint is or does."""
        notes = Notes()
        try:
            route = _Route(_target(endpoint.url), _proxy(endpoint.proxy), endpoint.tls, endpoint.timeout_s)
        except ConfigurationError as error:
            return _unsent("permanent", "invalid_url", str(error), notes)
        except ValueError as error:
            return _unsent("ours", "bad_proxy", str(error), notes)
        taking = _Taking(notes, self._capture_bytes)
        observed = NOTES.set(notes)
        limit = asyncio.timeout(route.timeout_s)
        try:
            async with limit:
                await self._exchange(route, headers, body, taking)
        except BadTlsFile as error:
            return _unsent("ours", "bad_tls_file", str(error), notes)
        except Exception as error:
            taking.answer = taking.answer or _head_alone(route, notes)
            if taking.answer is None:
                if not isinstance(error, HTTP_FAULTS):
                    raise
                return _failure(error, route, notes, late=limit.expired())
        finally:
            NOTES.reset(observed)
        assert taking.answer is not None
        if taking.answer.status == 407 and route.proxy is not None and not route.is_tunnel:
            return _proxy_refused(route.proxy, 407, notes)
        return meaning_of(taking.answer, taking.evidence())

    async def close(self) -> None:
        """Close every session."""
        await self._sessions.close()

    async def _exchange(self, route: "_Route", headers: Mapping[str, str], body: bytes, taking: "_Taking") -> None:
        url, proxied, server_name = route.url, route.proxy is not None, None
        if proxied and self._judge and (address := await self._judge.address_of(url, is_tunnel=route.is_tunnel)):
            headers = {**headers, "host": url.host_port_subcomponent or ""}
            url, server_name = url.with_host(address), url.raw_host
            taking.notes.through = place_of(url)
        kept = await self._sessions.take(route.tls, proxied=proxied)
        taking.notes.asked, taking.notes.dialled = monotonic(), True
        try:
            response = await kept.session.post(
                url,
                data=body if len(body) <= _PART_BYTES else io.BytesIO(body),
                headers=headers,
                allow_redirects=False,
                auto_decompress=False,
                timeout=_NO_OTHER_TIMEOUT,
                proxy=route.proxy,
                server_hostname=server_name,
            )
            try:
                await taking.take(response, route.url)
            finally:
                if not response.content.is_eof():
                    response.close()
        finally:
            await self._sessions.give_back(kept)


@dataclass(frozen=True, slots=True)
class _Route:
    """Where an attempt goes, and how."""

    url: URL
    proxy: URL | None
    tls: Tls
    timeout_s: float

    @property
    def is_tunnel(self) -> bool:
        """Whether the proxy sees no more of it than where it goes."""
        return self.proxy is not None and self.url.scheme == "https"


class _Taking:
    """What is taken of an answer, however it ends."""

    __slots__ = ("_body", "_capture_bytes", "_content_type", "_whole", "answer", "notes")

    def __init__(self, notes: Notes, capture_bytes: int) -> None:
        self.notes = notes
        self.answer: Answer | None = None
        self._capture_bytes = capture_bytes
        self._body = bytearray()
        self._content_type = ""
        self._whole = False

    async def take(self, response: aiohttp.ClientResponse, url: URL) -> None:
        """Take the head, and of the body what comes soon."""
        status, headers = response.status, response.headers
        if 200 <= status < 300:
            self.answer = Answer(status, "")
        else:
            target = leads_to(url, headers.get("location", "")) if 300 <= status < 400 else ""
            self.answer = Answer(status, place_of(url), retry_after_s(headers), target)
        # A byte above 127 is half a surrogate pair here, which nothing can store.
        self._content_type = well_formed(headers.get("content-type", "")[:256])
        content = response.content
        if content.is_eof():
            self._body += content.read_nowait()
            self._whole = True
            return
        async with asyncio.timeout(_BODY_GRACE_S):
            while len(self._body) <= MAX_BODY_BYTES:
                part = await content.readany()
                if not part:
                    self._whole = True
                    return
                self._body += part

    def evidence(self) -> Evidence:
        """What the attempt showed."""
        assert self.answer is not None
        start = bytes(self._body[: self._capture_bytes])
        truncated = not self._whole or len(start) < len(self._body)
        return _evidence(self.notes, self.answer.status, self._content_type, start, truncated=truncated)


def _evidence(
    notes: Notes, status: int | None = None, content_type: str = "", body: bytes = b"", *, truncated: bool = False
) -> Evidence:
    total_ms = round((monotonic() - notes.began) * 1000)
    head_ms = _between(notes.sent or notes.connected, notes.answered)
    if notes.reused:
        return Evidence(status, total_ms, None, None, None, head_ms, True, notes.address, content_type, body, truncated)
    there = notes.shaking or notes.connected
    lookup_ms = _between(notes.asked, notes.found)
    connect_ms = _between(notes.found or notes.asked, there)
    tls_ms = _between(notes.shaking, notes.connected)
    return Evidence(
        status, total_ms, lookup_ms, connect_ms, tls_ms, head_ms, False, notes.address, content_type, body, truncated
    )


def _between(start: float | None, end: float | None) -> int | None:
    return None if start is None or end is None else max(0, round((end - start) * 1000))


def _head_alone(route: _Route, notes: Notes) -> Answer | None:
    """The answer whose head came, whatever went wrong behind it; None where none came.

    The first head on a new connection through a tunnel is the proxy's.
    """
    heads = notes.heads - (route.is_tunnel and not notes.reused)
    return Answer(notes.status, place_of(route.url)) if heads > 0 and notes.status is not None else None


def _failure(error: Exception, route: _Route, notes: Notes, *, late: bool) -> Failed:
    """The outcome of an attempt that got no answer."""
    at, proxy = place_of(route.url), route.proxy
    if proxy is not None and _waits_for_proxy(error, route, notes, late=late):
        why = f"no answer within {route.timeout_s:g} s" if late else classify(error, place_of(proxy)).message
        message = f"the proxy {place_of(proxy)} cannot be used: {why}"
        return Failed("ours", "proxy_unreachable", message, "no", evidence=_evidence(notes))
    if late:
        # Before there was a connection to write to, nothing was written.
        code = "connect_timeout" if notes.connected is None else "timeout"
        sent: Sent = "no" if notes.connected is None else "perhaps"
        message = f"{at} gave no answer within {route.timeout_s:g} s"
        return Failed("transient", code, message, sent, evidence=_evidence(notes))
    if proxy is not None and isinstance(error, aiohttp.ClientHttpProxyError):
        return _proxy_refused(proxy, error.status, notes)
    fault = classify(error, at)
    message = well_formed(fault.message)
    if notes.through:  # what a name stands for is not for everybody
        message = message.replace(notes.through, at)
    kind: Kind = "ours" if fault.code in _OURS else "permanent" if fault.lasting else "transient"
    return Failed(kind, fault.code, message, fault.sent, evidence=_evidence(notes))


def _waits_for_proxy(error: Exception, route: _Route, notes: Notes, *, late: bool) -> bool:
    """Whether it was the proxy that was not reached, or did not answer to being asked for a tunnel."""
    place = None if route.proxy is None else (route.proxy.raw_host, route.proxy.port)
    if isinstance(error, aiohttp.ClientConnectorError) and (error.host, error.port) == place:
        return True
    if isinstance(error, aiohttp.ClientHttpProxyError) or notes.reused or notes.heads:
        return False
    if notes.connected is None:
        return late and notes.dialled
    return route.is_tunnel


def _proxy_refused(proxy: URL, status: int, notes: Notes) -> Failed:
    """The proxy would not let it through (407 to us, other 4xx to this target), or found nobody there."""
    kind: Kind = "ours" if status == 407 else "transient" if status >= 500 else "permanent"
    code = "proxy_failed" if status >= 500 else "proxy_refused"
    return Failed(kind, code, f"the proxy {place_of(proxy)} answered {status}", "no", evidence=_evidence(notes, status))


def _unsent(kind: Kind, code: str, message: str, notes: Notes) -> Failed:
    return Failed(kind, code, message, "no", evidence=_evidence(notes))


@lru_cache(1024)
def _target(url: str) -> URL:
    """The URL, to the letter. Raises `ConfigurationError`."""
    try:
        return URL(check_url("url", url), encoded=True)
    except ValueError:
        raise ConfigurationError("url cannot be read; give one like https://example.com/hook") from None


@lru_cache(64)
def _proxy(proxy: str) -> URL | None:
    """The proxy's URL, or None: no proxy. Raises ValueError with words that hold no secret."""
    try:
        return URL(check_proxy(proxy)) if proxy else None
    except ValueError as error:
        raise ValueError(f"proxy: {error}") from None
