"""What goes through the web processes: messages that are submitted and turns that are read along over HTTP.

Each second message is submitted so, and each second live reader reads server-sent events, through kills of the
processes that answer. Cancels and messages that join are no part of a run.

What belongs here: asking again where nothing was answered, with the same key and from the last id. What must not be
known here: what is right, who is killed.

A line that a reader leaves is that of `ops.chaos_run.readers`. Each message is submitted twice, as by a client that has
lost an answer: a second turn of it would be delivered, and be seen as a second id.
"""

import asyncio
import contextlib
import json
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from channels.web import tokens
from ops.chaos_run.story import Plan
from worker.codecs.sse import SseDecoder, SseEvent
from worker.output.buffer import CommitBuffer
from worker.output.events import decode
from worker.output.snapshot import Snapshot
from worker.store import connect

SCOPES = frozenset({"turns:write", "events:read"})
_EVERY = 2
_AGAIN_S = 0.1
_ANSWER_S = 5.0
_SILENCE_S = 3.0
"""Longer than a keepalive takes: a connection that says nothing for so long is given up."""


def is_by_http(number: int) -> bool:
    """Whether a message is submitted, and its turn read, over HTTP."""
    return number % _EVERY == 0


class WebClient:
    """A client of the web processes at these ports, which goes to the next one wherever it gets no answer."""

    def __init__(self, ports: list[int]) -> None:
        self._urls = cycle(f"http://127.0.0.1:{port}/v1/turns" for port in ports)
        self._client = httpx.AsyncClient(timeout=httpx.Timeout(_ANSWER_S, read=_SILENCE_S))

    async def log_in(self, redis_url: str) -> None:
        """Get a token, which all requests carry."""
        store = connect.open_redis(redis_url)
        try:
            _, text = await tokens.create(store, name="chaos", scopes=SCOPES)
        finally:
            await store.aclose()
        self._client.headers["Authorization"] = f"Bearer {text}"

    async def close(self) -> None:
        """Drop the connections."""
        await self._client.aclose()

    async def submit(self, plan: Plan) -> str:
        """Submit a message, twice. Gives its turn."""
        turn = await self._submit(plan)
        await self._submit(plan)
        return turn

    async def _submit(self, plan: Plan) -> str:
        body = {
            "prompt": plan.prompt,
            "agent": plan.wire,
            "session": plan.session,
            "labels": {"message": str(plan.number)},
            "destinations": ["receiver"],
        }
        while True:
            try:
                answer = await self._client.post(
                    next(self._urls), json=body, headers={"Idempotency-Key": f"http-{plan.number}"}
                )
            except httpx.TransportError:
                await asyncio.sleep(_AGAIN_S)
                continue
            if answer.status_code == httpx.codes.ACCEPTED:
                turn: str = answer.json()["turn"]
                return turn
            _check(answer)
            await asyncio.sleep(_AGAIN_S)

    async def read(self, message: int, turn: str) -> dict[str, Any]:
        """Read a turn to its end. Gives the line of what its reader was left with."""
        fold = _Fold()
        while True:
            with contextlib.suppress(httpx.TransportError):
                await self._read_on(turn, fold)
            if fold.buffer.sealed:
                break
            await asyncio.sleep(_AGAIN_S)
        buffer = fold.buffer
        return {"message": message, "text": buffer.committed, "staged": buffer.staged, "gaps": fold.gaps}

    async def _read_on(self, turn: str, fold: "_Fold") -> None:
        """One connection, from the last id on."""
        named = {"Last-Event-ID": fold.last_id} if fold.last_id else {}
        async with self._client.stream("GET", f"{next(self._urls)}/{turn}/events", headers=named) as answer:
            if answer.status_code != httpx.codes.OK:
                _check(answer)
                return
            decoder = SseDecoder()
            async for data in answer.aiter_bytes():
                for item in decoder.feed(data):
                    if isinstance(item, SseEvent):
                        fold.take(item)


def _check(answer: httpx.Response) -> None:
    """An answer that will be another one when it is asked for again; anything else is a fault."""
    if answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR and answer.status_code != httpx.codes.TOO_MANY_REQUESTS:
        raise RuntimeError(f"a web process answered {answer.status_code} to {answer.request.method}")


class _Fold:
    """What a reader knows."""

    def __init__(self) -> None:
        self.buffer = CommitBuffer()
        self.last_id = ""
        self.gaps = 0
        self._seq = 0

    def take(self, event: SseEvent) -> None:
        """Fold one event in."""
        self.last_id = event.last_id or self.last_id
        if event.name in {"snapshot", "reset"}:
            snapshot = Snapshot.model_validate_json(event.data)
            self.buffer, self._seq = CommitBuffer.of(snapshot), snapshot.seq
            return
        output = decode(event.data)
        if output is not None:
            self.gaps += output.seq != self._seq + 1
            self._seq = output.seq
            self.buffer.apply(output)


def write_line(path: Path, line: dict[str, Any]) -> None:
    """Write down what a reader was left with."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
