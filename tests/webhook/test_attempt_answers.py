"""What each status means, and what a receiver may ask for in `Retry-After`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery.model import Delivered, Evidence, Failed
from channels.webhook.answer import Answer, meaning_of
from tests.support.bad_receivers import answering, saying
from tests.support.peer import Peer
from tests.support.posting import attempts, endpoint, one

STATUSES = st.integers(100, 999)
WAITS = st.none() | st.floats(0, 1e9)


@pytest.mark.requirement("attempt:classes")
@given(status=STATUSES, retry_after=WAITS)
def test_every_status_has_one_meaning(status: int, retry_after: float | None) -> None:
    outcome = meaning_of(Answer(status, "h:1", retry_after))
    if 200 <= status < 300:
        assert outcome == Delivered(status)
        return
    assert isinstance(outcome, Failed)
    if status == 429 or (status == 503 and retry_after is not None):
        assert outcome.kind == "throttled"
    elif status >= 500 or status in {408, 425}:
        assert outcome.kind == "transient"
    else:
        assert outcome.kind == "permanent"
    assert outcome.code == ("redirect" if 300 <= status < 400 else f"http_{status}")
    assert outcome.gone == (status == 410)
    assert outcome.sent == "yes"
    assert f"h:1 answered {status}" in outcome.message
    assert outcome.retry_after == (None if outcome.kind == "permanent" else retry_after)


@given(status=STATUSES)
def test_the_evidence_is_passed_on(status: int) -> None:
    evidence = Evidence(status, 7)
    assert meaning_of(Answer(status, "h:1"), evidence).evidence is evidence


@pytest.mark.requirement("attempt:classes")
@pytest.mark.parametrize("status", [200, 204, 299, 408, 425, 429, 410, 404, 418, 500, 599, 600, 999])
async def test_the_same_holds_for_answers_of_a_real_receiver(status: int) -> None:
    async with Peer(answering(status, body=b"")) as peer:
        outcome = await one(peer.url)
        expected = meaning_of(Answer(status, peer.address), outcome.evidence)
    assert outcome == expected


DATE = "Date: Wed, 21 Oct 2026 07:28:00 GMT\r\n"


@pytest.mark.requirement("attempt:retry-after")
@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        ("Retry-After: 120\r\n", 120),
        ("retry-after: 0\r\n", 0),
        ("Retry-After: 1.5\r\n", 1.5),
        (DATE + "Retry-After: Wed, 21 Oct 2026 07:30:30 GMT\r\n", 150),
        (DATE + "Retry-After: Wed, 21 Oct 2020 07:30:30 GMT\r\n", 0),
        ("Retry-After: soon\r\n", None),
        ("Retry-After: -5\r\n", None),
        ("Retry-After: 1e99\r\n", None),
        ("Retry-After: " + "9" * 400 + "\r\n", None),
        ("Retry-After: \r\n", None),
        (DATE + "Retry-After: Wed, 99 Oct 2026 07:30:30 GMT\r\n", None),
        ("", None),
    ],
)
async def test_the_wait_that_is_asked_for_is_read_or_none(head: str, seconds: float | None) -> None:
    async with Peer(answering(429, head)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retry_after) == ("throttled", seconds)
    async with Peer(answering(503, head)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Failed)
    assert (outcome.kind, outcome.retry_after) == ("transient" if seconds is None else "throttled", seconds)


@pytest.mark.requirement("attempt:no-redirect")
@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 305, 307, 308, 399])
async def test_a_redirect_is_a_failure_that_names_where_it_leads_and_nobody_goes_there(status: int) -> None:
    async with Peer(answering()) as elsewhere:
        async with Peer(answering(status, f"Location: {elsewhere.url}/secret-path?key=secret\r\n", b"")) as peer:
            outcome = await one(peer.url)
        assert isinstance(outcome, Failed)
        assert (outcome.kind, outcome.code) == ("permanent", "redirect")
        assert f"a redirect to {elsewhere.address};" in outcome.message
        assert "secret" not in outcome.message
        assert elsewhere.conversations == []


@pytest.mark.requirement("attempt:no-redirect")
@pytest.mark.parametrize(
    ("location", "where"),
    [
        ("", "to nowhere;"),
        ("http://[::1", "to an address that cannot be read;"),
        ("http://a:99999/", "to an address that cannot be read;"),
        ("javascript:alert(1)", "to an address that cannot be read;"),
        ("//", "to 127.0.0.1:"),
        ("http://user:secret@elsewhere.example/", "to elsewhere.example:80;"),
        ("https://elsewhere.example", "to elsewhere.example:443;"),
        ("http://[::1]:81/", "to [::1]:81;"),
        ("/moved", "to 127.0.0.1:"),
        ("http://" + "a" * 5000 + "/", "to aaaa"),
    ],
)
async def test_a_redirect_to_anywhere_is_told_in_host_and_port(location: str, where: str) -> None:
    async with Peer(answering(302, f"Location: {location}\r\n" if location else "")) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Failed)
    assert outcome.code == "redirect"
    assert where in outcome.message
    assert "secret" not in outcome.message
    assert len(outcome.message) < 600


@pytest.mark.requirement("attempt:unread-counts")
async def test_a_2xx_of_which_the_body_says_no_is_still_a_2xx_and_the_body_is_evidence() -> None:
    said = b'{"received_bytes": 5, "error": "payload too large"}'
    async with Peer(answering(200, "Content-Type: application/json\r\n", said)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
    assert outcome.evidence is not None
    assert (outcome.evidence.body, outcome.evidence.content_type) == (said, "application/json")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.0 200 OK\r\n\r\nhello",
        b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhello",
    ],
)
async def test_old_and_odd_answers_are_understood(answer: bytes) -> None:
    async with Peer(saying(answer, stay=False)) as peer:
        outcome = await one(peer.url)
    assert isinstance(outcome, Delivered)
    assert outcome.evidence is not None
    assert outcome.evidence.body == b"hello"


@pytest.mark.requirement("attempt:status-decides")
@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more that nobody announced",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n",
    ],
)
async def test_what_is_wrong_behind_the_head_does_not_undo_the_status(answer: bytes) -> None:
    async with Peer(saying(answer)) as peer, attempts() as made:
        for _ in range(2):
            assert isinstance(await made.post(endpoint(peer.url), {}, b"{}"), Delivered)
        assert len(peer.conversations) == 2
