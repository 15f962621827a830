"""A client of the stream benchmark: it reads streams in one way and tells what CPU that took.

What belongs here: the ways of reading, each as bare as its library allows. What must not be known here: what is
compared with what.

Runs in a process of its own, in whichever environment holds the library. Reads a line of JSON for each trial and
answers with one; what it builds for the first trial (clients, connections to nothing) it keeps.
"""

import argparse
import asyncio
import gc
import importlib
import json
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Any

from ops.bench.stream_events import text

Read = Callable[[str], Awaitable[str]]
"""Asks for the stream of that model and gives its text."""
_QUESTION = "Say something."
_READ = 256 * 1024


def _loads() -> Callable[[bytes], Any]:
    loads: Callable[[bytes], Any] = importlib.import_module("orjson").loads
    return loads


_PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}


class _Folding:
    """The least that can be done with a stream's bytes: split, parse, take the text, see the end."""

    def __init__(self, wire: str, loads: Callable[[bytes], Any]) -> None:
        self.texts: list[str] = []
        self.over = False
        self._rest = b""
        self._loads = loads
        self._take = {"chat": self._chat, "responses": self._responses, "anthropic": self._anthropic}[wire]

    def feed(self, data: bytes) -> None:
        """Take the next bytes. What stands between events (the sizes of HTTP chunks) is passed over."""
        pieces = (self._rest + data).split(b"\n\n")
        self._rest = pieces.pop()
        take, loads = self._take, self._loads
        for piece in pieces:
            at = piece.find(b"data: ")
            if at >= 0:
                if piece.startswith(b"[DONE]", at + 6):
                    self.over = True
                else:
                    take(loads(piece[at + 6 :]))

    def _chat(self, chunk: Any) -> None:
        for choice in chunk["choices"]:
            content = choice["delta"].get("content")
            if content:
                self.texts.append(content)

    def _responses(self, event: Any) -> None:
        if event["type"] == "response.output_text.delta":
            self.texts.append(event["delta"])
        elif event["type"] == "response.completed":
            self.over = True

    def _anthropic(self, event: Any) -> None:
        if event["type"] == "content_block_delta":
            self.texts.append(event["delta"]["text"])
        elif event["type"] == "message_stop":
            self.over = True


def _request(wire: str, host: str, model: str) -> bytes:
    body = json.dumps({"model": model}).encode()
    head = f"POST {_PATHS[wire]} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def floor(wire: str, url: str) -> Read:
    """A protocol of asyncio on the bare socket, a split, orjson."""
    host, _, port = url.removeprefix("http://").partition(":")
    loads = _loads()

    class Protocol(asyncio.Protocol):
        def __init__(self) -> None:
            self.folding = _Folding(wire, loads)
            self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def data_received(self, data: bytes) -> None:
            self.folding.feed(data)
            if self.folding.over and not self.done.done():
                self.done.set_result(None)

    async def read(model: str) -> str:
        transport, protocol = await asyncio.get_running_loop().create_connection(Protocol, host, int(port))
        transport.write(_request(wire, host, model))
        await protocol.done
        transport.abort()
        return "".join(protocol.folding.texts)

    return read


def streams(wire: str, url: str) -> Read:
    """A reader of asyncio's streams, a split, orjson: a coroutine that waits for bytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    loads = _loads()

    async def read(model: str) -> str:
        folding = _Folding(wire, loads)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(_request(wire, host, model))
        while not folding.over:
            folding.feed(await reader.read(_READ))
        writer.transport.abort()
        return "".join(folding.texts)

    return read


def aiohttp(wire: str, url: str) -> Read:
    """The HTTP library underneath Lastword, read in the barest way."""
    session: Any = importlib.import_module("aiohttp").ClientSession()
    loads = _loads()

    async def read(model: str) -> str:
        folding = _Folding(wire, loads)
        async with session.post(url + _PATHS[wire], json={"model": model}) as response:
            async for data in response.content.iter_any():
                folding.feed(data)
        return "".join(folding.texts)

    return read


def transport(wire: str, url: str) -> Read:
    """Lastword's HTTP client, read in the barest way."""
    egress = importlib.import_module("worker.network_section").EgressSettings()
    guard = importlib.import_module("worker.guard").guard_operator(egress)
    client = importlib.import_module("worker.http").open_client(connect_timeout_s=10, guard=guard)
    loads = _loads()

    async def read(model: str) -> str:
        folding = _Folding(wire, loads)
        async with client.stream("POST", url + _PATHS[wire], json={"model": model}) as response:
            async for data in response.aiter_raw():
                folding.feed(data)
        return "".join(folding.texts)

    return read


