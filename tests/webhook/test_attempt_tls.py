"""TLS of an endpoint's own, and proxies."""

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from channels.delivery.model import Delivered, Failed
from channels.endpoints.model import Tls
from tests.support.bad_receivers import answering
from tests.support.certificates import ca_file, client_files, server_context
from tests.support.http_proxy import Proxy
from tests.support.peer import Conversation, Peer, within
from tests.support.posting import Opened, attempts, endpoint, one, trusting_nobody
from tests.support.receiver import refusing_url

OURS = trustme.CA()
OTHER = trustme.CA()


def told(outcome: object) -> tuple[str, str, str]:
    assert isinstance(outcome, Failed)
    return outcome.kind, outcome.code, outcome.sent


@pytest.mark.requirement("attempt:ca")
async def test_a_certificate_counts_by_the_endpoints_own_authority_and_by_its_name(tmp_path: Path) -> None:
    async with Peer(answering(), server_context(OURS)) as peer:
        assert isinstance(await one(peer.url, tls=Tls(ca_file=ca_file(OURS, tmp_path))), Delivered)
        assert told(await one(peer.url)) == ("permanent", "certificate", "no")
        others = Tls(ca_file=ca_file(OTHER, tmp_path, "other.pem"))
        assert told(await one(peer.url, tls=others)) == ("permanent", "certificate", "no")
    async with Peer(answering(), server_context(OURS, "other.example")) as peer:
        outcome = await one(peer.url, tls=Tls(ca_file=ca_file(OURS, tmp_path)))
        assert told(outcome) == ("permanent", "certificate", "no")


@pytest.mark.requirement("attempt:ca")
async def test_an_authority_of_ones_own_counts_beside_the_usual_ones(tmp_path: Path) -> None:
    def usual() -> ssl.SSLContext:
        context = trusting_nobody()
        OTHER.configure_trust(context)
        return context

    tls = Tls(ca_file=ca_file(OURS, tmp_path))
    async with (
        Peer(answering(), server_context(OURS)) as own,
        Peer(answering(), server_context(OTHER)) as public,
        Peer(answering(), server_context(trustme.CA())) as unknown,
        attempts(context=usual) as made,
    ):
        for peer in (own, public):
            assert isinstance(await made.post(endpoint(peer.url, tls=tls), {}, b"{}"), Delivered)
        assert told(await made.post(endpoint(unknown.url, tls=tls), {}, b"{}")) == ("permanent", "certificate", "no")


@pytest.mark.requirement("attempt:tls")
async def test_a_server_without_tls_is_a_failure_that_stays() -> None:
    async def refuse(peer: Conversation) -> None:
        await peer.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await peer.until_gone()

    async with Peer(refuse) as peer:
        outcome = await one(peer.url.replace("http://", "https://"))
    assert told(outcome) == ("permanent", "tls", "no")


@pytest.mark.requirement("attempt:client-certificate")
async def test_an_endpoint_that_asks_for_a_client_certificate_gets_it(tmp_path: Path) -> None:
    authority = ca_file(OURS, tmp_path)
    certificate, key = client_files(OTHER, tmp_path)
    async with Peer(answering(), server_context(OURS, asks=OTHER)) as peer:
        assert isinstance(await one(peer.url, tls=Tls(authority, certificate, key)), Delivered)
        assert isinstance(await one(peer.url, tls=Tls(authority)), Failed)


@pytest.mark.requirement("attempt:renewed")
async def test_a_renewed_file_counts_from_the_next_attempt_on(tmp_path: Path) -> None:
    opened, path = Opened(), ca_file(OTHER, tmp_path)
    async with Peer(answering(), server_context(OURS)) as peer, attempts(direct=opened) as made:
        to = endpoint(peer.url, tls=Tls(ca_file=path))
        assert told(await made.post(to, {}, b"{}")) == ("permanent", "certificate", "no")
        OURS.cert_pem.write_to_path(path)
        os.utime(path, ns=(1, 1))
        assert isinstance(await made.post(to, {}, b"{}"), Delivered)
        assert isinstance(await made.post(to, {}, b"{}"), Delivered)
    assert len(opened.sessions) == 2
    assert opened.still_open == []


