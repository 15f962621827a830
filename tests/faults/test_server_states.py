"""A server that answers, but with "not now": nobody takes that for the end of a turn, of a process or of a delivery.

Each fault lasts longer than a lease, in the middle of a stream.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.faults.scene import SLOW, SLOW_TEXT, TTL_S, ends, faults_of, settings, texts
from tests.support.receiver import Receiver
from tests.support.stack import Stack, stand_in
from tests.support.valkey import Valkey
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput
from worker.store.outputs import all_outputs

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

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


@pytest.mark.requirement("faults:state:not-now")
@pytest.mark.parametrize("fault", [a_replica, without_replicas, without_disk, busy, paused, cut_off, forgetful])
async def test_a_turn_streams_on_while_the_server_says_not_now_and_nothing_takes_it_for_an_end(
    tmp_path: Path, fault: Fault
) -> None:
    with Valkey(tmp_path / "valkey", "busy-reply-threshold 100") as server, redis.Redis.from_url(server.url) as client:
        async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url, receiver.url))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery"), stack.start("turns", environment=runs)]
            turn = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
            with fault(client, server.folder):
                await asyncio.sleep(1.5 * TTL_S)
            await receiver.nth(1, within_s=30)
            after = await stack.submit("Look.", destinations=("receiver",))
            await receiver.nth(2, within_s=30)
            outputs = await all_outputs(stack.client, turn)
            found = faults_of(processes)
    assert texts(receiver) == {turn: [("completed", SLOW_TEXT)], after: [("completed", SLOW_TEXT)]}
    assert ends(provider) == ["complete"] * 4
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{turn}:1:0\n{after}:1:0\n"
    assert not [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert found == []
