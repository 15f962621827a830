"""Posting to many hosts: how many connections stay open, and which."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trustme

from channels.delivery.model import Delivered
from channels.endpoints.model import Tls
from channels.webhook.attempt import Attempts
from channels.webhook.sessions import Sessions
from tests.support.certificates import ca_file
from tests.support.egress import OPEN, guard
from tests.support.peer import Conversation, Peer
from tests.support.posting import endpoint, trusting_nobody
from tests.support.stack import eventually
from worker.connector import Room
from worker.transport import open_session

MOST = 8


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    """Both event loops: they close in their own ways."""
    backend: tuple[str, dict[str, bool]] = request.param
    return backend


class Loopback:
    """Every name is the loopback."""

    async def addresses(self, _: str) -> list[str]:
        return ["127.0.0.1"]


class Hosts:
    """Receivers of all names. `now`: connections that are open; `most`: how many were at a time; `made`: in all."""

    def __init__(self) -> None:
        self.now = self.most = self.made = 0
        self.waiting = 0
        self.answer = asyncio.Event()
        self.answer.set()

    async def act(self, peer: Conversation) -> None:
        """Answer every request, when it may."""
        self.now, self.made = self.now + 1, self.made + 1
        self.most = max(self.most, self.now)
        try:
            while True:
                await peer.request()
                self.waiting += 1
                await self.answer.wait()
                await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        finally:
            self.now -= 1

    async def have(self, count: int) -> None:
        """Wait until so many connections are open."""

        async def number() -> int:
            return self.now

        await eventually(number, lambda seen: seen == count, f"{count} open connections")


@asynccontextmanager
async def posting(most: int = MOST) -> AsyncIterator[Attempts]:
    """Attempts over the sessions that a delivery process opens, with room for so many connections."""
    session = partial(open_session, 60.0, None, guard(OPEN, Loopback()), room=Room(most))
    made = Attempts(Sessions(direct=session, proxied=session, context=trusting_nobody))
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.requirement("attempt:fan-out")
async def test_a_connection_that_is_unused_for_longest_makes_room_for_another_hosts(tmp_path: Path) -> None:
    hosts, own = Hosts(), Tls(ca_file(trustme.CA(), tmp_path))
    async with Peer(hosts.act) as peer, posting() as made:

        async def post(number: int) -> None:
            """Every third host has TLS settings of its own, and so a session."""
            url = peer.url.replace("127.0.0.1", f"host{number}.example")
            to = endpoint(url, tls=own if number % 3 == 0 else Tls())
            assert isinstance(await made.post(to, {}, b"{}"), Delivered)

        for number in range(MOST):
            await post(number)
        await hosts.have(MOST)
        await post(0)
        assert hosts.made == MOST, "one that is kept is used"
        for number in range(MOST, MOST + 2):
            await post(number)
        assert hosts.made == MOST + 2
        await post(0)
        await post(MOST + 1)
        assert hosts.made == MOST + 2, "what was used last is kept"
        await post(1)
        assert hosts.made == MOST + 3, "what was unused for longest is not"
        for number in range(200):
            await post(number)
        assert hosts.most <= MOST + 2, "a connection that is closed is gone a little later"


@pytest.mark.requirement("attempt:fan-out")
async def test_no_connection_that_is_in_use_makes_room() -> None:
    hosts = Hosts()
    hosts.answer.clear()
    async with Peer(hosts.act) as peer, posting() as made:
        urls = [peer.url.replace("127.0.0.1", f"host{number}.example") for number in range(3 * MOST)]
        posts = [asyncio.ensure_future(made.post(endpoint(url), {}, b"{}")) for url in urls]
        await hosts.have(3 * MOST)
        hosts.answer.set()
        assert all(isinstance(outcome, Delivered) for outcome in await asyncio.gather(*posts))
        assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
        await hosts.have(MOST - MOST // 8)
