"""The guard on real sockets: what is forbidden is never connected to, as a listener on the loopback counts."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Sequence
from ipaddress import ip_network
from typing import Any

import aiohttp
import pytest
import trustme
from aiohttp.abc import ResolveResult

from tests.support.egress import CLOSED, OPEN, Answers, Listener, guard
from tests.support.peer import Conversation, Peer, within
from worker.egress import Policy
from worker.guard import Blocked, Guard, GuardedResolver
from worker.http import HTTP_FAULTS, HttpFault, classify, open_client
from worker.transport import open_session

pytestmark = pytest.mark.allow_hosts(["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1", "::ffff:7f00:1"])

PUBLIC = "93.184.216.34"
FIRST_ONLY = Policy(allow=(ip_network("127.0.0.1/32"),))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: they dial in their own ways."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with Listener() as here:
        yield here


@pytest.fixture
async def listener_v6() -> AsyncIterator[Listener]:
    async with Listener("::1") as here:
        yield here


async def fault_of(guard: Guard, url: str) -> HttpFault:
    async with open_client(connect_timeout_s=2, guard=guard) as client:
        with pytest.raises(HTTP_FAULTS) as caught:
            await client.post(url, content=b"x")
    return classify(caught.value)


async def settle() -> None:
    """Let a connection that was made be accepted: one of our own, made later, has been."""
    async with Listener() as probe:
        _, writer = await asyncio.open_connection("127.0.0.1", probe.port)
        await within(5, "a connection of our own", probe.first)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


URLS = [
    "http://127.0.0.1:{port}/",
    "http://127.0.0.2:{port}/",
    "http://localhost:{port}/",
    "http://LOCALHOST:{port}/",
    "http://localhost.:{port}/",
    "http://127.0.0.1.:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0x7f.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://017700000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://0:{port}/",
    "http://0.0.0.0:{port}/",
    "http://[::]:{port}/",
    "http://[::1]:{port}/",
    "http://[0:0:0:0:0:0:0:1]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[::127.0.0.1]:{port}/",
    "http://[::ffff:0:127.0.0.1]:{port}/",
    "http://[64:ff9b::7f00:1]:{port}/",
    "http://[64:ff9b:1::7f00:1]:{port}/",
    "http://[2002:7f00:1::]:{port}/",
    "http://[2001:0:808:808::80ff:fffe]:{port}/",
    "http://[fe80::1%25eth0]:{port}/",
    "http://[::1%25lo]:{port}/",
    "http://[fec0::1]:{port}/",
    "http://\uff11\uff12\uff17\u30020\u30020\u30021:{port}/",
    "http://127\u30020\u30020\u30021:{port}/",
    "http://evil\\@127.0.0.1:{port}/",
    "http://127.0.0.1%00.evil:{port}/",
    "http://user@127.0.0.1:{port}/",
    "http:///x",
    "http://10.0.0.1:{port}/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fd00:ec2::254]/latest/meta-data/",
    "http://[::ffff:a9fe:a9fe]/",
    "http://[64:ff9b::a9fe:a9fe]/",
    "http://[2002:a9fe:a9fe::]/",
    "http://100.100.100.200/",
    "http://168.63.129.16/",
    "http://198.18.0.1/",
    "http://240.0.0.1/",
    "http://[3fff::1]/",
    "http://[5f00::1]/",
]


@pytest.mark.requirement("egress:dial:forms")
@pytest.mark.parametrize("url", URLS)
async def test_no_form_of_a_forbidden_address_is_connected_to(
    url: str, listener: Listener, listener_v6: Listener
) -> None:
    for here in (listener, listener_v6):
        fault = await fault_of(guard(CLOSED), url.format(port=here.port))
        assert fault.sent == "no"
        assert fault.code in {"blocked", "invalid_url", "dns"}
    await settle()
    assert (listener.accepted, listener_v6.accepted) == (0, 0)


@pytest.mark.requirement("egress:dial:forms")
@pytest.mark.parametrize(
    ("url", "is_v6"),
    [
        ("http://127.0.0.1:{port}/", False),
        ("http://localhost:{port}/", False),
        ("http://0x7f000001:{port}/", False),
        ("http://[::ffff:127.0.0.1]:{port}/", False),
        ("http://[::1]:{port}/", True),
    ],
)
async def test_what_is_allowed_is_connected_to(
    url: str, is_v6: bool, listener: Listener, listener_v6: Listener
) -> None:
    """Without this, nothing would show that the listener counts."""
    here = listener_v6 if is_v6 else listener
    fault = await fault_of(guard(OPEN), url.format(port=here.port))
    assert fault.code in {"reset", "reset_in_handshake"}
    await settle()
    assert here.accepted == 1


@pytest.mark.requirement("egress:dial:forms")
@pytest.mark.parametrize("name", ["2130706433", "0x7f000001", "127.1", "017700000001", "0", "0x7f.1", "localhost"])
async def test_what_the_system_takes_for_the_loopback_is_known_by_what_it_answers(name: str) -> None:
    answers = socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)
    assert {answer[4][0] for answer in answers} <= {"127.0.0.1", "0.0.0.0", "::1"}
    with pytest.raises(Blocked):
        await guard(CLOSED).addresses(name, 80)


ANSWERS = [
    "127.0.0.1",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "100.64.0.1",
    "169.254.169.254",
    "100.100.100.200",
    "168.63.129.16",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "::",
    "::1",
    "::1%1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::7f00:1",
    "::ffff:0:7f00:1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "2002:7f00:1::",
    "2001:0:808:808::80ff:fffe",
    "fe80::1%2",
    "fec0::1",
    "fd00:ec2::254",
    "3fff::1",
    "5f00::1",
    "not an address",
]


@pytest.mark.requirement("egress:dial:answers")
@pytest.mark.parametrize("place", ["alone", "first", "last"])
@pytest.mark.parametrize("address", ANSWERS)
async def test_a_name_with_a_forbidden_address_among_its_answers_is_not_connected_to(
    address: str, place: str, listener: Listener, listener_v6: Listener
) -> None:
    answer = {"alone": [address], "first": [address, PUBLIC], "last": [PUBLIC, "2606:4700::1111", address]}[place]
    here = listener_v6 if ":" in address else listener
    fault = await fault_of(guard(CLOSED, Answers(hooks_example=[answer])), f"http://hooks.example:{here.port}/secret")
    assert (fault.code, fault.sent, fault.lasting) == ("blocked", "no", True)
    assert "secret" not in fault.message
    await settle()
    assert (listener.accepted, listener_v6.accepted) == (0, 0)


@pytest.mark.requirement("egress:dial:answers")
@pytest.mark.parametrize("second", ["127.0.0.2", "10.0.0.1", "::ffff:127.0.0.2"])
async def test_one_forbidden_answer_keeps_the_allowed_ones_from_being_dialled(second: str, listener: Listener) -> None:
    for answer in (["127.0.0.1", second], [second, "127.0.0.1"]):
        fault = await fault_of(
            guard(FIRST_ONLY, Answers(hooks_example=[answer])), f"http://hooks.example:{listener.port}/"
        )
        assert fault.code == "blocked"
    await settle()
    assert listener.accepted == 0


@pytest.mark.requirement("egress:dial:answers")
@pytest.mark.parametrize("answer", [["127.0.0.1"], ["::ffff:127.0.0.1"], ["127.0.0.2", "127.0.0.1"]])
async def test_a_name_whose_addresses_are_all_allowed_is_connected_to(answer: list[str], listener: Listener) -> None:
    lookup = Answers(hooks_example=[answer])
    fault = await fault_of(guard(OPEN, lookup), f"http://hooks.example:{listener.port}/")
    assert fault.code in {"reset", "reset_in_handshake"}
    await settle()
    assert listener.accepted == 1


@pytest.mark.requirement("egress:dial:answers")
async def test_a_forbidden_port_is_not_connected_to() -> None:
    lookup = Answers(hooks_example=[["127.0.0.1"]])
    fault = await fault_of(guard(OPEN, lookup), "http://hooks.example:6379/")
    assert fault.message == "hooks.example:6379: blocked by policy: port 6379 (Redis), setting egress.ports"
    assert lookup.asked == []
    fault = await fault_of(guard(OPEN, lookup), "http://127.0.0.1:22/")
    assert "port 22" in fault.message


async def answer_ok(peer: Conversation) -> None:
    while True:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def port_of(peer: Peer) -> int:
    return int(peer.address.rpartition(":")[2])


@contextlib.asynccontextmanager
async def beside(port: int) -> AsyncIterator[Listener]:
    """A forbidden listener on another loopback address, with that port."""
    async with Listener("127.0.0.2", port) as here:
        yield here


@pytest.mark.requirement("egress:dial:rebinding")
async def test_a_resolver_that_changes_its_answer_is_asked_once_for_a_dial() -> None:
    lookup = Answers(hooks_example=[["127.0.0.1"], ["127.0.0.2"]])
    async with Peer(answer_ok) as peer, beside(port_of(peer)) as forbidden:
        url = f"http://hooks.example:{port_of(peer)}/"
        async with open_client(connect_timeout_s=2, guard=guard(FIRST_ONLY, lookup)) as client:
            assert (await client.post(url)).text == "ok"
            assert lookup.asked == ["hooks.example"]
        fault = await fault_of(guard(FIRST_ONLY, lookup), url)
        assert fault.code == "blocked"
        assert "127.0.0.2" in fault.message
        await settle()
        assert (len(peer.conversations), forbidden.accepted) == (1, 0)
        await fault_of(guard(OPEN, lookup), url)
        await settle()
        assert forbidden.accepted == 1


class Unguarded(GuardedResolver):
    """A way around the lookup."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def resolve(self, host: str, port: int = 0, family: int = 0) -> list[ResolveResult]:  # noqa: ARG002
        return [ResolveResult(hostname=host, host=self._address, port=port, family=socket.AF_INET, proto=0, flags=0)]


