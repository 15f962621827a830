"""A web process in the test's own loop: the real application behind the real server, on a free port of the loopback.

What belongs here: starting and ending it, tokens, and a reader of server-sent events with the fold that each one has.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import uvicorn

from channels.settings import Settings
from channels.web import tokens
from channels.web.process import WebProcess
from channels.web.server import config_of, listen
from worker.output.buffer import CommitBuffer
from worker.output.events import decode
from worker.output.snapshot import Place, Snapshot, parse_place
from worker.store import connect

WITHIN_S = 30.0
VAULT_KEY = f"k1:{'A' * 43}="
"""A master key. Without one, it would be made in the data folder of whoever runs the tests."""


def web_settings(url: str, **web: Any) -> Settings:
    return Settings(
        redis_url=url,
        providers={"main": {"base_url": "http://127.0.0.1:9/v1", "model": "stand-in"}},  # type: ignore[dict-item]
        web=web,  # type: ignore[arg-type]
        vault={"keys": [VAULT_KEY]},  # type: ignore[arg-type]
    )


class Served:
    """A web process that answers at `url`. `connections`: those that it has."""

    def __init__(self, url: str, client: Any, settings: Settings, process: WebProcess, connections: Any) -> None:
        self.url = url
        self.redis = client
        self.settings = settings
        self.process = process
        self.connections = connections

    async def token(self, *scopes: str, **more: Any) -> str:
        """The text of a fresh token."""
        name = more.pop("name", "test")
        return (await tokens.create(self.redis, name=name, scopes=frozenset(scopes), **more))[1]

    async def client(self, *scopes: str, **more: Any) -> httpx.AsyncClient:
        """A client with a fresh token; close it."""
        headers = {"Authorization": f"Bearer {await self.token(*scopes, **more)}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=WITHIN_S)


@contextlib.asynccontextmanager
async def serving(settings: Settings, connections: int = 1000) -> AsyncIterator[Served]:
    """A web process, ended at the end."""
    listening = listen("127.0.0.1", 0, settings.web.write_timeout_s)
    process = WebProcess(settings)
    server = uvicorn.Server(config_of(await process.start(), settings.web, connections))
    client = connect.open_redis(settings.redis())
    async with asyncio.TaskGroup() as group:
        group.create_task(server._serve([listening]))
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            yield Served(url, client, settings, process, server.server_state.connections)
        finally:
            process.drain()
            server.should_exit = True
    await process.stop()
    await client.aclose()


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    id: str
    name: str
    data: dict[str, Any]


@dataclass
class Fold:
    """What a reader knows: the fold of the events that it was sent, and what can be told of them."""

    buffer: CommitBuffer = field(default_factory=CommitBuffer)
    events: list[Event] = field(default_factory=list)

    @property
    def last_id(self) -> str:
        return next((event.id for event in reversed(self.events) if event.id), "")

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    def take(self, event: Event) -> None:
        place, before = parse_place(event.id), parse_place(self.last_id)
        if event.name in ("snapshot", "reset"):
            self.buffer = CommitBuffer.of(Snapshot.model_validate(event.data))
        else:
            assert place is not None, f"{event.name} has the id {event.id!r}"
            output = decode(json.dumps(event.data))
            assert output is not None
            assert (output.at_ms, output.seq) == place
            self.buffer.apply(output)
        if place is not None and before is not None and event.data.get("reason") != "rewound":
            assert place > before, f"{event.name} has an id that does not grow: {before}, then {place}"
        self.events.append(event)


def place_of(event: Event) -> Place:
    place = parse_place(event.id)
    assert place is not None
    return place


class EventSource:
    """Parses what comes, cut anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self.comments: list[str] = []
        self.retries: list[int] = []

    def feed(self, data: bytes) -> list[Event]:
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        return [event for block in blocks if (event := self._event(block.decode())) is not None]

    def _event(self, block: str) -> Event | None:
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            if not name:
                self.comments.append(value.strip())
            else:
                fields[name] = value.removeprefix(" ")
        if "retry" in fields:
            self.retries.append(int(fields["retry"]))
        if "data" not in fields:
            return None
        return Event(fields.get("id", ""), fields["event"], json.loads(fields["data"]))


async def read_along(
    client: httpx.AsyncClient, turn: str, fold: Fold, *, query: str = "", last_id: str | None = None
) -> AsyncGenerator[Event, None]:
    """The events of one connection, folded into `fold` as they come; fails after `WITHIN_S` seconds."""
    named = fold.last_id if last_id is None else last_id
    headers = {"Last-Event-ID": named} if named else {}
    source = EventSource()
    try:
        async with (
            asyncio.timeout(WITHIN_S),
            client.stream("GET", f"/v1/turns/{turn}/events{query}", headers=headers) as answer,
        ):
            assert answer.status_code == 200, await answer.aread()
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for data in answer.aiter_bytes():
                for event in source.feed(data):
                    fold.take(event)
                    yield event
    except TimeoutError:
        raise AssertionError(f"waited {WITHIN_S} s for the events of {turn}; {fold.names} came") from None
