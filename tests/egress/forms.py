"""The forms in which one IPv4 address can be written into an IPv6 address.

What belongs here: embeddings, after the RFCs. What must not be known here: the code under test.
"""

from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address

Embed = Callable[[IPv4Address], IPv6Address]


def _at(prefix: str, shift: int) -> Embed:
    start = int(IPv6Address(prefix))
    return lambda address: IPv6Address(start | int(address) << shift)


def teredo_client(address: IPv4Address) -> IPv6Address:
    """RFC 4380: server 8.8.8.8; the client's address has its bits turned."""
    return IPv6Address(0x20010000_08080808_00000000_00000000 | int(address) ^ 0xFFFFFFFF)


def translated(prefix: str, length: int) -> Embed:
    """RFC 6052, figure 1: octets in a row behind the prefix, leaving out the octet of bits 64 to 71."""

    def embed(address: IPv4Address) -> IPv6Address:
        octets = bytearray(IPv6Address(prefix).packed)
        place = length // 8
        for octet in address.packed:
            if place == 8:
                place += 1
            octets[place] = octet
            place += 1
        return IPv6Address(bytes(octets))

    return embed


FORMS: dict[str, Embed] = {
    "mapped": _at("::ffff:0:0", 0),
    "compatible": _at("::", 0),
    "translated (SIIT)": _at("::ffff:0:0:0", 0),
    "NAT64": _at("64:ff9b::", 0),
    "NAT64 of one's own, 48": translated("64:ff9b:1::", 48),
    "NAT64 of one's own, 96": translated("64:ff9b:1::", 96),
    "6to4": _at("2002::", 80),
    "Teredo server": _at("2001::", 64),
    "Teredo client": teredo_client,
    "ISATAP": _at("2a00:1450:4001:81b::5efe:0:0", 0),
    "ISATAP, global": _at("2a00:1450:4001:81b:200:5efe::", 0),
}

TRANSLATORS: dict[str, Embed] = {
    f"translator of one's own, {length}": translated("2a00:1450::", length) for length in (32, 40, 48, 56, 64, 96)
}
"""Behind prefixes that nobody can know; what is asked of them is only that they hide no metadata service."""
