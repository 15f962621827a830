"""The table of faults, against real sockets: what happened, and whether the peer can have seen the request."""

import asyncio
import errno
import socket
import ssl
from pathlib import Path

import aiohttp
import httpx
import pytest
from aiohttp.client_reqrep import ConnectionKey

from tests.support.egress import Fails, guard
from tests.support.peer import Act, Conversation, Peer, hang, within
from tests.support.ports import free_port
from worker.http import HTTP_FAULTS, HttpFault, classify, open_client

SECRETS = "/secret-path?key=secret-query"
HEADERS = {"Authorization": "Bearer secret-key"}
KEY_AND_CERTIFICATE = Path(__file__).with_name("loopback.pem")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: they report broken connections differently."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


async def read(client: httpx.AsyncClient, url: str, body: bytes = b"x" * 100) -> int:
    """POST and read the whole answer; its status."""
    response = await client.send(client.build_request("POST", url, content=body, headers=HEADERS), stream=True)
    try:
        async for _ in response.aiter_raw():
            pass
    finally:
        await response.aclose()
    return response.status_code


async def fault_of(client: httpx.AsyncClient, url: str, body: bytes = b"x" * 100) -> HttpFault:
    """The verdict on a POST that must fail, within 5 s."""
    with pytest.raises(HTTP_FAULTS) as caught:
        async with asyncio.timeout(5):
            await read(client, url, body)
    fault = classify(caught.value)
    assert "secret" not in fault.message
    return fault


async def reset_at_once(peer: Conversation) -> None:
    peer.reset()


async def close_at_once(_: Conversation) -> None:
    return


async def reset_after_the_request(peer: Conversation) -> None:
    await peer.request()
    peer.reset()


async def close_after_the_request(peer: Conversation) -> None:
    await peer.request()


async def reset_in_the_body(peer: Conversation) -> None:
    await peer.request()
    await peer.head()
    await peer.chunk(b"data")
    peer.reset()


async def close_in_a_chunked_body(peer: Conversation) -> None:
    await peer.request()
    await peer.head()
    await peer.chunk(b"data")


