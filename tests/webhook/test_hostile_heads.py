"""What the lines of a receiver's head say: they cost no work worth mentioning, and do not undo the status."""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import aiohttp
import pytest
import trustme

from channels.delivery.model import Delivered, Failed
from channels.endpoints.model import Tls
from channels.webhook.attempt import Attempts
from channels.webhook.sessions import Sessions
from tests.support.bad_receivers import answering, saying
from tests.support.certificates import ca_file, server_context
from tests.support.egress import guard
from tests.support.http_proxy import Proxy
from tests.support.peer import Peer
from tests.support.posting import Opened, attempts, endpoint, one, trusting_nobody
from worker.transport import open_session

OURS = trustme.CA()
NESTED = b"a/b;a=" + b"(" * 8000
DIGITS = b"a/b;a*" + b"9" * 5000 + b"*=x"
QUOTES = b"a/b;a=" + b'";' * 4000
COOKIES = b"a=b; path=/" + b"; expires=Sun, 06 Nov 1994" * 290
LETTERS = "\ufdfa".encode() * 2600

MOST_TIMES = 25
"""Far more than what chance makes of the same work, and far less than a parser that goes through a line again and
again: that takes a hundred times as long."""


@asynccontextmanager
async def delivering() -> AsyncIterator[Attempts]:
    """Attempts over the sessions that a delivery process opens."""
    open_it = partial(open_session, 4.0, None, guard())
    made = Attempts(Sessions(direct=open_it, proxied=open_it, context=trusting_nobody))
    try:
        yield made
    finally:
        await made.close()


async def work_of(made: Attempts, status: int, head: bytes) -> float:
    """The least CPU time, in seconds, that an attempt and the receiver's part in it took of this thread."""
    took = []
    for number in range(3):  # each time another line, since what was parsed may be remembered
        answer = b"HTTP/1.1 %d X\r\n%b%d\r\nContent-Length: 2\r\n\r\nok" % (status, head, number)
        async with Peer(saying(answer)) as peer:
            began = thread_time()
            outcome = await made.post(endpoint(peer.url), {}, b"{}")
            took.append(thread_time() - began)
        assert outcome.evidence is not None
        assert outcome.evidence.status == status
    return min(took)


@pytest.mark.requirement("hostile:work")
@pytest.mark.parametrize(
    ("status", "head"),
    [
        *((200, b"Content-Type: " + each) for each in (NESTED, DIGITS, QUOTES, b"a/b" + b";" * 8000)),
        *((200, b"Set-Cookie: " + each) for each in (QUOTES, COOKIES, b"=" * 8000, b"a=" + b'\\"' * 4000)),
        *((302, b"Location: " + each + LETTERS) for each in (b"", b"//", b"http://", b"http://h/", b"http://h/?")),
        *((302, b"Location: http://h/" + each) for each in (b"../" * 2600, b"%" * 8000, b"[" * 8000)),
        *((302, b"Location: http://" + each) for each in (b"xn--a." * 1300, b"@" * 8000, b"[" + b":" * 8000)),
        *((429, b"Retry-After: " + each) for each in (b"9" * 8000, b"(" * 8000, b"Nov " * 2000, b"1:" * 4000)),
        (429, b"Retry-After: Sun, 06 Nov 1994 08:49:37 GMT\r\nDate: " + b"Sun, 06 Nov 1994 " * 470),
        (429, b"Retry-After-Ms: " + b"9" * 8000),
        *((200, name + b": " + QUOTES) for name in (b"Link", b"Content-Disposition", b"Connection", b"Upgrade")),
        *((401, name + b": Digest " + QUOTES) for name in (b"WWW-Authenticate", b"Proxy-Authenticate")),
        *((200, b"Content-Encoding: " + each) for each in (b"gzip," * 1600, b"\xff" * 8000)),
    ],
)
async def test_no_line_of_a_head_is_much_more_work_than_a_plain_one(status: int, head: bytes) -> None:
    async with delivering() as made:
        plain = await work_of(made, status, b"X-Plain: " + b"x" * 8000)
        assert await work_of(made, status, head) < MOST_TIMES * plain


@pytest.mark.requirement("hostile:work")
async def test_nothing_of_a_head_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    names = ("Set-Cookie", "Content-Type", "Content-Encoding", "Location", "Retry-After", "Date", "Link", "Upgrade")
    head = "".join(f"{name}: hush(=hush; hush\r\n" for name in names)
    async with delivering() as made:
        for status in (200, 302, 429):
            async with Peer(answering(status, head)) as peer:
                outcome = await made.post(endpoint(peer.url), {}, b"{}")
                assert outcome.evidence is not None
                assert outcome.evidence.status == status
    assert "hush" not in caplog.text


