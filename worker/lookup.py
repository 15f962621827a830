"""Names become numeric addresses, within a time of their own.

What belongs here: asking the system's resolver without waiting for it longer than agreed. What must not be known here:
which addresses are allowed, what is sent there.

The system's resolver blocks, and cannot be told to stop. In a pool of threads that others use too (uvloop has four, of
which two may look up names), a few names whose servers say nothing would hold up all others. So each name that is being
looked up has one thread, however many ask for it, and no more than `_MOST` names are looked up at a time. Threads whose
time is over, but which the system still keeps, do not count among those; of all together there are `_MOST_THREADS`.
"""

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Protocol

_MOST = 64
_MOST_THREADS = 256

_Found = Sequence[str] | OSError | UnicodeError


class Lookup(Protocol):
    """What gives the addresses of a name."""

    async def addresses(self, host: str) -> Sequence[str]:
        """Every address of a name, as text, with a zone where it has one. Raises `socket.gaierror`, UnicodeError."""


class SystemLookup:
    """Asks the system, for at most `timeout_s` seconds a name. To be used on one event loop. Keeps no answer.

    `ask`: blocks until it has the addresses of a name, or raises OSError or UnicodeError.
    """

    def __init__(
        self,
        timeout_s: float,
        ask: Callable[[str], Sequence[str]] | None = None,
        most: int = _MOST,
        most_threads: int = _MOST_THREADS,
    ) -> None:
        self._timeout_s = timeout_s
        self._most_threads = most_threads
        self._ask = ask or _ask_system
        self._slots = asyncio.Semaphore(most)
        self._running: dict[str, asyncio.Future[_Found]] = {}

    async def addresses(self, host: str) -> Sequence[str]:
        """Every address of a name. Raises `socket.gaierror`, also when time runs out; UnicodeError for no name."""
        try:
            async with asyncio.timeout(self._timeout_s):
                found = await asyncio.shield(await self._begun(host))
        except TimeoutError:
            words = f"no answer within {self._timeout_s:g} s, setting egress.dns_timeout_s"
            raise socket.gaierror(socket.EAI_AGAIN, words) from None
        if isinstance(found, OSError):
            raise socket.gaierror(found.errno, found.strerror)
        if isinstance(found, UnicodeError):
            raise UnicodeError("no name that can be looked up")
        return found

    async def _begun(self, host: str) -> asyncio.Future[_Found]:
        """The lookup of a name, begun now or before."""
        if host not in self._running:
            await self._slots.acquire()
            if host in self._running:  # begun while we waited
                self._slots.release()
            else:
                self._start(host, self._given_back_later())
        return self._running[host]

    def _given_back_later(self) -> Callable[[], None]:
        """Gives a slot back, which happens by itself when the time of who took it is over."""
        taken = [self._slots]

        def give_back() -> None:
            timer.cancel()
            while taken:
                taken.pop().release()

        timer = asyncio.get_running_loop().call_later(self._timeout_s, give_back)
        return give_back

    def _start(self, host: str, give_back: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        outcome = self._running[host] = loop.create_future()

        def settle(found: _Found) -> None:
            del self._running[host]
            give_back()
            outcome.set_result(found)

        def work() -> None:
            found = _found(self._ask, host)
            with suppress(RuntimeError):  # the loop has closed: nobody waits any more
                loop.call_soon_threadsafe(settle, found)

        no_thread = OSError(socket.EAI_AGAIN, "no thread is left to look it up")
        if len(self._running) > self._most_threads:
            loop.call_soon(settle, no_thread)
            return
        try:
            threading.Thread(target=work, name="lastword-lookup", daemon=True).start()
        except RuntimeError:
            loop.call_soon(settle, no_thread)


def _found(ask: Callable[[str], Sequence[str]], host: str) -> _Found:
    try:
        return ask(host) or OSError(socket.EAI_NONAME, "no address")
    except (OSError, UnicodeError) as error:
        return error


def _ask_system(host: str) -> Sequence[str]:
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(_told(answer[4]) for answer in answers))


def _told(place: tuple[Any, ...]) -> str:
    """The address of a socket's place. With the zone that stands beside it: without, it would be another address."""
    address = str(place[0])
    zone = place[3] if len(place) == 4 else 0
    return f"{address}%{zone}" if zone and "%" not in address else address
