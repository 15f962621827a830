"""The room in which a load of the concurrency benchmark runs: server, provider, readers, workers, and what they use.

What belongs here: setting up and clearing away, waiting, counting what was used between two moments. What must not be
known here: which loads there are.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from channels.embedded import EmbeddedServer
from channels.settings import Settings, load_settings
from channels.web import tokens
from ops.bench.concurrency_figures import Used
from ops.bench.concurrency_stack import Told, Workers, machine_busy_s, used
from worker.store import connect

RATE = 20
"""Deltas a second of a streaming turn."""
_SETTLES_S = 1.0
"""Celery goes on with its start for a moment after it has said that it is there."""
_LOOK_S = 0.1

_SETTINGS = """
data_dir = "{folder}/data"
processes.turns_concurrency = {slots}
providers.main = {{ base_url = "{provider}/v1", model = "paced-{rate}" }}
agents.stream = {{ model = "paced-{rate}" }}
agents.silent = {{ model = "silent" }}
agents.keepalives = {{ model = "keepalives" }}
agents.ask = {{ model = "ask", tools = ["clock"] }}
tools.clock.approval = "ask"
"""


@dataclass(frozen=True, slots=True)
class Room:
    """What every load needs: a folder, a server, a provider, readers."""

    folder: Path
    server: EmbeddedServer
    provider: Told
    readers: Told
    reads_web: bool
    """Whether readers read over HTTP, as the product's do, or straight from the server."""

    @property
    def provider_url(self) -> str:
        """Where the provider listens."""
        return f"http://127.0.0.1:{self.provider.first}/v1"

    @contextlib.contextmanager
    def client(self) -> Iterator[redis.Redis]:
        """A client of the server."""
        with redis.Redis.from_url(self.server.url, protocol=2) as client:
            yield client

    def server_info(self, section: str, name: str) -> int:
        """A number that the server tells of itself."""
        with self.client() as client:
            execute: Any = client.info
            return int(execute(section)[name])

    def configure(self, slots: int) -> Settings:
        """Write the settings file, with room for so many turns a process, and read it."""
        base = self.provider_url.removesuffix("/v1")
        text = _SETTINGS.format(folder=self.folder, slots=slots, provider=base, rate=RATE)
        (self.folder / "lastword.toml").write_text(text, "utf-8")
        return load_settings()

    @contextlib.contextmanager
    def workers(self) -> Iterator[Workers]:
        """No workers yet; those started within the block are ended with it, and the server is emptied."""
        workers = Workers(self.folder)
        try:
            yield workers
        finally:
            workers.kill()
            with self.client() as client:
                client.flushall()

    @contextlib.contextmanager
    def turns_processes(self, count: int) -> Iterator[Workers]:
        """So many processes that run turns."""
        environment = {"LASTWORD_CONFIG": str(self.folder / "lastword.toml"), "LASTWORD_REDIS_URL": self.server.url}
        with self.workers() as workers:
            for _ in range(count):
                workers.start_turns(environment)
            workers.wait_for("turns_process_started")
            time.sleep(_SETTLES_S)
            yield workers

    @contextlib.contextmanager
    def web_process(self, workers: Workers) -> Iterator[None]:
        """The process that readers ask, beside those that run turns; none where they read from the server."""
        if not self.reads_web:
            yield
            return
        workers.beside["web"] = web = Workers(self.folder, "web")
        environment = {
            "LASTWORD_CONFIG": str(self.folder / "lastword.toml"),
            "LASTWORD_REDIS_URL": self.server.url,
            "LASTWORD_WEB__READERS_PER_TOKEN": "100000",
            "LASTWORD_WEB__REQUESTS_PER_MINUTE": "1000000",
        }
        try:
            web.start(Path(sys.executable), ["channels", "web", "--port", "0"], environment)
            web.wait_for("web_process_started")
            [started] = [line for line in web.events() if line["event"] == "web_process_started"]
            self.readers.ask(f"web http://127.0.0.1:{started['port']} {asyncio.run(self._token())}")
            yield
        finally:
            web.kill()

    async def _token(self) -> str:
        client = connect.open_redis(self.server.url)
        try:
            return (await tokens.create(client, name="bench", scopes=frozenset({"events:read"})))[1]
        finally:
            await client.aclose()


def wait_until(look: Callable[[], bool], awaited: str, within_s: float) -> float:
    """Wait until `look` is true; the seconds that it took."""
    start = time.monotonic()
    while not look():
        if time.monotonic() - start > within_s:
            raise SystemExit(f"waited {within_s:.0f} s for {awaited}")
        time.sleep(_LOOK_S)
    return time.monotonic() - start


@dataclass(frozen=True, slots=True)
class Spent:
    """What was used in a window of `took_s` seconds. `cores`: by whom; `others` is the rest of the machine."""

    took_s: float
    before: dict[str, Used]
    after: dict[str, Used]
    cores: dict[str, float]

    def cpu_s(self, names: Sequence[str]) -> float:
        """CPU seconds of these together."""
        return sum(self.after[name].cpu_s - self.before[name].cpu_s for name in names if name in self.after)


class Window:
    """Open from its making on; `close` may be asked more than once."""

    def __init__(self, room: Room, workers: Workers) -> None:
        self._pids = {
            "server": [room.server_info("server", "process_id")],
            "provider": [room.provider.process.pid],
            "readers": [room.readers.process.pid],
        }
        self._workers = workers
        self._busy_s = machine_busy_s()
        self.at = time.monotonic()
        self.before = self._now()

    def _now(self) -> dict[str, Used]:
        beside = {name: one.used() for name, one in self._workers.beside.items()}
        return {"turns": self._workers.used()} | beside | {name: used(pids) for name, pids in self._pids.items()}

    def close(self) -> Spent:
        """What was used since it was opened."""
        took_s, busy_s, now = time.monotonic() - self.at, machine_busy_s() - self._busy_s, self._now()
        cores = {name: round((now[name].cpu_s - self.before[name].cpu_s) / took_s, 3) for name in now}
        return Spent(took_s, self.before, now, cores | {"others": round(busy_s / took_s - sum(cores.values()), 3)})