@pytest.mark.requirement("attempt:renewed")
async def test_an_attempt_under_way_keeps_its_connection_while_a_file_is_renewed(tmp_path: Path) -> None:
    opened, path, go = Opened(), ca_file(OURS, tmp_path), asyncio.Event()
    first_came, second_came = asyncio.Event(), asyncio.Event()

    async def waiting(peer: Conversation) -> None:
        await peer.request()
        (second_came if first_came.is_set() else first_came).set()
        await go.wait()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with Peer(waiting, server_context(OURS)) as server, attempts(direct=opened) as made:
        to = endpoint(server.url, tls=Tls(ca_file=path))
        first = asyncio.ensure_future(made.post(to, {}, b"{}"))
        await within(5, "the first attempt", first_came)
        os.utime(path, ns=(1, 1))
        second = asyncio.ensure_future(made.post(to, {}, b"{}"))
        await within(5, "the second attempt", second_came)
        assert len(opened.still_open) == 2
        go.set()
        assert isinstance(await first, Delivered)
        assert isinstance(await second, Delivered)
        assert len(opened.still_open) == 1


@pytest.mark.requirement("attempt:tls-contexts")
async def test_sessions_are_shared_by_those_with_the_same_tls_and_few_are_kept(tmp_path: Path) -> None:
    opened = Opened()
    async with Peer(answering()) as peer, attempts(direct=opened, most=3) as made:
        paths = [ca_file(OURS, tmp_path, f"{number}.pem") for number in range(6)]
        for path in paths * 2:
            for name in ("a", "b"):
                to = endpoint(peer.url, name=name, tls=Tls(ca_file=path))
                assert isinstance(await made.post(to, {}, b"{}"), Delivered)
            assert len(opened.still_open) <= 3
        assert len(opened.sessions) == 12
        await asyncio.gather(*(made.post(endpoint(peer.url), {}, b"{}") for _ in range(8)))
        assert len(opened.sessions) == 13
    assert opened.still_open == []


def missing_key(tls: Tls) -> str:
    Path(tls.key_file).unlink()
    return f"tls.key_file = {tls.key_file!r}"


def no_certificate(tls: Tls) -> str:
    Path(tls.cert_file).write_text("hello")
    return f"tls.cert_file = {tls.cert_file!r}"


def another_key(tls: Tls) -> str:
    Path(tls.key_file).write_bytes(OTHER.issue_cert("x.example").private_key_pem.bytes())
    return f"tls.cert_file = {tls.cert_file!r}"


def key_with_a_password(tls: Tls) -> str:
    key = serialization.load_pem_private_key(Path(tls.key_file).read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.PrivateFormat.PKCS8
    Path(tls.key_file).write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    return f"tls.cert_file = {tls.cert_file!r}"


def no_authority(tls: Tls) -> str:
    Path(tls.ca_file).write_text("hello")
    return f"tls.ca_file = {tls.ca_file!r}"


def folder(tls: Tls) -> str:
    Path(tls.ca_file).unlink()
    Path(tls.ca_file).mkdir()
    return f"tls.ca_file = {tls.ca_file!r}"


@pytest.mark.requirement("attempt:tls-files")
@pytest.mark.parametrize("spoil", [missing_key, no_certificate, another_key, key_with_a_password, no_authority, folder])
async def test_a_file_that_cannot_be_used_fails_its_delivery_only_and_names_field_and_file(
    tmp_path: Path, spoil: Callable[[Tls], str]
) -> None:
    tls = Tls(ca_file(OURS, tmp_path), *client_files(OTHER, tmp_path))
    named = spoil(tls)
    async with Peer(answering()) as peer, attempts() as made:
        outcome = await made.post(endpoint(peer.url, tls=tls), {}, b"{}")
        assert told(outcome) == ("ours", "bad_tls_file", "no")
        assert isinstance(outcome, Failed)
        assert f"{named} cannot be used" in outcome.message
        assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)


@pytest.mark.requirement("attempt:proxy")
async def test_plain_http_goes_through_the_proxy_with_its_credentials() -> None:
    async with Peer(answering()) as peer, Proxy(password="user:p@ss") as proxy, attempts() as made:
        to = endpoint(f"{peer.url}/hook?q=1", proxy=proxy.url.replace("://", "://user:p%40ss@"))
        assert isinstance(await made.post(to, {}, b"body"), Delivered)
    assert proxy.seen == [f"POST {peer.url}/hook?q=1 HTTP/1.1"]
    assert proxy.credentials == ["user:p@ss"]
    assert peer.received.startswith(b"POST /hook?q=1 HTTP/1.1\r\n")
    assert b"\r\nAuthorization:" not in peer.received


