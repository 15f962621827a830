"""The loads of the webhook benchmark: a backlog that is drained, a steady stream, deliveries that wait.

What belongs here: settings, the order of things, what is counted. What must not be known here: arguments, output.

The delivery process is the product's own, by its line of the Procfile. It is frozen while a backlog is made, so that
what is counted is relaying, claiming, sending and settling alone.
"""

import contextlib
import os
import secrets
import signal
import socket
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis

from channels.console.up import PROCESSES
from channels.embedded import EmbeddedServer
from ops.bench.concurrency_figures import Used
from ops.bench.concurrency_room import wait_until
from ops.bench.concurrency_stack import Told, Workers, machine_busy_s

_SETTLES_S = 1.5
_WITHIN_S = 300.0
_ENDPOINT = '[endpoints.e{number}]\nurl = "http://127.0.0.1:{port}/e/{number}"\nsecret = "{secret}"\n'


@dataclass(frozen=True, slots=True)
class Stand:
    """What every load needs. `port`: of the receiver; another one has nobody behind it."""

    folder: Path
    server: EmbeddedServer
    receiver: Told
    filler: Told
    endpoints: int
    processes: int

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """A client of the server."""
        with redis.Redis.from_url(self.server.url, protocol=2) as client:
            yield client

    def server_cpu_s(self) -> float:
        """What the server has used so far."""
        with self.client() as client:
            cpu = client.info("cpu")
        return float(cpu["used_cpu_user"]) + float(cpu["used_cpu_sys"])

    @contextlib.contextmanager
    def delivering(self, port: int) -> Iterator[Workers]:
        """The delivery processes; behind the block they are gone and the server is empty."""
        secret = "whsec_" + b64encode(secrets.token_bytes(24)).decode()
        numbers = range(self.endpoints)
        text = "\n".join(_ENDPOINT.format(number=number, port=port, secret=secret) for number in numbers)
        config = self.folder / "lastword.toml"
        config.write_text(f'data_dir = "{self.folder}/data"\negress.allow = ["127.0.0.0/8"]\n{text}', "utf-8")
        environment = {"LASTWORD_CONFIG": str(config), "LASTWORD_REDIS_URL": self.server.url}
        workers = Workers(self.folder, "delivery")
        try:
            for number in range(self.processes):
                arguments = PROCESSES["delivery"].split()
                arguments[arguments.index("--hostname") + 1] = f"delivery-{number}@%h"
                workers.start(Path(sys.executable), arguments, environment)
            workers.wait_for("delivery_process_started")
            time.sleep(_SETTLES_S)
            yield workers
        finally:
            workers.kill()
            with self.client() as client:
                client.flushall()


@contextlib.contextmanager
def _frozen(workers: Workers) -> Iterator[None]:
    for pid in workers.pids():
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in workers.pids():
            os.kill(pid, signal.SIGCONT)


def backlog(stand: Stand, deliveries: int) -> dict[str, Any]:
    """So many turns have ended, and their deliveries go out as fast as they can."""
    with stand.delivering(int(stand.receiver.first)) as workers:
        stand.receiver.tell("hang 0")
        stand.receiver.tell("reset")
        with _frozen(workers):
            stand.filler.ask(f"fill {deliveries} {stand.endpoints}")
            before, server_s, machine_s = workers.used(), stand.server_cpu_s(), machine_busy_s()
            resumed_at = time.time()  # noqa: TID251 - arrivals are told in it
        wait_until(lambda: stand.receiver.ask("count")["unique"] >= deliveries, "the backlog", _WITHIN_S)
        found = stand.receiver.ask("figures")
        _settled(stand, deliveries)
        took_s = found["last"] - resumed_at
        return {
            "deliveries": deliveries,
            "repeated": found["received"] - found["unique"],
            "per_s": round(deliveries / took_s, 1),
            "sender_ms": _ms(before, workers.used(), deliveries),
            "store_ms": round((stand.server_cpu_s() - server_s) / deliveries * 1000, 3),
            "machine_cores": round((machine_busy_s() - machine_s) / took_s, 2),
        }


def steady(stand: Stand, rate: float, seconds: float, hanging: int) -> dict[str, Any]:
    """So many turns a second end, of which those to the first `hanging` endpoints meet one that never answers."""
    with stand.delivering(int(stand.receiver.first)) as workers:
        stand.receiver.tell(f"hang {hanging}")
        stand.filler.ask(f"pace {rate} 3 {stand.endpoints}")
        time.sleep(_SETTLES_S)
        stand.receiver.tell("reset")
        before, server_s = workers.used(), stand.server_cpu_s()
        turns = stand.filler.ask(f"pace {rate} {seconds} {stand.endpoints}")["sealed"]
        time.sleep(_SETTLES_S)
        found = stand.receiver.ask("figures")
        return {
            "rate_per_s": rate,
            "turns": turns,
            "hanging": hanging,
            "received": found["ages"],
            "age_ms": found["age_ms"],
            "sender_ms": _ms(before, workers.used(), turns),
            "store_ms": round((stand.server_cpu_s() - server_s) / turns * 1000, 3),
        }


def waiting(stand: Stand, deliveries: int) -> dict[str, Any]:
    """So many deliveries wait for another attempt, or for their turn, at endpoints where nobody listens."""
    with socket.socket() as deaf, _nowhere(deaf) as port, stand.delivering(port) as workers:
        with _frozen(workers):
            stand.filler.ask(f"fill {deliveries} {stand.endpoints}")
        wait_until(lambda: _bytes_of(stand)[1] >= deliveries, "the deliveries", _WITHIN_S)
        time.sleep(_SETTLES_S)
        size, records = _bytes_of(stand)
        return {"deliveries": deliveries, "records": records, "bytes_each": round(size / deliveries)}


@contextlib.contextmanager
def _nowhere(deaf: socket.socket) -> Iterator[int]:
    """A port that is taken and on which nobody listens."""
    deaf.bind(("127.0.0.1", 0))
    yield deaf.getsockname()[1]


def _settled(stand: Stand, deliveries: int) -> None:
    """Wait until every delivery is marked as delivered, too."""
    with stand.client() as client:

        def is_done() -> bool:
            return bool(sum(client.zcard(name) for name in client.keys("lw:*forget")) >= deliveries)

        wait_until(is_done, "the settling", _WITHIN_S)


def _bytes_of(stand: Stand) -> tuple[int, int]:
    """What the outbox takes in the server's memory, and of how many deliveries."""
    with stand.client() as client:
        names = [name for name in client.scan_iter(count=2000) if b":dlv" in name or b"{dlv}" in name]
        with client.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.memory_usage(name, samples=0)
            sizes = pipeline.execute()
        return sum(filter(None, sizes)), sum(b":dlv:dlv_" in name for name in names)


def _ms(before: Used, after: Used, count: int) -> float:
    return round((after.cpu_s - before.cpu_s) / count * 1000, 3)
