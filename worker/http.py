"""The HTTP client, and the one table of what can go wrong with a request.

What belongs here: opening a client, reading the start of a body, naming a failure, `Retry-After`. What must not be
known here: who sends a request, what is in it, whether it is sent again.

httpx-aiohttp 0.2.0 raises `httpx.ConnectTimeout` both for a refused connection and for a server that hung up on a
written request. "Not sent" and "perhaps sent" must never be confused, so `classify` goes by the aiohttp exception
beneath. It says "no" only where no byte of the request can have left; every doubt is "perhaps".
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Literal

import aiohttp
import httpx
from aiohttp import http_exceptions

from worker.guard import Blocked, Guard
from worker.transport import open_transport

Sent = Literal["no", "perhaps"]
_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)
_UNREACHABLE = "unreachable"
_ALIKE_OUTSIDE = frozenset(
    {"blocked", "dns", "connect_refused", "connect_timeout", "reset_in_handshake", "no_sockets", _UNREACHABLE}
)
HTTP_FAULTS: tuple[type[Exception], ...] = (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, ValueError)
"""What sending a request and reading its answer may raise for a reason outside this program."""


@dataclass(frozen=True, slots=True)
class HttpFault:
    """Why a request got no whole answer.

    `code`: a key of `_MEANINGS` below. `sent`: "no" when the peer cannot have seen the request, else "perhaps".
    `lasting`: it will fail alike until somebody changes an address, a certificate or a header. `message` is for a
    person; it names host and port, and never a path, a query, a user name or a header. It may also name the address
    behind a name, which is for operators only: who merely owns an endpoint is shown `public_code` and `public`.
    """

    code: str
    sent: Sent
    message: str
    lasting: bool = False

    @property
    def public_code(self) -> str:
        """The code for outsiders: one word for all that could show them what is where inside of a network."""
        return _UNREACHABLE if self.code in _ALIKE_OUTSIDE else self.code

    @property
    def public(self) -> str:
        """The message for outsiders: the same for what is blocked, refused and not found."""
        return "the endpoint cannot be reached" if self.public_code == _UNREACHABLE else self.message


def open_client(
    *,
    connect_timeout_s: float,
    guard: Guard,
    idle_s: float = 4.0,
    max_connections: int | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> httpx.AsyncClient:
    """A client on aiohttp, for the running event loop. It follows no redirect, keeps no cookie, asks no proxy.

    `connect_timeout_s` bounds name lookup, connection and TLS together. There is no other timeout: reading is bounded
    by its caller. `guard` decides what may be dialled. `idle_s`: how long an unused connection is kept; less than the
    5 s after which many servers drop one, since a request on a dropped one is perhaps sent. One that carried an event
    stream is not kept at all.
    `max_connections` None: no limit. Certificates are those of `ssl_context`, else of SSL_CERT_FILE, else the bundled
    ones.
    """
    # httpx writes every URL to its log at INFO, and a path or a query may hold a key.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    return httpx.AsyncClient(
        transport=open_transport(idle_s, max_connections, guard, ssl_context or httpx.create_ssl_context()),
        headers={"User-Agent": "lastword", "Accept-Encoding": "identity"},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        timeout=connect_timeout(connect_timeout_s),
        follow_redirects=False,
        trust_env=False,
    )


def trusting_context() -> ssl.SSLContext:
    """A TLS context that trusts the certificates of SSL_CERT_FILE, else the bundled ones."""
    return httpx.create_ssl_context()


def connect_timeout(seconds: float) -> httpx.Timeout:
    """A timeout for one request that bounds lookup, connection and TLS together, and nothing else."""
    return httpx.Timeout(None, connect=seconds, pool=seconds)


async def read_start(
    chunks: AsyncIterator[bytes],
    max_bytes: int,
    within_s: float,
    is_whole: Callable[[bytearray], bool] | None = None,
) -> bytes:
    """The first `max_bytes` of a body, or what of it came within `within_s` seconds. Never raises for the peer.

    `is_whole` is asked after every chunk whether what came is all of it, for a peer that does not end its body.
    """
    start = bytearray()
    try:
        async with asyncio.timeout(within_s):
            async for chunk in chunks:
                start += chunk
                if len(start) >= max_bytes or (is_whole is not None and is_whole(start)):
                    break
    except HTTP_FAULTS:  # what came before the fault is still worth reading
        pass
    return bytes(start[:max_bytes])


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds that `Retry-After` (or `retry-after-ms`) asks for, or None where there is none or it is nonsense.

    A date is read against the answer's own `Date`, so that no clock of ours can disagree with it. `headers` finds
    names in lower case.
    """
    milliseconds = headers.get("retry-after-ms", "").strip()
    if _NUMBER.fullmatch(milliseconds):
        return float(milliseconds) / 1000
    value = headers.get("retry-after", "").strip()
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        wait = parsedate_to_datetime(value) - parsedate_to_datetime(headers.get("date", ""))
    except (TypeError, ValueError, OverflowError):
        return None
    return max(0.0, wait.total_seconds())


