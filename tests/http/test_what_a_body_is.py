"""Answers with status 200: what a body is, its bytes say and not its head."""

import asyncio
import json

import httpx
import pytest

from tests.support.chat_stream import DONE, finish, text
from tests.support.peer import Conversation, Peer, within
from worker.codecs.events import Completed, Failed, Keepalive, TextDelta
from worker.codecs.limits import Profile
from worker.codecs.messages import Request, UserMessage
from worker.codecs.openai_chat import ChatCodec
from worker.engine import bodies
from worker.engine.bodies import DocumentWatch
from worker.engine.stream import Endpoint, attempt_events
from worker.turn.events import Died, Event, Heard, NotAnswered

REQUEST = Request("a-model", (UserMessage("the question of the user"),))
QUIET = Heard(1, 1, Keepalive())
TYPES = ["text/event-stream", "application/json; charset=utf-8", "text/plain", "application/octet-stream", ""]
ANSWER = {"choices": [{"message": {"content": "Dear Ana, hello."}, "finish_reason": "stop"}]}


async def events_of(
    client: httpx.AsyncClient, kind: str, *parts: bytes, codec: ChatCodec | None = None, hold: bool = False
) -> list[Event]:
    """Every event of one attempt at a peer that answers 200 with a body in `parts`, each heard before the next."""
    heard = asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head(kind)
        for part in parts:
            await peer.chunk(part)
            await within(5, f"{part[:40]!r} to be heard", heard)
            heard.clear()
        await (peer.until_gone() if hold else peer.end())

    seen: list[Event] = []
    async with Peer(act) as peer, asyncio.timeout(10):
        endpoint = Endpoint("main", peer.url, None, {}, 2, 0.2)
        async for batch in attempt_events(client, endpoint, codec or ChatCodec(), REQUEST, 1, 1):
            seen += batch
            heard.set()
    return seen


def said(events: list[Event]) -> list[object]:
    """What was heard, less keepalives."""
    return [event.event if isinstance(event, Heard) else event for event in events if event != QUIET]


@pytest.mark.requirement("http:stream:any-type")
@pytest.mark.parametrize("kind", TYPES)
async def test_an_event_stream_is_read_under_every_type(client: httpx.AsyncClient, kind: str) -> None:
    delta, completed = said(await events_of(client, kind, b"\n", text("whole"), finish() + DONE))
    assert delta == TextDelta("whole")
    assert isinstance(completed, Completed)


@pytest.mark.requirement("http:stream:whole-answer")
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("kind", TYPES)
async def test_a_whole_answer_is_read_under_every_type(client: httpx.AsyncClient, kind: str, indent: int) -> None:
    body = json.dumps(ANSWER, indent=indent).encode()
    events = await events_of(client, kind, b"\n\n", b"\n", body[:30], body[30:])
    assert events[:3] == [QUIET] * 3
    delta, completed = said(events)
    assert delta == TextDelta("Dear Ana, hello.")
    assert isinstance(completed, Completed)
    assert completed.finish_reason == "stop"


@pytest.mark.requirement("http:stream:whole-answer")
async def test_a_whole_answer_that_breaks_off_has_died(client: httpx.AsyncClient) -> None:
    (death,) = said(await events_of(client, "application/json", json.dumps(ANSWER).encode()[:-9]))
    assert isinstance(death, Died)
    assert death.kind == "end_of_stream"


@pytest.mark.requirement("http:stream:whole-answer")
async def test_under_strict_a_whole_answer_is_no_stream(client: httpx.AsyncClient) -> None:
    body = json.dumps(ANSWER).encode()
    (event,) = said(await events_of(client, "application/json", body, codec=ChatCodec(profile="strict")))
    assert isinstance(event, NotAnswered)
    assert event.code == "not_a_stream"


@pytest.mark.requirement("http:stream:not-a-stream")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "body",
    [
        b"<html>Welcome</html>\n",
        b"\xef\xbb\xbf  \n <!doctype html>",
        b'{"object": "list", "data": []}',
        b'[{"text": "x"}]',
        b'{"choices": []}',
        b"welcome to the gateway\n",
    ],
)
async def test_a_success_that_is_no_stream_names_the_base_url(
    client: httpx.AsyncClient, kind: str, body: bytes
) -> None:
    (event,) = said(await events_of(client, kind, body))
    assert isinstance(event, NotAnswered)
    assert (event.status, event.retryable, event.code) == (200, False, "not_a_stream")
    assert "providers.main.base_url" in event.message
    assert (kind.partition(";")[0] or "nothing that names its type") in event.message


@pytest.mark.requirement("http:stream:not-a-stream")
async def test_a_page_is_known_by_its_first_byte_though_it_never_ends(client: httpx.AsyncClient) -> None:
    (event,) = said(await events_of(client, "text/event-stream", b"<", hold=True))
    assert isinstance(event, NotAnswered)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("indent", [None, 1])
