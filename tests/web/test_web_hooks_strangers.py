"""The room for bodies of strangers: real connections that begin long bodies and do not end them."""

import asyncio
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from channels.web.strangers import FREE_BYTES, Full, Room
from tests.support.hooks import by_hmac, hook, hook_settings
from tests.support.web import WITHIN_S, Served, serving

LONG = 16_777_216
"""The longest body that a route may take. Two of them fit from one address."""

ONE, OTHER = "127.0.0.1", "127.0.0.2"
GENUINE = b"[]" + b" " * (LONG - 2)
SMALL, MORE = (b"[]" + b" " * (size - 2) for size in (FREE_BYTES, 4 * FREE_BYTES))


@pytest.fixture
async def web(real_url: str) -> AsyncIterator[Served]:
    hooks = {"long": hook(body_bytes=LONG, prompt="It came", rate_per_minute=1000)}
    async with serving(hook_settings(real_url, hooks, web={"failures_per_minute": 1000})) as served:
        yield served


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    code: str


@contextmanager
def connecting(address: str) -> Iterator[socket.socket]:
    with socket.socket() as one:
        one.bind((address, 0))
        one.setblocking(False)
        yield one


async def said(web: Served, one: socket.socket, data: bytes) -> None:
    """Connect and write. Whoever is refused meanwhile has an answer to read, whatever becomes of the rest."""
    to = urlsplit(web.url)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(one, (to.hostname, to.port))
    with suppress(ConnectionError):
        await loop.sock_sendall(one, data)


async def answered(one: socket.socket) -> Answer:
    """The answer, on a connection that is closed behind it."""
    told = b""
    async with asyncio.timeout(WITHIN_S):
        with suppress(ConnectionError):
            while part := await asyncio.get_running_loop().sock_recv(one, 65536):
                told += part
    lines, _, body = told.decode().partition("\r\n\r\n")
    first, *rest = lines.split("\r\n")
    return Answer(
        int(first.split()[1]),
        dict(line.lower().split(": ", 1) for line in rest),
        json.loads(body).get("error", {}).get("code", ""),
    )


def head(length: int | None, signature: str = "0" * 64) -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    lines = ["POST /hooks/long HTTP/1.1", "Host: x", "Connection: close", f"X-Webhook-Signature: {signature}", size]
    return "\r\n".join([*lines, "", ""]).encode()


async def posted(web: Served, address: str, body: bytes = GENUINE) -> Answer:
    """What a genuine event, as long as may be, is answered."""
    with connecting(address) as one:
        await said(web, one, head(len(body), by_hmac(body)["X-Webhook-Signature"]) + body)
        return await answered(one)


async def flooded(web: Served, opened: ExitStack, count: int, *, chunked: bool) -> None:
    """Begin bodies that lack their last byte, from one address and at once, until all but two are refused.

    The two stay as they are for as long as their connections are open.
    """
    begun = head(None) + f"{LONG:x}\r\n".encode() if chunked else head(LONG)

    async def one_more(one: socket.socket) -> Answer:
        await said(web, one, begun + b"x" * (LONG - 1))
        return await answered(one)

    async with asyncio.TaskGroup() as group:
        sockets = [opened.enter_context(connecting(ONE)) for _ in range(count)]
        asked = {group.create_task(one_more(one)): one for one in sockets}
        waiting = {*asked}
        while len(waiting) > 2:
            done, waiting = await asyncio.wait(waiting, timeout=WITHIN_S / 2, return_when=asyncio.FIRST_COMPLETED)
            assert done, f"{len(waiting)} bodies are kept"
            for answer in (task.result() for task in done):
                assert (answer.status, answer.code) == (503, "unavailable")
                assert (answer.headers["retry-after"], answer.headers["connection"]) == ("5", "close")
        for task in waiting:
            task.cancel()


@pytest.mark.requirement("hooks:strangers:room")
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_flood_of_bodies_from_one_address_is_refused_at_once_and_leaves_room_for_others(
    web: Served, chunked: bool
) -> None:
    with ExitStack() as opened:
        await flooded(web, opened, 8, chunked=chunked)
        assert (await posted(web, OTHER)).status == 202


@pytest.mark.requirement("hooks:strangers:room")
async def test_a_small_event_is_taken_even_of_an_address_that_floods(web: Served) -> None:
    with ExitStack() as opened:
        for _ in range(2):
            await said(web, opened.enter_context(connecting(ONE)), head(LONG) + b"x" * (LONG - 1))
        async with asyncio.timeout(WITHIN_S):
            while (await posted(web, ONE, MORE)).status != 503:  # what is kept may still be on its way
                pass
        assert (await posted(web, ONE, SMALL)).status == 202


