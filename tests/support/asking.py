"""A client of the stand-in provider that looks at the bare bytes: no library may hide how an answer ended.

What belongs here: one HTTP request on one socket. What must not be known here: scripts.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Self

import httpx
import orjson

LIMIT_S = 10.0
PATHS = {"chat": "chat/completions", "responses": "responses", "anthropic": "messages"}
KEY_HEADERS = {
    "chat": "Authorization: Bearer sk-secret",
    "responses": "Authorization: Bearer sk-secret",
    "anthropic": "X-Api-Key: sk-secret\r\nAnthropic-Version: 2023-06-01",
}


@dataclass(frozen=True, slots=True)
class RawAnswer:
    """What came. `end`: "whole" with the terminating chunk, else "cut" or "reset". `data`: of each SSE event."""

    status: int
    head: str
    chunks: tuple[bytes, ...]
    end: str

    @property
    def body(self) -> bytes:
        """The body."""
        return b"".join(self.chunks)

    @property
    def data(self) -> list[dict[str, object]]:
        """The JSON of each event that came whole."""
        events = self.body.split(b"\n\n")[:-1]
        lines = [line[6:] for event in events for line in event.split(b"\n") if line.startswith(b"data: {")]
        return [orjson.loads(line) for line in lines]

    @property
    def deltas(self) -> list[dict[str, object]]:
        """The delta of each chunk of Chat Completions that has one."""
        choices = [each["choices"] for each in self.data if each.get("choices")]
        return [choice[0]["delta"] for choice in choices if isinstance(choice, list)]

    @property
    def text(self) -> str:
        """The text that was answered in Chat Completions; `plain_reader` reads all wire formats."""
        return "".join(str(delta.get("content") or "") for delta in self.deltas)


class Asking:
    """One request that has been sent. Leaving its `async with` drops the connection."""

    def __init__(self, base_url: str, prompt: str = "hello", wire: str = "chat", **fields: object) -> None:
        self._url = httpx.URL(base_url)
        self._wire = wire
        self._body = orjson.dumps(question(wire, prompt) | fields)
        self._seen = bytearray()
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._url.host, self._url.port)
        head = (
            f"POST {self._url.path.rstrip('/')}/{PATHS[self._wire]} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            f"{KEY_HEADERS[self._wire]}\r\nX-Team: blue\r\nContent-Length: {len(self._body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + self._body)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def until(self, words: bytes) -> None:
        """Read until these bytes have come."""
        async with asyncio.timeout(LIMIT_S):
            self._seen += await self._reader.readuntil(words)

    async def answer(self) -> RawAnswer:
        """Read to the end of the connection."""
        end = "cut"
        async with asyncio.timeout(LIMIT_S):
            try:
                while part := await self._reader.read(65536):
                    self._seen += part
            except ConnectionError:
                end = "reset"
        head, _, rest = bytes(self._seen).partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1]) if head else 0
        if b"transfer-encoding: chunked" not in head.lower():
            return RawAnswer(status, head.decode(), (rest,), "whole")
        chunks = _chunks(rest)
        return RawAnswer(status, head.decode(), chunks, "whole" if rest.endswith(b"\r\n0\r\n\r\n") else end)


async def ask(base_url: str, prompt: str = "hello", wire: str = "chat", **fields: object) -> RawAnswer:
    """Ask and read to the end."""
    async with Asking(base_url, prompt, wire, **fields) as asking:
        return await asking.answer()


def question(wire: str, prompt: str) -> dict[str, object]:
    """The least request that asks for a stream."""
    messages = [{"role": "user", "content": prompt}]
    if wire == "responses":
        return {"model": "m", "stream": True, "input": messages}
    if wire == "anthropic":
        return {"model": "m", "stream": True, "max_tokens": 1000, "messages": messages}
    return {"model": "m", "stream": True, "messages": messages}


def _chunks(rest: bytes) -> tuple[bytes, ...]:
    chunks: list[bytes] = []
    with contextlib.suppress(ValueError):  # the body was cut inside a size line
        while rest:
            line, _, after = rest.partition(b"\r\n")
            size = int(line, 16)
            if not size:
                break
            chunks.append(after[:size])
            rest = after[size + 2 :]
    return tuple(chunks)
