"""The client: what it keeps, what it follows, what it logs, how much of it fits, how fast it lets go."""

import asyncio
import contextlib
import gc
import logging
import resource
from collections.abc import Iterator

import httpx
import pytest

from tests.support.egress import guard
from tests.support.peer import Conversation, Peer, hang, within
from tests.support.ports import free_port
from worker.http import open_client, read_start, retry_after_s

BIG = 20_000_000


async def answer_ok(peer: Conversation) -> None:
    while True:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.requirement("http:client:keeps-nothing")
async def test_a_cookie_is_not_kept_for_the_next_request(client: httpx.AsyncClient) -> None:
    async with Peer(answer_ok) as peer:
        await client.post(peer.url)
        await client.post(peer.url)
    assert peer.received.count(b"POST / ") == 2
    assert b"cookie" not in peer.received.lower()


@pytest.mark.requirement("http:client:keeps-nothing")
async def test_a_redirect_is_not_followed(client: httpx.AsyncClient) -> None:
    async with Peer(answer_ok) as target:

        async def redirect(peer: Conversation) -> None:
            await peer.request()
            await peer.send(f"HTTP/1.1 307 Go\r\nLocation: {target.url}/\r\nContent-Length: 0\r\n\r\n".encode())

        async with Peer(redirect) as peer:
            assert (await client.post(peer.url)).status_code == 307
    assert target.conversations == []


@pytest.mark.requirement("http:client:keeps-nothing")
async def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    async with Peer(answer_ok) as peer, open_client(connect_timeout_s=2, guard=guard()) as client:
        assert (await client.post(peer.url)).status_code == 200


@pytest.mark.requirement("http:client:logs-nothing")
async def test_neither_url_nor_body_nor_header_reaches_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger("httpx").setLevel(logging.NOTSET)
    async with Peer(answer_ok) as peer, open_client(connect_timeout_s=2, guard=guard()) as client:
        await client.post(f"{peer.url}/secret?key=secret", content=b"secret", headers={"X-Key": "secret"})
    assert "secret" not in caplog.text
    assert "HTTP Request" not in caplog.text