async def test_an_error_object_under_a_success_is_told_as_an_error(
    client: httpx.AsyncClient, kind: str, indent: int
) -> None:
    body = json.dumps({"error": {"message": "upstream is down", "code": 502}}, indent=indent).encode()
    (event,) = said(await events_of(client, kind, body))
    assert isinstance(event, NotAnswered)
    assert (event.retryable, event.code) == (True, "provider_error")
    assert "upstream is down" in event.message


async def test_a_whole_answer_that_its_server_calls_an_error_is_one(client: httpx.AsyncClient) -> None:
    body = json.dumps({"choices": [{"message": {"content": "x"}, "finish_reason": "error"}]}).encode()
    *_, failed = said(await events_of(client, "application/json", body))
    assert isinstance(failed, Failed)
    assert failed.failure == "retryable"


async def test_an_error_line_after_text_is_an_error_of_the_stream(client: httpx.AsyncClient) -> None:
    _, failed = said(await events_of(client, "text/event-stream", text("x"), b'{"error": {"code": 503}}\n'))
    assert isinstance(failed, Failed)
    assert failed.failure == "retryable"


@pytest.mark.requirement("http:stream:told-at-once")
@pytest.mark.parametrize("indent", [None, 1])
async def test_a_whole_answer_is_told_though_the_peer_never_ends_it(client: httpx.AsyncClient, indent: int) -> None:
    answer = ANSWER | {"padding": [{}] * 2000}
    body = json.dumps(answer, indent=indent).encode()
    delta, completed = said(await events_of(client, "application/json", body[:30], body[30:], hold=True))
    assert delta == TextDelta("Dear Ana, hello.")
    assert isinstance(completed, Completed)


@pytest.mark.requirement("http:stream:told-at-once")
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("profile", ["compat", "strict"])
async def test_an_error_object_is_told_though_the_peer_never_ends_it(
    client: httpx.AsyncClient, indent: int, profile: Profile
) -> None:
    body = json.dumps({"error": {"message": "upstream is down", "code": 502}}, indent=indent).encode()
    parts = (body[:20], body[20:-1], body[-1:])
    codec = ChatCodec(profile=profile)
    (event,) = said(await events_of(client, "application/json", *parts, codec=codec, hold=True))
    assert isinstance(event, NotAnswered)
    assert (event.retryable, event.code) == (True, "provider_error")
    assert "upstream is down" in event.message


@pytest.mark.requirement("http:stream:told-at-once")
async def test_an_object_before_a_stream_that_is_neither_answer_nor_error_ends_nothing(
    client: httpx.AsyncClient,
) -> None:
    parts = (b'{"status": "warming up"}\n', text("whole"), finish() + DONE)
    delta, completed = said(await events_of(client, "text/event-stream", *parts))
    assert delta == TextDelta("whole")
    assert isinstance(completed, Completed)


@pytest.mark.requirement("http:stream:told-at-once")
def test_looking_for_the_end_of_a_document_parses_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[int] = []
    parses = bodies._parses

    def counted(data: bytes) -> bool:
        parsed.append(len(data))
        return parses(data)

    monkeypatch.setattr(bodies, "_parses", counted)
    watch, body = DocumentWatch(), bytearray(b'{"a": [')
    for _ in range(3000):
        body += b'{"b": "' + b"x" * 50 + b'"}'
        assert not watch.is_whole(body)
        body += b","
    assert sum(parsed) < 4_000_000
    assert DocumentWatch().is_whole(b"\xef\xbb\xbf {} \n")
    assert not any(
        DocumentWatch().is_whole(part) for part in (b"", b" ", b"7", b'"}', b"x}", b'{"a": {}', b'data: {"a": {}}')
    )


@pytest.mark.requirement("http:stream:json-lines")
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("cuts", ["a line a part", "at once", "anywhere"])
@pytest.mark.parametrize("profile", ["compat", "strict"])
async def test_json_line_by_line_names_the_base_url_and_is_not_asked_again(
    client: httpx.AsyncClient, hold: bool, cuts: str, profile: Profile
) -> None:
    lines = [
        json.dumps({"model": "m", "message": {"role": "assistant", "content": words}, "done": False}).encode() + b"\n"
        for words in ("Dear ", "Ana")
    ]
    body = b"".join(lines)
    parts = {"a line a part": lines, "at once": [body], "anywhere": [body[:9], body[9:80], body[80:]]}[cuts]
    events = await events_of(client, "application/x-ndjson", *parts, codec=ChatCodec(profile=profile), hold=hold)
    (event,) = said(events)
    assert isinstance(event, NotAnswered)
    assert (event.status, event.retryable, event.code) == (200, False, "not_a_stream")
    assert "providers.main.base_url" in event.message


@pytest.mark.parametrize(
    "body",
    [
        b'{"error": true, "message": "context_length_exceeded"}',
        b'{"object": "error", "message": "maximum context length is 9", "code": 40303}',
    ],
)
async def test_an_error_beside_its_message_under_a_success_is_told(client: httpx.AsyncClient, body: bytes) -> None:
    (event,) = said(await events_of(client, "application/json", body))
    assert isinstance(event, NotAnswered)
    assert event.code == "context_overflow"