@pytest.mark.requirement("attempt:status-decides")
@pytest.mark.parametrize("said", [NESTED, DIGITS, QUOTES], ids=["nested", "digits", "quotes"])
async def test_an_odd_content_type_does_not_undo_the_status(said: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: " + said + b"\r\nContent-Length: 0\r\n\r\n"
    async with delivering() as made, Peer(saying(answer)) as peer:
        assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)


class Stumbling(Opened):
    """Its sessions stumble over every answer, when its head is there, as over words that nobody could foresee."""

    def __call__(self, context: ssl.SSLContext) -> aiohttp.ClientSession:
        session = super().__call__(context)
        tracing = aiohttp.TraceConfig()
        tracing.on_request_end.append(self._stumble)
        tracing.freeze()
        session.trace_configs.append(tracing)
        return session

    async def _stumble(self, *_: Any) -> None:
        raise RecursionError


@pytest.mark.requirement("attempt:status-decides")
async def test_the_status_stands_whatever_happens_once_the_head_is_there(tmp_path: Path) -> None:
    async with attempts(direct=Stumbling(), proxied=Stumbling()) as made:
        async with Peer(answering(204)) as peer:
            taken = await made.post(endpoint(peer.url), {}, b"{}")
        async with Peer(answering(404)) as peer:
            refused = await made.post(endpoint(peer.url), {}, b"{}")
        async with Proxy() as proxy, Peer(answering(404), server_context(OURS)) as peer:
            to = endpoint(peer.url, proxy=proxy.url, tls=Tls(ca_file=ca_file(OURS, tmp_path)))
            by_proxy = await made.post(to, {}, b"{}")
    assert isinstance(taken, Delivered)
    assert taken.status == 204
    for outcome in (refused, by_proxy):
        assert isinstance(outcome, Failed)
        assert (outcome.kind, outcome.code, outcome.sent) == ("permanent", "http_404", "yes")


class StumblingLater(Stumbling):
    """Its sessions stumble from the second answer on."""

    _answers = 0

    async def _stumble(self, *_: Any) -> None:
        self._answers += 1
        if self._answers > 1:
            raise RecursionError


@pytest.mark.requirement("attempt:status-decides")
async def test_the_status_stands_on_a_kept_tunnel(tmp_path: Path) -> None:
    async with (
        Proxy() as proxy,
        Peer(answering(200), server_context(OURS)) as peer,
        attempts(proxied=StumblingLater()) as made,
    ):
        to = endpoint(peer.url, proxy=proxy.url, tls=Tls(ca_file=ca_file(OURS, tmp_path)))
        first = await made.post(to, {}, b"{}")
        second = await made.post(to, {}, b"{}")
    assert len(proxy.seen) == 1
    assert isinstance(first, Delivered)
    assert isinstance(second, Delivered)


@pytest.mark.requirement("attempt:interim")
@pytest.mark.parametrize(("stay", "code"), [(True, "timeout"), (False, "reset")])
@pytest.mark.parametrize("said", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 3])
async def test_an_interim_answer_is_none(said: bytes, stay: bool, code: str) -> None:
    async with Peer(saying(said, stay=stay)) as peer:
        outcome = await one(peer.url, timeout_s=1)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code) == ("transient", code)


@pytest.mark.requirement("attempt:status-decides")
async def test_the_status_of_a_proxy_that_opened_a_tunnel_is_not_the_receivers() -> None:
    async with Proxy() as proxy, Peer(saying(b"no TLS")) as peer:
        outcome = await one(peer.url.replace("http:", "https:"), proxy=proxy.url, timeout_s=0.5)
    assert isinstance(outcome, Failed)


# What is read at once is parsed in parts of 8 kB: a head's end lies in two of them.
PART = 8192


@pytest.mark.requirement("attempt:status-decides")
@pytest.mark.parametrize("end", [b"\r\n\r\n", b"\r\n\n", b"\n\r\n", b"\n\n"])
@pytest.mark.parametrize("before", range(5))
async def test_a_head_whose_end_comes_in_two_parts_keeps_its_status(end: bytes, before: int) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: %b\r\nY: "
    head = (head % (b"x" * 4000)).ljust(PART - before, b"y")
    async with Peer(saying(head + end + b"no length\r\n")) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
