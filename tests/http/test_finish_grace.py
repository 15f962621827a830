"""The wait after a finish reason: it ends a whole answer that is held open, and never an answer that goes on."""

import asyncio
import threading
import time
from contextlib import aclosing

import httpx
import pytest

from tests.support.chat_stream import DONE, chunk, finish, raw, text, tool
from tests.support.peer import Act, Conversation, Peer
from worker.codecs.events import Completed, TextDelta
from worker.codecs.messages import Request, UserMessage
from worker.codecs.openai_chat import ChatCodec
from worker.engine.loop import LoopThread
from worker.engine.stream import Endpoint, attempt_events
from worker.turn.events import Died, Event, Heard

USAGE = raw({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}})
THOUGHT = chunk({"reasoning_content": "hm "}, "stop")
WORDS = [f"{number} " for number in range(8)]


async def events_of(client: httpx.AsyncClient, act: Act, grace_s: float) -> list[Event]:
    """Every event of one attempt at a peer, within 10 s."""
    async with Peer(act) as peer, asyncio.timeout(10):
        endpoint = Endpoint("main", peer.url, None, {}, 2, grace_s)
        request = Request("a-model", (UserMessage("the question of the user"),))
        return [
            event async for batch in attempt_events(client, endpoint, ChatCodec(), request, 1, 1) for event in batch
        ]


def paced(parts: list[bytes], pause_s: float) -> Act:
    """A peer that sends a part, pauses, sends the next, and holds the connection after the last."""

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        for part in parts:
            await peer.chunk(part)
            await asyncio.sleep(pause_s)
        await peer.until_gone()

    return act


def whole(events: list[Event]) -> str:
    """The text of an answer that must be complete."""
    last = events[-1]
    assert isinstance(last, Heard)
    assert isinstance(last.event, Completed)
    return "".join(e.event.text for e in events if isinstance(e, Heard) and isinstance(e.event, TextDelta))


@pytest.mark.requirement("http:stream:finish-is-followed")
async def test_a_finish_reason_on_reasoning_does_not_end_the_answer_that_follows(client: httpx.AsyncClient) -> None:
    parts = [THOUGHT, THOUGHT, *(text(words) for words in WORDS), finish()]
    assert whole(await events_of(client, paced(parts, 0.15), 0.5)) == "".join(WORDS)


@pytest.mark.requirement("http:stream:finish-is-followed")
async def test_no_pause_is_too_long_once_the_answer_goes_on(client: httpx.AsyncClient) -> None:
    parts = [THOUGHT + text("one "), text("two "), text("three") + finish() + DONE]
    assert whole(await events_of(client, paced(parts, 0.5), 0.1)) == "one two three"


@pytest.mark.requirement("http:stream:finish-is-followed")
async def test_a_finish_reason_on_every_chunk_does_not_end_the_answer(client: httpx.AsyncClient) -> None:
    first, *parts = (chunk({"content": words}, "stop") for words in WORDS)
    assert whole(await events_of(client, paced([first + parts[0], *parts[1:], DONE], 0.2), 0.1)) == "".join(WORDS)


@pytest.mark.requirement("http:stream:broken-behind-finish")
@pytest.mark.parametrize(
    "parts",
    [
        [chunk({"content": words}, "stop") for words in WORDS],
        [THOUGHT, text("Half an ans")],
        [chunk({"content": "I will. "}, "stop"), tool(index=0, id="a", function={"name": "wipe", "arguments": ""})],
    ],
    ids=["finish on every chunk", "finish on a thought", "half a call"],
)
@pytest.mark.parametrize("how", ["reset", "cut"])
async def test_a_connection_that_breaks_while_the_answer_goes_on_behind_a_finish_reason_is_a_death(
    client: httpx.AsyncClient, parts: list[bytes], how: str
) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        for part in parts:
            await peer.chunk(part)
        await asyncio.sleep(0.05)  # what was sent is read before a reset throws it away
        (peer.reset if how == "reset" else peer.close)()

    events = await events_of(client, act, 5.0)
    assert isinstance(events[-1], Died)
    assert not any(isinstance(event, Heard) and isinstance(event.event, Completed) for event in events)


@pytest.mark.requirement("http:stream:broken-behind-finish")
async def test_a_connection_that_breaks_behind_the_finish_reason_of_a_whole_answer_ends_it(
    client: httpx.AsyncClient,
) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(text("whole") + finish())
        await asyncio.sleep(0.05)
        peer.reset()

    assert whole(await events_of(client, act, 5.0)) == "whole"


@pytest.mark.requirement("http:stream:finish-is-followed")
async def test_a_finish_reason_that_is_taken_back_and_given_again_bounds_the_wait_again(
    client: httpx.AsyncClient,
) -> None:
    parts = [THOUGHT, text("one "), text("two") + finish()]
    assert whole(await events_of(client, paced(parts, 0.0), 0.3)) == "one two"


@pytest.mark.requirement("http:stream:finish-is-followed")
@pytest.mark.parametrize("what", [USAGE, b": here\n\n", raw({"choices": []})], ids=["usage", "comments", "empty"])
async def test_what_says_nothing_of_the_answer_does_not_prolong_the_wait(
    client: httpx.AsyncClient, what: bytes
) -> None:
    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(text("whole") + finish())
        while True:
            await peer.chunk(what)
            await asyncio.sleep(0.02)

    assert whole(await events_of(client, act, 0.3)) == "whole"


@pytest.mark.requirement("http:stream:slept-behind-finish")
async def test_a_process_that_slept_through_the_wait_reads_what_came_meanwhile(client: httpx.AsyncClient) -> None:
    """The peer is a loop of its own; ours stands still from before the rest is sent until the wait is over."""
    asleep, sent = threading.Event(), threading.Event()
    grace_s = 1.0

    async def act(peer: Conversation) -> None:
        await peer.request()
        await peer.head()
        await peer.chunk(THOUGHT)
        await asyncio.to_thread(asleep.wait, 10)
        await peer.chunk(text("one two") + finish() + USAGE + DONE)
        sent.set()
        await peer.until_gone()

    def sleep() -> None:
        asleep.set()
        assert sent.wait(10)
        time.sleep(grace_s)

    theirs, peer = LoopThread("peer"), Peer(act)
    theirs.start()
    await asyncio.wrap_future(theirs.submit(peer.__aenter__()))
    try:
        endpoint = Endpoint("main", peer.url, None, {}, 2, grace_s)
        request = Request("a-model", (UserMessage("the question of the user"),))
        async with asyncio.timeout(20), aclosing(attempt_events(client, endpoint, ChatCodec(), request, 1, 1)) as told:
            events = await anext(told)
            asyncio.get_running_loop().call_later(0.01, sleep)  # once the rest is waited for
            async for batch in told:
                events += batch
    finally:
        await asyncio.wrap_future(theirs.submit(peer.__aexit__(None, None, None)))
        await asyncio.to_thread(theirs.stop)
    assert whole(events) == "one two"
    last = events[-1]
    assert isinstance(last, Heard)
    assert isinstance(last.event, Completed)
    assert last.event.usage is not None
