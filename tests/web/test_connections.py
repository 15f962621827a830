"""Connections that ask for nothing: they cost nobody who asks his answer."""

import asyncio
import json
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from channels.settings import WebSettings
from channels.web import connections
from tests.support.web import Served, serving, web_settings

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


@pytest.mark.requirement("web:connections:cap")
async def test_who_asks_is_answered_however_many_connections_ask_for_nothing(real_url: str) -> None:
    async with serving(web_settings(real_url), connections=10) as web:
        parts = urlsplit(web.url)
        idle = [socket.create_connection((parts.hostname, parts.port)) for _ in range(40)]
        try:
            for _ in range(5):
                async with httpx.AsyncClient(base_url=web.url, timeout=WITHIN_S) as client:
                    assert (await client.get("/livez")).status_code == 200
        finally:
            for one in idle:
                one.close()


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
