"""Behind a proxy: who judges a name, and whose fault is what."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from channels.delivery.model import Delivered, Failed
from channels.endpoints.model import Tls
from channels.webhook.address import check_proxy
from channels.webhook.attempt import Attempts
from tests.support.bad_receivers import answering
from tests.support.certificates import ca_file, server_context
from tests.support.egress import Answers, Fails, Listener, guard
from tests.support.http_proxy import Proxy
from tests.support.peer import Act, Conversation, Peer, hang
from tests.support.posting import attempts, endpoint, one
from worker.egress import Policy
from worker.lookup import Lookup

OURS = trustme.CA()


def told(outcome: object) -> tuple[str, str, str]:
    assert isinstance(outcome, Failed)
    return outcome.kind, outcome.code, outcome.sent


@asynccontextmanager
async def judging(lookup: Lookup, *, looks_up: bool = False, **policy: Any) -> AsyncIterator[Attempts]:
    """Attempts that judge by what this lookup finds. `looks_up`: the proxy may be asked by name."""
    checking = guard(Policy(**{"ports": None, "allow_private": True} | policy), lookup)
    async with attempts(check_target=checking.addresses, proxy_looks_up=looks_up) as made:
        yield made


@pytest.mark.requirement("hostile:proxy-names")
@pytest.mark.parametrize("number", [socket.EAI_AGAIN, socket.EAI_FAIL, socket.EAI_NODATA])
async def test_a_name_that_cannot_be_judged_now_is_not_left_to_the_proxy(number: int) -> None:
    async with Peer(answering()) as peer, Proxy(names={"slow.example": "127.0.0.1"}) as proxy:
        url = peer.url.replace("127.0.0.1", "slow.example")
        async with judging(Fails(socket.gaierror(number, "no answer"))) as made:
            outcome = await made.post(endpoint(url, proxy=proxy.url), {}, b"{}")
    assert told(outcome) == ("transient", "dns", "no")
    assert proxy.seen == []


@pytest.mark.requirement("hostile:proxy-names")
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_a_name_that_hides_from_us_does_not_lead_the_proxy_anywhere(scheme: str) -> None:
    """Whoever answers for it may say "no such name" to us, and the address of a metadata service to the proxy."""
    async with Listener() as forbidden, Proxy(names={"evil.example": "127.0.0.1"}) as proxy, judging(Answers()) as made:
        outcome = await made.post(endpoint(f"{scheme}://evil.example:{forbidden.port}/", proxy=proxy.url), {}, b"{}")
    assert told(outcome) == ("transient", "dns", "no")
    assert isinstance(outcome, Failed)
    assert "set egress.proxy_looks_up" in outcome.message
    assert (forbidden.accepted, proxy.seen) == (0, [])


@pytest.mark.requirement("hostile:proxy-names")
async def test_a_name_that_the_proxy_would_look_up_again_does_not_lead_it_anywhere() -> None:
    """Only a tunnel can be asked for by address: a request without TLS tells the proxy what the Host header is."""
    rebinding = Answers(evil_example=[["93.184.216.34"]])
    async with Listener() as forbidden, Proxy(names={"evil.example": "127.0.0.1"}) as proxy, judging(rebinding) as made:
        outcome = await made.post(endpoint(f"http://evil.example:{forbidden.port}/", proxy=proxy.url), {}, b"{}")
    assert told(outcome) == ("permanent", "blocked", "no")
    assert isinstance(outcome, Failed)
    assert outcome.message == (
        f"evil.example:{forbidden.port}: blocked by policy: name evil.example without TLS (its proxy would look it up "
        "again), setting egress.proxy_looks_up"
    )
    assert (forbidden.accepted, proxy.seen) == (0, [])


@pytest.mark.requirement("hostile:proxy-names")
@pytest.mark.parametrize("looks_up", [False, True])
async def test_an_address_without_tls_is_reached_through_a_proxy(looks_up: bool) -> None:
    async with Peer(answering()) as peer, Proxy() as proxy, judging(Answers(), looks_up=looks_up) as made:
        assert isinstance(await made.post(endpoint(peer.url, proxy=proxy.url), {}, b"{}"), Delivered)


@pytest.mark.requirement("hostile:proxy-names")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("tls", [False, True])
async def test_where_the_settings_say_so_a_proxy_looks_names_up(known: bool, tls: bool, tmp_path: Path) -> None:
    lookup = Answers(hooks_example=[["127.0.0.1"]]) if known else Answers()
    context = server_context(OURS, "hooks.example") if tls else None
    async with (
        Peer(answering(), context) as peer,
        Proxy(names={"hooks.example": "127.0.0.1"}) as proxy,
        judging(lookup, looks_up=True) as made,
    ):
        url, trusted = peer.url.replace("127.0.0.1", "hooks.example"), Tls(ca_file=ca_file(OURS, tmp_path))
        assert isinstance(await made.post(endpoint(url, proxy=proxy.url, tls=trusted), {}, b"{}"), Delivered)
    asked = f"{'127.0.0.1' if known else 'hooks.example'}:{peer.address.split(':')[1]}"
    assert proxy.seen == [f"CONNECT {asked} HTTP/1.1" if tls else f"POST {url} HTTP/1.1"]


@pytest.mark.requirement("hostile:proxy-names")
async def test_a_forbidden_name_is_not_asked_for_though_the_proxy_may_look_names_up() -> None:
    async with Proxy() as proxy, judging(Answers(evil_example=[["169.254.169.254"]]), looks_up=True) as made:
        outcome = await made.post(endpoint("http://evil.example/", proxy=proxy.url), {}, b"{}")
    assert told(outcome) == ("permanent", "blocked", "no")
    assert proxy.seen == []


@pytest.mark.requirement("hostile:proxy-names")
async def test_a_tunnel_leads_to_the_address_that_was_judged_and_is_checked_by_the_name(tmp_path: Path) -> None:
    tls = Tls(ca_file=ca_file(OURS, tmp_path))
    rebinding = Answers(hooks_example=[["127.0.0.1"], ["169.254.169.254"]], other_example=[["127.0.0.1"]])
    async with (
        Peer(answering(), server_context(OURS, "hooks.example")) as peer,
        Proxy(names={"hooks.example": "127.0.0.9", "other.example": "127.0.0.1"}) as proxy,
        judging(rebinding) as made,
    ):
        port = peer.address.split(":")[1]
        to = endpoint(f"https://hooks.example:{port}/a%2Fb?c=%64", proxy=proxy.url, tls=tls)
        assert isinstance(await made.post(to, {}, b"{}"), Delivered)
        head = peer.received.split(b"\r\n\r\n")[0].lower()
        assert head.startswith(b"post /a%2fb?c=%64 http/1.1\r\n")
        assert f"host: hooks.example:{port}".encode() in head.split(b"\r\n")
        assert told(await made.post(to, {}, b"{}")) == ("permanent", "blocked", "no")
        # Kept is a connection that was checked by another name.
        other = endpoint(f"https://other.example:{port}/", proxy=proxy.url, tls=tls)
        outcome = await made.post(other, {}, b"{}")
        assert told(outcome) == ("permanent", "certificate", "no")
        assert isinstance(outcome, Failed)
        assert f"other.example:{port}" in outcome.message
        assert "127.0.0.1" not in outcome.message
    assert proxy.seen == [f"CONNECT 127.0.0.1:{port} HTTP/1.1"] * 2


@pytest.mark.requirement("hostile:proxy-blame")
async def test_a_receivers_own_407_in_a_tunnel_is_its_own(tmp_path: Path) -> None:
    async with Proxy() as proxy, Peer(answering(407), server_context(OURS)) as peer:
        outcome = await one(peer.url, proxy=proxy.url, tls=Tls(ca_file=ca_file(OURS, tmp_path)))
    assert told(outcome) == ("permanent", "http_407", "yes")


@pytest.mark.requirement("hostile:proxy-blame")
async def test_a_407_without_a_proxy_is_the_receivers() -> None:
    async with Peer(answering(407)) as peer:
        assert told(await one(peer.url)) == ("permanent", "http_407", "yes")


@pytest.mark.requirement("hostile:proxy-blame")
async def test_a_name_that_is_not_found_in_time_is_not_the_proxys_fault() -> None:
    async with Proxy() as proxy, judging(Fails(None)) as made:
        outcome = await made.post(endpoint("https://slow.example/", proxy=proxy.url, timeout_s=0.2), {}, b"{}")
    assert told(outcome) == ("transient", "connect_timeout", "no")
    assert proxy.seen == []


async def hang_up(peer: Conversation) -> None:
    await peer.request()


async def babble(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"what?\r\n\r\n")
    await peer.until_gone()


@pytest.mark.requirement("hostile:proxy-blame")
@pytest.mark.parametrize("act", [hang, hang_up, babble])
async def test_a_proxy_that_opens_no_tunnel_is_our_own_fault(act: Act) -> None:
    async with Peer(act) as proxy:
        outcome = await one("https://hooks.example/", proxy=proxy.url, timeout_s=0.5)
    assert told(outcome) == ("ours", "proxy_unreachable", "no")
    assert isinstance(outcome, Failed)
    assert outcome.message.startswith(f"the proxy {proxy.address} cannot be used: ")


@pytest.mark.requirement("hostile:proxy-blame")
async def test_what_goes_wrong_in_an_open_tunnel_is_the_receivers_fault(tmp_path: Path) -> None:
    tls = Tls(ca_file=ca_file(OURS, tmp_path))

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await hang(peer)

    async with Proxy() as proxy, Peer(act, server_context(OURS)) as peer, attempts() as made:
        to = endpoint(peer.url, proxy=proxy.url, tls=tls, timeout_s=1.0)
        assert isinstance(await made.post(to, {}, b"{}"), Delivered)
        assert told(await made.post(to, {}, b"{}")) == ("transient", "timeout", "perhaps")  # on the same connection
        assert len(proxy.seen) == 1
    async with Proxy() as proxy, Peer(hang, server_context(OURS)) as peer:
        assert told(await one(peer.url, proxy=proxy.url, tls=tls, timeout_s=1.0)) == ("transient", "timeout", "perhaps")
    async with Proxy() as proxy, Peer(hang) as silent:
        url = silent.url.replace("http:", "https:")
        assert told(await one(url, proxy=proxy.url, timeout_s=0.5)) == ("transient", "timeout", "perhaps")


@pytest.mark.requirement("hostile:proxy-blame")
async def test_a_proxy_that_relays_and_says_nothing_is_taken_for_the_receiver() -> None:
    async with Peer(hang) as proxy:
        outcome = await one("http://hooks.example/", proxy=proxy.url, timeout_s=0.5)
    assert told(outcome) == ("transient", "timeout", "perhaps")


@pytest.mark.requirement("hostile:proxy-url")
@pytest.mark.parametrize(
    "url",
    [
        *("https://u:secret@h:1", "socks5://u:secret@h:1", "http://u:secret@h:99999", "http://u:secret@h:0"),
        *(
            "http://u:sec ret@h:1",
            "http://u:secret/@h:1",
            "http://u[:secret@h:1",
            "http://u:secret@xn--a:1",
            "u:secret@h",
            "u:secret@http://h:1",
            "secret!://h:1",
        ),
        *("http://u:secret@", "http://u:secret@:1", "http://[u:secret@::1", "http://u:secret"),
    ],
)
async def test_a_proxys_url_that_cannot_be_used_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="give one like http://HOST:PORT") as refused:
        check_proxy(url)
    outcome = await one("http://127.0.0.1:9/", proxy=url)
    assert told(outcome) == ("ours", "bad_proxy", "no")
    assert isinstance(outcome, Failed)
    assert "ret" not in (str(refused.value) + outcome.message).replace("cannot be read", "")


@pytest.mark.requirement("hostile:proxy-url")
@pytest.mark.parametrize(
    "url", ["http://h:1", "http://u:p%40@h:65535/", "http://[::1]:3128", "http://10.0.0.1", "HTTP://a_b:1"]
)
def test_a_proxys_url_that_can_be_used_is_taken(url: str) -> None:
    assert check_proxy(url) == url
