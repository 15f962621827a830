"""The load that Lastword is compared with: the same streams, read by the openai SDK in a plain Celery worker.

What belongs here: that worker from its start to its last stream's end. What must not be known here: Lastword.

Prefork holds a process for each stream, so a few are measured and memory is told for each of them; threads share one.
"""

import time
from pathlib import Path
from typing import Any

from celery import Celery

from ops.bench.concurrency_figures import cpu_us, memory_kb
from ops.bench.concurrency_room import RATE, Room, Window, wait_until

_ARGUMENTS = (
    "celery",
    "--app",
    "ops.bench.concurrency_sdk",
    "worker",
    "--without-gossip",
    "--without-mingle",
    "--loglevel",
    "INFO",
)
_QUIET_S = 2.0


def plain(room: Room, python: Path, pool: str, streams: int, seconds: float) -> dict[str, Any]:
    """`streams` streams at once in one worker of that pool. `python`: that of the environment with the SDK."""
    environment = {"BENCH_BROKER": room.server.url, "BENCH_PROVIDER": room.provider_url}
    with room.workers() as workers, room.client() as client:
        workers.start(python, [*_ARGUMENTS, "--pool", pool, "--concurrency", str(streams)], environment)
        workers.wait_for("ready.")
        time.sleep(_QUIET_S)
        idle = workers.used()
        app = Celery("bench", broker=room.server.url, set_as_current=False)
        for _ in range(streams):
            app.send_task("bench.stream", args=[f"paced-{RATE}"], ignore_result=True)
        wait_until(lambda: room.provider.ask("status")["streaming"] == streams, f"{streams} streams", 120)
        time.sleep(_QUIET_S)
        sent, window = room.provider.ask("status")["sent"], Window(room, workers)
        time.sleep(seconds)
        status, steady = room.provider.ask("status"), window.close()
        room.provider.ask("finish")
        wait_until(lambda: int(client.get("bench:done") or 0) == streams, "the ends of all streams", 120)
        deltas, full = status["sent"] - sent, steady.after["turns"]
        return {
            "pool": pool,
            "streams": streams,
            "deltas_per_s": round(deltas / steady.took_s),
            "nominal_per_s": streams * RATE,
            "cores": steady.cores,
            "worker_cpu_us_per_delta": cpu_us(steady.before["turns"], full, deltas),
            "memory_kb_per_stream": round(full.pss_kb / streams, 1),
            "memory_kb_per_stream_above_idle": memory_kb(idle, full, streams),
        }