async def close_in_a_measured_body(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ndata")


async def send_a_chunk_that_is_none(peer: Conversation) -> None:
    await peer.request()
    await peer.head()
    await peer.chunk(b"data")
    await peer.send(b"no number\r\ndata\r\n")
    await peer.until_gone()


async def send_a_long_line(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000 + b"\r\n\r\n")


async def send_many_lines(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\n" + b"A: x\r\n" * 1000 + b"\r\n")


async def speak_something_else(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"SSH-2.0-OpenSSH_9.9\r\n")
    await peer.until_gone()


async def redirect_nowhere(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\nContent-Length: 0\r\n\r\n")


FAULTS = [
    (reset_after_the_request, "reset", False, "closed the connection before it answered"),
    (close_after_the_request, "reset", False, "closed the connection before it answered"),
    (close_at_once, "reset", False, "closed the connection before it answered"),
    (reset_in_the_body, "reset_in_body", False, "reset the connection in the middle of its answer"),
    (close_in_a_chunked_body, "truncated", False, "closed the connection in the middle of its answer"),
    (close_in_a_measured_body, "truncated", False, "closed the connection in the middle of its answer"),
    (send_a_chunk_that_is_none, "malformed", False, "breaks HTTP"),
    (send_a_long_line, "head_too_large", True, "too large"),
    (send_many_lines, "head_too_large", True, "too large"),
    (speak_something_else, "not_http", True, "does not speak HTTP"),
    (redirect_nowhere, "bad_redirect", True, "redirects to an address that cannot be read"),
]


@pytest.mark.requirement("http:fault:by-what-happened")
@pytest.mark.parametrize(("act", "code", "lasting", "words"), FAULTS, ids=[act.__name__ for act, *_ in FAULTS])
async def test_a_fault_after_the_connection_stood_is_perhaps_sent(
    client: httpx.AsyncClient, act: Act, code: str, lasting: bool, words: str
) -> None:
    async with Peer(act) as peer:
        fault = await fault_of(client, peer.url + SECRETS)
    assert (fault.code, fault.sent, fault.lasting) == (code, "perhaps", lasting)
    assert words in fault.message
    assert peer.address in fault.message


@pytest.mark.requirement("http:fault:never-sent-by-mistake")
@pytest.mark.parametrize("size", [100, 5_000_000])
async def test_a_reset_before_the_request_is_read_is_never_taken_for_not_sent(
    client: httpx.AsyncClient, size: int
) -> None:
    async with Peer(reset_at_once) as peer:
        fault = await fault_of(client, peer.url + SECRETS, b"x" * size)
    assert (fault.code, fault.sent) in {("reset", "perhaps"), ("reset_in_handshake", "no")}


@pytest.mark.requirement("http:fault:by-what-happened")
@pytest.mark.requirement("http:fault:never-sent-by-mistake")
async def test_a_closed_port_is_refused_and_nothing_was_sent(client: httpx.AsyncClient) -> None:
    port = free_port()
    fault = await fault_of(client, f"http://127.0.0.1:{port}{SECRETS}")
    assert fault == HttpFault("connect_refused", "no", f"nothing listens at 127.0.0.1:{port} (connection refused)")


@pytest.mark.requirement("http:fault:by-what-happened")
async def test_a_name_without_an_address_is_a_dns_fault() -> None:
    error = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    async with open_client(connect_timeout_s=2, guard=guard(lookup=Fails(error))) as client:
        fault = await fault_of(client, f"http://nowhere.invalid:8080{SECRETS}")
    assert (fault.code, fault.sent) == ("dns", "no")
    assert fault.message == "no address was found for the name in nowhere.invalid:8080 (Name or service not known)"


@pytest.mark.requirement("http:fault:connect-bounded")
async def test_a_lookup_that_hangs_ends_with_the_connect_timeout() -> None:
    async with open_client(connect_timeout_s=0.1, guard=guard(lookup=Fails(None))) as client:
        fault = await fault_of(client, f"http://nowhere.invalid:8080{SECRETS}")
    assert (fault.code, fault.sent) == ("connect_timeout", "no")


@pytest.mark.requirement("http:fault:connect-bounded")
async def test_a_tls_handshake_that_hangs_ends_with_the_connect_timeout() -> None:
    async with Peer(hang) as peer, open_client(connect_timeout_s=0.1, guard=guard()) as client:
        fault = await fault_of(client, peer.url.replace("http", "https") + SECRETS)
    assert (fault.code, fault.sent) == ("connect_timeout", "no")


async def answer_in_plain_http(peer: Conversation) -> None:
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    await peer.until_gone()


@pytest.mark.requirement("http:fault:by-what-happened")
async def test_tls_with_a_server_that_speaks_plain_http_is_a_tls_fault(client: httpx.AsyncClient) -> None:
    async with Peer(answer_in_plain_http) as peer:
        fault = await fault_of(client, peer.url.replace("http", "https") + SECRETS)
    assert (fault.code, fault.sent, fault.lasting) == ("tls", "no", True)
    assert "http://" in fault.message


@pytest.mark.parametrize("act", [reset_at_once, close_at_once])
async def test_a_connection_lost_in_the_tls_handshake_was_not_sent(client: httpx.AsyncClient, act: Act) -> None:
    async with Peer(act) as peer:
        fault = await fault_of(client, peer.url.replace("http", "https") + SECRETS)
    assert (fault.code, fault.sent, fault.lasting) == ("reset_in_handshake", "no", False)


@pytest.mark.requirement("http:fault:by-what-happened")
async def test_a_body_that_breaks_http_half_way_ends_the_read_at_once(client: httpx.AsyncClient) -> None:
    heard = asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(b"data")
        await within(5, "the first chunk to be read", heard)
        await peer.send(b"no number\r\ndata\r\n")
        await peer.until_gone()

    async with Peer(act) as peer, client.stream("POST", peer.url) as response:
        chunks = response.aiter_raw()
        assert await anext(chunks) == b"data"
        heard.set()
        with pytest.raises(HTTP_FAULTS) as caught:
            async with asyncio.timeout(5):
                await anext(chunks)
    assert classify(caught.value).code == "malformed"


def tls_server() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(KEY_AND_CERTIFICATE)
    return context


@pytest.mark.requirement("http:fault:by-what-happened")
async def test_a_certificate_of_an_unknown_issuer_is_not_accepted(client: httpx.AsyncClient) -> None:
    async with Peer(close_after_the_request, tls_server()) as peer:
        fault = await fault_of(client, peer.url + SECRETS)
    assert (fault.code, fault.sent, fault.lasting) == ("certificate", "no", True)
    assert "self-signed certificate" in fault.message
    assert "SSL_CERT_FILE" in fault.message
    assert peer.received == b""


async def test_a_certificate_for_another_name_is_not_accepted() -> None:
    trusting = ssl.create_default_context(cafile=KEY_AND_CERTIFICATE)
    client = open_client(connect_timeout_s=2, guard=guard(), ssl_context=trusting)
    async with Peer(close_after_the_request, tls_server()) as peer, client:
        fault = await fault_of(client, peer.url + SECRETS)
    assert (fault.code, fault.sent) == ("certificate", "no")
    assert "127.0.0.1" in fault.message


async def answer_ok(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await peer.until_gone()


async def test_a_trusted_certificate_is_accepted() -> None:
    trusting = ssl.create_default_context(cafile=KEY_AND_CERTIFICATE)
    async with (
        Peer(answer_ok, tls_server()) as peer,
        open_client(connect_timeout_s=2, guard=guard(), ssl_context=trusting) as client,
    ):
        assert await read(client, peer.url.replace("127.0.0.1", "localhost")) == 200


@pytest.mark.requirement("http:fault:stale-connection")
async def test_a_reused_connection_that_dies_is_perhaps_sent_and_never_sent_twice(client: httpx.AsyncClient) -> None:
    async def answer_the_first(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await peer.request()
        peer.reset()

    async with Peer(answer_the_first) as peer:
        assert await read(client, peer.url + SECRETS) == 200
        fault = await fault_of(client, peer.url + SECRETS, b"second")
    assert (fault.code, fault.sent) == ("reset", "perhaps")
    assert len(peer.conversations) == 1
    assert peer.received.count(b"second") == 1


@pytest.mark.requirement("http:fault:stale-connection")
async def test_a_connection_that_the_peer_closed_while_idle_is_not_used_again(client: httpx.AsyncClient) -> None:
    async def answer_once(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with Peer(answer_once) as peer, Peer(answer_ok) as another:
        assert await read(client, peer.url) == 200
        assert await read(client, another.url) == 200  # a round trip, in which the close is seen
        assert await read(client, peer.url) == 200
    assert len(peer.conversations) == 2


@pytest.mark.requirement("http:fault:bad-header")
@pytest.mark.parametrize("value", ["secret\nline", "secret\rline", "secret\0nul", "secret-ключ"])
async def test_a_header_that_http_forbids_is_named_and_nothing_is_sent(client: httpx.AsyncClient, value: str) -> None:
    async with Peer(answer_ok) as peer:
        with pytest.raises(HTTP_FAULTS) as caught:
            await client.send(client.build_request("POST", peer.url + SECRETS, headers={"X-Key": value}))
        fault = classify(caught.value)
        assert (fault.code, fault.sent, fault.lasting) == ("bad_header", "no", True)
        assert "secret" not in fault.message
    assert peer.received == b""


@pytest.mark.requirement("http:fault:invalid-url")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost/secret",
        "ftp://127.0.0.1/secret",
        "http:///secret",
        "http://[::1/secret",
        "http://127.0.0.1:99999/secret",
        "http://127.0.0.1:port/secret",
        f"http://{'a' * 70}.invalid/secret",
        "http://../secret",
        "http://256.1.1.1/secret",
        "http://user:secret@127.0.0.1:9/",
    ],
)
async def test_a_url_that_cannot_be_used_is_a_lasting_fault(client: httpx.AsyncClient, url: str) -> None:
    fault = await fault_of(client, url)
    assert (fault.code, fault.sent, fault.lasting) == ("invalid_url", "no", True)


def connector_error(number: int) -> aiohttp.ClientConnectorError:
    key = ConnectionKey("10.0.0.1", 80, False, True, None, None, None)
    return aiohttp.ClientConnectorError(key, OSError(number, "text"))


@pytest.mark.parametrize(
    ("error", "code", "sent"),
    [
        (connector_error(errno.EHOSTUNREACH), "unreachable", "no"),
        (connector_error(errno.EMFILE), "no_sockets", "no"),
        (connector_error(errno.ETIMEDOUT), "connect_timeout", "no"),
        (aiohttp.ClientOSError(errno.ETIMEDOUT, "text"), "timeout", "perhaps"),
        (aiohttp.SocketTimeoutError("text"), "timeout", "perhaps"),
        (TimeoutError(), "timeout", "perhaps"),
        (httpx.ReadError("text"), "unknown", "perhaps"),
        (ValueError("text"), "unknown", "perhaps"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_the_loopback_cannot_show_is_in_the_table_too(error: Exception, code: str, sent: str) -> None:
    fault = classify(error)
    assert (fault.code, fault.sent) == (code, sent)
    assert "text" not in fault.message


async def test_a_wait_that_the_caller_ends_leaves_the_request_perhaps_sent(client: httpx.AsyncClient) -> None:
    async with Peer(hang) as peer:
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(0.1):
                await read(client, peer.url)
    assert classify(caught.value).sent == "perhaps"


async def test_what_is_not_the_peers_fault_is_raised_as_it_is() -> None:
    client = open_client(connect_timeout_s=1, guard=guard())
    await client.aclose()
    with pytest.raises(RuntimeError) as caught:
        await client.post("http://127.0.0.1:9/")
    assert not isinstance(caught.value, HTTP_FAULTS)
