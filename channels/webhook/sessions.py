"""The HTTP sessions of the sender: one for each kind of TLS, opened once and kept while it is used.

What belongs here: TLS contexts, and how long a session lives. What must not be known here: what is sent.

A TLS context costs some 20 ms and half a megabyte, so endpoints that need nothing of their own share one. Files of
those that do are looked at before each attempt: a certificate that was renewed counts from the next one on.
"""

import asyncio
import os
import ssl
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from channels.endpoints.model import Tls
from channels.webhook.connection import TimedTls, observed

OpenSession = Callable[[ssl.SSLContext], aiohttp.ClientSession]
"""Opens a session with this context, on the running loop. It keeps no cookie, asks no proxy of the environment, and
drops idle connections after 4 s at most."""

MOST = 64
"""So many sessions are kept; those in use beside, however many they are."""

_NOTHING = Tls()
_Stamps = tuple[tuple[int, int, int], ...]


class BadTlsFile(Exception):
    """A file of an endpoint's TLS cannot be used. Its words name field, file and fix."""


@dataclass(slots=True)
class Kept:
    """An open session. `users`: attempts that use it just now. `dropped`: to be closed by the last of them."""

    session: aiohttp.ClientSession
    stamps: _Stamps
    users: int = 0
    dropped: bool = False


_Key = tuple[Tls, bool]


class Sessions:
    """The sessions of one process. `direct` and `proxied` open them: to receivers, and to proxies.

    `context`: makes a TLS context that trusts what everybody trusts; a `ca_file` is trusted beside.
    """

    def __init__(
        self, *, direct: OpenSession, proxied: OpenSession, context: Callable[[], ssl.SSLContext], most: int = MOST
    ) -> None:
        self._open = {False: direct, True: proxied}
        self._context = context
        self._most = most
        self._kept: OrderedDict[_Key, Kept] = OrderedDict()
        self._opening: dict[_Key, asyncio.Lock] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._kept)

    async def take(self, tls: Tls, *, proxied: bool) -> Kept:
        """A session for this TLS, until it is given back. Raises `BadTlsFile`."""
        key = (tls, proxied)
        stamps = _stamps(tls)
        kept = self._kept.get(key)
        if kept is None or kept.stamps != stamps:
            kept = await self._opened(key, stamps)
        if key in self._kept:
            self._kept.move_to_end(key)
        kept.users += 1
        return kept

    async def give_back(self, kept: Kept) -> None:
        """The attempt is over."""
        kept.users -= 1
        if kept.dropped and not kept.users:
            await self._end([kept])

    async def close(self) -> None:
        """Close all, whoever uses them."""
        while self._kept:
            _, kept = self._kept.popitem()
            await kept.session.close()
        await asyncio.gather(*self._closing)

    async def _opened(self, key: _Key, stamps: _Stamps) -> Kept:
        lock = self._opening.setdefault(key, asyncio.Lock())
        try:
            async with lock:
                kept = self._kept.get(key)
                if kept is None or kept.stamps != stamps:
                    # Reading certificates would hold up every other attempt.
                    context = await asyncio.to_thread(_context_for, key[0], self._context)
                    kept = Kept(observed(self._open[key[1]](context)), stamps)
                    before = self._kept.pop(key, None)
                    self._kept[key] = kept
                    kept.users += 1
                    try:
                        await self._drop([*([] if before is None else [before]), *self._too_many()])
                    finally:  # whoever asked for it may have run out of time
                        kept.users -= 1
                return kept
        finally:
            if not lock.locked():
                self._opening.pop(key, None)

    def _too_many(self) -> list[Kept]:
        idle = [key for key, kept in self._kept.items() if not kept.users]
        return [self._kept.pop(key) for key in idle[: max(0, len(self._kept) - self._most)]]

    async def _drop(self, old: list[Kept]) -> None:
        for kept in old:
            kept.dropped = True
        await self._end([kept for kept in old if not kept.users])

    async def _end(self, old: list[Kept]) -> None:
        """Close these to the end, also when the attempt that is waiting for it is cut off."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(kept.session.close()) for kept in old]
        self._closing.update(tasks)
        for task in tasks:
            task.add_done_callback(self._closing.discard)
        for task in tasks:
            await asyncio.shield(task)


def _files(tls: Tls) -> list[tuple[str, str]]:
    named = (("ca_file", tls.ca_file), ("cert_file", tls.cert_file), ("key_file", tls.key_file))
    return [(field, path) for field, path in named if path]


def _stamps(tls: Tls) -> _Stamps:
    """What changes when a file does. Raises `BadTlsFile`."""
    return () if tls == _NOTHING else tuple(_stamp(field, path) for field, path in _files(tls))


def _stamp(field: str, path: str) -> tuple[int, int, int]:
    try:
        state = os.stat(path)  # noqa: PTH116 - a Path for each attempt costs more than the call
    except (OSError, ValueError) as error:
        raise _bad(field, path, error) from None
    return state.st_mtime_ns, state.st_ino, state.st_size


def _context_for(tls: Tls, default: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
    context = default()
    if tls.ca_file:
        try:
            context.load_verify_locations(tls.ca_file)
        except (OSError, ValueError) as error:
            raise _bad("ca_file", tls.ca_file, error) from None
    if tls.cert_file:
        try:
            context.load_cert_chain(tls.cert_file, tls.key_file or None, password=_no_password)
        except (OSError, ValueError) as error:
            raise _bad("cert_file", tls.cert_file, error) from None
    context.sslobject_class = TimedTls
    return context


def _no_password() -> bytes:
    """Without it, OpenSSL would ask the terminal."""
    return b""


def _bad(field: str, path: str, error: Exception) -> BadTlsFile:
    if isinstance(error, ssl.SSLError):
        why = (error.reason or "no PEM file").replace("_", " ").lower()
        fix = "give PEM files; certificate and key must belong together, and the key must have no password"
    else:
        why = str(getattr(error, "strerror", None) or type(error).__name__)
        fix = "give a file that this process may read"
    return BadTlsFile(f"tls.{field} = {path!r} cannot be used ({why}); {fix}")
