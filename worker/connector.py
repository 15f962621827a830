"""Where the HTTP client's connections come from: how often one attempt dials, and how many connections there may be.

What belongs here: what aiohttp's connector leaves unbounded. What must not be known here: what is sent, what may be
dialled.

After no address of a name could be connected to, aiohttp tries all of them but one again, and so on: n addresses are
dialled n(n+1)/2 times. Here each is dialled once; the rest follows where one took the connection and then broke TLS.
And a connection that nobody uses is kept for its time however many there are, so that whoever posts to many hosts runs
out of descriptors; here the one unused for longest makes room.

aiohttp has no public place for either; the tests of both fail where these have moved.
"""

import socket
from collections.abc import Callable
from contextvars import ContextVar
from operator import itemgetter
from typing import Any
from weakref import WeakSet

import aiohttp

MOST_CONNECTIONS = 1_000
"""So many connections the sessions of one room have, if nobody says otherwise; all in use are more."""

_DIALLED: ContextVar[list[Any]] = ContextVar("DIALLED")
"""The addresses that sockets were made for. aiohttp dials each in a task of its own, and says nothing of it."""


class Room:
    """So many connections sessions may have together; those in use may be more. To be used on one event loop."""

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self._most = most
        self._connectors: WeakSet[Connector] = WeakSet()

    def enter(self, connector: "Connector") -> None:
        """The connector's connections count from now on."""
        self._connectors.add(connector)

    def make(self) -> None:
        """Before one more is dialled, close what has not been used for longest, where there are too many."""
        too_many = sum(connector.count for connector in self._connectors) - self._most
        if too_many <= 0:
            return
        unused = sorted(
            ((since, connector, one) for connector in self._connectors for since, one in connector.unused),
            key=itemgetter(0),
        )
        # Some more than must be: each look at all of them costs, and the next one who dials needs none then.
        for _, connector, one in unused[: too_many + self._most // 8]:
            connector.drop(one)


class Connector(aiohttp.TCPConnector):
    """A connector whose connections count in a room, and which dials each address of a name once."""

    def __init__(self, room: Room, socket_factory: Callable[[Any], socket.socket], **options: Any) -> None:
        def dial(address_info: Any) -> socket.socket:
            _DIALLED.get().append(address_info)
            return socket_factory(address_info)

        super().__init__(socket_factory=dial, **options)
        self._room = room
        room.enter(self)

    @property
    def count(self) -> int:
        """How many connections there are, with those that are being dialled."""
        return len(self._acquired) + sum(map(len, self._conns.values()))

    @property
    def unused(self) -> list[tuple[float, Any]]:
        """Those that are kept and not used, with the time since when."""
        return [(since, (key, one)) for key, kept in self._conns.items() for one, since in kept]

    def drop(self, unused: Any) -> None:
        """Close one of these."""
        key, dropped = unused
        dropped.abort()
        rest = [(one, since) for one, since in self._conns[key] if one is not dropped]
        self._conns[key].clear()
        self._conns[key].extend(rest)
        if not rest:
            del self._conns[key]

    async def _wrap_create_connection(self, *args: Any, addr_infos: list[Any], **options: Any) -> Any:
        """Dial the addresses until one takes the connection, and TLS, too."""
        self._room.make()
        left = list(addr_infos)
        addr_infos.clear()  # aiohttp would try again what it left in there
        while True:
            dialled: list[Any] = []
            _DIALLED.set(dialled)
            try:
                return await super()._wrap_create_connection(*args, addr_infos=left, **options)
            except aiohttp.ClientConnectorError:
                left = [each for each in left if each not in dialled]
                if not left or not dialled:
                    raise
