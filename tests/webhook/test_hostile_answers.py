"""What a receiver answers to harm: it costs that receiver's delivery at most."""

import asyncio
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from hypothesis import example, given, settings
from hypothesis import strategies as st
from yarl import URL

from channels.delivery.model import Delivered, Failed
from channels.outbox import reading
from channels.outbox.stored import decode_evidence, encode_evidence
from channels.settings import Settings
from channels.webhook.address import check_url
from channels.webhook.answer import leads_to
from channels.webhook.attempt import Attempts
from channels.webhook.sessions import Sessions
from tests.support.bad_receivers import answering, in_turn, saying
from tests.support.egress import LOOPBACK, guard
from tests.support.peer import Conversation, Peer, within
from tests.support.posting import attempts, endpoint, one, trusting_nobody
from tests.webhook.test_delivery_process import SECRET, answered, delivering
from worker.errors import ConfigurationError
from worker.transport import open_session


@pytest.mark.requirement("hostile:bytes")
async def test_bytes_above_127_in_a_content_type_are_shown_as_replaced() -> None:
    async with Peer(saying(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\xff\r\nContent-Length: 2\r\n\r\nok")) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
    assert outcome.evidence is not None
    assert outcome.evidence.content_type == "a/b\ufffd"


@pytest.mark.requirement("hostile:bytes")
async def test_healthy_neighbours_of_hostile_answers_get_each_delivery_once(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    received: Counter[bytes] = Counter()

    async def poison(peer: Conversation) -> None:
        while True:
            await peer.request()
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\xff\r\nContent-Length: 2\r\n\r\no\xff")

    async def take(peer: Conversation) -> None:
        while True:
            found = re.search(rb"webhook-id: (\S+)", await peer.request())
            assert found is not None
            received[found[1]] += 1
            await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with Peer(poison) as evil, Peer(take) as good:
        ends = {name: {"url": url, "secret": SECRET} for name, url in (("evil", evil.url), ("good", good.url))}
        process = Settings.model_validate(
            {"redis_url": real_url, "data_dir": tmp_path, "partitions": 1, "endpoints": ends, "egress": LOOPBACK}
        )
        for _ in range(10):
            await answered(real_redis, "good", "evil")
        async with delivering(process):
            states = await all_ended(real_redis, 20)
    assert states == {("good", "delivered"): 10, ("evil", "delivered"): 10}
    assert sorted(received.values()) == [1] * 10


async def all_ended(client: Any, count: int) -> dict[tuple[str, str], int]:
    """How many deliveries of each destination are in which state, when so many have ended."""
    states: Counter[tuple[str, str]] = Counter()
    try:
        async with asyncio.timeout(15):
            while sum(states[name, "delivered"] for name in ("good", "evil")) < count:
                page = await reading.listed(client, 100)
                states = Counter((each.destination, each.state) for each in page.deliveries)
    except TimeoutError:
        pass
    return dict(states)


AHEAD = [
    b"HTTP/1.1 299 X\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 299 X\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.1 299",
    b"\r\n",
    b"HTTP/1.1 103 X\r\n\r\n",
]


@pytest.mark.requirement("hostile:unasked")
@pytest.mark.parametrize("ahead", AHEAD)
async def test_an_answer_that_came_before_its_request_is_not_taken_for_one(ahead: bytes) -> None:
    taken, gone = asyncio.Event(), asyncio.Event()

    async def first(peer: Conversation) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        await taken.wait()
        await peer.send(ahead)
        await peer.until_gone()
        gone.set()

    async with Peer(in_turn(first, answering(500))) as peer, attempts() as made:
        assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
        taken.set()
        await within(2, "the connection's end", gone)  # unused, it would be kept for 4 s
        second = await made.post(endpoint(peer.url), {}, b"{}")
    assert isinstance(second, Failed)
    assert (second.code, len(peer.conversations)) == ("http_500", 2)


@pytest.mark.requirement("hostile:unasked")
async def test_of_two_answers_to_one_request_the_first_counts_and_the_connection_is_dropped() -> None:
    two = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + AHEAD[0]
    async with Peer(in_turn(saying(two), answering(500))) as peer, attempts() as made:
        first = await made.post(endpoint(peer.url), {}, b"{}")
        second = await made.post(endpoint(peer.url), {}, b"{}")
    assert isinstance(first, Delivered)
    assert first.evidence is not None
    assert (first.status, first.evidence.body) == (200, b"ok")
    assert isinstance(second, Failed)
    assert second.code == "http_500"


@pytest.mark.requirement("attempt:headers")
async def test_a_cookie_of_a_receiver_comes_back_to_nobody() -> None:
    """Over the sessions that a delivery process opens."""
    open_it = partial(open_session, 4.0, None, guard())
    sessions = Sessions(direct=open_it, proxied=open_it, context=trusting_nobody)
    made = Attempts(sessions)
    try:
        # A jar keeps no cookies of numeric addresses.
        async with Peer(answering(head="Set-Cookie: a=s3cret; Path=/\r\n")) as peer:
            url = peer.url.replace("127.0.0.1", "localhost")
            for _ in range(2):
                assert isinstance(await made.post(endpoint(url), {}, b"{}"), Delivered)
            assert peer.received.count(b"POST / ") == 2
            assert b"cookie" not in peer.received.lower()
    finally:
        await made.close()


@pytest.mark.requirement("hostile:unasked")
async def test_a_switch_of_protocols_is_an_answer_that_means_no() -> None:
    switching = b"HTTP/1.1 101 X\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
    async with Peer(saying(switching, b"x" * 300_000)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("permanent", "http_101", "yes")


LOCATIONS = [
    "http://a[b@",
    "http://[@",
    "http://: mailto:[::1]@",
    "http://xn--a/",
    "//[",
    "http://h:99999/",
    "\udcff://\udcff",
]
ODD_PARTS = [
    "http://",
    "//",
    "xn--a",
    "[::1]",
    "[",
    "]",
    "@",
    ":",
    "99999",
    "\udcff",
    "%",
    " ",
    "..",
    "/",
    "?",
    "#",
    "\u2024",
]


@pytest.mark.requirement("hostile:never-raises")
@given(st.lists(st.sampled_from(ODD_PARTS) | st.text(), max_size=6).map("".join))
@example(LOCATIONS[0])
@example(LOCATIONS[1])
@example(LOCATIONS[2])
def test_where_a_redirect_leads_is_shown_as_a_place_or_as_words(location: str) -> None:
    shown = leads_to(URL("http://h.example/hook", encoded=True), location)
    assert shown.isascii()
    assert shown.isprintable()


@pytest.mark.requirement("hostile:never-raises")
@pytest.mark.parametrize("location", LOCATIONS)
async def test_a_redirect_to_nowhere_that_can_be_read_is_a_redirect(location: str) -> None:
    said = location.encode("utf-8", "surrogateescape")
    async with Peer(saying(b"HTTP/1.1 302 F\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % said)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("permanent", "redirect", "yes")


NAMES = st.sampled_from(
    [*(b"Location", b"Retry-After", b"Date", b"Content-Type", b"Content-Length", b"Transfer-Encoding", b"Set-Cookie")]
) | st.binary(max_size=8)
HEADS = st.lists(st.tuples(NAMES, st.binary(max_size=24)), max_size=4).map(
    lambda lines: b"".join(name + b": " + value + b"\r\n" for name, value in lines)
)


@pytest.mark.requirement("hostile:never-raises")
@settings(max_examples=60, deadline=None)
@given(st.sampled_from([b"200", b"302", b"429", b"503", b"101", b"999"]), st.binary(max_size=8), HEADS)
def test_whatever_a_head_holds_the_attempt_has_an_outcome_that_can_be_stored(
    status: bytes, reason: bytes, head: bytes
) -> None:
    async def run() -> Delivered | Failed:
        said = b"HTTP/1.1 " + status + b" " + reason + b"\r\n" + head + b"\r\nbody"
        async with Peer(saying(said, stay=False)) as peer:
            return await one(peer.url)

    outcome = asyncio.run(run())
    assert outcome.evidence is not None
    decode_evidence(encode_evidence(outcome.evidence))
    assert not isinstance(outcome, Failed) or outcome.message.encode()


@pytest.mark.requirement("hostile:host")
@pytest.mark.parametrize("host", ["xn--a", "xn--", "xn--zz-", "xn--0.example", "a..b", ".a", "a" * 64])
async def test_a_host_that_no_name_can_be_is_refused_and_sent_nothing(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^url = .* has a host that no name can be: .*; correct it$"):
        check_url("url", f"http://{host}/hook")
    outcome = await one(f"http://{host}/hook")
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.code, outcome.sent) == ("permanent", "invalid_url", "no")


@pytest.mark.requirement("hostile:host")
@pytest.mark.parametrize("host", ["xn--bcher-kva.example", "XN--BCHER-KVA.example.", "a_b.example", "a" * 63, "-.a--b"])
def test_a_host_that_can_be_looked_up_is_taken(host: str) -> None:
    assert check_url("url", f"http://{host}/hook") == f"http://{host}/hook"
