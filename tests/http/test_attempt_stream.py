"""One attempt against real sockets: every way a stream can go, and what the driver is told."""

import asyncio
import gzip
import logging
from contextlib import aclosing

import httpx
import orjson
import pytest

from tests.support.peer import Act, Conversation, Peer, within
from tests.support.ports import free_port
from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.codec import Codec, EncodedRequest
from worker.codecs.events import Completed, Failed, Keepalive, ReasoningDelta, TextDelta, ToolCall
from worker.codecs.messages import AssistantMessage, Request, ToolMessage, UserMessage
from worker.codecs.openai_chat import ChatCodec
from worker.codecs.openai_responses import ResponsesCodec
from worker.engine.stream import Endpoint, attempt_events
from worker.turn.events import Died, Event, Heard, NotAnswered

REQUEST = Request("a-model", (UserMessage("the question of the user"),), instructions="be brief")
DONE = b"data: [DONE]\n\n"
GRACE_S = 0.2


def text(words: str) -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {"content": words}}]}) + b"\n\n"


def finish(reason: str = "stop") -> bytes:
    return b"data: " + orjson.dumps({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}) + b"\n\n"


def usage() -> bytes:
    return b"data: " + orjson.dumps({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}) + b"\n\n"


def endpoint(url: str, **changes: object) -> Endpoint:
    fields: dict[str, object] = {"api_key": "sk-the-key", "headers": {}, "finish_grace_s": GRACE_S} | changes
    return Endpoint(name="main", base_url=url, connect_timeout_s=2, **fields)  # type: ignore[arg-type]


async def batches(client: httpx.AsyncClient, at: Endpoint, heard: asyncio.Event | None = None) -> list[list[Event]]:
    """Every batch of one attempt, within 5 s. `heard` is set with the first one."""
    seen: list[list[Event]] = []
    async with asyncio.timeout(5):
        async for batch in attempt_events(client, at, ChatCodec(), REQUEST, 3, 2):
            seen.append(batch)
            if heard is not None:
                heard.set()
    return seen


async def events_of(
    client: httpx.AsyncClient, act: Act, heard: asyncio.Event | None = None, **changes: object
) -> list[Event]:
    """Every event of one attempt at a peer."""
    async with Peer(act) as peer:
        return [event for batch in await batches(client, endpoint(peer.url, **changes), heard) for event in batch]


def streaming(*parts: bytes, end: bool = True, hold: bool = False) -> Act:
    """A peer that answers with a stream, a chunk a part, and then ends it, breaks it off or holds it open."""

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        for part in parts:
            await peer.chunk(part)
        if hold:
            await peer.until_gone()
        elif end:
            await peer.end()

    return act


def answered(events: list[Event]) -> str:
    """The text that was heard."""
    return "".join(e.event.text for e in events if isinstance(e, Heard) and isinstance(e.event, TextDelta))


@pytest.mark.requirement("http:stream:one-read-one-batch")
async def test_each_read_of_the_network_is_one_batch(client: httpx.AsyncClient) -> None:
    heard = asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(text("one ") + text("two "))
        await within(5, "the first batch to be heard", heard)
        await peer.chunk(text("three"))
        await peer.chunk(finish() + DONE)

    async with Peer(act) as peer:
        seen = await batches(client, endpoint(peer.url), heard)
    assert seen[0] == [Heard(3, 2, TextDelta("one two "))]
    assert answered([event for batch in seen for event in batch]) == "one two three"
    last = seen[-1][-1]
    assert isinstance(last, Heard)
    assert isinstance(last.event, Completed)


