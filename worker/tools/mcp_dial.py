"""How the MCP library's HTTP client dials: through the same guard as everything else.

What belongs here: the place in that client where connections are made. What must not be known here: requests, sessions.

Its host keeps its name for TLS and for the pool; what is dialled are the addresses that the guard has checked.
"""

import asyncio
import ssl
from collections.abc import Iterable, Sequence
from typing import Any

import httpcore2
import httpx2

from worker.guard import Blocked, Guard

_MOST_IDLE = 20


class GuardedTransport(httpx2.AsyncHTTPTransport):
    """The library's transport on connections that `guard` allows. It asks no proxy."""

    def __init__(self, guard: Guard, ssl_context: ssl.SSLContext) -> None:
        # In place of the parent's own, which makes a pool that no other way of dialling can be given to.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl_context,
            max_connections=None,
            max_keepalive_connections=_MOST_IDLE,
            keepalive_expiry=5.0,
            network_backend=_GuardedBackend(guard),
        )


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the library's own name
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Dial the checked addresses of a host one after the other, within `timeout` seconds together."""
        try:
            async with asyncio.timeout(timeout):
                addresses = await self._addresses(host, port)
                for address in addresses[:-1]:
                    share = None if timeout is None else timeout / len(addresses)
                    try:
                        return await self._inner.connect_tcp(address, port, share, local_address, socket_options)
                    except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                        continue
                return await self._inner.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)
        except TimeoutError as error:
            raise httpcore2.ConnectTimeout(f"no connection within {timeout:g} s") from error

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        try:
            return await self._guard.addresses(host, port)
        except Blocked as refusal:
            raise _NotDialled(refusal) from refusal
        except (OSError, UnicodeError) as error:
            raise httpcore2.ConnectError(str(error)) from error


class _NotDialled(httpcore2.ConnectError):
    """Carries what the guard said: the library cuts the causes off what it lets through."""

    def __init__(self, refusal: Blocked) -> None:
        super().__init__(str(refusal.forbidden))
        self.refusal = refusal


def blocked(error: httpx2.TransportError) -> Blocked | None:
    """What the guard said, where it is the reason of a failed request."""
    cause = error.__cause__
    return cause.refusal if isinstance(cause, _NotDialled) else None
