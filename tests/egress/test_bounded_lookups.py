"""Lookups of names that hang, fail or come all at once: bounded in time and threads, and none at the cost of others."""

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence

import pytest

from tests.support.egress import OPEN, Answers, Fails, guard
from tests.support.peer import Conversation, Peer
from worker.http import HTTP_FAULTS, classify, open_client
from worker.lookup import SystemLookup

SOON_S = 0.05
LONG_S = 20.0


class Resolver:
    """The system's resolver, blocking: it holds back what is asked of names that begin with `slow`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open = threading.Event()
        self._begun = threading.Semaphore(0)

    def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self._begun.release()
        if host.startswith("slow"):
            self.open.wait(LONG_S)
        if host.startswith("nowhere"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        if host.startswith("empty"):
            return []
        if host.startswith("odd"):
            raise UnicodeError("label too long")
        return ["127.0.0.1"]

    async def begun(self, lookups: int) -> None:
        """Wait until so many more were asked for."""
        for _ in range(lookups):
            assert await asyncio.to_thread(self._begun.acquire, timeout=LONG_S)


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver()
    yield made
    made.open.set()


async def refused(lookup: SystemLookup, host: str) -> socket.gaierror:
    with pytest.raises(socket.gaierror) as caught:
        await lookup.addresses(host)
    return caught.value


@pytest.mark.requirement("egress:lookup:bounded")
async def test_a_lookup_that_hangs_ends_within_its_own_time(resolver: Resolver) -> None:
    error = await refused(SystemLookup(SOON_S, resolver), "slow.example")
    assert (error.errno, error.strerror) == (
        socket.EAI_AGAIN,
        "no answer within 0.05 s, setting egress.dns_timeout_s",
    )


@pytest.mark.requirement("egress:lookup:bounded")
async def test_a_hanging_name_holds_one_thread_however_many_ask(resolver: Resolver) -> None:
    lookup = SystemLookup(SOON_S, resolver)
    await asyncio.gather(*(refused(lookup, "slow.example") for _ in range(50)))
    await asyncio.gather(*(refused(lookup, "slow.example") for _ in range(50)))
    assert resolver.asked == ["slow.example"]


@pytest.mark.requirement("egress:lookup:bounded")
async def test_a_hanging_name_does_not_hold_up_others(resolver: Resolver) -> None:
    lookup = SystemLookup(LONG_S, resolver)
    slow = [asyncio.ensure_future(lookup.addresses(f"slow{number}.example")) for number in range(60)]
    quick = await asyncio.gather(*(lookup.addresses(f"quick{number}.example") for number in range(50)))
    assert quick == [["127.0.0.1"]] * 50
    assert not any(each.done() for each in slow)
    resolver.open.set()
    assert await asyncio.gather(*slow) == [["127.0.0.1"]] * 60


@pytest.mark.requirement("egress:lookup:bounded")
async def test_no_more_names_are_looked_up_at_a_time_than_agreed(resolver: Resolver) -> None:
    lookup = SystemLookup(LONG_S, resolver, most=2)
    asked = [asyncio.ensure_future(lookup.addresses(f"slow{number}.example")) for number in range(5)]
    await resolver.begun(2)
    assert len(lookup._running) == 2
    resolver.open.set()
    await asyncio.gather(*asked)
    assert sorted(resolver.asked) == [f"slow{number}.example" for number in range(5)]


@pytest.mark.requirement("egress:lookup:bounded")
async def test_who_waits_for_a_thread_waits_no_longer_than_for_an_answer(resolver: Resolver) -> None:
    lookup = SystemLookup(SOON_S, resolver, most=1)
    both = await asyncio.gather(refused(lookup, "slow.example"), refused(lookup, "slow2.example"))
    assert {error.errno for error in both} == {socket.EAI_AGAIN}


@pytest.mark.requirement("hostile:lookups")
async def test_names_that_nobody_waits_for_any_more_do_not_stop_others(resolver: Resolver) -> None:
    lookup = SystemLookup(SOON_S, resolver, most=3)
    for wave in range(4):
        await asyncio.gather(*(refused(lookup, f"slow{wave}-{number}.example") for number in range(3)))
        assert await lookup.addresses("quick.example") == ["127.0.0.1"]
    assert len(resolver.asked) == 16


@pytest.mark.requirement("hostile:lookups")
async def test_no_more_threads_than_agreed_hang_and_then_names_fail_at_once(resolver: Resolver) -> None:
    lookup = SystemLookup(SOON_S, resolver, most=3, most_threads=4)
    await asyncio.gather(*(refused(lookup, f"slow{number}.example") for number in range(3)))
    assert await lookup.addresses("quick.example") == ["127.0.0.1"]
    await refused(lookup, "slow3.example")
    for _ in range(2):
        error = await refused(lookup, "quick.example")
        assert (error.errno, error.strerror) == (socket.EAI_AGAIN, "no thread is left to look it up")
    assert resolver.asked.count("quick.example") == 1
    resolver.open.set()
    assert await until_found(lookup, "quick.example") == ["127.0.0.1"]


async def until_found(lookup: SystemLookup, host: str) -> Sequence[str]:
    """What a name stands for, as soon as threads are free again."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                return await lookup.addresses(host)
            except socket.gaierror:
                continue


