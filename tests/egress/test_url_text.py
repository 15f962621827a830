"""What a URL's text alone gives away, before anything is looked up."""

from ipaddress import ip_network

import pytest

from channels.webhook.address import check_url
from tests.support.egress import CLOSED, OPEN
from worker.egress import Policy
from worker.errors import ConfigurationError

NUMBERS = [
    "http://2130706433/",
    "http://0x7f000001/",
    "http://0X7F000001/",
    "http://0x/",
    "http://127.1/",
    "http://127.0.1/",
    "http://017700000001/",
    "http://0177.0.0.1/",
    "http://0x7f.0.0.1/",
    "http://127.0.0.0x1/",
    "http://0/",
    "http://127.0.0.1./",
    "http://1.2.3.4.5/",
    "http://256.1.1.1/",
    "http://8.8.8.08/",
    "http://hooks.example.1/",
]


def refusal(url: str, policy: Policy | None = CLOSED) -> str:
    with pytest.raises(ConfigurationError) as caught:
        check_url("endpoints.crm.url", url, policy)
    assert str(caught.value).startswith("endpoints.crm.url ")
    return str(caught.value)


@pytest.mark.requirement("egress:url:text")
@pytest.mark.parametrize("policy", [None, OPEN], ids=["without a policy", "whatever is allowed"])
@pytest.mark.parametrize("url", NUMBERS)
def test_a_number_for_a_host_is_refused(url: str, policy: Policy | None) -> None:
    assert "has a number for a host; write a name, or an address like 192.0.2.1 in full" in refusal(url, policy)


@pytest.mark.requirement("egress:url:text")
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://user:s3cret@hooks.example/", "names a user or a password"),
        ("http:///x", "names no host"),
        ("http://127.0.0.1%00.evil/", "names no host"),
        ("http://[fe80::1%25eth0]/", "names no host"),
        ("http://[v1.fe80]/", "names no host"),
        ("http://hooks.example/\x00", "character that no URL may hold"),
        ("http://hooks.example/\x1f", "character that no URL may hold"),
        ("http://evil\\@127.0.0.1/", "character that no URL may hold"),
        ("http://127\u30020\u30020\u30021/", "character that no URL may hold"),
        ("http://\uff11\uff12\uff17.0.0.1/", "character that no URL may hold"),
        ("https://hooks.example/" + "a" * 2048, "at most 2048"),
    ],
)
def test_what_hides_a_host_is_refused(url: str, why: str) -> None:
    message = refusal(url)
    assert why in message
    assert "s3cret" not in message


@pytest.mark.requirement("egress:url:text")
@pytest.mark.parametrize(
    "url",
    [
        "http://localhost/",
        "http://LocalHost:8080/",
        "http://localhost./",
        "http://hooks.localhost/",
        "http://localhost.localdomain/",
        "http://ip6-localhost/",
        "http://127.0.0.1:8080/",
        "http://127.8.8.8/",
        "http://[::1]:8080/",
        "http://[::ffff:127.0.0.1]/",
        "http://[::ffff:7f00:1]/",
    ],
)
def test_the_loopback_is_refused_unless_it_is_allowed(url: str) -> None:
    assert "(loopback, " in refusal(url)
    assert "egress.allow; give another URL, or change that setting" in refusal(url)
    assert check_url("url", url, OPEN) == url


@pytest.mark.requirement("egress:url:text")
@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "https://192.168.1.1:8443/", "http://[fc00::1]/", "http://[64:ff9b::a00:1]/"]
)
def test_a_private_address_is_refused_unless_it_is_allowed(url: str) -> None:
    assert "blocked by policy: address " in refusal(url)
    everything = Policy(allow=(ip_network("0.0.0.0/0"), ip_network("::/0")))
    assert check_url("url", url, everything) == url


@pytest.mark.requirement("egress:url:text")
@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest/", "http://[fd00:ec2::254]/", "http://[::ffff:a9fe:a9fe]/"]
)
def test_a_metadata_address_is_refused_whatever_is_allowed(url: str) -> None:
    message = refusal(url, Policy(allow=(ip_network("0.0.0.0/0"), ip_network("::/0"))))
    assert message.endswith("(metadata service of a cloud); no setting allows it; give another URL")


@pytest.mark.requirement("egress:url:text")
def test_a_port_that_is_not_allowed_is_refused() -> None:
    assert "port 6379 (Redis), setting egress.ports" in refusal("http://hooks.example:6379/")
    assert "port 22 (not among those that are allowed)" in refusal("http://hooks.example:22/")
    only_443 = Policy(ports=((443, 443),))
    assert "port 80 (" in refusal("http://hooks.example/", only_443)
    assert check_url("url", "https://hooks.example/", only_443) == "https://hooks.example/"


@pytest.mark.requirement("egress:url:text")
@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example/turns?key=1",
        "https://hooks.example./",
        "http://8.8.8.8:8080/",
        "https://[2606:4700::1111]:8443/",
        "https://1password.example/",
        "https://0x7f.example/",
        "https://127.0.0.1.nip.example/",
        "https://localhost.example/",
        "https://xn--mnchen-3ya.example",
    ],
)
def test_a_url_that_may_be_reached_is_given_back_unchanged(url: str) -> None:
    """What a name stands for is judged at the dial."""
    assert check_url("url", url, CLOSED) == url
