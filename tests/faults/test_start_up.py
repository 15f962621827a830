"""A process says at its start what its server may lose, and waits for one that cannot write just now."""

from pathlib import Path

import pytest
import redis

from tests.faults.not_now import Fault, a_replica, without_disk, without_replicas
from tests.faults.scene import settings
from tests.support.stack import Stack, eventually
from tests.support.valkey import Valkey
from worker.store.inbox import ensure_meta

pytestmark = [pytest.mark.process, pytest.mark.timeout(60)]


@pytest.mark.requirement("faults:start:says-what-may-be-lost")
async def test_every_process_warns_of_a_server_that_keeps_too_little(tmp_path: Path) -> None:
    lax = ("appendonly no", "maxmemory-policy allkeys-lru")
    with Valkey(tmp_path / "valkey", *lax) as server:
        async with Stack(tmp_path, server.url) as stack:
            stack.configure(settings("http://127.0.0.1:1/v1", "http://127.0.0.1:1/hook"))
            turns, delivery = stack.start("turns"), stack.start("delivery")
            for process, started in ((turns, "turns_process_started"), (delivery, "delivery_process_started")):
                await stack.logged(process, started)
                told = {line["about"]: line["fix"] for line in process.lines() if line["event"] == "redis_falls_short"}
                assert told.keys() == {"persistence", "eviction"}
                assert "appendonly yes" in told["persistence"]
                assert "noeviction" in told["eviction"]


@pytest.mark.requirement("faults:start:says-what-may-be-lost")
async def test_a_server_that_keeps_everything_is_not_spoken_of(tmp_path: Path) -> None:
    with Valkey(tmp_path / "valkey") as server:
        async with Stack(tmp_path, server.url) as stack:
            stack.configure(settings("http://127.0.0.1:1/v1", "http://127.0.0.1:1/hook"))
            process = stack.start("turns")
            await stack.logged(process, "turns_process_started")
            assert [line["event"] for line in process.lines()] == ["turns_process_started"]


@pytest.mark.requirement("faults:start:not-now")
@pytest.mark.parametrize(
    ("name", "fault", "error", "is_first"),
    [
        ("delivery", a_replica, "READONLY", False),
        ("delivery", without_replicas, "NOREPLICAS", False),
        ("delivery", without_disk, "MISCONF", False),
        ("delivery", without_disk, "MISCONF", True),
        ("turns", without_disk, "MISCONF", True),
        ("web", without_disk, "MISCONF", True),
    ],
)
async def test_a_process_that_starts_while_the_server_cannot_write_works_once_it_can(
    tmp_path: Path, name: str, fault: Fault, error: str, is_first: bool
) -> None:
    with Valkey(tmp_path / "valkey") as server, redis.Redis.from_url(server.url) as client:
        async with Stack(tmp_path, server.url) as stack:
            stack.configure(settings("http://127.0.0.1:1/v1", "http://127.0.0.1:1/hook"))
            if not is_first:
                await ensure_meta(stack.client, stack.settings.partitions)

            async def refusals() -> int:
                return int(client.info("errorstats").get(f"errorstat_{error}", {"count": 0})["count"])

            with fault(client, server.folder):
                process = stack.start(name)
                await eventually(refusals, lambda count: count > 2, "refused commands")
            await stack.logged(process, f"{name}_process_started")
            assert process.returncode is None
