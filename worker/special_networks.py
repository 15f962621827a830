"""The networks and ports that are not like others, as tables.

What belongs here: what is registered for a special purpose, and what clouds and well-known services use. What must not
be known here: what is made of it.

After the IANA registries of special-purpose addresses, which are kept by hand here on purpose: see `worker.egress`.
"""

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

GLOBAL_UNICAST = IPv6Network("2000::/3")
"""All IPv6 that is assigned to be reached from everywhere; what is outside of it is forbidden without a row below."""


@dataclass(frozen=True, slots=True)
class Special:
    """A network that outsiders may not name. `is_private`: it belongs to whoever runs the program, who may name it."""

    network: Network
    name: str
    is_private: bool = False


def _rows(*rows: tuple[str, str, bool]) -> tuple[Special, ...]:
    return tuple(Special(ip_network(network), name, is_private) for network, name, is_private in rows)


SPECIAL_V4 = _rows(
    ("0.0.0.0/32", "this host", True),
    ("0.0.0.0/8", "this network", False),
    ("10.0.0.0/8", "private network", True),
    ("100.64.0.0/10", "shared address space", True),
    ("127.0.0.0/8", "loopback", True),
    ("169.254.0.0/16", "link-local", True),
    ("172.16.0.0/12", "private network", True),
    ("192.0.0.0/24", "protocol assignments", False),
    ("192.0.2.0/24", "documentation", False),
    ("192.31.196.0/24", "AS112", False),
    ("192.52.193.0/24", "AMT", False),
    ("192.88.99.0/24", "6to4 relays", False),
    ("192.168.0.0/16", "private network", True),
    ("192.175.48.0/24", "AS112", False),
    ("198.18.0.0/15", "benchmarking", True),  # local proxies give such addresses to every name
    ("198.51.100.0/24", "documentation", False),
    ("203.0.113.0/24", "documentation", False),
    ("224.0.0.0/4", "multicast", False),
    ("240.0.0.0/4", "reserved", False),
)

SPECIAL_V6 = _rows(
    ("::/128", "this host", True),
    ("::1/128", "loopback", True),
    ("::/96", "IPv4-compatible", False),
    ("::ffff:0:0:0/96", "IPv4-translated", False),
    ("64:ff9b::/96", "NAT64", True),
    ("64:ff9b:1::/48", "NAT64", True),
    ("100::/64", "discarded", False),
    ("100:0:0:1::/64", "dummy prefix", False),
    ("2001::/32", "Teredo", False),
    ("2001::/23", "protocol assignments", False),
    ("2001:db8::/32", "documentation", False),
    ("2002::/16", "6to4", False),
    ("2620:4f:8000::/48", "AS112", False),
    ("3fff::/20", "documentation", False),
    ("5f00::/16", "segment routing", False),
    ("fc00::/7", "unique local", True),
    ("fe80::/10", "link-local", True),
    ("fec0::/10", "site-local", True),
    ("ff00::/8", "multicast", False),
)

METADATA: frozenset[Address] = frozenset(
    ip_address(address)
    for address in (
        "169.254.0.23",  # Tencent
        "169.254.42.42",  # Scaleway
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure's wire server
        "192.0.0.192",  # Oracle
        "fd20:ce::254",  # Google
        "fd00:42::42",  # Scaleway
        "fe80::a9fe:a9fe",  # OpenStack
    )
)
METADATA_NETWORKS: tuple[Network, ...] = (
    IPv4Network("169.254.169.0/24"),  # most clouds: .254; AWS: DNS, time and licences beside it, .253, .123, .250
    IPv4Network("169.254.170.0/24"),  # AWS: credentials of containers
    IPv6Network("fd00:ec2::/64"),  # AWS: all of these
)
"""Whole networks, since each of these services has had neighbours sooner or later."""

SERVICE_PORTS: dict[int, str] = {
    **dict.fromkeys((1433, 1434), "SQL Server"),
    1521: "Oracle database",
    **dict.fromkeys((1719, 1720, 1723), "H.323 and PPTP"),
    2049: "NFS",
    **dict.fromkeys((2375, 2376), "Docker"),
    **dict.fromkeys((2379, 2380), "etcd"),
    3306: "MySQL",
    3389: "remote desktop",
    3659: "Apple SASL",
    4045: "NFS",
    4190: "ManageSieve",
    **dict.fromkeys((5060, 5061), "SIP"),
    5432: "PostgreSQL",
    5672: "AMQP",
    **dict.fromkeys((5900, 5901), "VNC"),
    **dict.fromkeys((5985, 5986), "WinRM"),
    6000: "X11",
    **dict.fromkeys((6379, 6380), "Redis"),
    6566: "SANE",
    **dict.fromkeys((6665, 6666, 6667, 6668, 6669, 6679, 6697), "IRC"),
    9042: "Cassandra",
    9092: "Kafka",
    **dict.fromkeys((9200, 9300), "Elasticsearch"),
    10080: "Amanda",
    10250: "Kubernetes",
    11211: "memcached",
    **dict.fromkeys((27017, 27018, 27019), "MongoDB"),
}
"""Ports above 1023 that a range leaves out: most of those that browsers refuse, and stores that act on a stray request.

One that is named by itself is allowed.
"""
