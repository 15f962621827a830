"""The loads that Lastword bears in the concurrency benchmark: turns that stream, that wait, that are parked.

What belongs here: one load from its first submit to its last turn's end, and what was counted. What must not be known
here: which loads are wanted, how figures are shown.
"""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from channels.settings import Settings
from ops.bench.concurrency_figures import cpu_us, memory_kb, spread
from ops.bench.concurrency_room import RATE, Room, Spent, Window, wait_until
from ops.bench.concurrency_stack import Workers
from worker import api
from worker.app import make_app, wake_session
from worker.store import connect

_AT_ONCE = 64
"""Submits under way at once."""
_QUIET_S = 3.0
"""Behind the last start: readers are attached, and the heartbeat has told the drivers."""
PRODUCT = ("turns", "server", "web")
"""Whose CPU is the product's."""


@dataclass(frozen=True, slots=True)
class Load:
    """`turns` at once in `processes`, readers on the share `watched` of them, measured for `seconds`."""

    turns: int
    processes: int
    watched: float
    seconds: float


async def _submit(room: Room, settings: Settings, agent: str, count: int) -> list[str]:
    """Submit turns, each in a session of its own, and wake the workers; the ids of the turns."""
    app = make_app(settings, concurrency=1)
    client = connect.open_redis(room.server.url)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one() -> str:
        async with gate:
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
        return await asyncio.gather(*(one() for _ in range(count)))
    finally:
        await client.aclose()


def _logged(workers: Workers, event: str) -> list[dict[str, Any]]:
    return [line for line in workers.events() if line["event"] == event]


def _warnings(workers: Workers) -> dict[str, int]:
    return dict(Counter(line["event"] for line in workers.events() if line["level"] in ("warning", "error")))


def stream(room: Room, load: Load) -> dict[str, Any]:
    """Turns that stream at `RATE` deltas a second each, all at once."""
    settings = room.configure(-(-load.turns // load.processes))
    with room.turns_processes(load.processes) as workers, room.web_process(workers):
        whole = Window(room, workers)
        turns = asyncio.run(_submit(room, settings, "stream", load.turns))
        read = turns[:: max(1, round(1 / load.watched))]
        room.readers.ask("begin")
        for turn in read:
            room.readers.tell(turn)
        wait_until(lambda: room.provider.ask("status")["streaming"] == load.turns, f"{load.turns} streams", 120)
        ramp_s = time.monotonic() - whole.at
        time.sleep(_QUIET_S)
        return {"turns": load.turns, "watched": len(read), "ramp_s": round(ramp_s, 2)} | _steady(
            room, workers, whole, load
        )


def _steady(room: Room, workers: Workers, whole: Window, load: Load) -> dict[str, Any]:
    room.readers.ask("measure")
    sent, window = room.provider.ask("status")["sent"], Window(room, workers)
    time.sleep(load.seconds)
    status, steady = room.provider.ask("status"), window.close()
    room.readers.ask("pause")
    room.provider.ask("finish")
    seen: dict[str, Any] = {}

    def all_read() -> bool:
        seen.update(room.readers.ask("report"))
        return bool(seen["following"] == 0)

    wait_until(all_read, "the ends of the turns that are read", 120)
    wait_until(lambda: len(_logged(workers, "turn_sealed")) >= load.turns, "the ends of all turns", 120)
    deltas = status["sent"] - sent
    return {
        "age_ms": spread(seen["ages_ms"]),
        "ages": len(seen["ages_ms"]),
        "end_ms": spread(seen["ends_ms"]),
        "deltas_per_s": round(deltas / steady.took_s),
        "nominal_per_s": load.turns * RATE,
        "provider_late_ms": status["late_ms"],
        "completed": sum(line["outcome"] == "completed" for line in _logged(workers, "turn_sealed")),
        "resumes": len(_logged(workers, "turn_call_resumed")),
        "discards_seen": seen["discards"],
        "readers_failed": seen["failed"],
        "readers_reset": seen["resets"],
        "readers_again": seen["again"],
        "warnings": _warnings(workers),
        **_costs(whole, steady, deltas, load.turns),
    }


def _costs(whole: Window, steady: Spent, deltas: int, turns: int) -> dict[str, Any]:
    beside_s = whole.close().cpu_s(PRODUCT) - steady.cpu_s(PRODUCT)
    empty, full = whole.before["turns"], steady.after["turns"]
    return {
        "seconds": round(steady.took_s, 1),
        "cores": steady.cores,
        "turns_cpu_us_per_delta": cpu_us(steady.before["turns"], full, deltas),
        "server_cpu_us_per_delta": cpu_us(steady.before["server"], steady.after["server"], deltas),
        "cpu_ms_per_turn_beside_deltas": round(beside_s / turns * 1000, 2),
        "memory_kb_per_turn": memory_kb(empty, full, turns),
        "rss_kb_per_turn": round((full.rss_kb - empty.rss_kb) / turns, 1),
    }


def wait(room: Room, agent: str, load: Load) -> dict[str, Any]:
    """Turns that wait for a provider that is `silent` or sends `keepalives` alone."""
    settings = room.configure(-(-load.turns // load.processes))
    with room.turns_processes(load.processes) as workers:
        whole, stored = Window(room, workers), room.server_info("memory", "used_memory")
        asyncio.run(_submit(room, settings, agent, load.turns))
        wait_until(lambda: room.provider.ask("status")["waiting"] == load.turns, f"{load.turns} requests", 600)
        ramp_s = time.monotonic() - whole.at
        time.sleep(_QUIET_S)
        window = Window(room, workers)
        time.sleep(load.seconds)
        steady, stored = window.close(), room.server_info("memory", "used_memory") - stored
        room.provider.ask("finish")
        wait_until(lambda: len(_logged(workers, "turn_sealed")) >= load.turns, "the ends of all turns", 600)
        completed = sum(line["outcome"] == "completed" for line in _logged(workers, "turn_sealed"))
        empty, full = whole.before["turns"], steady.after["turns"]
        return {
            "waits": agent,
            "turns": load.turns,
            "completed": completed,
            "processes": load.processes,
            "ramp_s": round(ramp_s, 1),
            "memory_kb_per_turn": memory_kb(empty, full, load.turns),
            "rss_kb_per_turn": round((full.rss_kb - empty.rss_kb) / load.turns, 1),
            "stored_kb_per_turn": round(stored / 1024 / load.turns, 2),
            "cores": steady.cores,
            "warnings": _warnings(workers),
        }


def park(room: Room, load: Load) -> dict[str, Any]:
    """Turns that wait for a person: they hold no process, so what the server stores is what counts."""
    settings = room.configure(250)
    with room.turns_processes(load.processes) as workers:
        whole, stored = Window(room, workers), room.server_info("memory", "used_memory")
        asyncio.run(_submit(room, settings, "ask", load.turns))
        wait_until(lambda: len(_logged(workers, "turn_parked")) >= load.turns, f"{load.turns} parked turns", 600)
        ramp_s = time.monotonic() - whole.at
        time.sleep(_QUIET_S)
        stored, spent = room.server_info("memory", "used_memory") - stored, whole.close()
        return {
            "waits": "approval",
            "turns": load.turns,
            "ramp_s": round(ramp_s, 1),
            "memory_kb_per_turn": memory_kb(spent.before["turns"], spent.after["turns"], load.turns),
            "stored_kb_per_turn": round(stored / 1024 / load.turns, 2),
            "warnings": _warnings(workers),
        }
