"""Published vectors of faulty streams, as one reader sees them: attempts one after the other against a real socket."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest

from tests.support.chat_stream import DONE, finish, text, thought
from tests.support.peer import Conversation, Peer, within
from worker.codecs.anthropic_messages import AnthropicCodec
from worker.codecs.codec import Codec
from worker.codecs.events import Completed, TextDelta
from worker.codecs.messages import Request, UserMessage
from worker.codecs.openai_chat import ChatCodec
from worker.engine.stream import Endpoint, attempt_events
from worker.turn.events import Died, Event, Heard

REQUEST = Request("a-model", (UserMessage("the question of the user"),), max_tokens=100)


class Server:
    """Answers the first request with the first act, the second with the second. `heard`: set with every batch."""

    def __init__(self, *acts: Callable[[Conversation, asyncio.Event], Awaitable[None]]) -> None:
        self.heard = asyncio.Event()
        self.requests = 0
        self._acts = acts

    async def __call__(self, peer: Conversation) -> None:
        await peer.request()
        act = self._acts[self.requests]
        self.requests += 1
        await act(peer, self.heard)


def streaming(
    *parts: bytes, end: str = "ends", kind: str = "text/event-stream"
) -> Callable[[Conversation, asyncio.Event], Awaitable[None]]:
    async def act(peer: Conversation, heard: asyncio.Event) -> None:
        await peer.head(kind)
        for part in parts:
            await peer.chunk(part)
            await within(5, f"{part[:40]!r} to be heard", heard)
            heard.clear()
        if end == "resets":
            peer.reset()
        elif end == "holds":
            await peer.until_gone()
        else:
            await peer.end()

    return act


async def attempt(
    client: httpx.AsyncClient, peer: Peer, server: Server, number: int = 1, codec: Codec | None = None, grace: float = 5
) -> tuple[str, Event]:
    """The text that one attempt heard, and its last event."""
    endpoint = Endpoint("main", peer.url, "sk-the-key", {}, 2, grace)
    seen: list[Event] = []
    async with asyncio.timeout(10):
        async for batch in attempt_events(client, endpoint, codec or ChatCodec(), REQUEST, 1, number):
            seen += batch
            server.heard.set()
    said = "".join(e.event.text for e in seen if isinstance(e, Heard) and isinstance(e.event, TextDelta))
    return said, seen[-1]


def completed(event: Event) -> Completed:
    assert isinstance(event, Heard)
    assert isinstance(event.event, Completed)
    return event.event


@pytest.mark.requirement("streams:vector:t03")
@pytest.mark.requirement("streams:bug:d:fresh-connection")
async def test_a_clean_truncation_is_a_death_and_the_next_attempt_has_a_connection_of_its_own(
    client: httpx.AsyncClient,
) -> None:
    server = Server(streaming(text("Costs are 40")), streaming(text("Costs are 400 euro."), finish()))
    async with Peer(server) as peer:
        said, last = await attempt(client, peer, server)
        assert (said, type(last)) == ("Costs are 40", Died)
        said, last = await attempt(client, peer, server, 2)
        assert said == "Costs are 400 euro."
        assert completed(last).finish_reason == "stop"
        assert len(peer.conversations) == 2
    assert server.requests == 2


@pytest.mark.requirement("streams:bug:d:fresh-connection")
@pytest.mark.parametrize("end", ["resets", "holds"])
async def test_a_connection_that_was_given_up_is_never_used_again(client: httpx.AsyncClient, end: str) -> None:
    parts = (text("part"), DONE) if end == "holds" else (text("part"),)
    server = Server(streaming(*parts, end=end), streaming(finish() + DONE, end="holds"))
    async with Peer(server) as peer:
        await attempt(client, peer, server)
        completed((await attempt(client, peer, server, 2))[1])
        assert len(peer.conversations) == 2
        for conversation in peer.conversations[1 if end == "resets" else 0 :]:
            await within(2, "the peer to see the end of the connection", conversation.ended)


@pytest.mark.requirement("streams:bug:d:fresh-connection")
@pytest.mark.parametrize("kind", ["text/event-stream", "Text/Event-Stream ; charset=utf-8", "application/json"])
async def test_a_stream_takes_its_connection_with_it_though_it_came_all_at_once(
    client: httpx.AsyncClient, kind: str
) -> None:
    body = text("whole") + finish() + DONE
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"

    async def act(peer: Conversation) -> None:
        for _ in range(2):
            await peer.request()
            await peer.send(head.encode() + body)
        await peer.until_gone()

    server = Server()
    async with Peer(act) as peer:
        for number in (1, 2):
            assert completed((await attempt(client, peer, server, number))[1]).finish_reason == "stop"
        assert len(peer.conversations) == (1 if kind == "application/json" else 2)


def anthropic(*events: dict[str, object]) -> bytes:
    return b"".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events)


MESSAGE = anthropic(
    {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "content": []}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Done at nine."}},
    {"type": "content_block_stop", "index": 0},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 4}},
    {"type": "message_stop"},
)
T04: dict[str, tuple[Codec, tuple[bytes, ...], str, float]] = {
    "finish, then held": (ChatCodec(), (text("Done at nine."), finish()), "holds", 0.05),
    "finish, then reset": (ChatCodec(), (text("Done at nine."), finish()), "resets", 60),
    "done, then held": (ChatCodec(), (text("Done at nine.") + finish() + DONE,), "holds", 60),
    "message_stop, then held": (AnthropicCodec(), (MESSAGE,), "holds", 60),
}


@pytest.mark.requirement("streams:vector:t04")
@pytest.mark.parametrize("case", T04)
async def test_an_open_socket_after_the_terminal_event_is_no_death(client: httpx.AsyncClient, case: str) -> None:
    codec, parts, end, grace = T04[case]
    server = Server(streaming(*parts, end=end))
    async with Peer(server) as peer:
        said, last = await attempt(client, peer, server, 1, codec, grace)
        assert said == "Done at nine."
        assert completed(last).finish_reason == "stop"
        if end == "holds":
            await within(2, "the peer to see the end of the connection", peer.conversations[0].ended)
    assert server.requests == 1


@pytest.mark.requirement("streams:vector:t09")
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_retried_call_that_does_not_stream_says_its_whole_text_once(
    client: httpx.AsyncClient, kind: str
) -> None:
    body = {"choices": [{"message": {"content": "Dear Ana, hello."}, "finish_reason": "stop"}]}
    server = Server(streaming(text("Dear Ana, "), end="resets"), streaming(json.dumps(body).encode(), kind=kind))
    async with Peer(server) as peer:
        said, last = await attempt(client, peer, server)
        assert (said, type(last)) == ("Dear Ana, ", Died)
        said, last = await attempt(client, peer, server, 2)
    assert said == "Dear Ana, hello."
    assert completed(last).finish_reason == "stop"


@pytest.mark.requirement("streams:bug:b:reasoning-is-no-answer")
async def test_a_stream_that_ends_after_its_reasoning_has_died(client: httpx.AsyncClient) -> None:
    server = Server(streaming(thought("hm")))
    async with Peer(server) as peer:
        said, last = await attempt(client, peer, server)
    assert said == ""
    assert isinstance(last, Died)
