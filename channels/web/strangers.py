"""How much of the bodies of strangers is kept in memory at a time.

What belongs here: the bound, and its shares. What must not be known here: requests, what a body says, who is no
stranger.

An address may keep as much as it leaves free. So one alone has half of the room, two have a third each; who comes next
gets half of what is left, and that is soon little: sixteen leave a kilobyte. So what most events are long takes no
room: the beginning of each body is free. The server buffers as much of each connection anyway, and there are only so
many of those.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv6Network, ip_address

MOST_BYTES = 67_108_864
"""Four of the longest bodies that a route may take, so that two come at a time even from one address."""

FREE_BYTES = 65_536
"""So much of each body takes no room."""

_ONE_NETWORK = 64
"""The bits of an IPv6 address that tell whose it is: whoever has one has all that begin like it."""


class Full(Exception):
    """There is no room for so much from this address now."""


class Room:
    """That of one process."""

    def __init__(self, most_bytes: int = MOST_BYTES, free_bytes: int = FREE_BYTES) -> None:
        self._most_bytes = most_bytes
        self._free_bytes = free_bytes
        self._held: Counter[str] = Counter()

    @contextmanager
    def place(self, address: str, told: int) -> Iterator[Callable[[int], None]]:
        """Where the body of an address is kept; gives what is called before so many more bytes are. Raises `Full`.

        `told`: how long the body says that it is. Only what has come is counted: what never comes keeps nobody out.
        """
        whose = _whose(address)
        came = held = 0

        def keep(size: int) -> None:
            nonlocal came, held
            more = self._counted(came + size) - held
            self._check(whose, more)
            self._held[whose] += more
            came += size
            held += more

        self._check(whose, self._counted(told))
        try:
            yield keep
        finally:
            self._held[whose] -= held
            if not self._held[whose]:
                del self._held[whose]

    def _counted(self, size: int) -> int:
        return max(0, size - self._free_bytes)

    def _check(self, whose: str, more: int) -> None:
        if more and self._held[whose] + more > self._most_bytes - self._held.total() - more:
            raise Full


def _whose(address: str) -> str:
    """What counts as one address. Where the server listens to both, IPv4 comes as IPv6."""
    try:
        found = ip_address(address)
    except ValueError:  # of a socket that is no network's
        return address
    if found.version == 4:
        return str(found)
    return str(found.ipv4_mapped or IPv6Network((int(found), _ONE_NETWORK), strict=False))