@pytest.mark.requirement("http:stream:one-read-one-piece")
async def test_pieces_of_one_text_that_come_at_once_are_one_piece(client: httpx.AsyncClient) -> None:
    def thought(words: str) -> bytes:
        return b'data: {"choices":[{"index":0,"delta":{"reasoning":"%s"}}]}\n\n' % words.encode()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        said = thought("a") + thought("b") + text("one ") + text("two ") + b": alive\n\n: alive\n\n"
        await peer.chunk(said + text("three ") + thought("c") + text("four") + finish() + DONE)

    async with Peer(act) as peer:
        seen = [event for batch in await batches(client, endpoint(peer.url)) for event in batch]
    heard = [event.event for event in seen if isinstance(event, Heard)]
    assert heard[:6] == [
        ReasoningDelta("ab"),
        TextDelta("one two "),
        Keepalive(),
        TextDelta("three "),
        ReasoningDelta("c"),
        TextDelta("four"),
    ]


@pytest.mark.parametrize(
    ("base", "path"),
    [("/v1", "/v1/chat/completions"), ("/v1/", "/v1/chat/completions"), ("", "/chat/completions")],
)
async def test_the_path_of_the_wire_format_is_joined_to_the_base_url(
    client: httpx.AsyncClient, base: str, path: str
) -> None:
    for query in ("", "?api-version=7"):
        async with Peer(streaming(finish(), DONE)) as peer:
            await batches(client, endpoint(peer.url + base + query))
        assert peer.received.startswith(f"POST {path}{query} HTTP/1.1\r\n".encode())


async def test_the_request_asks_for_a_plain_event_stream_with_the_key(client: httpx.AsyncClient) -> None:
    async with Peer(streaming(finish(), DONE)) as peer:
        await batches(client, endpoint(peer.url, headers={"X-Team": "blue", "user-agent": "mine"}))
    head, _, body = peer.received.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    for line in (
        b"accept: text/event-stream",
        b"accept-encoding: identity",
        b"authorization: bearer sk-the-key",
        b"x-team: blue",
        b"user-agent: mine",
        b"content-type: application/json",
    ):
        assert lines.count(line) == 1, line
    assert body == ChatCodec().encode(REQUEST).body


async def test_without_a_key_no_authorization_is_sent(client: httpx.AsyncClient) -> None:
    async with Peer(streaming(finish(), DONE)) as peer:
        await batches(client, endpoint(peer.url, api_key=None))
    assert b"authorization" not in peer.received.lower()


@pytest.mark.requirement("http:stream:stops-at-the-terminal-event")
async def test_the_connection_is_dropped_at_the_end_mark_though_the_peer_holds_it(client: httpx.AsyncClient) -> None:
    async with Peer(streaming(text("whole"), finish(), DONE, text("never heard"), hold=True)) as peer:
        events = [event for batch in await batches(client, endpoint(peer.url, finish_grace_s=60)) for event in batch]
        await within(2, "the peer to see the end of the connection", peer.conversations[0].ended)
    assert answered(events) == "whole"
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Completed)


@pytest.mark.requirement("http:stream:held-open-is-no-death")
async def test_after_the_finish_reason_the_wait_for_usage_is_bounded(client: httpx.AsyncClient) -> None:
    started = asyncio.get_running_loop().time()
    events = await events_of(client, streaming(text("whole"), finish(), hold=True))
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Completed)
    assert asyncio.get_running_loop().time() - started >= GRACE_S * 0.9


async def test_usage_that_comes_after_the_finish_reason_is_heard(client: httpx.AsyncClient) -> None:
    events = await events_of(client, streaming(text("whole"), finish(), usage()))
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Completed)
    assert events[-1].event.usage is not None
    assert events[-1].event.usage.input_tokens == 3


@pytest.mark.requirement("http:stream:held-open-is-no-death")
@pytest.mark.parametrize("breaks", ["reset", "cut", "malformed"])
async def test_an_error_after_the_terminal_mark_is_no_error(client: httpx.AsyncClient, breaks: str) -> None:
    heard = asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(text("whole") + finish())
        await within(5, "the finish reason to be heard", heard)
        if breaks == "malformed":
            await peer.send(b"no number\r\n")
        if breaks == "reset":
            peer.reset()

    events = await events_of(client, act, heard, finish_grace_s=60)
    assert answered(events) == "whole"
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Completed)


async def reset_in_the_stream(peer: Conversation) -> None:
    await peer.request()
    await peer.head()
    await peer.chunk(text("part"))
    peer.reset()