# The table, in two halves: which exception is which fault (the first row that fits), and what each fault means.


def _any(_: BaseException) -> bool:
    return True


def _errno(*numbers: int) -> Callable[[Any], bool]:
    return lambda error: error.errno in numbers


def _says(words: str) -> Callable[[Any], bool]:
    return lambda error: any(words in str(cause) for cause in _causes(error))


def _over(kind: type[BaseException]) -> Callable[[Any], bool]:
    return lambda error: any(isinstance(cause, kind) for cause in _causes(error))


_FAULTS: tuple[tuple[type[BaseException], Callable[[Any], bool], str], ...] = (
    (aiohttp.ClientConnectorCertificateError, _any, "certificate"),
    (aiohttp.ClientConnectorSSLError, _any, "tls"),
    (aiohttp.ClientConnectorError, _over(Blocked), "blocked"),
    (aiohttp.ClientConnectorDNSError, _any, "dns"),
    (aiohttp.ClientConnectorError, _errno(errno.ECONNREFUSED), "connect_refused"),
    (aiohttp.ClientConnectorError, _errno(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM), "no_sockets"),
    (aiohttp.ClientConnectorError, _errno(errno.ETIMEDOUT), "connect_timeout"),
    (aiohttp.ClientConnectorError, _over(ConnectionError), "reset_in_handshake"),
    (aiohttp.ClientConnectorError, _any, "unreachable"),
    (aiohttp.ConnectionTimeoutError, _any, "connect_timeout"),
    (aiohttp.ServerTimeoutError, _any, "timeout"),
    (aiohttp.ClientOSError, _errno(errno.ETIMEDOUT), "timeout"),
    (aiohttp.ClientConnectionError, _any, "reset"),
    (aiohttp.ClientPayloadError, _says("TimeoutError"), "timeout"),
    (aiohttp.ClientPayloadError, _says("ConnectionResetError"), "reset_in_body"),
    (aiohttp.ClientPayloadError, _says("Not enough data"), "truncated"),
    (aiohttp.ClientPayloadError, _any, "malformed"),
    (aiohttp.ClientResponseError, _over(http_exceptions.LineTooLong), "head_too_large"),
    (aiohttp.ClientResponseError, _says("Too many headers"), "head_too_large"),
    (aiohttp.ClientResponseError, _over(http_exceptions.BadStatusLine), "not_http"),
    (aiohttp.ClientResponseError, _any, "malformed"),
    (httpx.RemoteProtocolError, _any, "bad_redirect"),
    (httpx.DecodingError, _any, "malformed"),
    (aiohttp.InvalidURL, _any, "invalid_url"),
    (aiohttp.NonHttpUrlClientError, _any, "invalid_url"),
    (httpx.InvalidURL, _any, "invalid_url"),
    (UnicodeEncodeError, lambda error: error.encoding == "ascii", "bad_header"),
    (UnicodeDecodeError, _any, "unknown"),
    (UnicodeError, _any, "invalid_url"),
    (ValueError, _says("control character"), "bad_header"),
    (ValueError, _says("credentials encoded in URL"), "invalid_url"),
    (Blocked, _any, "blocked"),  # by the guard itself, asked before a proxy is
    (TimeoutError, _any, "timeout"),
    (socket.gaierror, _any, "dns"),
    (BaseException, _any, "unknown"),
)

