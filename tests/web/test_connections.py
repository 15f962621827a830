"""Connections that ask for nothing: they cost nobody who asks his answer."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import httpx
import pytest

from channels.settings import WebSettings
from channels.web import connections
from tests.support.stack import eventually
from tests.support.web import Served, serving, web_settings
from tests.support.written_turn import WrittenTurn

WITHIN_S = 20.0


@asynccontextmanager
async def connected(web: Served, first: bytes = b"") -> AsyncIterator[asyncio.StreamReader]:
    """A connection that has sent these bytes."""
    parts = urlsplit(web.url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(first)
    try:
        yield reader
    finally:
        writer.close()


async def to_its_end(reader: asyncio.StreamReader) -> bytes:
    try:
        async with asyncio.timeout(WITHIN_S):
            return await reader.read()
    except TimeoutError:
        raise AssertionError(f"the connection was not closed within {WITHIN_S} s") from None


@pytest.mark.requirement("web:connections:head")
@pytest.mark.parametrize("first", [b"", b"GET /livez HT", b"GET /livez HTTP/1.1\r\nHost: x\r\nX: "])
async def test_a_head_that_does_not_come_to_its_end_is_not_waited_for(
    web: Served, monkeypatch: pytest.MonkeyPatch, first: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_LIMIT_S", 0.3)
    async with connected(web, first) as reader:
        assert await to_its_end(reader) == b""


@pytest.mark.requirement("web:connections:head")
async def test_a_second_head_that_does_not_come_is_not_waited_for_either(
    web: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_LIMIT_S", 0.5)
    first = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\nGET /livez HTTP/1.1\r\nHo"
    async with connected(web, first) as reader:
        answer = await to_its_end(reader)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1") == 1


async def has_connections(web: Served, count: int) -> None:
    async def number() -> int:
        return len(web.connections)

    await eventually(number, lambda seen: seen == count, f"{count} connections")


async def answers(web: Served, times: int = 5) -> None:
    """Each of some probes, one after the other on a connection of its own, is answered."""
    for _ in range(times):
        async with httpx.AsyncClient(base_url=web.url, timeout=WITHIN_S) as client:
            assert (await client.get("/livez")).status_code == 200


@pytest.mark.requirement("web:connections:cap")
async def test_who_asks_is_answered_however_many_connections_ask_for_nothing(real_url: str) -> None:
    async with serving(web_settings(real_url), connections=10) as web:
        parts = urlsplit(web.url)
        idle = [socket.create_connection((parts.hostname, parts.port)) for _ in range(40)]
        try:
            await answers(web)
            await has_connections(web, 9)  # the probes have made their room, and gone
        finally:
            for one in idle:
                one.close()


@pytest.mark.requirement("web:connections:cap")
async def test_beyond_the_cap_the_connection_that_has_waited_longest_goes(real_url: str) -> None:
    async with serving(web_settings(real_url), connections=4) as web, AsyncExitStack() as stack:
        readers = []
        for number in range(1, 5):
            readers.append(await stack.enter_async_context(connected(web)))
            await has_connections(web, number)
        newest = await stack.enter_async_context(connected(web, b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"))
        assert (await newest.readline()).startswith(b"HTTP/1.1 200")
        assert await to_its_end(readers[0]) == b""
        await has_connections(web, 4)
        assert not any(reader.at_eof() for reader in readers[1:])


@pytest.mark.requirement("web:connections:cap")
async def test_where_all_connections_are_being_answered_a_new_one_is_refused_and_they_stay(real_url: str) -> None:
    async with serving(web_settings(real_url), connections=3) as web, AsyncExitStack() as stack:
        written = await WrittenTurn.begun(web.redis)
        token = await web.token("events:read")
        ask = f"GET /v1/turns/{written.turn}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n"
        readers = [await stack.enter_async_context(connected(web, ask.encode())) for _ in range(3)]
        for reader in readers:
            assert b"event: snapshot" in await reader.readuntil(b"event: snapshot")
        async with connected(web) as one_more:
            head, _, body = (await to_its_end(one_more)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503")
        assert json.loads(body)["error"]["code"] == "unavailable"
        await has_connections(web, 3)
        await written.complete("Still here.")
        for reader in readers:
            await reader.readuntil(b"Still here.")


@asynccontextmanager
async def taking_nothing(web: Served, count: int) -> AsyncIterator[None]:
    """Connections that ask on and on and take no answer, until the process can write no more to any of them."""
    parts = urlsplit(web.url)
    sockets = []
    for _ in range(count):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        one.connect((parts.hostname, parts.port))
        one.setblocking(False)
        sockets.append(one)

    async def stuck() -> int:
        for one in sockets:
            with suppress(OSError):
                one.send(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
        return sum(each.stuck_since is not None for each in web.connections)

    try:
        await eventually(stuck, lambda seen: seen == count, "connections that take nothing")
        yield
    finally:
        for one in sockets:
            one.close()


@pytest.mark.requirement("web:connections:taken")
async def test_who_asks_is_answered_however_many_ask_and_take_no_answer(
    real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "STUCK_S", 0.2)
    settings = web_settings(real_url, requests_per_minute=100_000)
    async with serving(settings, connections=5) as web, taking_nothing(web, 5):

        async def status() -> int:
            async with httpx.AsyncClient(base_url=web.url, timeout=WITHIN_S) as client:
                return (await client.get("/livez")).status_code

        await eventually(status, lambda seen: seen == 200, "an answer")
        await answers(web)


@pytest.mark.requirement("web:connections:taken")
@pytest.mark.parametrize("by_system", [True, False])
async def test_who_takes_nothing_of_any_answer_is_cut_off(
    real_url: str, monkeypatch: pytest.MonkeyPatch, by_system: bool
) -> None:
    """Also where the system does not do it."""
    if not by_system:
        monkeypatch.delattr(socket, "TCP_USER_TIMEOUT", raising=False)
    settings = web_settings(real_url, requests_per_minute=100_000, write_timeout_s=1)
    async with serving(settings, connections=100) as web, taking_nothing(web, 2):
        await has_connections(web, 0)


@pytest.mark.requirement("web:connections:descriptors")
def test_a_process_has_no_more_readers_than_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [100, 300]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, wanted: limits.__setitem__(slice(None), wanted))
    web, most = connections.fitted(WebSettings(readers=1000))
    assert limits == [300, 300]
    assert web.readers < most < 300
    assert web.readers > 100
    assert most - web.readers >= 50
    limits[:] = [1024, 100_000]
    web, most = connections.fitted(WebSettings(readers=1000))
    assert limits[0] > most == 2000
    assert web.readers == 1000


@pytest.mark.requirement("web:not-http")
@pytest.mark.parametrize("said", [b"\x16\x03\x01\x02\x00\x01\x00\x01\r\n\r\n", b"hello\r\n\r\n"])
async def test_what_is_no_http_is_told_so_in_the_one_form(web: Served, said: bytes) -> None:
    async with connected(web, said) as reader:
        head, _, body = (await to_its_end(reader)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"x-request-id: " in head
    assert json.loads(body)["error"]["code"] == "bad_request"