async def end_by_closing(peer: Conversation) -> None:
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + text("part"))


DEATHS = [
    (streaming(text("part")), "end_of_stream", "the stream ended without its terminal mark"),
    (end_by_closing, "end_of_stream", "the stream ended without its terminal mark"),
    (streaming(text("part"), end=False), "reset", "closed the connection in the middle of its answer"),
    (reset_in_the_stream, "reset", "reset the connection in the middle of its answer"),
    (streaming(), "end_of_stream", "the stream ended without its terminal mark"),
]


@pytest.mark.requirement("http:stream:deaths")
@pytest.mark.parametrize(("act", "kind", "words"), DEATHS, ids=["clean end", "close", "cut", "reset", "empty"])
async def test_a_stream_without_its_terminal_mark_has_died(
    client: httpx.AsyncClient, act: Act, kind: str, words: str
) -> None:
    events = await events_of(client, act)
    death = events[-1]
    assert isinstance(death, Died)
    assert (death.call, death.attempt, death.kind) == (3, 2, kind)
    assert words in death.message
    assert all(isinstance(event, Heard) for event in events[:-1])


@pytest.mark.requirement("http:stream:deaths")
async def test_a_stream_that_breaks_http_half_way_has_died_at_once(client: httpx.AsyncClient) -> None:
    heard = asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(text("part"))
        await within(5, "the part to be heard", heard)
        await peer.send(b"no number\r\n")
        await peer.until_gone()

    events = await events_of(client, act, heard)
    assert answered(events) == "part"
    assert isinstance(events[-1], Died)
    assert events[-1].kind == "protocol"


async def test_an_error_inside_the_stream_ends_it(client: httpx.AsyncClient) -> None:
    error = b'data: {"error": {"message": "busy", "type": "server_error"}}\n\n'
    events = await events_of(client, streaming(text("part"), error, text("never heard"), hold=True))
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Failed)
    assert answered(events) == "part"


@pytest.mark.requirement("http:stream:no-secret-in-an-error")
async def test_the_words_and_the_code_of_an_error_hold_no_secret_of_the_query(client: httpx.AsyncClient) -> None:
    error = b'data: {"error": {"message": "no use for q-secret-1", "code": "bad_q-secret-1\\u001b"}}\n\n'
    async with Peer(streaming(error)) as peer:
        ((*_, event),) = await batches(client, endpoint(f"{peer.url}/v1?key=q-secret-1"))
    assert event == Heard(3, 2, Failed("retryable", "no use for ***", "bad_***"))


@pytest.mark.requirement("http:stream:no-secret-in-an-error")
@pytest.mark.parametrize("repeated", ["sk-the-key", "team-secret", REQUEST.messages[0].text])
async def test_an_error_inside_the_stream_repeats_neither_our_key_nor_the_conversation(
    client: httpx.AsyncClient, repeated: str
) -> None:
    error = b'data: {"error": {"message": "no use for ' + repeated.encode() + b'", "code": 401}}\n\n'
    events = await events_of(client, streaming(error), headers={"x-team": "team-secret"})
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Failed)
    assert events[-1].event.message
    assert repeated not in events[-1].event.message


@pytest.mark.requirement("http:stream:keepalives")
async def test_keepalives_in_a_row_of_one_read_are_told_once(client: httpx.AsyncClient) -> None:
    several = b": here\n\n" * 5 + text("one") + b": here\n\n" * 5 + text("two") + DONE
    events = await events_of(client, streaming(several))
    quiet = Heard(3, 2, Keepalive())
    assert events[:-1] == [quiet, Heard(3, 2, TextDelta("one")), quiet, Heard(3, 2, TextDelta("two"))]


