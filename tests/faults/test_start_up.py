"""A process says at its start what its server may lose."""

from pathlib import Path

import pytest

from tests.faults.scene import settings
from tests.support.stack import Stack
from tests.support.valkey import Valkey

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
