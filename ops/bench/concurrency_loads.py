"""The loads of the concurrency benchmark: streaming turns, waiting turns, parked turns, and the plain worker.

What belongs here: one load from its first submit to its last turn's end. What must not be known here: which loads are
wanted, how figures are shown.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from channels.embedded import EmbeddedServer
from channels.settings import Settings, load_settings
from ops.bench.concurrency_figures import Used, cpu_us, memory_kb, spread
from ops.bench.concurrency_stack import Told, Workers, machine_busy_s, used
from worker import api
from worker.app import make_app, wake_session
from worker.store import connect

RATE = 20
"""Deltas a second of a streaming turn."""
_LOOK_S = 0.1
_AT_ONCE = 64
"""Submits under way at once."""

_SETTINGS = """
data_dir = "{folder}/data"
log_level = "info"
processes.turns_concurrency = {slots}
providers.main = {{ base_url = "{provider}/v1", model = "paced-{rate}" }}
agents.stream = {{ model = "paced-{rate}" }}
agents.silent = {{ model = "silent" }}
agents.keepalives = {{ model = "keepalives" }}
agents.ask = {{ model = "ask", tools = ["clock"] }}
tools.clock.approval = "ask"
"""


@dataclass(frozen=True, slots=True)
class Bench:
    """What every load needs: a folder, a server, a provider, and how to say what is going on."""

    folder: Path
    server: EmbeddedServer
    provider: Told
    readers: Told
    say: Callable[[str], None]

    @property
    def provider_url(self) -> str:
        """Where the provider listens."""
        return f"http://127.0.0.1:{self.provider.first}"

    def environment(self) -> dict[str, str]:
        """What processes of Lastword need to find their settings."""
        return {"LASTWORD_CONFIG": str(self.folder / "lastword.toml"), "LASTWORD_REDIS_URL": self.server.url}

    def server_pid(self) -> int:
        """The process of the server."""
        with redis.Redis.from_url(self.server.url) as client:
            return int(client.info("server")["process_id"])

    def configure(self, slots: int) -> Settings:
        """Write the settings file and read it."""
        text = _SETTINGS.format(folder=self.folder, slots=slots, provider=self.provider_url, rate=RATE)
        (self.folder / "lastword.toml").write_text(text, "utf-8")
        return load_settings()


async def submit(bench: Bench, settings: Settings, agents: list[str]) -> list[str]:
    """Submit a turn to each of `agents`, in a session of its own, and wake the workers; the ids of the turns."""
    app = make_app(settings, concurrency=1)
    client = connect.open_redis(bench.server.url)
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(agent: str) -> str:
        async with room:
            submitted = await api.submit(
                settings,
                client,
                prompt="Say something.",
                source="bench",
                agent=agent,
                wake=lambda session: wake_session(app, session),
            )
        return submitted.turn

    try:
        return await asyncio.gather(*map(one, agents))
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


class Window:
    """What was used between its making and now: by the product's processes and by the whole machine."""

    def __init__(self, bench: Bench, workers: Workers) -> None:
        self._pids = {
            "server": [bench.server_pid()],
            "provider": [bench.provider.process.pid],
            "readers": [bench.readers.process.pid],
        }
        self._workers = workers
        self.at = time.monotonic()
        self.busy_s = machine_busy_s()
        self.used = self._now()

    def _now(self) -> dict[str, Used]:
        return {"turns": self._workers.used()} | {name: used(pids) for name, pids in self._pids.items()}

    def close(self) -> dict[str, Any]:
        """Shares of a core since then, by who used it, and the `Used` of then and now."""
        took, busy, now = time.monotonic() - self.at, machine_busy_s() - self.busy_s, self._now()
        cores = {name: round((now[name].cpu_s - self.used[name].cpu_s) / took, 3) for name in now}
        return {
            "took_s": took,
            "before": self.used,
            "now": now,
            "cores": cores | {"others": round(busy / took - sum(cores.values()), 3)},
        }


