"""What a proxy is asked for, so that it reaches nothing that may not be reached.

What belongs here: names behind a proxy, and who judges what they stand for. What must not be known here: how the proxy
is asked, what is sent through it.

The proxy dials, so only an address in its request binds it: asked by a name, it would look that up again, and whoever
answers for the name could tell it another address than us.
"""

import socket
from collections.abc import Awaitable, Callable, Sequence

from yarl import URL

from worker.egress import Forbidden
from worker.guard import Blocked

_SETTING = "egress.proxy_looks_up"

CheckTarget = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host and port; raises one of `HTTP_FAULTS` when one of them is where nothing may be sent."""


class Judge:
    """Judges targets behind proxies. `looks_up`: a proxy may be asked by name, and then judges what it reaches."""

    def __init__(self, check_target: CheckTarget, *, looks_up: bool = False) -> None:
        self._check_target = check_target
        self._looks_up = looks_up

    async def address_of(self, url: URL, *, is_tunnel: bool) -> str:
        """An address that the proxy may be asked for in place of the host's name; empty: it is asked by the name.

        Raises as the check does, and `Blocked` where nobody could judge what the proxy would reach.
        """
        host, port = url.raw_host or "", url.port or 0
        try:
            found = await self._check_target(host, port)
        except socket.gaierror as error:
            if error.errno != socket.EAI_NONAME:
                raise
            if self._looks_up:
                return ""
            fix = f"where only the proxy knows it, and forbids metadata services itself, set {_SETTING}"
            raise socket.gaierror(error.errno, f"{error.strerror}; {fix}") from None
        if not is_tunnel:
            # Such a request names the host, and a proxy puts that into the Host header: an address would be wrong.
            if host not in found and not self._looks_up:
                raise Blocked(Forbidden(f"name {host} without TLS", "its proxy would look it up again", _SETTING))
            return ""
        return next((address for address in found if ":" not in address), found[0])