@pytest.mark.requirement("egress:dial:rebinding")
async def test_a_way_around_the_lookup_is_caught_at_the_dial(listener: Listener) -> None:
    for policy, accepted in ((CLOSED, 0), (OPEN, 1)):
        connector = aiohttp.TCPConnector(resolver=Unguarded("127.0.0.1"), socket_factory=guard(policy).socket)
        async with aiohttp.ClientSession(connector=connector) as session:
            with pytest.raises(HTTP_FAULTS) as caught:
                await session.post(f"http://hooks.example:{listener.port}/")
        await settle()
        assert (classify(caught.value).code == "blocked", listener.accepted) == (not accepted, accepted)


@pytest.mark.requirement("egress:dial:rebinding")
@pytest.mark.parametrize("place", [("fe80::1", 80, 0, 2), ("::1", 80, 0, 0), ("127.0.0.1", 80), ("8.8.8.8", 25)])
def test_no_socket_is_made_for_a_forbidden_place(place: Sequence[object]) -> None:
    with pytest.raises(Blocked):
        guard(CLOSED).socket((socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place))


@pytest.mark.requirement("egress:dial:rebinding")
def test_no_socket_is_made_for_an_allowed_address_with_a_zone() -> None:
    """With its zone it is another address, on a network that nobody has named."""
    everything, v6 = (
        guard(Policy(allow=(ip_network("::/0"),), ports=None)),
        (socket.AF_INET6, socket.SOCK_STREAM, 0, ""),
    )
    everything.socket((*v6, ("fe80::1", 80, 0, 0))).close()
    with pytest.raises(Blocked):
        everything.socket((*v6, ("fe80::1", 80, 0, 2)))


