"""What can go wrong with an attempt, against real sockets: whose fault it is, and whether the receiver can have it."""

import asyncio
import errno
import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver

from channels.delivery.model import Delivered, Failed
from tests.support.bad_receivers import answering, in_turn, reset_before_answer, reset_when_used_again, saying
from tests.support.peer import Act, Conversation, Peer, within
from tests.support.posting import Opened, attempts, endpoint, one
from tests.support.receiver import refusing_url, silent_url


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


class Failing(AbstractResolver):
    """Answers every lookup with this error, or never."""

    def __init__(self, error: OSError | None) -> None:
        self._error = error

    async def resolve(self, *_: Any, **__: Any) -> Any:
        if self._error is None:
            await asyncio.Event().wait()
        raise self._error or AssertionError

    async def close(self) -> None:
        pass


def told(outcome: object) -> tuple[str, str, str]:
    assert isinstance(outcome, Failed)
    return outcome.kind, outcome.code, outcome.sent


@pytest.mark.requirement("attempt:faults")
async def test_a_refused_connection_was_surely_not_sent() -> None:
    with refusing_url() as url:
        outcome = await one(url)
    assert told(outcome) == ("transient", "connect_refused", "no")
    assert isinstance(outcome, Failed)
    assert url.split("/")[2] in outcome.message
    assert "/hook" not in outcome.message


@pytest.mark.requirement("attempt:faults")
async def test_a_connection_that_nobody_took_in_time_was_surely_not_sent() -> None:
    with silent_url() as url:
        outcome = await one(url, timeout_s=0.3)
    assert told(outcome) == ("transient", "connect_timeout", "no")


@pytest.mark.requirement("attempt:faults")
async def test_a_name_that_is_not_found_is_a_failure_that_may_pass() -> None:
    async with attempts(resolver=Failing(socket.gaierror(socket.EAI_NONAME, "no such name"))) as made:
        outcome = await made.post(endpoint("http://hooks.example/"), {}, b"{}")
    assert told(outcome) == ("transient", "dns", "no")


@pytest.mark.requirement("attempt:deadline")
async def test_the_deadline_covers_the_lookup_of_the_name() -> None:
    async with attempts(resolver=Failing(None)) as made:
        outcome = await made.post(endpoint("http://hooks.example/", timeout_s=0.3), {}, b"{}")
    assert told(outcome) == ("transient", "connect_timeout", "no")
    assert isinstance(outcome, Failed)
    assert outcome.message == "hooks.example:80 gave no answer within 0.3 s"


@pytest.mark.requirement("attempt:faults")
@pytest.mark.parametrize(
    ("act", "code"),
    [
        pytest.param(reset_before_answer, "reset", id="reset"),
        pytest.param(saying(stay=False), "reset", id="closed"),
        pytest.param(saying(b"HTTP/1.1 200 O", stay=False), "reset", id="closed in the head"),
        pytest.param(saying(b"\x16\x03\x01\x02\x00 garbage\r\n\r\n"), "not_http", id="garbage"),
        pytest.param(saying(b"SSH-2.0-OpenSSH_9.6\r\n"), "not_http", id="another protocol"),
        pytest.param(saying(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 9000 + b"\r\n\r\n"), "head_too_large", id="long line"),
        pytest.param(saying(b"HTTP/1.1 200 OK\r\nContent-Length: nine\r\n\r\n"), "malformed", id="no length"),
    ],
)
async def test_an_answer_that_is_none_was_perhaps_received(act: Act, code: str) -> None:
    async with Peer(act) as peer:
        outcome = await one(peer.url)
    lasting = code in {"not_http", "head_too_large"}
    assert told(outcome) == ("permanent" if lasting else "transient", code, "perhaps")
    assert isinstance(outcome, Failed)
    assert peer.address in outcome.message


@pytest.mark.requirement("attempt:status-decides")
@pytest.mark.parametrize(
    "rest",
    [b"Content-Length: 100\r\n\r\nhalf", b"Transfer-Encoding: chunked\r\n\r\n5\r\nhel", b"Content-Length: 9\r\n\r\n"],
)
async def test_a_body_that_breaks_off_does_not_undo_the_status(rest: bytes) -> None:
    async with Peer(saying(b"HTTP/1.1 200 OK\r\n" + rest, stay=False)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
    assert outcome.evidence is not None
    assert outcome.evidence.truncated


@pytest.mark.requirement("attempt:stale")
async def test_a_connection_that_went_stale_is_perhaps_sent_and_not_tried_again_behind_anyones_back() -> None:
    async with Peer(in_turn(reset_when_used_again, answering())) as peer, attempts() as made:
        to = endpoint(peer.url)
        assert isinstance(await made.post(to, {}, b"{}"), Delivered)
        assert told(await made.post(to, {}, b"{}")) == ("transient", "reset", "perhaps")
        assert len(peer.conversations) == 1
        assert isinstance(await made.post(to, {}, b"{}"), Delivered)


@pytest.mark.requirement("attempt:stale")
async def test_a_connection_that_the_peer_closed_meanwhile_is_not_used() -> None:
    async def once(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        peer.finish()
        await peer.until_gone()

    async with Peer(once) as peer, attempts() as made:
        for count in range(1, 4):
            assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
            assert len(peer.conversations) == count
            await within(5, "the sender to close", peer.conversations[-1].ended)


@pytest.mark.requirement("attempt:ours")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS])
async def test_a_machine_without_sockets_is_our_own_fault(number: int) -> None:
    left = [OSError(number, "none left")]

    def open_socket(address: Any) -> socket.socket:
        if left:
            raise left.pop()
        return socket.socket(address[0], address[1], address[2])

    async with Peer(answering()) as peer, attempts(direct=Opened(socket_factory=open_socket)) as made:
        assert told(await made.post(endpoint(peer.url), {}, b"{}")) == ("ours", "no_sockets", "no")
        assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)


@pytest.mark.requirement("attempt:poison")
@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/secret",
        "http:///secret",
        "http://[::1/secret",
        "http://h:99999/secret",
        "http://h/secret\r\nX-Evil: 1",
        "http://h/secret space",
        "not a url, but secret",
        "http://user:secret@127.0.0.1/",
        "",
    ],
)
async def test_a_url_that_cannot_be_posted_to_fails_its_delivery_only(url: str) -> None:
    outcome = await one(url)
    assert told(outcome) == ("permanent", "invalid_url", "no")
    assert isinstance(outcome, Failed)
    assert "secret" not in outcome.message


async def test_an_attempt_that_is_cancelled_leaves_no_connection_and_says_nothing() -> None:
    arrived = asyncio.Event()

    async def hang(peer: Conversation) -> None:
        await peer.request()
        arrived.set()
        await peer.until_gone()

    async with Peer(hang) as peer, attempts() as made:
        task = asyncio.ensure_future(made.post(endpoint(peer.url), {}, b"{}"))
        await asyncio.wait_for(arrived.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(peer.conversations[0].ended.wait(), 5)