_MEANINGS: dict[str, tuple[Sent, bool, str]] = {
    "connect_refused": ("no", False, "nothing listens at {at} (connection refused)"),
    "blocked": ("no", True, "{at}: {why}"),
    "dns": ("no", False, "no address was found for the name in {at} ({why})"),
    "certificate": ("no", True, "the certificate of {at} is not accepted ({why}); SSL_CERT_FILE can name its issuer"),
    "tls": ("no", True, "no TLS with {at} ({why}); a server without TLS has an address that begins with http://"),
    "connect_timeout": ("no", False, "{at} did not take the connection in time"),
    "unreachable": ("no", False, "{at} cannot be reached ({why})"),
    "no_sockets": ("no", False, "this machine has no socket left to reach {at} ({why}); raise its limit on open files"),
    "reset_in_handshake": ("no", False, "{at} closed the connection before a request could be sent"),
    "reset": ("perhaps", False, "{at} closed the connection before it answered"),
    "reset_in_body": ("perhaps", False, "{at} reset the connection in the middle of its answer"),
    "truncated": ("perhaps", False, "{at} closed the connection in the middle of its answer"),
    "malformed": ("perhaps", False, "the answer from {at} breaks HTTP"),
    "not_http": ("perhaps", True, "what listens at {at} does not speak HTTP"),
    "head_too_large": (
        "perhaps",
        True,
        "the head of the answer from {at} is too large (8 kB a line, 128 lines; a webhook's 64 kB in all)",
    ),
    "bad_redirect": ("perhaps", True, "{at} redirects to an address that cannot be read"),
    "timeout": ("perhaps", False, "{at} did not answer in time"),
    "invalid_url": ("no", True, "the URL cannot be used; write http://HOST:PORT/PATH, without user or password"),
    "bad_header": ("no", True, "a header for {at} holds a line break, a control character or a letter outside ASCII"),
    "unknown": ("perhaps", False, "the request to {at} failed ({why})"),
}


def classify(error: BaseException, at: str = "") -> HttpFault:
    """The fault that an exception of `HTTP_FAULTS` stands for. Pass it as it was caught, with its causes.

    `at`: host and port of the request, for an exception that does not know them.
    """
    causes = _causes(error)
    beneath = next((cause for cause in causes if isinstance(cause, aiohttp.ClientError)), error)
    code = next(code for kind, fits, code in _FAULTS if isinstance(beneath, kind) and fits(beneath))
    sent, lasting, words = _MEANINGS[code]
    return HttpFault(
        code, sent, words.format(at=_address(causes) or at or "the server", why=_reason(causes[-1])), lasting
    )


def _causes(error: BaseException) -> list[BaseException]:
    causes = [error]
    while (cause := causes[-1].__cause__) is not None and cause not in causes:
        causes.append(cause)
    return causes


def _reason(root: BaseException) -> str:
    """Words for the deepest cause that hold nothing of the request."""
    if isinstance(root, ssl.SSLCertVerificationError):
        return str(root.verify_message)
    if isinstance(root, ssl.SSLError) and root.reason:
        return root.reason.replace("_", " ").lower()
    if isinstance(root, socket.gaierror | Blocked):
        return str(root.strerror)
    return os.strerror(root.errno) if isinstance(root, OSError) and root.errno else type(root).__name__


def _address(causes: list[BaseException]) -> str:
    for cause in causes:
        if isinstance(cause, aiohttp.ClientConnectorError):
            return _host_and_port(cause.host, cause.port)
        if isinstance(cause, aiohttp.ClientResponseError):
            return _host_and_port(cause.request_info.url.raw_host or "", cause.request_info.url.port)
        if isinstance(cause, httpx.RequestError):
            with contextlib.suppress(RuntimeError):  # raised where httpx does not know the request
                return address_of(cause.request.url)
    return ""


def address_of(url: httpx.URL) -> str:
    """Host and port of a URL, as a message may name them."""
    return _host_and_port(url.host, url.port or {"http": 80, "https": 443}.get(url.scheme))


def _host_and_port(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"