def lastword(wire: str, url: str) -> Read:
    """Lastword: its attempt at a call, and what it says folded into a buffer."""
    attempt = importlib.import_module("ops.bench.stream_lastword").attempt(wire, url)
    fold: Callable[[AsyncIterator[list[Any]]], Awaitable[str]] = importlib.import_module(
        "ops.bench.stream_lastword"
    ).fold

    async def read(model: str) -> str:
        return await fold(attempt(model))

    return read


def turn(wire: str, url: str) -> Read:
    """Lastword: a whole turn by its driver and its machine, with a buffer in the place of the store."""
    lastword = importlib.import_module("ops.bench.stream_lastword")
    run: Read = lastword.turn(wire, lastword.attempt(wire, url))
    return run


def openai(wire: str, url: str) -> Read:
    """The official client."""
    client = importlib.import_module("openai").AsyncOpenAI(base_url=f"{url}/v1", api_key="k")

    async def chat(model: str) -> str:
        messages = [{"role": "user", "content": _QUESTION}]
        texts: list[str] = []
        async for chunk in await client.chat.completions.create(model=model, messages=messages, stream=True):
            for choice in chunk.choices:
                if choice.delta.content:
                    texts.append(choice.delta.content)  # noqa: PERF401 - as people write it
        return "".join(texts)

    async def responses(model: str) -> str:
        texts: list[str] = []
        async for event in await client.responses.create(model=model, input=_QUESTION, stream=True):
            if event.type == "response.output_text.delta":
                texts.append(event.delta)  # noqa: PERF401 - as people write it
        return "".join(texts)

    return chat if wire == "chat" else responses


def anthropic(wire: str, url: str) -> Read:
    """The official client."""
    assert wire == "anthropic"
    client = importlib.import_module("anthropic").AsyncAnthropic(base_url=url, api_key="k")

    async def read(model: str) -> str:
        messages = [{"role": "user", "content": _QUESTION}]
        texts: list[str] = []
        async for event in await client.messages.create(model=model, messages=messages, max_tokens=9, stream=True):
            if event.type == "content_block_delta":
                texts.append(event.delta.text)  # noqa: PERF401 - as people write it
        return "".join(texts)

    return read


WAYS: dict[str, Callable[[str, str], Read]] = {
    way.__name__: way for way in (floor, streams, aiohttp, transport, lastword, turn, openai, anthropic)
}


async def trial(read: Read, mode: str, chunks: int, streams: int) -> dict[str, float]:
    """Read so many streams at once; CPU and wall seconds of all of them together."""
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    # Started one after the other, as turns are: paced streams that beat as one would share their wake-ups.
    gap = 0.02 / streams if mode == "paced" else 0.0
    readings = await asyncio.gather(*(_later(number * gap, read, f"{mode}-{chunks}") for number in range(streams)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    whole = text(chunks)
    assert all(reading == whole for reading in readings), "a stream was not read whole"
    return {"cpu_s": cpu, "wall_s": wall, "kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


async def _later(wait_s: float, read: Read, model: str) -> str:
    await asyncio.sleep(wait_s)
    return await read(model)


async def prepared(way: str, wire: str, url: str) -> Read:
    """A reader, made on the event loop where it is used."""
    return WAYS[way](wire, url)


def main(lines: Iterable[str]) -> None:
    """Run the trials that are asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("loop", choices=("asyncio", "uvloop"))
    parser.add_argument("url")
    told = parser.parse_args()
    factory = importlib.import_module("uvloop").new_event_loop if told.loop == "uvloop" else None
    readers: dict[str, Read] = {}
    with asyncio.Runner(loop_factory=factory) as runner:
        for line in lines:
            asked = json.loads(line)
            wire = asked["wire"]
            if wire not in readers:
                readers[wire] = runner.run(prepared(told.way, wire, told.url))
                runner.run(trial(readers[wire], "burst", 200, 1))  # warm up
            found = runner.run(trial(readers[wire], asked["mode"], asked["chunks"], asked["streams"]))
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