@pytest.mark.requirement("egress:lookup:bounded")
async def test_a_lookup_that_is_given_up_does_not_end_that_of_others(resolver: Resolver) -> None:
    lookup = SystemLookup(LONG_S, resolver)
    first, second = (asyncio.ensure_future(lookup.addresses("slow.example")) for _ in range(2))
    await resolver.begun(1)
    first.cancel()
    resolver.open.set()
    assert await second == ["127.0.0.1"]
    assert first.cancelled()
    assert resolver.asked == ["slow.example"]


async def test_an_answer_is_not_kept(resolver: Resolver) -> None:
    lookup = SystemLookup(LONG_S, resolver)
    for _ in range(2):
        await lookup.addresses("quick.example")
    assert resolver.asked == ["quick.example"] * 2


@pytest.mark.parametrize(
    ("host", "number", "words"),
    [
        ("nowhere.example", socket.EAI_NONAME, "Name or service not known"),
        ("empty.example", socket.EAI_NONAME, "no address"),
    ],
)
async def test_a_name_without_an_address_is_told(resolver: Resolver, host: str, number: int, words: str) -> None:
    lookup = SystemLookup(LONG_S, resolver)
    errors = await asyncio.gather(refused(lookup, host), refused(lookup, host))
    assert [(error.errno, error.strerror) for error in errors] == [(number, words)] * 2


async def test_what_is_no_name_is_told(resolver: Resolver) -> None:
    with pytest.raises(UnicodeError, match="no name that can be looked up"):
        await SystemLookup(LONG_S, resolver).addresses("odd.example")


async def test_a_process_without_threads_says_so(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lookup = SystemLookup(LONG_S, resolver)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        error = await refused(lookup, "quick.example")
    assert error.strerror == "no thread is left to look it up"
    assert await lookup.addresses("quick.example") == ["127.0.0.1"]


async def test_the_system_is_asked() -> None:
    assert set(await SystemLookup(LONG_S).addresses("localhost")) <= {"127.0.0.1", "::1"}


async def answer_ok(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")


@pytest.mark.requirement("egress:lookup:bounded")
async def test_an_attempt_whose_lookup_hangs_ends_and_others_go_on(resolver: Resolver) -> None:
    lookup = SystemLookup(SOON_S, resolver)
    async with Peer(answer_ok) as peer, open_client(connect_timeout_s=LONG_S, guard=guard(OPEN, lookup)) as client:
        port = int(peer.address.rpartition(":")[2])

        async def hangs(number: int) -> str:
            with pytest.raises(HTTP_FAULTS) as caught:
                await client.post(f"http://slow{number}.example:{port}/")
            fault = classify(caught.value)
            return f"{fault.code} {fault.sent}"

        async def answers(number: int) -> str:
            return (await client.post(f"http://quick{number}.example:{port}/")).text

        told = await asyncio.gather(*map(hangs, range(10)), *map(answers, range(10)))
    assert told == ["dns no"] * 10 + ["ok"] * 10


@pytest.mark.requirement("egress:lookup:bounded")
async def test_the_callers_own_time_ends_a_lookup_too() -> None:
    async with open_client(connect_timeout_s=SOON_S, guard=guard(OPEN, Fails(None))) as client:
        with pytest.raises(HTTP_FAULTS) as caught:
            await client.post("http://slow.example/")
    assert classify(caught.value).code == "connect_timeout"


async def test_answers_are_used_again_for_a_short_time_only_within_a_client() -> None:
    """Ten seconds, which no test waits for; the guard judges each dial of them anew."""
    lookup = Answers(hooks_example=[["127.0.0.1"]])
    async with Peer(answer_ok) as peer:
        url = f"http://hooks.example:{peer.address.rpartition(':')[2]}/"
        for _ in range(2):
            async with open_client(connect_timeout_s=2, guard=guard(OPEN, lookup)) as client:
                for _ in range(2):  # the peer closes each connection
                    await client.post(url)
    assert lookup.asked == ["hooks.example"] * 2