async def test_an_idle_connection_that_the_peer_resets_is_no_news(
    client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    heard, read = asyncio.Event(), asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(b"first")
        await within(5, "the first chunk to be read", heard)
        await peer.end()
        await within(5, "the answer to be read", read)
        peer.reset()

    async def read_all(url: str) -> None:
        async with client.stream("POST", url) as response:
            async for _ in response.aiter_raw():
                heard.set()

    async with Peer(act) as peer, Peer(answer_ok) as another:
        await read_all(peer.url)
        read.set()
        await client.post(another.url)  # a round trip, in which the reset is seen
        await client.post(peer.url)  # which needs a connection, and finds that one dead
        gc.collect()
    assert len(peer.conversations) == 2
    assert "never retrieved" not in caplog.text


async def test_a_large_body_arrives_whole_and_with_its_length(client: httpx.AsyncClient) -> None:
    body = bytes(range(256)) * 8192
    async with Peer(answer_ok) as peer:
        assert (await client.post(peer.url, content=body)).status_code == 200
    assert b"content-length: %d\r\n" % len(body) in peer.received.lower()
    assert peer.received.endswith(body)


@pytest.fixture
def many_files() -> Iterator[None]:
    """Room for both ends of 500 connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(2000, hard)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.requirement("http:client:many-streams")
async def test_500_streams_are_open_at_the_same_time() -> None:
    all_open = asyncio.Event()

    async def answer_when_all_are_here(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(b"first")
        await within(20, "all 500 requests to be open", all_open)
        await peer.chunk(b"last")
        await peer.end()

    async def read(client: httpx.AsyncClient, url: str, begun: asyncio.Semaphore) -> bytes:
        async with client.stream("POST", url, content=b"{}") as response:
            chunks = response.aiter_raw()
            data = await anext(chunks)
            begun.release()
            return data + b"".join([chunk async for chunk in chunks])

    async with (
        Peer(answer_when_all_are_here) as peer,
        open_client(connect_timeout_s=30, guard=guard()) as client,
        asyncio.timeout(30),
    ):
        begun = asyncio.Semaphore(0)
        reads = [asyncio.ensure_future(read(client, peer.url, begun)) for _ in range(500)]
        for _ in reads:
            await begun.acquire()
        all_open.set()
        assert set(await asyncio.gather(*reads)) == {b"firstlast"}


@pytest.mark.requirement("http:client:lets-go-at-once")
async def test_a_connection_is_gone_at_once_though_the_peer_has_not_taken_the_request(
    client: httpx.AsyncClient,
) -> None:
    given_up = asyncio.Event()

    async def read_nothing(peer: Conversation) -> None:
        peer.stop_reading()
        await within(10, "the request to be given up", given_up)
        await peer.until_refused()

    async with Peer(read_nothing) as peer:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.post(peer.url, content=b"x" * BIG)
        given_up.set()
        await within(5, "the peer's bytes to be refused", peer.conversations[0].ended)


@pytest.mark.requirement("http:client:lets-go-at-once")
async def test_a_peer_sees_at_once_that_a_body_is_read_no_further(client: httpx.AsyncClient) -> None:
    async def begin(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(b"first")
        await peer.until_gone()

    async with Peer(begin) as peer:
        async with client.stream("POST", peer.url) as response:
            assert await anext(response.aiter_raw()) == b"first"
        await within(2, "the peer to see the end of the connection", peer.conversations[0].ended)


@pytest.mark.requirement("http:client:lets-go-at-once")
async def test_an_answer_is_dropped_at_once_though_the_peer_has_not_taken_the_request(
    client: httpx.AsyncClient,
) -> None:
    given_up = asyncio.Event()

    async def answer_early(peer: Conversation) -> None:
        peer.stop_reading()
        await peer.head("application/json")
        await peer.chunk(b"first")
        await within(10, "the answer to be given up", given_up)
        await peer.until_refused()

    async with Peer(answer_early) as peer:
        async with asyncio.timeout(5), client.stream("POST", peer.url, content=b"x" * BIG) as response:
            assert await anext(response.aiter_raw()) == b"first"
        given_up.set()
        await within(5, "the peer's bytes to be refused", peer.conversations[0].ended)


async def test_a_body_is_read_up_to_the_limit_and_no_further(client: httpx.AsyncClient) -> None:
    async def flood(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        while True:
            await peer.chunk(b"x" * 1000)

    async with Peer(flood) as peer, client.stream("POST", peer.url) as response:
        assert await read_start(response.aiter_raw(), 2500, 5) == b"x" * 2500


@pytest.mark.parametrize("is_cut", [True, False])
async def test_what_came_of_a_body_is_kept_when_the_rest_does_not_come(client: httpx.AsyncClient, is_cut: bool) -> None:
    async def begin(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(b"first")
        if not is_cut:
            await hang(peer)

    async with Peer(begin) as peer, client.stream("POST", peer.url) as response:
        assert await read_start(response.aiter_raw(), 2500, 0.1) == b"first"


@pytest.mark.requirement("http:retry-after")
@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": " 0.25 "}, 0.25),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT", "date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:30", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "Wed, 21 Oct 99999999999 07:28:30 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-5"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "1e9"}, None),
        ({"retry-after": "٣"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({}, None),
    ],
    ids=str,
)
def test_retry_after_is_read_as_seconds_or_as_nothing(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers) == seconds


@pytest.mark.requirement("hostile:unasked")
@pytest.mark.parametrize("ahead", [b"HTTP/1.1 299 X\r\nContent-Length: 0\r\n\r\n" * 2000, b"x" * 1_000_000])
async def test_what_comes_before_a_request_drops_its_connection_and_is_no_answer(
    client: httpx.AsyncClient, ahead: bytes
) -> None:
    taken, gone = asyncio.Event(), asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        if taken.is_set():
            return
        await taken.wait()
        with contextlib.suppress(ConnectionError):
            await peer.send(ahead)
        await peer.until_gone()
        gone.set()

    async with Peer(act) as peer:
        await client.post(peer.url)
        taken.set()
        await within(2, "the connection's end", gone)
        assert (await client.post(peer.url)).status_code == 200
        assert len(peer.conversations) == 2