@pytest.mark.requirement("http:stream:keepalives")
async def test_a_read_that_completes_nothing_is_a_keepalive(client: httpx.AsyncClient) -> None:
    heard = asyncio.Event()
    parts = 0

    async def act(peer: Conversation) -> None:
        nonlocal parts
        await peer.request()
        await peer.head()
        for part in (b"data: ", text("x" * 60)[6:40], text("x" * 60)[40:-1]):
            await peer.chunk(part)
            await within(5, f"{part!r} to be heard", heard)
            heard.clear()
            parts += 1
        await peer.chunk(b"\n" + DONE)

    async with Peer(act) as peer:
        seen = await batches(client, endpoint(peer.url), heard)
    assert parts == 3
    assert seen[:3] == [[Heard(3, 2, Keepalive())]] * 3
    assert answered([event for batch in seen for event in batch]) == "x" * 60


@pytest.mark.requirement("http:stream:key")
async def test_the_codec_says_which_header_carries_the_key(client: httpx.AsyncClient) -> None:
    class Keyed(ChatCodec):
        def authorization(self, key: str) -> dict[str, str]:
            return {"X-Api-Key": key, "X-Version": "7"}

    async with Peer(streaming(finish(), DONE)) as peer, asyncio.timeout(5):
        async for _ in attempt_events(client, endpoint(peer.url, headers={"x-version": "8"}), Keyed(), REQUEST, 3, 2):
            pass
    head = peer.received.lower().partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert b"x-api-key: sk-the-key" in head
    assert b"x-version: 8" in head
    assert not any(line.startswith(b"authorization:") for line in head)


async def test_an_endless_line_is_ended_with_an_error(client: httpx.AsyncClient) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(b"data: ")
        while True:
            await peer.chunk(b"x" * 500_000)

    events = await events_of(client, act)
    assert isinstance(events[-1], Heard)
    assert isinstance(events[-1].event, Failed)
    assert events[-1].event.code == "line_too_long"
    assert set(events[:-1]) == {Heard(3, 2, Keepalive())}


@pytest.mark.requirement("http:stream:closing-drops-the-connection")
async def test_closing_the_generator_drops_the_connection_at_once(client: httpx.AsyncClient) -> None:
    async with Peer(streaming(text("part"), hold=True)) as peer:
        async with aclosing(attempt_events(client, endpoint(peer.url), ChatCodec(), REQUEST, 3, 2)) as events:
            assert await anext(events) == [Heard(3, 2, TextDelta("part"))]
        await within(2, "the peer to see the end of the connection", peer.conversations[0].ended)


@pytest.mark.requirement("http:stream:closing-drops-the-connection")
@pytest.mark.parametrize("stage", ["before the head", "in the body", "in the grace"])
async def test_cancelling_the_reader_drops_the_connection_at_once(client: httpx.AsyncClient, stage: str) -> None:
    reached = asyncio.Event()

    async def act(peer: Conversation) -> None:
        await peer.request()
        if stage != "before the head":
            await peer.head()
            await peer.chunk(text("part") + (finish() if stage == "in the grace" else b""))
        else:
            reached.set()
        await peer.until_gone()

    async def read(at: Endpoint) -> None:
        async for _ in attempt_events(client, at, ChatCodec(), REQUEST, 3, 2):
            reached.set()

    async with Peer(act) as peer:
        reader = asyncio.ensure_future(read(endpoint(peer.url, finish_grace_s=60)))
        await within(5, f"the attempt to be {stage}", reached)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        await within(2, "the peer to see the end of the connection", peer.conversations[0].ended)


async def test_a_stream_that_was_compressed_all_the_same_is_read(client: httpx.AsyncClient) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head(more="Content-Encoding: gzip\r\n")
        await peer.chunk(gzip.compress(text("whole") + finish() + DONE))
        await peer.end()

    assert answered(await events_of(client, act)) == "whole"


@pytest.mark.requirement("http:stream:redirect")
async def test_a_redirect_is_named_and_not_followed(client: httpx.AsyncClient) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        head = "HTTP/1.1 307 Go\r\nLocation: https://user:pass@other.example/secret?key=secret\r\nContent-Length: 0\r\n"
        await peer.send(f"{head}\r\n".encode())

    (event,) = await events_of(client, act)
    assert isinstance(event, NotAnswered)
    assert (event.status, event.retryable, event.code) == (307, False, "redirect")
    assert "https://other.example:443" in event.message
    assert "secret" not in event.message
    assert "pass@" not in event.message


