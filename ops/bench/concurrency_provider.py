"""The provider of the concurrency benchmark: many streams at a pace, each delta with the time at which it was sent.

What belongs here: HTTP/1.1 on loopback sockets as cheap as it gets, and the pace. What must not be known here: who
asks, what is measured.

A request says in its `model` what it wants:

    paced-20     a delta every 1/20 s until the word comes to finish, then the whole ending
    silent       nothing at all, not even a head, until the word comes
    keepalives   a head, then a comment every 10 s, until the word comes
    ask          a call of the tool `clock`

A delta is `@<nanoseconds of the monotonic clock>` and a blank: what reads it on the same machine knows its age.
Streams have phases of their own, so they do not beat as one. Runs in a process of its own and prints its port. Reads a
word a line: `status` is answered with a line of JSON; `finish` ends what is open. Ends with its standard input.
"""

import asyncio
import json
import random
import sys
from time import monotonic_ns
from typing import cast

import uvloop

SLOTS_A_SECOND = 1000
_KEEPALIVE_S = 10.0
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_STAMP = b"@%015d "
_BEFORE = (
    b'data: {"id":"chatcmpl-BrX1k9cQwzJ2m4T7uVh8NpLs3DfGy","object":"chat.completion.chunk","created":1752148231,'
    b'"model":"gpt-4.1-mini-2025-04-14","service_tier":"default","system_fingerprint":"fp_6f2eabb9a5","choices":'
    b'[{"index":0,"delta":'
)
_AFTER = b',"logprobs":null,"finish_reason":%s}],"usage":null}\n\n'
_USAGE = (
    b'data: {"id":"chatcmpl-BrX1k9cQwzJ2m4T7uVh8NpLs3DfGy","object":"chat.completion.chunk","created":1752148231,'
    b'"model":"gpt-4.1-mini-2025-04-14","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":%d,'
    b'"total_tokens":%d}}\n\n'
)
_CLOCK = (
    b'{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"call_1","type":"function","function":'
    b'{"name":"clock","arguments":"{}"}}]}'
)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _event(delta: bytes, finish: bytes = b"null") -> bytes:
    return _chunk(_BEFORE + delta + _AFTER % finish)


_DELTA = _event(b'{"content":"' + _STAMP % 0 + b'"}')
_DELTA_BEFORE, _, _DELTA_AFTER = _DELTA.partition(_STAMP % 0)


class Provider:
    """All that streams. `sent`: deltas so far; `late_ms`: how far behind its own pace the provider fell at most."""

    def __init__(self) -> None:
        self.sent = 0
        self.late_ms = 0.0
        self.requests = 0
        self._loop = asyncio.get_running_loop()
        self._chance = random.Random(4)
        self._slots: list[set[_Connection]] = []
        self._waiting: set[_Connection] = set()
        self._keepalives: set[_Connection] = set()
        self._next = 0

    def take(self, connection: "_Connection", model: str) -> None:
        """Answer a request."""
        self.requests += 1
        kind, _, rate = model.partition("-")
        if kind == "paced":
            if not self._slots:
                self._slots = [set() for _ in range(SLOTS_A_SECOND // int(rate))]
                self._start = self._loop.time()
                self._beat()
            connection.begin()
            connection.place = self._chance.choice(self._slots)
            connection.place.add(connection)
        elif kind == "ask":
            connection.begin()
            connection.say(_event(_CLOCK) + _event(b"{}", b'"tool_calls"'))
            connection.end(1)
        else:
            connection.place = self._waiting
            if kind == "keepalives":
                connection.begin()
                connection.place = self._keepalives
                if not self._keepalives:
                    self._loop.call_later(_KEEPALIVE_S, self._keep_alive)
            connection.place.add(connection)

    def finish(self) -> None:
        """End whatever is open with a whole answer."""
        for connection in [*self._waiting, *self._keepalives, *(one for slot in self._slots for one in slot)]:
            connection.begin()
            connection.end(connection.deltas)

    def status(self) -> dict[str, float]:
        """What is going on; `late_ms` begins anew."""
        late, self.late_ms = self.late_ms, 0.0
        return {
            "streaming": sum(map(len, self._slots)),
            "waiting": len(self._waiting) + len(self._keepalives),
            "sent": self.sent,
            "late_ms": round(late, 1),
            "requests": self.requests,
        }

    def _beat(self) -> None:
        """Send the deltas of every slot whose time has come; then sleep to the next one."""
        now = self._loop.time()
        while (due := self._start + self._next / SLOTS_A_SECOND) <= now:
            self.late_ms = max(self.late_ms, (now - due) * 1000)
            slot = self._slots[self._next % len(self._slots)]
            self._next += 1
            for connection in slot:
                connection.delta()
            self.sent += len(slot)
        self._loop.call_at(due, self._beat)

    def _keep_alive(self) -> None:
        for connection in self._keepalives:
            connection.say(_chunk(b": keepalive\n\n"))
        self._loop.call_later(_KEEPALIVE_S, self._keep_alive)


class _Connection(asyncio.Protocol):
    def __init__(self, provider: Provider) -> None:
        self.place: set[_Connection] | None = None
        self.deltas = 0
        self._provider = provider
        self._has_begun = False
        self._read = bytearray()
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # that of uvloop is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._leave()

    def data_received(self, data: bytes) -> None:
        self._read += data
        head, found, body = bytes(self._read).partition(b"\r\n\r\n")
        if not found:
            return
        lengths = [
            line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")
        ]
        if lengths and len(body) >= int(lengths[0]):
            self._read.clear()
            self._has_begun = False
            self.deltas = 0
            self._provider.take(self, str(json.loads(body)["model"]))

    def begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._transport.write(_HEAD)

    def say(self, data: bytes) -> None:
        self._transport.write(data)

    def delta(self) -> None:
        self.deltas += 1
        self._transport.write(_DELTA_BEFORE + _STAMP % monotonic_ns() + _DELTA_AFTER)

    def end(self, deltas: int) -> None:
        """The rest of a whole answer, with a last delta that tells when it was sent."""
        self._leave()
        last = b"" if self.place is None else _DELTA_BEFORE + _STAMP % monotonic_ns() + _DELTA_AFTER
        finish = _event(b"{}", b'"stop"') if self.place is not None else b""
        usage = _chunk(_USAGE % (deltas, 9 + deltas)) + _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        self._transport.write(last + finish + usage)

    def _leave(self) -> None:
        if self.place is not None:
            self.place.discard(self)


async def serve() -> None:
    """Serve until the standard input ends."""
    loop = asyncio.get_running_loop()
    provider = Provider()
    server = await loop.create_server(lambda: _Connection(provider), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        if line.strip() == "finish":
            provider.finish()
        print(json.dumps(provider.status()), flush=True)


if __name__ == "__main__":
    uvloop.run(serve())
