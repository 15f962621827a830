"""An attempt ends within its deadline and costs little memory, whatever the receiver does."""

import asyncio
import os
from pathlib import Path

import pytest

from channels.delivery.model import Delivered, Failed
from tests.support.bad_receivers import (
    answering,
    drip_body,
    drip_head,
    drip_hints,
    flood_body,
    flood_hints,
    gzip_bomb,
    half_open,
    huge_head,
    saying,
)
from tests.support.peer import Act, Peer, hang
from tests.support.posting import attempts, endpoint, one

DEADLINE_S = 0.4
LATE_S = 0.5


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: they read and close in ways of their own."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


async def timed(url: str, timeout_s: float = DEADLINE_S, body: bytes = b"{}") -> tuple[Delivered | Failed, float]:
    loop = asyncio.get_running_loop()
    async with attempts() as made:
        began = loop.time()
        outcome = await made.post(endpoint(url, timeout_s=timeout_s), {}, body)
        return outcome, loop.time() - began


@pytest.mark.requirement("attempt:deadline")
@pytest.mark.parametrize("act", [hang, drip_head, drip_hints, half_open, saying(b"HTTP/1.1 20")])
async def test_whoever_never_answers_costs_one_deadline(act: Act) -> None:
    async with Peer(act) as peer:
        outcome, took = await timed(peer.url, body=b"x" * 8 * 1024**2)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("transient", "timeout", "perhaps")
    assert outcome.message == f"{peer.address} gave no answer within 0.4 s"
    assert took <= DEADLINE_S + LATE_S


@pytest.mark.requirement("attempt:deadline")
async def test_whoever_never_answers_a_tls_handshake_costs_one_deadline_and_surely_has_nothing() -> None:
    async with Peer(hang) as peer:
        outcome, took = await timed(peer.url.replace("http://", "https://"))
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("transient", "connect_timeout", "no")
    assert took <= DEADLINE_S + LATE_S


@pytest.mark.requirement("attempt:endless-hints")
async def test_a_flood_of_interim_answers_is_cut_off_long_before_the_deadline() -> None:
    async with Peer(flood_hints) as peer:
        outcome, took = await timed(peer.url, timeout_s=20)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("permanent", "head_too_large", "perhaps")
    assert took < 10


@pytest.mark.requirement("attempt:huge-head")
async def test_a_head_of_300_kb_is_refused() -> None:
    async with Peer(huge_head) as peer:
        outcome, _ = await timed(peer.url, timeout_s=20)
    assert isinstance(outcome, Failed)
    assert (outcome.code, outcome.sent) == ("head_too_large", "perhaps")
    assert outcome.message.startswith(f"the head of the answer from {peer.address} is too large")


@pytest.mark.requirement("attempt:interim")
async def test_a_few_interim_answers_before_the_answer_are_passed_over() -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" * 20
    async with Peer(saying(hints, b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n")) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
    assert outcome.status == 202


@pytest.mark.requirement("attempt:endless-body")
@pytest.mark.parametrize("status", [200, 503])
@pytest.mark.parametrize("act", [drip_body, flood_body])
async def test_a_body_without_an_end_does_not_undo_the_status_and_holds_for_a_second_at_most(
    act: Act, status: int
) -> None:
    async with Peer(act) as peer:
        outcome, took = await timed(peer.url, timeout_s=20)
        await asyncio.wait_for(peer.conversations[0].until_gone(), 5)
    assert isinstance(outcome, Delivered)
    assert took <= 1.0 + LATE_S
    assert outcome.evidence is not None
    assert outcome.evidence.truncated
    async with Peer(saying(b"HTTP/1.1 %d X\r\n\r\nhalf" % status)) as peer:
        outcome, took = await timed(peer.url, timeout_s=20)
    assert isinstance(outcome, Delivered) == (status == 200)
    assert took <= 1.0 + LATE_S


@pytest.mark.requirement("attempt:endless-body")
async def test_the_deadline_bounds_the_body_too() -> None:
    async with Peer(drip_body) as peer:
        outcome, took = await timed(peer.url)
    assert isinstance(outcome, Delivered)
    assert took <= DEADLINE_S + LATE_S


@pytest.mark.requirement("attempt:gzip")
async def test_a_body_is_read_as_it_came_and_never_unpacked() -> None:
    async with Peer(gzip_bomb()) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
    assert outcome.evidence is not None
    assert outcome.evidence.body.startswith(b"\x1f\x8b")
    assert len(outcome.evidence.body) == 16384
    assert outcome.evidence.truncated


@pytest.mark.requirement("attempt:keep-alive")
@pytest.mark.parametrize("size", [0, 1024, 16384, 65536])
async def test_an_ordinary_body_keeps_the_connection(size: int) -> None:
    async with Peer(answering(body=b"y" * size)) as peer, attempts() as made:
        for _ in range(3):
            outcome = await made.post(endpoint(peer.url), {}, b"{}")
            assert isinstance(outcome, Delivered)
            assert outcome.evidence is not None
            assert outcome.evidence.body == b"y" * min(size, 16384)
            assert outcome.evidence.truncated == (size > 16384)
        assert len(peer.conversations) == 1


@pytest.mark.requirement("attempt:keep-alive")
async def test_a_body_of_more_than_64_kb_costs_its_connection() -> None:
    async with Peer(answering(body=b"y" * 4 * 1024**2)) as peer, attempts() as made:
        for _ in range(2):
            assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
        assert len(peer.conversations) == 2


def open_sockets() -> int:
    links = (Path(entry.path).readlink() for entry in os.scandir("/proc/self/fd") if entry.is_symlink())
    return sum(str(link).startswith("socket:") for link in links)


@pytest.mark.requirement("attempt:dropped")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open sockets are counted in /proc")
async def test_a_connection_whose_peer_takes_nothing_is_dropped_with_what_was_not_sent() -> None:
    async with Peer(half_open) as peer, attempts() as made:
        before = open_sockets()
        outcome = await made.post(endpoint(peer.url, timeout_s=DEADLINE_S), {}, b"x" * 8 * 1024**2)
        assert isinstance(outcome, Failed)
        for _ in range(200):
            if open_sockets() == before + 1:
                break
            await asyncio.sleep(0.01)
        assert open_sockets() == before + 1  # the peer's own end of it