class Counting(Guard):
    """Counts the sockets that it made."""

    made = 0

    def socket(self, address_info: tuple[Any, ...]) -> socket.socket:
        self.made += 1
        return super().socket(address_info)


@pytest.mark.requirement("egress:dial:many")
@pytest.mark.allow_hosts([f"127.9.0.{number}" for number in range(1, 65)])
@pytest.mark.parametrize(("count", "dialled"), [(2, 2), (8, 8), (9, 8), (64, 8)])
async def test_an_attempt_dials_each_address_once_and_a_few_at_most(count: int, dialled: int, unused_port: int) -> None:
    """aiohttp by itself tries again whatever is left after one failed: 36 dials for 8 addresses."""
    answer = [f"127.9.0.{number}" for number in range(1, count + 1)]
    counting = Counting(OPEN, Answers(hooks_example=[answer]))
    fault = await fault_of(counting, f"http://hooks.example:{unused_port}/")
    assert (fault.code, counting.made) == ("connect_refused", dialled)


@pytest.mark.requirement("egress:dial:many")
async def test_where_one_address_breaks_tls_the_others_are_still_dialled_once_each(issuer: trustme.CA) -> None:
    trusting = ssl.create_default_context()
    issuer.configure_trust(trusting)
    async with Peer(answer_ok, tls_for(issuer, "hooks.example")) as peer, beside(port_of(peer)) as broken:
        for answer, dialled in ((["127.0.0.2", "127.0.0.1"], 2), (["127.0.0.2"], 1)):
            counting = Counting(OPEN, Answers(hooks_example=[answer]))
            async with open_session(4, None, counting, trusting) as session:
                with contextlib.ExitStack() as stack:
                    if dialled == 1:
                        stack.enter_context(pytest.raises(aiohttp.ClientConnectorError))
                    await session.post(f"https://hooks.example:{port_of(peer)}/")
            assert counting.made == dialled
    assert (broken.accepted, len(peer.conversations)) == (2, 1)