def stream(bench: Bench, turns: int, *, processes: int, watched: float, seconds: float) -> dict[str, Any]:
    """`turns` streaming turns at once, readers on the share `watched` of them, measured for `seconds`."""
    settings = bench.configure(max(1, -(-turns // processes)))
    workers = Workers(bench.folder)
    try:
        for _ in range(processes):
            workers.start_turns(bench.environment())
        workers.wait_for("turns_process_started")
        time.sleep(1.0)  # Celery goes on with its start for a moment
        whole = Window(bench, workers)
        ids = asyncio.run(submit(bench, settings, ["stream"] * turns))
        every = max(1, round(1 / watched))
        for turn in ids[::every]:
            bench.readers.tell(turn)
        wait_until(lambda: bench.provider.ask("status")["streaming"] == turns, f"{turns} streams", 120)
        ramp_s = time.monotonic() - whole.at
        time.sleep(3.0)  # readers are attached, and the heartbeat has told the drivers
        return _measured(bench, workers, whole, turns, len(ids[::every]), seconds) | {"ramp_s": round(ramp_s, 2)}
    finally:
        workers.kill()
        with redis.Redis.from_url(bench.server.url) as client:
            client.flushall()


def _measured(
    bench: Bench, workers: Workers, whole: Window, turns: int, watched: int, seconds: float
) -> dict[str, Any]:
    bench.readers.ask("measure")
    sent, steady = bench.provider.ask("status")["sent"], Window(bench, workers)
    time.sleep(seconds)
    closed, status = steady.close(), bench.provider.ask("status")
    bench.readers.ask("pause")
    deltas = status["sent"] - sent
    bench.provider.ask("finish")
    seen: dict[str, Any] = {}

    def all_read() -> bool:
        seen.update(bench.readers.ask("report"))
        return bool(seen["following"] == 0)

    wait_until(all_read, "the ends of the watched turns", 60)
    sealed = lambda: [event for event in workers.events() if event["event"] == "turn_sealed"]  # noqa: E731
    wait_until(lambda: len(sealed()) >= turns, "the ends of all turns", 60)
    total, events = whole.close(), workers.events()
    before, now = closed["before"], closed["now"]
    empty = whole.used["turns"]
    resumed = sum(event["event"] == "turn_call_resumed" for event in events)
    overhead_s = sum(
        (total["now"][name].cpu_s - total["before"][name].cpu_s) - (now[name].cpu_s - before[name].cpu_s)
        for name in ("turns", "server")
    )
    return {
        "turns": turns,
        "watched": watched,
        "seconds": round(closed["took_s"], 1),
        "age_ms": spread(seen["ages_ms"]),
        "ages": len(seen["ages_ms"]),
        "end_ms": spread(seen["ends_ms"]),
        "deltas_per_s": round(deltas / closed["took_s"]),
        "nominal_per_s": turns * RATE,
        "provider_late_ms": status["late_ms"],
        "completed": sum(event["outcome"] == "completed" for event in sealed()),
        "resumes": resumed,
        "discards_seen": seen["discards"],
        "readers_failed": seen["failed"],
        "cores": closed["cores"],
        "turns_cpu_us_per_delta": cpu_us(before["turns"], now["turns"], deltas),
        "server_cpu_us_per_delta": cpu_us(before["server"], now["server"], deltas),
        "cpu_ms_per_turn_beside_deltas": round(overhead_s / turns * 1000, 2),
        "memory_kb_per_turn": memory_kb(empty, now["turns"], turns),
        "rss_kb_per_turn": round((now["turns"].rss_kb - empty.rss_kb) / turns, 1),
        "warnings": _warnings(events),
    }


def _warnings(events: list[dict[str, Any]]) -> dict[str, int]:
    names = [event["event"] for event in events if event["level"] in ("warning", "error")]
    return {name: names.count(name) for name in sorted(set(names))}


def wait(bench: Bench, turns: int, agent: str, *, processes: int, seconds: float) -> dict[str, Any]:
    """`turns` turns that wait for a provider, `silent` or with `keepalives`: memory of the product's processes."""
    settings = bench.configure(-(-turns // processes))
    workers = Workers(bench.folder)
    try:
        for _ in range(processes):
            workers.start_turns(bench.environment())
        workers.wait_for("turns_process_started")
        time.sleep(1.0)
        whole = Window(bench, workers)
        asyncio.run(submit(bench, settings, [agent] * turns))
        ramp_s = wait_until(lambda: bench.provider.ask("status")["waiting"] == turns, f"{turns} requests", 600)
        time.sleep(3.0)
        steady = Window(bench, workers)
        time.sleep(seconds)
        closed = steady.close()
        before, now = whole.used, closed["now"]
        bench.provider.ask("finish")
        sealed = lambda: sum(event["event"] == "turn_sealed" for event in workers.events())  # noqa: E731
        end_s = wait_until(lambda: sealed() >= turns, "the ends of all turns", 300)
        return {
            "turns": turns,
            "waits": agent,
            "processes": processes,
            "ramp_s": round(ramp_s, 1),
            "end_s": round(end_s, 1),
            "memory_kb_per_turn": memory_kb(before["turns"], now["turns"], turns),
            "rss_kb_per_turn": round((now["turns"].rss_kb - before["turns"].rss_kb) / turns, 1),
            "server_kb_per_turn": memory_kb(before["server"], now["server"], turns),
            "cores": closed["cores"],
            "warnings": _warnings(workers.events()),
        }
    finally:
        workers.kill()
        with redis.Redis.from_url(bench.server.url) as client:
            client.flushall()


def park(bench: Bench, turns: int, *, processes: int) -> dict[str, Any]:
    """`turns` turns that each wait for a person: they hold no process, so the server's memory is what counts."""
    settings = bench.configure(250)
    workers = Workers(bench.folder)
    try:
        for _ in range(processes):
            workers.start_turns(bench.environment())
        workers.wait_for("turns_process_started")
        time.sleep(1.0)
        whole = Window(bench, workers)
        with redis.Redis.from_url(bench.server.url) as client:
            memory = int(client.info("memory")["used_memory"])
            asyncio.run(submit(bench, settings, ["ask"] * turns))
            parked = lambda: sum(event["event"] == "turn_parked" for event in workers.events())  # noqa: E731
            ramp_s = wait_until(lambda: parked() >= turns, f"{turns} parked turns", 600)
            time.sleep(2.0)
            stored = int(client.info("memory")["used_memory"]) - memory
        now = whole.close()["now"]
        return {
            "turns": turns,
            "waits": "approval",
            "ramp_s": round(ramp_s, 1),
            "memory_kb_per_turn": memory_kb(whole.used["turns"], now["turns"], turns),
            "stored_kb_per_turn": round(stored / 1024 / turns, 2),
            "server_kb_per_turn": memory_kb(whole.used["server"], now["server"], turns),
            "warnings": _warnings(workers.events()),
        }
    finally:
        workers.kill()
        with redis.Redis.from_url(bench.server.url) as client:
            client.flushall()


def plain(bench: Bench, python: Path, pool: str, slots: int, *, seconds: float) -> dict[str, Any]:
    """`slots` streams read by the openai SDK in one plain Celery worker of that pool."""
    workers = Workers(bench.folder)
    base = ["celery", "--app", "ops.bench.concurrency_sdk", "worker", "--without-gossip", "--without-mingle"]
    environment = {"BENCH_BROKER": bench.server.url, "BENCH_PROVIDER": f"{bench.provider_url}/v1"}
    try:
        workers.start(python, [*base, "--pool", pool, "--concurrency", str(slots)], environment)
        workers.wait_for("ready.")
        time.sleep(2.0)
        idle = workers.used()
        with redis.Redis.from_url(bench.server.url) as client:
            _send(client.connection_pool.connection_kwargs and bench.server.url, slots)
            wait_until(lambda: bench.provider.ask("status")["streaming"] == slots, f"{slots} streams", 120)
            time.sleep(2.0)
            sent, steady = bench.provider.ask("status")["sent"], Window(bench, workers)
            time.sleep(seconds)
            closed, status = steady.close(), bench.provider.ask("status")
            bench.provider.ask("finish")
            wait_until(lambda: int(client.get("bench:done") or 0) == slots, "the ends of all streams", 60)
        deltas, before, now = status["sent"] - sent, closed["before"], closed["now"]
        return {
            "pool": pool,
            "streams": slots,
            "deltas_per_s": round(deltas / closed["took_s"]),
            "nominal_per_s": slots * RATE,
            "cores": closed["cores"],
            "turns_cpu_us_per_delta": cpu_us(before["turns"], now["turns"], deltas),
            "memory_kb_per_turn": round(now["turns"].pss_kb / slots, 1),
            "memory_kb_per_turn_above_idle": memory_kb(idle, now["turns"], slots),
        }
    finally:
        workers.kill()
        with redis.Redis.from_url(bench.server.url) as client:
            client.flushall()


def _send(url: str, count: int) -> None:
    from celery import Celery  # noqa: PLC0415 - only this load sends plain tasks

    app = Celery("bench", broker=url, set_as_current=False)
    for _ in range(count):
        app.send_task("bench.stream", args=[f"paced-{RATE}"], ignore_result=True)


__all__ = ["RATE", "Bench", "park", "plain", "stream", "sys", "wait"]
