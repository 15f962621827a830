"""The door to the network: nothing is dialled that the policy forbids.

What belongs here: names and addresses checked before and at the dial. What must not be known here: HTTP, what is sent,
who asks.

A name is looked up once, all its addresses are checked, and those addresses are dialled: between the check and the
dial nobody is asked again. The socket itself is made here too, for one address that is checked once more, so that no
way around the lookup dials unchecked (a URL that holds an address is never looked up). A policy does not change while
its process runs; so a connection that is kept was checked by the policy that still holds.
"""

import errno
import itertools
import socket
from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from worker.egress import Forbidden, Policy
from worker.lookup import Lookup, SystemLookup
from worker.network_section import EgressSettings

MOST_FOUND = 64
"""A name that stands for more addresses is refused: whoever answers for it decides how long they take to check."""

MOST_DIALLED = 8
"""So many of a name's addresses are dialled at most: all are checked, and each costs a socket."""


class Blocked(OSError):
    """The policy forbids this address or port. Its words are for an operator."""

    def __init__(self, forbidden: Forbidden) -> None:
        super().__init__(errno.EACCES, str(forbidden))
        self.forbidden = forbidden


class Guard:
    """A policy, and the lookup whose answers it judges. To be used on one event loop."""

    def __init__(self, policy: Policy, lookup: Lookup) -> None:
        self.policy = policy
        self._lookup = lookup

    async def addresses(self, host: str, port: int) -> Sequence[str]:
        """The addresses to dial for a host. All that it has were checked: one that is forbidden refuses the host.

        `host`: a name, or a numeric address without brackets. Raises `Blocked`, `socket.gaierror`, UnicodeError.
        """
        self._check_port(port)
        found = [host] if _is_numeric(host) else await self._lookup.addresses(host)
        if len(found) > MOST_FOUND:
            raise Blocked(Forbidden(f"{len(found)} addresses", f"a name may have {MOST_FOUND}", ""))
        for address in found:
            self._check(address)
        return found if len(found) <= MOST_DIALLED else _few(found)

    def socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        """A socket for the one address of an entry as `socket.getaddrinfo` gives it. Raises `Blocked`."""
        family, kind, protocol, _, place = address_info
        self._check_port(place[1])
        self._check(place[0])
        if len(place) == 4 and place[3]:
            self._check(f"{place[0]}%{place[3]}")
        return socket.socket(family, kind, protocol)

    def _check(self, address: str) -> None:
        forbidden = self.policy.forbids(address)
        if forbidden is not None:
            raise Blocked(forbidden)

    def _check_port(self, port: int) -> None:
        forbidden = self.policy.forbids_port(port)
        if forbidden is not None:
            raise Blocked(forbidden)


def guard_outsiders(egress: EgressSettings) -> Guard:
    """The guard for what somebody may name who only uses this installation: the receivers of webhooks."""
    return Guard(egress.for_outsiders, SystemLookup(egress.dns_timeout_s))


def guard_operator(egress: EgressSettings) -> Guard:
    """The guard for what the settings file itself names: providers, MCP servers."""
    return Guard(egress.for_operator, SystemLookup(egress.dns_timeout_s))


class GuardedResolver(AbstractResolver):
    """A guard as aiohttp asks it for the addresses of a name."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:  # noqa: ARG002
        """The checked addresses of a name. Raises `Blocked` and `socket.gaierror`."""
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address in await self._guard.addresses(host, port)
        ]

    async def close(self) -> None:
        """Nothing is held."""


def _few(addresses: Sequence[str]) -> Sequence[str]:
    """The first addresses of each kind in turns, IPv4 and IPv6: one of the kinds may not be reached from here."""
    counts = {False: itertools.count(), True: itertools.count()}
    return [address for _, address in sorted((next(counts[":" in each]), each) for each in addresses)][:MOST_DIALLED]


def _is_numeric(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
