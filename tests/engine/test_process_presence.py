"""Whether a process lives and is ready, as itself and others tell it."""

import asyncio
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.support.stack import eventually
from worker.engine import presence, probes
from worker.engine.loop import LoopThread
from worker.engine.presence import Doing, Presence
from worker.errors import ConfigurationError
from worker.sections import MetricsSettings
from worker.store import connect
from worker.store.processes import LivingProcess, figures, living

WITHIN_S = 15.0


class Process:
    """A presence with a loop of its own, and what it is doing."""

    def __init__(self, url: str, settings: MetricsSettings) -> None:
        self.doing = Doing(0, draining=False)
        self.loop = LoopThread()
        self.asked = 0
        self.presence = Presence(connect.open_redis_sync(url), "turns", self._does, settings)

    def _does(self) -> Doing:
        self.asked += 1
        return self.doing

    async def is_ready(self) -> bool:
        return self.presence.is_ready()

    async def is_live(self) -> bool:
        return self.presence.is_live()


@asynccontextmanager
async def running(url: str, port: int = 0) -> AsyncIterator[Process]:
    process = Process(url, MetricsSettings(report_s=0.2, port=port))
    process.loop.start()
    process.presence.start(process.loop.loop)
    try:
        yield process
    finally:
        await asyncio.to_thread(process.presence.stop)
        process.loop.stop()


async def until(look: Callable[[], Any], wanted: Callable[[Any], bool], awaited: str) -> Any:
    return await eventually(look, wanted, awaited, WITHIN_S)


def answered(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.requirement("status:shows:all")
async def test_a_process_tells_what_it_does_until_it_stops(real_url: str, real_redis: redis.asyncio.Redis) -> None:
    async def told() -> list[LivingProcess]:
        return await living(real_redis)

    async with running(real_url) as process:
        [first] = await until(told, bool, "the first report")
        assert (first.id, first.told.role, first.told.turns) == (process.presence.process, "turns", 0)
        assert not first.told.draining
        process.doing = Doing(4, draining=True)
        [later] = await until(told, lambda seen: seen[0].told.turns == 4, "the report of four turns")
        assert (later.told.draining, later.told.stopped, later.since_ms) == (True, False, first.since_ms)
        assert later.told.loop_lag_s < presence.STUCK_S
        [(role, counted)] = (await figures(real_redis)).values()
        assert role == "turns"
        assert b"lastword_turns_driven 4.0" in counted
        assert b"lastword_process_draining 1.0" in counted
        assert b"lastword_event_loop_lag_seconds_count" in counted
    [last] = await told()
    assert last.told.stopped


@pytest.mark.requirement("metrics:probes:live")
async def test_a_process_whose_loop_hangs_is_not_live(
    real_url: str, real_redis: redis.asyncio.Redis, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "STUCK_S", 0.5)
    async with running(real_url, unused_port) as process:

        async def livez() -> tuple[int, str]:
            return await asyncio.to_thread(answered, unused_port, "/livez")

        await until(process.is_ready, bool, "a ready process")
        await until(livez, lambda said: said == (200, "live\n"), "a live process")
        let_go = threading.Event()
        process.loop.loop.call_soon_threadsafe(lambda: let_go.wait(WITHIN_S))
        await until(process.is_live, lambda live: not live, "a loop that hangs to be noticed")
        assert await asyncio.to_thread(answered, unused_port, "/livez") == (503, "not live\n")
        assert await asyncio.to_thread(answered, unused_port, "/readyz") == (503, "not ready\n")

        async def lag_s() -> float:
            return (await living(real_redis))[0].told.loop_lag_s

        await until(lag_s, lambda lag: lag > 0.5, "the others to be told of the lag")
        let_go.set()
        await until(process.is_live, bool, "the loop to turn again")
        await until(process.is_ready, bool, "the process to be ready again")


@pytest.mark.requirement("metrics:probes:ready")
async def test_a_process_is_ready_while_redis_answers_and_it_takes_work(real_url: str, unused_port: int) -> None:
    async with running(real_url, unused_port) as process:
        await until(process.is_ready, bool, "a ready process")
        assert await asyncio.to_thread(answered, unused_port, "/readyz") == (200, "ready\n")
        process.doing = Doing(1, draining=True)
        assert await asyncio.to_thread(answered, unused_port, "/readyz") == (503, "not ready\n")
        assert await asyncio.to_thread(answered, unused_port, "/livez") == (200, "live\n")
        status, counted = await asyncio.to_thread(answered, unused_port, "/metrics")
        assert (status, "lastword_turns_driven" in counted) == (200, True)
        assert (await asyncio.to_thread(answered, unused_port, "/what"))[0] == 404


@pytest.mark.requirement("metrics:probes:ready")
async def test_a_process_without_its_redis_is_live_and_not_ready_and_says_so_once(
    unused_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("lastword").addHandler(caplog.handler)
    async with running(f"redis://127.0.0.1:{unused_port}/0") as process:

        async def told() -> int:
            return sum(record.getMessage() == "process_not_told" for record in caplog.records)

        await until(told, bool, "a line about reports that are not taken")

        async def reports() -> int:
            return process.asked

        await until(reports, lambda count: count > 3, "three more reports")
        await until(process.is_live, bool, "the process to live")
        assert not process.presence.is_ready()
    assert await told() == 1


@pytest.mark.requirement("metrics:probes:port")
async def test_a_port_that_is_taken_is_refused_with_the_fix(real_url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = Process(real_url, MetricsSettings(port=port))
        with pytest.raises(ConfigurationError, match=rf"metrics\.port = {port} .*\(LASTWORD_METRICS__PORT\)"):
            process.presence.start(process.loop.loop)


@pytest.mark.requirement("metrics:probes:bounded")
async def test_connections_that_ask_for_nothing_cost_no_probe_its_answer(
    real_url: str, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_IDLE_LIMIT_S", 300.0)
    async with running(real_url, unused_port) as process:
        await until(process.is_ready, bool, "a ready process")
        idle = [socket.create_connection(("127.0.0.1", unused_port)) for _ in range(60)]
        try:
            assert await asyncio.to_thread(answered, unused_port, "/livez") == (200, "live\n")

            async def handlers() -> int:
                return sum("process_request_thread" in one.name for one in threading.enumerate())

            await until(handlers, lambda count: count <= 16, "at most sixteen connections")
        finally:
            for one in idle:
                one.close()


@pytest.mark.requirement("metrics:probes:bounded")
async def test_a_probe_that_is_not_asked_goes_and_tells_no_version(
    real_url: str, unused_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "_IDLE_LIMIT_S", 0.3)
    async with running(real_url, unused_port) as process:
        await until(process.is_ready, bool, "a ready process")
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_port)
        async with asyncio.timeout(WITHIN_S):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", unused_port)
        writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            answer = await reader.read()
        writer.close()
    assert answer.startswith(b"HTTP/1.0 200")
    assert b"Server:" not in answer
