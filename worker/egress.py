"""Which addresses and ports may be dialled.

What belongs here: the rules for one numeric address and one port. What must not be known here: names, connections,
where a policy comes from. The tables of networks and ports are in `worker.special_networks`.

The verdicts of `ipaddress.is_global` and its like depend on the patch level of Python, so none of them is asked here.
An IPv6 address may carry an IPv4 address that a gateway dials in its place; then both must be allowed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from worker.special_networks import (
    GLOBAL_UNICAST,
    METADATA,
    METADATA_NETWORKS,
    SERVICE_PORTS,
    SPECIAL_V4,
    SPECIAL_V6,
    Address,
    Network,
    Special,
)

_LONGEST_SHOWN = 60
_MAPPED = IPv6Network("::ffff:0:0/96")
_COMPATIBLE = IPv6Network("::/96")
_TRANSLATED = IPv6Network("::ffff:0:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")
_SIX_TO_FOUR = IPv6Network("2002::/16")
_TEREDO = IPv6Network("2001::/32")
_ISATAP = (0x0000_5EFE, 0x0200_5EFE)
_PORTS = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", re.ASCII)

PortRange = tuple[int, int]
DEFAULT_PORTS: tuple[PortRange, ...] = ((80, 80), (443, 443), (1024, 65535))


@dataclass(frozen=True, slots=True)
class Forbidden:
    """Why something may not be dialled. `what`: "address 10.0.0.1", "port 25". `setting`: "" where none changes it."""

    what: str
    rule: str
    setting: str

    def __str__(self) -> str:
        """For an operator; nobody else may see it, since it tells what a name stands for."""
        change = f", setting {self.setting}" if self.setting else "; no setting allows it"
        return f"blocked by policy: {self.what} ({self.rule}){change}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What one kind of URL may reach. Fixed for the life of a process.

    `allow`, `deny`: the operator's own networks; `deny` comes first. `allow_private`: also the networks that belong to
    whoever runs the program, loopback among them. `ports` None: any. Whatever they say, no address of a cloud's
    metadata service is ever allowed, and nothing that is no plain numeric address.
    """

    allow: tuple[Network, ...] = ()
    deny: tuple[Network, ...] = ()
    allow_private: bool = False
    ports: tuple[PortRange, ...] | None = DEFAULT_PORTS

    def forbids(self, address: str | bytes) -> Forbidden | None:
        """Why an address may not be dialled, or None when it may. `address`: as text, or packed in 4 or 16 bytes."""
        read = _read(address)
        if read is None:
            return Forbidden(f"address {_shown(address)}", "not a plain numeric address", "")
        what, carried = f"address {read}", tuple(_carried(read))
        if any(_is_metadata(each) for each in (read, *carried, *_translations(read))):
            return Forbidden(what, "metadata service of a cloud", "")
        for each in (read, *carried):
            denied = next((network for network in self.deny if each in network), None)
            if denied is not None:
                return Forbidden(what, f"{_of(each, read)}in {denied}", "egress.deny")
        for each in (read, *carried):
            rule = self._special(each)
            if rule is not None:
                return Forbidden(what, f"{_of(each, read)}{rule}", "egress.allow")
        return None

    def forbids_port(self, port: int) -> Forbidden | None:
        """Why a port may not be dialled, or None when it may."""
        for low, high in self.ports if self.ports is not None else ((1, 65535),):
            if low <= port <= high and (self.ports is None or low == high or port not in SERVICE_PORTS):
                return None
        rule = SERVICE_PORTS.get(port, "not among those that are allowed")
        return Forbidden(f"port {port}", rule, "egress.ports")

    def _special(self, address: Address) -> str | None:
        """The rule of the tables that forbids an address, which neither `allow` nor `allow_private` lifts."""
        if any(address in network for network in self.allow):
            return None
        table: tuple[Special, ...] = SPECIAL_V4 if isinstance(address, IPv4Address) else SPECIAL_V6
        for special in table:
            if address in special.network:
                return None if special.is_private and self.allow_private else f"{special.name}, {special.network}"
        if isinstance(address, IPv6Address) and address not in GLOBAL_UNICAST:
            return f"outside of {GLOBAL_UNICAST}"
        return None