@pytest.mark.requirement("egress:dial:many")
async def test_all_addresses_of_a_name_are_checked_though_few_are_dialled() -> None:
    answer = [*(["127.0.0.1"] * 63), "127.0.0.2"]
    with pytest.raises(Blocked, match=r"address 127\.0\.0\.2"):
        await guard(FIRST_ONLY, Answers(hooks_example=[answer])).addresses("hooks.example", 80)


@pytest.mark.requirement("egress:dial:many")
async def test_of_many_addresses_some_of_each_kind_are_dialled() -> None:
    v6, v4 = [f"2606:4700::{number}" for number in range(1, 21)], [f"93.184.216.{number}" for number in range(1, 21)]
    lookup = Answers(both_example=[[*v6, *v4]], one_example=[v6], few_example=[[*v6[:4], *v4[:4]]])
    of = guard(CLOSED, lookup).addresses
    assert sorted(await of("both.example", 80)) == sorted([*v6[:4], *v4[:4]])
    assert list(await of("one.example", 80)) == v6[:8]
    assert list(await of("few.example", 80)) == [*v6[:4], *v4[:4]], "in the order of the system"


@pytest.mark.requirement("egress:dial:many")
async def test_a_name_with_more_addresses_than_any_needs_is_refused_before_they_are_checked() -> None:
    fault = await fault_of(guard(OPEN, Answers(hooks_example=[["no address"] * 2000])), "http://hooks.example/")
    assert fault.message == (
        "hooks.example:80: blocked by policy: 2000 addresses (a name may have 64); no setting allows it"
    )
    assert (fault.code, fault.sent) == ("blocked", "no")


