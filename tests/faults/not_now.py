"""Ways in which a server answers "not now". Each lasts as long as its `with`.

What belongs here: bringing a server into such a state and out of it. What must not be known here: Lastword.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

from tests.faults.scene import TTL_S

Fault = Callable[[Any, Path], contextlib.AbstractContextManager[None]]


@contextlib.contextmanager
def a_replica(client: Any, _: Path) -> Iterator[None]:
    """READONLY: what used to be the primary has become a replica, whose primary is nowhere to be found."""
    client.execute_command("REPLICAOF", "127.0.0.1", "1")
    yield
    client.execute_command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def without_replicas(client: Any, _: Path) -> Iterator[None]:
    """NOREPLICAS: it may write only with a replica, and has none."""
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


@contextlib.contextmanager
def without_disk(client: Any, folder: Path) -> Iterator[None]:
    """MISCONF: its last snapshot could not be written, here because a folder has the name of the file."""
    (folder / "dump.rdb").mkdir()
    client.config_set("save", "3600 1")
    client.bgsave()
    yield
    (folder / "dump.rdb").rmdir()
    client.bgsave()
    client.config_set("save", "")


@contextlib.contextmanager
def busy(client: Any, _: Path) -> Iterator[None]:
    """BUSY: a script of somebody else never ends."""

    def run() -> None:
        with contextlib.suppress(redis.RedisError):  # it is killed
            client.eval("while true do end", 0)

    script = threading.Thread(target=run)
    script.start()
    yield
    client.execute_command("SCRIPT", "KILL")
    script.join()


@contextlib.contextmanager
def paused(client: Any, _: Path) -> Iterator[None]:
    """CLIENT PAUSE, as before a planned failover: it takes every command and answers none."""
    client.execute_command("CLIENT", "PAUSE", round(1500 * TTL_S), "ALL")
    yield


@contextlib.contextmanager
def cut_off(client: Any, _: Path) -> Iterator[None]:
    """CLIENT KILL: every connection is closed, again and again."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.2):
            client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    killer = threading.Thread(target=run)
    killer.start()
    yield
    over.set()
    killer.join()


@contextlib.contextmanager
def forgetful(client: Any, _: Path) -> Iterator[None]:
    """NOSCRIPT: it forgets every script, again and again: no script of ours is there when it is called."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.005):
            client.script_flush()

    flusher = threading.Thread(target=run)
    flusher.start()
    yield
    over.set()
    flusher.join()