@pytest.mark.requirement("hooks:strangers:room")
async def test_a_body_that_is_only_announced_takes_no_room(web: Served) -> None:
    with ExitStack() as opened:
        for _ in range(20):
            await said(web, opened.enter_context(connecting(ONE)), head(LONG) + b"x")
        assert (await posted(web, ONE)).status == 202


@pytest.mark.requirement("hooks:strangers:room")
async def test_connections_that_are_closed_in_the_middle_give_their_room_back(web: Served) -> None:
    with ExitStack() as opened:
        await flooded(web, opened, 4, chunked=False)
    async with asyncio.timeout(WITHIN_S):
        while (await posted(web, ONE)).status != 202:
            pass


@pytest.mark.requirement("hooks:strangers:room")
async def test_bodies_that_prove_nothing_give_their_room_back(web: Served) -> None:
    for _ in range(5):
        with connecting(ONE) as one:
            await said(web, one, head(LONG) + GENUINE)
            assert (await answered(one)).status == 401
    assert [(await posted(web, ONE)).status for _ in range(5)] == [202] * 5


def grown(room: Room, opened: ExitStack, addresses: list[str]) -> Counter[str]:
    """How much each of them gets where all take what they can, turn by turn."""
    got: Counter[str] = Counter()
    keeps = {address: opened.enter_context(room.place(address, 0)) for address in addresses}
    while keeps:
        for address, keep in [*keeps.items()]:
            try:
                keep(1)
            except Full:
                del keeps[address]
            else:
                got[address] += 1
    return got


@pytest.mark.requirement("hooks:strangers:room")
def test_an_address_may_keep_as_much_as_it_leaves_free() -> None:
    room = Room(1000, free_bytes=0)
    for count, share in ((1, 500), (3, 250), (9, 100), (99, 10)):
        with ExitStack() as opened:
            got = grown(room, opened, [f"a{number}" for number in range(count)])
            assert set(got.values()) == {share}
    with ExitStack() as opened:
        assert [grown(room, opened, [address])[address] for address in "abcd"] == [500, 250, 125, 62]


@pytest.mark.requirement("hooks:strangers:room")
def test_a_body_that_tells_of_more_than_there_is_room_for_is_refused_before_it_comes() -> None:
    room = Room(1000, free_bytes=0)
    with ExitStack() as opened:
        grown(room, opened, ["a"])
        with pytest.raises(Full):
            opened.enter_context(room.place("a", 1))
        with pytest.raises(Full):
            opened.enter_context(room.place("b", 251))
        opened.enter_context(room.place("b", 250))


@pytest.mark.requirement("hooks:strangers:room")
def test_however_many_addresses_flood_the_beginning_of_each_body_is_kept() -> None:
    room = Room(1000, free_bytes=10)
    with ExitStack() as opened:
        for number in range(12):
            grown(room, opened, [f"a{number}"])
        keep = opened.enter_context(room.place("a0", 10))
        for _ in range(10):
            keep(1)
        with pytest.raises(Full):
            keep(1)
        with pytest.raises(Full):
            opened.enter_context(room.place("a0", 11))


@pytest.mark.requirement("hooks:strangers:room")
def test_a_body_takes_as_much_room_as_it_is_longer_than_what_is_free_and_gives_it_back() -> None:
    room = Room(1000, free_bytes=10)
    for _ in range(3):
        with ExitStack() as opened:
            got = [grown(room, opened, [address])[address] for address in "abcd"]
            assert got == [510, 260, 135, 72]
        with room.place("a", 510) as keep:
            keep(510)


@pytest.mark.requirement("hooks:strangers:room")
@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", 500),
        ("2001:db8:0:1::1", "2001:DB8:0:1::1", 500),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", 250),
        ("::ffff:192.0.2.1", "192.0.2.1", 500),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", 250),
        ("192.0.2.1", "192.0.2.2", 250),
        ("unknown", "unknown", 500),
    ],
)
def test_addresses_of_one_ipv6_network_are_one(first: str, second: str, share: int) -> None:
    room = Room(1000, free_bytes=0)
    with ExitStack() as opened:
        assert grown(room, opened, [first])[first] == 500
        assert grown(room, opened, [second])[second] == (0 if share == 500 else share)