def network_of(text: str) -> Network:
    """A network as an operator writes it: a CIDR, or one address. Raises ValueError with the fix.

    One of IPv4-mapped addresses is read as the IPv4 network that it is.
    """
    try:
        network = ip_network(text)
    except ValueError:
        try:
            fix = f"the network of that length is {ip_network(text, strict=False)}"
        except ValueError:
            fix = "write one like 10.0.0.0/8 or 2001:db8::/32"
        raise ValueError(f"{text[:_LONGEST_SHOWN]!r} is no network; {fix}") from None
    if "%" in text:
        raise ValueError(f"{text[:_LONGEST_SHOWN]!r} has a zone; leave out '%' and what follows it")
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - 96))
    return network


def allowed_network(text: str) -> Network:
    """As `network_of`, for a list of what is allowed. Raises ValueError where that could never take effect."""
    network = network_of(text)
    if network.num_addresses == 1 or any(_is_within(network, each) for each in METADATA_NETWORKS):
        refusal = Policy(allow=(network,)).forbids(str(network.network_address))
        if refusal is not None:
            raise ValueError(f"{text[:_LONGEST_SHOWN]!r} can never be allowed ({refusal.rule}); remove it")
    return network


def port_range(text: str) -> PortRange:
    """Ports as an operator writes them: "443", or "1024-65535". Raises ValueError with the fix."""
    match = _PORTS.fullmatch(text)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= low <= high <= 65535:
        raise ValueError(f"{text[:_LONGEST_SHOWN]!r} is no port and no range; write one like 443 or 8000-8999")
    return low, high


def _read(address: str | bytes) -> Address | None:
    """The address; an IPv4-mapped one as the IPv4 address that it stands for. None: not to be read, or with a zone."""
    try:
        read = ip_address(address)
    except ValueError:
        return None
    if isinstance(read, IPv4Address):
        return read
    return None if read.scope_id is not None else read.ipv4_mapped or read


def _is_metadata(address: Address) -> bool:
    return address in METADATA or any(address in network for network in METADATA_NETWORKS)


def _is_within(network: Network, whole: Network) -> bool:
    return network.prefixlen >= whole.prefixlen and network.network_address in whole


def _shown(address: str | bytes) -> str:
    text = address if isinstance(address, str) else address.hex()
    return repr(text[:_LONGEST_SHOWN])


def _of(part: Address, whole: Address) -> str:
    return "" if part == whole else f"it carries {part}: "


def _carried(address: Address) -> Iterator[IPv4Address]:
    """The IPv4 addresses that an IPv6 address carries by any of the known forms."""
    if isinstance(address, IPv4Address):
        return
    value = int(address)
    if (address in _COMPATIBLE and value != 1) or address in _TRANSLATED or address in _NAT64:
        yield _low(value)
    elif address in _NAT64_LOCAL:
        yield from _translations(address, must_end=True)
    elif address in _SIX_TO_FOUR:
        yield _low(value >> 80)
    elif address in _TEREDO:
        yield _low(value >> 64)
        yield _low(~value)
    if value >> 32 & 0xFFFF_FFFF in _ISATAP:
        yield _low(value)


def _translations(address: Address, *, must_end: bool = False) -> Iterator[IPv4Address]:
    """What a translator would dial for an IPv6 address, by each length of prefix that it may have (RFC 6052).

    `must_end`: leave out those behind which there is something where such an address has nothing.
    """
    if isinstance(address, IPv4Address):
        return
    value = int(address)
    yield _low(value)
    for length in (48, 56, 64) if must_end else (32, 40, 48, 56, 64):
        front_bits = 64 - length  # the octet behind the first 64 bits is not used
        rest = 24 + front_bits
        if not must_end or not value & (1 << rest) - 1:
            yield _low(
                (value >> 64 & (1 << front_bits) - 1) << 32 - front_bits | value >> rest & (1 << 32 - front_bits) - 1
            )


def _low(value: int) -> IPv4Address:
    return IPv4Address(value & 0xFFFF_FFFF)