@pytest.mark.requirement("egress:lookup:kept")
async def test_what_a_lookup_gave_is_kept_for_10_s(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer_once(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")

    passed = 0.0
    monkeypatch.setattr(aiohttp.connector, "monotonic", lambda: 1000.0 + passed)
    lookup = Answers(hooks_example=[["127.0.0.1"]])
    async with (
        Peer(answer_once) as peer,
        open_session(4, None, guard(OPEN, lookup), ssl.create_default_context()) as session,
    ):
        for passed, asked in ((0.0, 1), (9.9, 1), (10.1, 2), (20.0, 2), (20.3, 3)):  # noqa: B007
            await session.post(f"http://hooks.example:{port_of(peer)}/")
            assert len(lookup.asked) == asked
    assert len(peer.conversations) == 5


def redirecting(status: int, target: str) -> Peer:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.send(f"HTTP/1.1 {status} Look\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode())

    return Peer(act)


SECOND = {
    "127.0.0.1": "127.0.0.2",
    "2130706433": "2130706434",
    "0x7f000001": "0x7f000002",
    "0x7f.0.0.1": "0x7f.0.0.2",
    "127.1": "127.2",
    "017700000001": "017700000002",
    "0177.0.0.1": "0177.0.0.2",
    "7f00:1": "7f00:2",
    "80ff:fffe": "80ff:fffd",
}
"""The forms of the address whose listener is forbidden while that of the first is allowed."""


def to_second(url: str) -> str:
    for first, second in SECOND.items():
        url = url.replace(first, second)
    return url


TARGETS = {to_second(url): None for url in URLS if url.isascii() and "localhost" not in url.lower()}


@pytest.mark.requirement("egress:dial:redirects")
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("target", ["http://169.254.169.254/latest/meta-data/", "http://127.0.0.2:{port}/"])
async def test_a_redirect_to_a_forbidden_address_is_not_followed(status: int, target: str) -> None:
    async with Listener("127.0.0.2") as forbidden:
        async with (
            redirecting(status, target.format(port=forbidden.port)) as peer,
            open_client(connect_timeout_s=2, guard=guard(FIRST_ONLY)) as client,
        ):
            response = await client.post(peer.url)
        assert response.status_code == status
        await settle()
        assert forbidden.accepted == 0


@pytest.mark.requirement("egress:dial:redirects")
@pytest.mark.parametrize("target", TARGETS)
async def test_a_session_that_follows_redirects_is_refused_where_they_lead(target: str) -> None:
    async with Listener("127.0.0.2") as forbidden:
        async with (
            redirecting(302, target.format(port=forbidden.port)) as peer,
            open_session(4, None, guard(FIRST_ONLY), ssl.create_default_context()) as session,
        ):
            with pytest.raises(HTTP_FAULTS) as caught:
                await session.post(peer.url)
            assert len(peer.conversations) == 1
        assert classify(caught.value).code in {"blocked", "invalid_url", "dns"}
        await settle()
        assert forbidden.accepted == 0


@pytest.mark.requirement("egress:dial:redirects")
async def test_a_session_that_follows_redirects_reaches_what_is_allowed() -> None:
    async with Listener("127.0.0.2") as listener:
        async with (
            redirecting(302, f"http://127.0.0.2:{listener.port}/") as peer,
            open_session(4, None, guard(OPEN), ssl.create_default_context()) as session,
        ):
            with pytest.raises(HTTP_FAULTS):
                await session.post(peer.url)
        await settle()
        assert listener.accepted == 1


@pytest.fixture(scope="module")
def issuer() -> trustme.CA:
    return trustme.CA()


def tls_for(issuer: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issuer.issue_cert(name).configure_cert(context)
    return context


@pytest.mark.requirement("egress:dial:names-stay")
async def test_two_requests_to_a_name_are_one_connection_with_the_names_certificate(issuer: trustme.CA) -> None:
    asked: list[str | None] = []
    server, trusting = tls_for(issuer, "hooks.example"), ssl.create_default_context()
    issuer.configure_trust(trusting)
    server.sni_callback = lambda _socket, name, _context: asked.append(name)
    lookup = Answers(hooks_example=[["127.0.0.1"]], other_example=[["127.0.0.1"]])
    async with (
        Peer(answer_ok, server) as peer,
        open_client(connect_timeout_s=2, guard=guard(OPEN, lookup), ssl_context=trusting) as client,
    ):
        for _ in range(2):
            assert (await client.post(f"https://hooks.example:{port_of(peer)}/")).text == "ok"
        assert (asked, len(peer.conversations)) == (["hooks.example"], 1)
        assert peer.received.lower().count(f"host: hooks.example:{port_of(peer)}\r\n".encode()) == 2
        with pytest.raises(HTTP_FAULTS) as caught:
            await client.post(f"https://other.example:{port_of(peer)}/")
        assert classify(caught.value).code == "certificate"
        assert asked == ["hooks.example", "other.example"]


@pytest.mark.requirement("egress:rules:reason")
async def test_a_blocked_request_names_address_rule_and_setting() -> None:
    fault = await fault_of(guard(CLOSED, Answers(hooks_example=[["10.1.2.3"]])), "https://hooks.example/s3cret")
    assert fault == HttpFault(
        "blocked",
        "no",
        "hooks.example:443: blocked by policy: address 10.1.2.3 (private network, 10.0.0.0/8), setting egress.allow",
        lasting=True,
    )


@pytest.mark.requirement("egress:rules:reason")
@pytest.mark.parametrize(("host", "code"), [("10.1.2.3", "blocked"), ("nowhere.example", "dns")])
async def test_what_the_guard_says_when_it_is_asked_without_a_request_is_told_alike(host: str, code: str) -> None:
    """As whoever sends through a proxy must ask it."""
    with pytest.raises(HTTP_FAULTS) as caught:
        await guard(CLOSED, Answers()).addresses(host, 443)
    fault = classify(caught.value)
    assert (fault.code, fault.sent, fault.public_code) == (code, "no", "unreachable")


@pytest.mark.requirement("egress:dial:neutral")
async def test_outsiders_read_the_same_of_blocked_refused_and_not_found(unused_port: int) -> None:
    lookup = Answers(hooks_example=[["10.1.2.3"]], refused_example=[["127.0.0.1"]])
    urls = [f"http://{name}.example:{unused_port}/" for name in ("hooks", "refused", "nowhere")]
    faults = [await fault_of(guard(OPEN, lookup), url) for url in urls]
    assert [fault.code for fault in faults] == ["blocked", "connect_refused", "dns"]
    assert {(fault.public_code, fault.public) for fault in faults} == {
        ("unreachable", "the endpoint cannot be reached")
    }


@pytest.mark.requirement("egress:dial:neutral")
def test_outsiders_read_of_what_was_reached_what_happened_there() -> None:
    fault = HttpFault("reset", "perhaps", "hooks.example:443 closed the connection before it answered")
    assert (fault.public_code, fault.public) == (fault.code, fault.message)
