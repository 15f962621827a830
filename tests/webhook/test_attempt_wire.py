"""What goes over the wire of an attempt, over how many connections, and what is noted of it."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
import trustme
from aiohttp.abc import AbstractResolver, ResolveResult

from channels.delivery.model import Delivered, Evidence, Failed
from channels.endpoints.model import Tls
from tests.support.bad_receivers import answering
from tests.support.certificates import ca_file, server_context
from tests.support.peer import Conversation, Peer
from tests.support.posting import attempts, endpoint, one


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: evidence is noted in their callbacks."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


def evidence_of(outcome: Delivered | Failed) -> Evidence:
    assert outcome.evidence is not None
    return outcome.evidence


@pytest.mark.requirement("attempt:bytes")
async def test_the_bytes_arrive_as_they_are() -> None:
    body = (
        b'{"big": 18446744073709551616, "float": 1.7976931348623157e+308, "nul": "\\u0000", "text": "\xf0\x9f\x9a\x80"}'
    )
    async with Peer(answering()) as peer:
        await one(peer.url + "/a%7Eb/%2F?q=%20&token=a+b", body=body)
    head, _, arrived = peer.received.partition(b"\r\n\r\n")
    assert arrived == body
    assert head.startswith(b"POST /a%7Eb/%2F?q=%20&token=a+b HTTP/1.1\r\n")


@pytest.mark.requirement("attempt:bytes")
async def test_a_large_body_arrives_whole() -> None:
    body = b"".join(b"%08d" % number for number in range(2 * 1024**2 // 8))
    async with Peer(answering()) as peer:
        assert isinstance(await one(peer.url, body=body), Delivered)
    head, _, arrived = peer.received.partition(b"\r\n\r\n")
    assert arrived == body
    assert b"\r\nContent-Length: %d" % len(body) in head


@pytest.mark.requirement("attempt:headers")
async def test_nothing_is_sent_that_nobody_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    async with Peer(answering(200, "Set-Cookie: who=crm\r\n")) as peer, attempts() as made:
        sent = {"content-type": "application/json", "user-agent": "lastword", "accept-encoding": "identity"}
        for _ in range(2):
            await made.post(endpoint(peer.url), sent, b"{}")
    heads = re.findall(rb"POST .*?\r\n\r\n", peer.received, re.DOTALL)
    assert len(heads) == 2
    for head in heads:
        lines = dict(line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:-2])
        assert lines == {"host": peer.address, "accept": "*/*", "content-length": "2", **sent}


@pytest.mark.requirement("attempt:few-connections")
async def test_50_deliveries_at_8_at_a_time_need_8_connections_at_most() -> None:
    left = iter(range(50))
    async with Peer(answering()) as peer, attempts() as made:

        async def some() -> None:
            for _ in left:
                assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)

        await asyncio.gather(*(some() for _ in range(8)))
        assert len(peer.conversations) <= 8
        assert peer.received.count(b"POST ") == 50


@pytest.mark.requirement("attempt:huge-head")
async def test_a_connection_may_say_more_than_one_head_may_hold_in_many_answers() -> None:
    many = "".join(f"X-Name-{number}: {'v' * 4000}\r\n" for number in range(3))
    async with Peer(answering(200, many)) as peer, attempts() as made:
        for _ in range(10):
            assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
        assert len(peer.conversations) == 1


class Fixed(AbstractResolver):
    """Every name is the loopback's."""

    async def resolve(self, host: str, port: int = 0, *_: Any, **__: Any) -> list[ResolveResult]:
        await asyncio.sleep(0.01)
        return [ResolveResult(hostname=host, host="127.0.0.1", port=port, family=2, proto=0, flags=0)]

    async def close(self) -> None:
        pass


@pytest.mark.requirement("attempt:evidence")
async def test_an_attempt_notes_what_it_saw(tmp_path: Path) -> None:
    authority = trustme.CA()

    async def slow(peer: Conversation) -> None:
        while True:
            await peer.request()
            await asyncio.sleep(0.05)
            await peer.send(b"HTTP/1.1 201 Created\r\nContent-Type: text/html\r\nContent-Length: 5\r\n\r\nhello")

    async with Peer(slow, server_context(authority, "hooks.example")) as peer, attempts(resolver=Fixed()) as made:
        url = f"https://hooks.example:{peer.address.split(':')[1]}/"
        to = endpoint(url, tls=Tls(ca_file=ca_file(authority, tmp_path)))
        first = evidence_of(await made.post(to, {}, b"{}"))
        second = evidence_of(await made.post(to, {}, b"{}"))
    assert (first.status, first.content_type, first.body, first.truncated) == (201, "text/html", b"hello", False)
    assert (first.address, first.reused) == (peer.address, False)
    assert first.lookup_ms is not None
    assert first.connect_ms is not None
    assert first.tls_ms is not None
    assert first.head_ms is not None
    assert first.lookup_ms >= 5
    assert first.head_ms >= 45
    parts = first.lookup_ms + first.connect_ms + first.tls_ms + first.head_ms
    assert parts - 3 <= first.total_ms
    assert (second.address, second.reused) == (peer.address, True)
    assert (second.lookup_ms, second.connect_ms, second.tls_ms) == (None, None, None)
    assert second.head_ms is not None
    assert second.head_ms >= 45


@pytest.mark.requirement("attempt:evidence")
async def test_an_attempt_that_failed_notes_how_far_it_came() -> None:
    async def hang(peer: Conversation) -> None:
        await peer.request()
        await peer.until_gone()

    async with Peer(hang) as peer:
        seen = evidence_of(await one(peer.url, timeout_s=0.2))
        assert (seen.status, seen.address, seen.head_ms) == (None, peer.address, None)
        assert seen.total_ms >= 199
    unknown = evidence_of(await one("http://h.invalid:1/", timeout_s=0.2))
    assert (unknown.status, unknown.address, unknown.connect_ms) == (None, "", None)


@pytest.mark.requirement("attempt:evidence")
async def test_attempts_side_by_side_note_each_its_own() -> None:
    async def late(peer: Conversation) -> None:
        while True:
            wanted = json.loads((await peer.request()).partition(b"\r\n\r\n")[2])
            await asyncio.sleep(wanted / 1000)
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with Peer(late) as peer, attempts() as made:
        for _ in range(2):
            waits = [300, 0, 150, 0]
            outcomes = await asyncio.gather(*(made.post(endpoint(peer.url), {}, b"%d" % wait) for wait in waits))
            heads = [evidence_of(outcome).head_ms or 0 for outcome in outcomes]
            assert heads[0] >= 290
            assert heads[2] >= 145
            assert heads[0] > max(heads[1:])
