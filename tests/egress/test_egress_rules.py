"""Which addresses are allowed: against the registries, in every form, with the operator's lists."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.egress.forms import FORMS, TRANSLATORS, Embed
from worker.egress import Policy, allowed_network, network_of, port_range
from worker.network_section import EgressSettings

OUTSIDERS = Policy()
OPERATOR = Policy(allow_private=True, ports=None)
ALL = Policy(allow=(ip_network("0.0.0.0/0"), ip_network("::/0")), allow_private=True, ports=None)

HERE = Path(__file__).parent


def listed(name: str) -> list[str]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


REGISTRIES, NEIGHBOURS = listed("registries.txt"), listed("neighbours.txt")
METADATA = [
    "169.254.169.254",
    "169.254.169.0",
    "169.254.169.253",
    "169.254.169.123",
    "169.254.169.255",
    "169.254.170.2",
    "169.254.170.23",
    "169.254.0.23",
    "169.254.42.42",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::253",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd20:ce::254",
    "fd00:42::42",
    "fe80::a9fe:a9fe",
]
METADATA_V4 = [IPv4Address(address) for address in METADATA if "." in address]


@pytest.mark.requirement("egress:rules:registries")
@pytest.mark.parametrize("network", REGISTRIES)
def test_no_address_of_a_special_network_is_allowed(network: str) -> None:
    special = ip_network(network)
    middle = special.network_address + special.num_addresses // 2
    for address in {special.network_address, middle, special.broadcast_address}:
        assert OUTSIDERS.forbids(str(address)) is not None, address
        assert OUTSIDERS.forbids(address.packed) is not None, address


@pytest.mark.requirement("egress:rules:registries")
@pytest.mark.parametrize("address", NEIGHBOURS)
def test_ordinary_addresses_beside_special_networks_are_allowed(address: str) -> None:
    assert OUTSIDERS.forbids(address) is None
    assert OUTSIDERS.forbids(ip_address(address).packed) is None


@pytest.mark.requirement("egress:rules:registries")
@given(st.ip_addresses())
def test_what_no_registry_knows_is_allowed_and_what_one_knows_is_not(address: IPv4Address | IPv6Address) -> None:
    special = any(address in ip_network(network) for network in REGISTRIES)
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is None and not (isinstance(address, IPv6Address) and int(address) >> 32 & 0xFDFFFFFF == 0x5EFE):
        assert (OUTSIDERS.forbids(str(address)) is not None) == special


@pytest.mark.requirement("egress:rules:forms")
@pytest.mark.parametrize(
    "address",
    [
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::7f00:1",
        "::127.0.0.1",
        "::ffff:0:127.0.0.1",
        "64:ff9b::7f00:1",
        "64:ff9b:1::7f00:1",
        "2002:7f00:1::",
        "2001:0:808:808::80ff:fffe",
        "2a00:1450::5efe:127.0.0.1",
        "::FFFF:10.0.0.1",
        "0:0:0:0:0:ffff:a00:1",
        # What also stands for public addresses is still no way to reach them.
        "64:ff9b::8.8.8.8",
        "2002:808:808::1",
        "::8.8.8.8",
        "::ffff:0:8.8.8.8",
        "2001:0:808:808::f7f7:f7f7",
    ],
)
def test_an_embedded_address_is_refused(address: str) -> None:
    assert OUTSIDERS.forbids(address) is not None


@pytest.mark.requirement("egress:rules:forms")
@pytest.mark.parametrize("address", ["::ffff:8.8.8.8", "::ffff:808:808"])
def test_a_mapped_address_is_the_ipv4_address_that_it_stands_for(address: str) -> None:
    assert OUTSIDERS.forbids(address) is None


@pytest.mark.requirement("egress:rules:forms")
@pytest.mark.parametrize("policy", [OUTSIDERS, OPERATOR, ALL], ids=["outsiders", "operator", "all is allowed"])
@pytest.mark.parametrize(
    "address",
    [
        "",
        " 8.8.8.8",
        "8.8.8.8 ",
        "8.8.8.8\n",
        "8.8.8",
        "134744072",
        "0x8080808",
        "010.8.8.8",
        "8.8.8.8.",
        "8.8.8.8/32",
        "\uff18.8.8.8",
        "8\u30028\u30028\u30028",
        "\u0668.8.8.8",
        "2606:4700::1111%eth0",
        "2606:4700::1111%",
        "fe80::1%1",
        "[2606:4700::1111]",
        "::ffff:8.8.8.8%lo",
        "example.com",
        "localhost",
        b"",
        b"\x08\x08\x08",
        b"8.8.8.8",
        b"\x08" * 17,
    ],
    ids=repr,
)
def test_what_is_no_plain_numeric_address_is_refused_to_everybody(policy: Policy, address: str | bytes) -> None:
    forbidden = policy.forbids(address)
    assert forbidden is not None
    assert forbidden.setting == ""


@pytest.mark.requirement("egress:rules:metadata")
@pytest.mark.parametrize("policy", [OUTSIDERS, OPERATOR, ALL], ids=["outsiders", "operator", "all is allowed"])
@pytest.mark.parametrize("address", METADATA)
def test_no_policy_allows_a_metadata_service(policy: Policy, address: str) -> None:
    listed = Policy(allow=(ip_network(address), *policy.allow), allow_private=policy.allow_private, ports=None)
    forbidden = listed.forbids(address)
    assert str(forbidden) == (
        f"blocked by policy: address {address} (metadata service of a cloud); no setting allows it"
    )


@pytest.mark.requirement("egress:rules:metadata")
@pytest.mark.parametrize("form", [*FORMS.values(), *TRANSLATORS.values()], ids=[*FORMS, *TRANSLATORS])
@pytest.mark.parametrize("address", METADATA_V4, ids=str)
def test_no_form_hides_a_metadata_service(form: Embed, address: IPv4Address) -> None:
    for policy in (OUTSIDERS, OPERATOR, ALL):
        forbidden = policy.forbids(str(form(address)))
        assert forbidden is not None
        assert forbidden.setting == ""


NETWORKS = st.integers(1, 32).flatmap(
    lambda length: st.ip_addresses(v=4).map(
        lambda address: IPv4Network((int(address) >> 32 - length << 32 - length, length))
    )
)


@pytest.mark.requirement("egress:rules:embedded")
@given(network=NETWORKS, inside=st.integers(0, 2**32 - 1), form=st.sampled_from(list(FORMS)))
def test_no_form_hides_an_address_that_the_operator_denies(network: IPv4Network, inside: int, form: str) -> None:
    address = network.network_address + inside % network.num_addresses
    assume(str(FORMS[form](address)) != "::1")  # the loopback of IPv6, and no form of 0.0.0.1
    policy = Policy(allow=ALL.allow, deny=(network,), allow_private=True)
    assert policy.forbids(str(address)) is not None
    assert policy.forbids(str(FORMS[form](address))) is not None


@pytest.mark.requirement("egress:rules:embedded")
@given(
    network=st.sampled_from([network for network in REGISTRIES if ":" not in network]),
    inside=st.integers(0, 2**32 - 1),
    form=st.sampled_from(list(FORMS)),
)
def test_no_form_hides_a_special_address_though_the_form_is_allowed(network: str, inside: int, form: str) -> None:
    special = IPv4Network(network)
    address = special.network_address + inside % special.num_addresses
    assume(str(FORMS[form](address)) != "::1")
    policy = Policy(allow=(ip_network("::/0"),))
    assert policy.forbids(str(FORMS[form](address))) is not None


@pytest.mark.requirement("egress:rules:embedded")
@given(inside=st.integers(0, 2**128 - 1), network=st.sampled_from([n for n in REGISTRIES if ":" in n]))
def test_no_address_of_a_special_ipv6_network_is_allowed(inside: int, network: str) -> None:
    special = IPv6Network(network)
    address = special.network_address + inside % special.num_addresses
    if address.ipv4_mapped is None:
        assert OUTSIDERS.forbids(str(address)) is not None


@pytest.mark.requirement("egress:rules:operator")
@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "127.0.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "fd12::1",
        "100.64.0.1",
        "0.0.0.0",
        "198.18.0.7",
        "64:ff9b::8.8.8.8",
        "64:ff9b:1::8.8.8.8",
        "64:ff9b::10.0.0.1",
        "169.254.7.7",
    ],
)
def test_what_the_operator_names_may_be_his_own(address: str) -> None:
    assert OPERATOR.forbids(address) is None
    assert OUTSIDERS.forbids(address) is not None


@pytest.mark.requirement("egress:rules:operator")
@pytest.mark.parametrize(
    "address",
    ["224.0.0.1", "255.255.255.255", "192.0.2.1", "ff02::1", "2002:808:808::1", "0.0.0.1", "64:ff9b::192.0.2.1"],
)
def test_what_belongs_to_nobody_is_not_the_operators_either(address: str) -> None:
    assert OPERATOR.forbids(address) is not None


@pytest.mark.requirement("egress:rules:operator")
def test_deny_comes_before_allow() -> None:
    policy = Policy(allow=(ip_network("10.0.0.0/8"),), deny=(ip_network("10.1.0.0/16"), ip_network("8.8.8.0/24")))
    assert policy.forbids("10.2.0.1") is None
    assert (
        str(policy.forbids("10.1.0.1")) == "blocked by policy: address 10.1.0.1 (in 10.1.0.0/16), setting egress.deny"
    )
    assert str(policy.forbids("8.8.8.8")) == "blocked by policy: address 8.8.8.8 (in 8.8.8.0/24), setting egress.deny"
    assert policy.forbids("192.168.0.1") is not None


@pytest.mark.requirement("egress:rules:operator")
def test_an_operator_can_allow_the_gateway_of_his_own_network() -> None:
    policy = Policy(allow=(ip_network("64:ff9b::/96"),))
    assert policy.forbids("64:ff9b::8.8.8.8") is None
    assert policy.forbids("64:ff9b::10.0.0.1") is not None


CARRIED = (
    "blocked by policy: address 2a00:1450::5efe:7f00:1 (it carries 127.0.0.1: loopback, 127.0.0.0/8), "
    "setting egress.allow"
)


@pytest.mark.requirement("egress:rules:reason")
@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1", "blocked by policy: address 127.0.0.1 (loopback, 127.0.0.0/8), setting egress.allow"),
        ("::ffff:10.0.0.1", "blocked by policy: address 10.0.0.1 (private network, 10.0.0.0/8), setting egress.allow"),
        ("4000::1", "blocked by policy: address 4000::1 (outside of 2000::/3), setting egress.allow"),
        (
            "fe80::1%eth0",
            "blocked by policy: address 'fe80::1%eth0' (not a plain numeric address); no setting allows it",
        ),
        (
            "2a00:1450::5efe:7f00:1",
            CARRIED,
        ),
    ],
)
def test_a_refusal_names_address_rule_and_setting(address: str, words: str) -> None:
    assert str(OUTSIDERS.forbids(address)) == words


@pytest.mark.requirement("egress:rules:ports")
@pytest.mark.parametrize("port", [80, 443, 1024, 8080, 8443, 9000, 40000, 65535])
def test_ports_of_web_servers_are_allowed(port: int) -> None:
    assert OUTSIDERS.forbids_port(port) is None


@pytest.mark.requirement("egress:rules:ports")
@pytest.mark.parametrize("port", [0, 1, 22, 25, 79, 81, 444, 1023, 3306, 5432, 6379, 9200, 11211, 27017, 65536])
def test_ports_of_other_services_are_not(port: int) -> None:
    forbidden = OUTSIDERS.forbids_port(port)
    assert forbidden is not None
    assert str(forbidden).startswith(f"blocked by policy: port {port} (")
    assert forbidden.setting == "egress.ports"


@pytest.mark.requirement("egress:rules:ports")
def test_a_port_that_is_named_by_itself_is_allowed() -> None:
    assert Policy(ports=((6379, 6379),)).forbids_port(6379) is None
    assert Policy(ports=((6000, 7000),)).forbids_port(6379) is not None
    assert Policy(ports=((6000, 7000), (6379, 6379))).forbids_port(6379) is None
    assert OPERATOR.forbids_port(22) is None


@pytest.mark.requirement("egress:settings:checked")
@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("10.0.0.1/8", "the network of that length is 10.0.0.0/8"),
        ("10.0.0.0/33", "write one like 10.0.0.0/8"),
        ("10.0.0", "write one like 10.0.0.0/8"),
        ("example.com", "write one like 10.0.0.0/8"),
        ("fe80::1%eth0", "leave out '%'"),
        ("", "write one like 10.0.0.0/8"),
    ],
)
def test_what_is_no_network_is_refused_with_the_fix(text: str, fix: str) -> None:
    with pytest.raises(ValueError, match=r"is no network|has a zone") as caught:
        network_of(text)
    assert fix in str(caught.value)


@pytest.mark.requirement("egress:settings:checked")
@pytest.mark.parametrize(
    "text",
    [
        *(*METADATA, "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "169.254.169.0/24", "169.254.169.128/25"),
        *("169.254.170.0/28", "fd00:ec2::/64", "fd00:ec2::/96", "::ffff:169.254.169.0/120"),
    ],
)
def test_a_metadata_address_cannot_be_listed_as_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="can never be allowed"):
        allowed_network(text)


@pytest.mark.requirement("egress:rules:operator")
def test_a_network_of_mapped_addresses_is_the_ipv4_network() -> None:
    assert network_of("::ffff:10.0.0.0/104") == ip_network("10.0.0.0/8")
    assert Policy(deny=(network_of("::ffff:8.8.8.0/120"),)).forbids("8.8.8.8") is not None
    assert network_of("8.8.8.8") == ip_network("8.8.8.8/32")


@pytest.mark.requirement("egress:settings:checked")
@pytest.mark.parametrize(
    "text", ["0", "65536", "", "http", "80-", "-80", "90-80", "80-70000", "\uff18\uff10", "80,443"]
)
def test_what_is_no_port_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(ValueError, match="write one like 443 or 8000-8999"):
        port_range(text)


@pytest.mark.requirement("egress:rules:operator")
def test_the_settings_make_the_policies() -> None:
    egress = EgressSettings.model_validate(
        {"allow": ["10.0.0.0/8"], "deny": ["10.1.0.0/16"], "ports": [25, "8000-8999"]}
    )
    assert egress.for_outsiders == Policy(
        (ip_network("10.0.0.0/8"),), (ip_network("10.1.0.0/16"),), ports=((25, 25), (8000, 8999))
    )
    assert egress.for_operator.forbids("127.0.0.1") is None
    assert egress.for_operator.forbids("10.1.0.1") is not None
    assert EgressSettings().for_outsiders == OUTSIDERS