@pytest.mark.requirement("http:stream:not-reached")
async def test_a_closed_port_may_be_asked_again_and_names_the_setting(client: httpx.AsyncClient) -> None:
    port = free_port()
    ((event,),) = await batches(client, endpoint(f"http://127.0.0.1:{port}/v1"))
    assert event == NotAnswered(
        3,
        2,
        None,
        retryable=True,
        code="connect_refused",
        message=f"provider main: nothing listens at 127.0.0.1:{port} (connection refused). "
        "Check providers.main.base_url.",
    )


@pytest.mark.requirement("http:stream:not-reached")
async def test_a_peer_that_hangs_up_on_the_request_gave_no_stream(client: httpx.AsyncClient) -> None:
    async def hang_up(peer: Conversation) -> None:
        await peer.request()

    (event,) = await events_of(client, hang_up)
    assert isinstance(event, NotAnswered)
    assert (event.status, event.retryable, event.code) == (None, True, "reset")


@pytest.mark.requirement("http:stream:not-reached")
async def test_a_key_with_a_line_break_is_named_and_never_shown(client: httpx.AsyncClient) -> None:
    (event,) = await events_of(client, streaming(finish()), api_key="sk-the\nkey")
    assert isinstance(event, NotAnswered)
    assert (event.retryable, event.code) == (False, "bad_header")
    assert "providers.main.api_key" in event.message
    assert "sk-the" not in event.message


@pytest.mark.requirement("http:stream:our-fault-is-ours")
@pytest.mark.parametrize("error", [ValueError("no"), UnicodeEncodeError("utf-8", "\ud83d", 0, 1, "surrogates")])
async def test_what_the_codec_cannot_write_is_no_fault_of_the_address(
    client: httpx.AsyncClient, error: Exception
) -> None:
    class Broken(ChatCodec):
        def encode(self, request: Request) -> EncodedRequest:
            del request
            raise error

    async with Peer(streaming(finish(), DONE)) as peer:
        with pytest.raises(type(error)):
            await anext(attempt_events(client, endpoint(peer.url), Broken(), REQUEST, 3, 2))
    assert peer.conversations == []


@pytest.mark.requirement("http:stream:our-fault-is-ours")
@pytest.mark.parametrize("codec", [ChatCodec(), AnthropicCodec(), ResponsesCodec()], ids=lambda codec: str(codec.wire))
async def test_half_a_character_in_the_conversation_reaches_the_provider(
    client: httpx.AsyncClient, codec: Codec
) -> None:
    call = ToolCall("c1", "f", '{"q": "\ud83d"}', {"q": "\ud83d"})
    told = (UserMessage("half \ud83d"), AssistantMessage("\ud83d", (call,)), ToolMessage("c1", "f", "\ud83d"))
    request = Request("m", told, instructions="\ud83d", max_tokens=9)
    async with Peer(streaming(b'data: {"error": {"message": "bad \\ud83d", "code": 400}}\n\n')) as peer:
        (event,) = [
            event
            async for batch in attempt_events(client, endpoint(peer.url), codec, request, 3, 2)
            for event in batch
            if event != Heard(3, 2, Keepalive())
        ]
    assert isinstance(event, Heard)
    assert isinstance(event.event, Failed)
    assert event.event.failure == "refused"


@pytest.mark.requirement("http:client:logs-nothing")
async def test_no_word_of_a_call_reaches_the_log(client: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await events_of(client, streaming(text("the answer"), finish(), DONE))
    await events_of(client, reset_in_the_stream)
    for words in ("the answer", "the question", "be brief", "sk-the-key", "/chat/completions"):
        assert words not in caplog.text


def test_the_key_and_the_headers_of_an_endpoint_are_not_in_its_repr() -> None:
    shown = repr(endpoint("http://127.0.0.1:9", headers={"X-Key": "secret"}))
    assert "sk-the-key" not in shown
    assert "secret" not in shown