@pytest.mark.requirement("attempt:proxy")
async def test_https_goes_through_a_tunnel_and_is_checked_end_to_end(tmp_path: Path) -> None:
    direct, proxied = Opened(), Opened()
    async with (
        Peer(answering(), server_context(OURS, "hooks.example")) as peer,
        Proxy(password="user:pass", names={"hooks.example": "127.0.0.1"}) as proxy,
        attempts(direct=direct, proxied=proxied) as made,
    ):
        port = peer.address.split(":")[1]
        through = proxy.url.replace("://", "://user:pass@")
        to = endpoint(f"https://hooks.example:{port}/", proxy=through, tls=Tls(ca_file=ca_file(OURS, tmp_path)))
        for _ in range(2):
            outcome = await made.post(to, {}, b"secret body")
            assert isinstance(outcome, Delivered)
            assert outcome.evidence is not None
            assert outcome.evidence.address == proxy.address
        assert proxy.seen == [f"CONNECT hooks.example:{port} HTTP/1.1"]
        assert proxy.credentials == ["user:pass"]
        assert b"roxy-" not in peer.received
        assert len(peer.conversations) == 1
        other = endpoint(f"https://other.example:{port}/", proxy=through, tls=to.tls)
        assert isinstance(await made.post(other, {}, b"{}"), Failed)
    assert direct.sessions == []


@pytest.mark.requirement("attempt:proxy-faults")
async def test_a_proxy_that_is_away_or_wants_another_password_is_our_own_fault() -> None:
    with refusing_url() as nobody:
        proxy_url = nobody.removesuffix("/hook")
        outcome = await one("http://127.0.0.1:9/", proxy=proxy_url.replace("://", "://user:secret@"))
        assert told(outcome) == ("ours", "proxy_unreachable", "no")
        assert isinstance(outcome, Failed)
        assert proxy_url.removeprefix("http://") in outcome.message
        assert "secret" not in outcome.message
    async with Proxy(password="user:right") as proxy:
        for url in ("http://127.0.0.1:9/", "https://127.0.0.1:9/"):
            outcome = await one(url, proxy=proxy.url.replace("://", "://user:wrong@"))
            assert told(outcome) == ("ours", "proxy_refused", "no")
            assert isinstance(outcome, Failed)
            assert outcome.message == f"the proxy {proxy.address} answered 407"


@pytest.mark.requirement("attempt:proxy-faults")
@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        (b"403 Forbidden", ("permanent", "proxy_refused", "no")),
        (b"502 Bad Gateway", ("transient", "proxy_failed", "no")),
        (b"302 Found\r\nLocation: http://evil.example", ("permanent", "proxy_refused", "no")),
    ],
)
async def test_a_tunnel_that_is_refused_says_what_the_proxy_said(answer: bytes, verdict: tuple[str, str, str]) -> None:
    async with Proxy(answer=answer) as proxy:
        assert told(await one("https://127.0.0.1:9/", proxy=proxy.url)) == verdict


@pytest.mark.requirement("attempt:proxy-faults")
@pytest.mark.parametrize("proxy", ["https://proxy.example:1", "socks5://u:secret@h:1", "proxy.example", "http://[::1"])
async def test_a_proxy_that_is_none_fails_its_delivery_only(proxy: str) -> None:
    outcome = await one("http://127.0.0.1:9/", proxy=proxy)
    assert told(outcome) == ("ours", "bad_proxy", "no")
    assert isinstance(outcome, Failed)
    assert "secret" not in outcome.message


@pytest.mark.requirement("attempt:proxy-target")
async def test_the_target_behind_a_proxy_is_checked_before_the_proxy_is_asked() -> None:
    asked: list[tuple[str, int]] = []

    async def check(host: str, port: int) -> list[str]:
        asked.append((host, port))
        if host == "unknown.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        if host == "forbidden.example":
            raise OSError("forbidden")
        return [host]

    names = {"unknown.example": "127.0.0.1", "forbidden.example": "127.0.0.1"}
    async with (
        Peer(answering()) as peer,
        Proxy(names=names) as proxy,
        attempts(check_target=check, proxy_looks_up=True) as made,
    ):
        port = int(peer.address.split(":")[1])
        for host in ("forbidden.example", "unknown.example"):
            outcome = await made.post(endpoint(f"http://{host}:{port}/", proxy=proxy.url), {}, b"{}")
            assert isinstance(outcome, Delivered) == (host == "unknown.example")
        assert asked == [("forbidden.example", port), ("unknown.example", port)]
        assert proxy.seen == [f"POST http://unknown.example:{port}/ HTTP/1.1"]
        assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
        assert len(asked) == 2
