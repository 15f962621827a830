"""A process that runs turns, where nothing is as it should be: every turn ends all the same."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio

from tests.support.forwarder import Forwarder
from tests.support.stack import eventually, stand_in
from worker import api, drivers
from worker.errors import StoreError
from worker.process_sections import ProcessSettings
from worker.settings import WorkerSettings
from worker.store import journal, keys, lease
from worker.store.records import TurnRecord, read_turn
from worker.wiring import TurnProcess

SLOW = """
[[calls]]
steps = [ { text = "An answer that takes its time.", pieces = 30, every_s = 0.25 } ]
"""
WITHIN_S = 15.0


def settings_of(url: str, base_url: str = "http://127.0.0.1:9/v1") -> WorkerSettings:
    return WorkerSettings.model_validate(
        {
            "redis_url": url,
            "providers": {"main": {"base_url": base_url, "model": "stand-in"}},
            "turns": {"crash_cap": 1},
            "lease": {"ttl_s": 0.4, "renew_s": 0.1},
        }
    )


@contextlib.asynccontextmanager
async def running(settings: WorkerSettings) -> AsyncIterator[TurnProcess]:
    process = TurnProcess(settings)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


async def sealed(client: redis.asyncio.Redis, process: TurnProcess, settings: WorkerSettings) -> TurnRecord:
    """The record of a turn, asked for again and again as wake-ups would, once it is sealed."""
    submitted = await api.submit(settings, client, prompt="hello", source="test", wake=lambda _: None)
    return await ended(client, process, submitted.session, submitted.turn)


async def ended(client: redis.asyncio.Redis, process: TurnProcess, session: str, turn: str) -> TurnRecord:
    async def wake_and_look() -> TurnRecord | None:
        with contextlib.suppress(RuntimeError, StoreError):
            await process.run_session(session)
        return await read_turn(client, turn)

    record = await eventually(
        wake_and_look, lambda seen: seen is not None and seen.state == "sealed", "the turn to be sealed", WITHIN_S
    )
    assert record is not None
    return record


@pytest.mark.requirement("lease:not-driven:ends")
async def test_a_turn_that_no_process_can_begin_to_drive_ends_once_the_crash_cap_is_spent(
    real_redis: redis.asyncio.Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a fault of our own")

    settings = settings_of(real_url)
    monkeypatch.setattr(drivers, "turn_limits", fail)
    async with running(settings) as process:
        record = await sealed(real_redis, process, settings)
    assert record.outcome == "failed"
    assert record.failure is not None
    assert record.failure.code == "cannot_be_driven"
    assert "RuntimeError" in record.failure.message


@pytest.mark.requirement("lease:not-driven:ends")
async def test_a_turn_whose_journal_cannot_be_read_ends(real_redis: redis.asyncio.Redis, real_url: str) -> None:
    settings = settings_of(real_url)
    submitted = await api.submit(settings, real_redis, prompt="hello", source="test", wake=lambda _: None)
    await real_redis.rpush(keys.journal(submitted.turn), "{not json")
    async with running(settings) as process:
        record = await ended(real_redis, process, submitted.session, submitted.turn)
    assert record.failure is not None
    assert record.failure.code == "cannot_be_driven"


def unanswered(monkeypatch: pytest.MonkeyPatch, going_on: Callable[[int], Awaitable[bool]]) -> list[int]:
    """What a session has said is not answered as long as `going_on` says so of the number of the try."""
    read, tries = journal.history, [0]

    async def history(*args: Any) -> Any:
        tries[0] += 1
        if await going_on(tries[0]):
            raise redis.ConnectionError("away")
        return await read(*args)

    monkeypatch.setattr(journal, "history", history)
    return tries


@pytest.mark.requirement("lease:not-driven:outage")
async def test_an_outage_while_a_driver_is_made_counts_no_crash(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over_at: list[float] = []

    async def longer_than_a_lease(_: int) -> bool:
        over_at[:] = over_at or [monotonic() + 1.0]  # the lease lasts 0.4 s
        return monotonic() < over_at[0]

    tries = unanswered(monkeypatch, longer_than_a_lease)
    async with stand_in('[[calls]]\nsteps = [ { text = "Here." } ]\n', tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url)
        async with running(settings) as process:
            submitted = await api.submit(settings, real_redis, prompt="x", source="test", wake=lambda _: None)
            await process.run_session(submitted.session)
    record = await read_turn(real_redis, submitted.turn)
    assert record is not None
    assert (record.outcome, record.crashes) == ("completed", 0)
    assert tries[0] > 1


@pytest.mark.requirement("lease:not-driven:outage")
async def test_a_process_that_has_no_time_left_to_ask_hands_over_what_it_has_not_begun(
    real_redis: redis.asyncio.Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def for_ever(_: int) -> bool:
        return True

    tries = unanswered(monkeypatch, for_ever)
    settings = settings_of(real_url).model_copy(update={"processes": ProcessSettings(drain_s=1)})
    async with running(settings) as process:
        submitted = await api.submit(settings, real_redis, prompt="x", source="test", wake=lambda _: None)
        driving = asyncio.ensure_future(process.run_session(submitted.session))

        async def look() -> int:
            return tries[0]

        await eventually(look, bool, "the session to be read", WITHIN_S)
        process.drain()
        async with asyncio.timeout(WITHIN_S):
            await driving
    record = await read_turn(real_redis, submitted.turn)
    assert record is not None
    assert (record.state, record.crashes) == ("queued", 0)


@pytest.mark.requirement("lease:not-driven:ends")
async def test_a_turn_whose_session_alone_is_never_read_ends_and_no_crash_is_counted(
    real_redis: redis.asyncio.Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def for_ever(_: int) -> bool:
        return True

    unanswered(monkeypatch, for_ever)
    settings = settings_of(real_url)
    settings = settings.model_copy(update={"turns": settings.turns.model_copy(update={"tool_timeout_s": 1.0})})
    async with running(settings) as process:
        record = await sealed(real_redis, process, settings)
    assert record.failure is not None
    assert (record.failure.code, record.crashes) == ("cannot_be_driven", 0)


@pytest.mark.requirement("lease:not-driven:outage")
async def test_an_outage_that_lasts_longer_than_a_tool_may_be_silent_fails_no_turn(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what was said nor renewals are answered: it is the store that is away, not one session."""
    over_at: list[float] = []

    def is_away() -> bool:
        return bool(over_at) and monotonic() < over_at[0]

    async def longer_than_a_tool_may_be_silent(_: int) -> bool:
        over_at[:] = over_at or [monotonic() + 3.0]  # a tool: 1 s
        return is_away()

    renew = lease.renew

    def renewed(*args: Any) -> Any:
        if is_away():
            raise redis.ConnectionError("away")
        return renew(*args)

    monkeypatch.setattr(lease, "renew", renewed)
    unanswered(monkeypatch, longer_than_a_tool_may_be_silent)
    async with stand_in('[[calls]]\nsteps = [ { text = "Here." } ]\n', tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url)
        settings = settings.model_copy(update={"turns": settings.turns.model_copy(update={"tool_timeout_s": 1.0})})
        async with running(settings) as process:
            submitted = await api.submit(settings, real_redis, prompt="x", source="test", wake=lambda _: None)
            await process.run_session(submitted.session)
    record = await read_turn(real_redis, submitted.turn)
    assert record is not None
    assert (record.outcome, record.crashes) == ("completed", 0)


@pytest.mark.requirement("lease:not-driven:configuration")
async def test_certificates_that_cannot_be_read_fail_the_turn_with_the_fix(
    real_redis: redis.asyncio.Redis, real_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "nowhere.pem"))
    settings = settings_of(real_url, "https://127.0.0.1:9/v1")
    async with running(settings) as process:
        record = await sealed(real_redis, process, settings)
    assert record.failure is not None
    assert record.failure.code == "not_configured"
    assert "SSL_CERT_FILE" in record.failure.message


async def test_a_turn_of_an_agent_that_this_process_does_not_know_fails_with_the_fix(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    settings = settings_of(real_url)
    other = settings.model_copy(update={"agents": {"other": settings.agents["default"]}})
    async with running(other) as process:
        record = await sealed(real_redis, process, settings)
    assert record.failure is not None
    assert "agents.default" in record.failure.message


async def test_a_draining_process_takes_no_turn_and_leaves_it_to_others(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    settings = settings_of(real_url)
    submitted = await api.submit(settings, real_redis, prompt="hello", source="test", wake=lambda _: None)
    async with running(settings) as process:
        process.drain()
        await asyncio.wait_for(process.run_session(submitted.session), WITHIN_S)
    record = await read_turn(real_redis, submitted.turn)
    assert record is not None
    assert record.state == "queued"


@pytest.mark.requirement("drain:limit:redis-away")
async def test_a_drain_without_a_redis_asks_it_no_more_once_its_time_is_up(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    """The hand-over is not answered, and nobody else is known to own the turn: it could be tried for ever."""
    port = urlsplit(real_url).port
    assert port is not None
    async with stand_in(SLOW, tmp_path) as provider, Forwarder(port) as network:
        settings = settings_of(real_url.replace(f":{port}", f":{network.port}"), provider.base_url)
        settings = settings.model_copy(update={"processes": ProcessSettings(drain_s=2)})
        async with running(settings) as process:
            submitted = await api.submit(settings, real_redis, prompt="x", source="test", wake=lambda _: None)
            driving = asyncio.ensure_future(process.run_session(submitted.session))
            await provider.transcript.wait_for_request(1, WITHIN_S)
            async with network.away():
                process.drain()
                done, _ = await asyncio.wait([driving], timeout=WITHIN_S)
            driving.cancel()
            await asyncio.wait([driving])
    assert done == {driving}


@pytest.mark.requirement("lease:suspect:run-alone")
async def test_a_process_that_runs_only_what_it_is_handed_runs_a_suspect_itself(
    real_redis: redis.asyncio.Redis, real_url: str
) -> None:
    """As `lastword run` does, and the process that is started for a suspect."""
    settings = settings_of(real_url)
    submitted = await api.submit(settings, real_redis, prompt="hello", source="test", wake=lambda _: None)
    await real_redis.hset(keys.turn_record(submitted.turn), "crashes", 2)
    waiting = await api.submit(
        settings, real_redis, prompt="next", source="test", wake=lambda _: None, session=submitted.session
    )
    async with running(settings) as process:
        await process.run_turn(submitted.session)
        record = await read_turn(real_redis, submitted.turn)
        following = await read_turn(real_redis, waiting.turn)
    assert record is not None
    assert following is not None
    assert (record.state, record.suspect, record.suspect_crashes) == ("sealed", True, 0)
    assert following.state == "queued"


@pytest.mark.requirement("lease:suspect:dead-first")
async def test_a_turn_that_is_given_up_ends_before_anything_is_made_that_could_take_the_process_down(
    real_redis: redis.asyncio.Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deadly(*_: Any) -> None:
        raise AssertionError("the tools of a dead turn were looked for")

    settings = settings_of(real_url)
    submitted = await api.submit(settings, real_redis, prompt="hello", source="test", wake=lambda _: None)
    await real_redis.hset(keys.turn_record(submitted.turn), mapping={"crashes": 4, "suspect_crashes": 2})
    monkeypatch.setattr(drivers.DriverMaker, "_tools", deadly)
    async with running(settings) as process:
        await process.run_turn(submitted.session)
        record = await read_turn(real_redis, submitted.turn)
    assert record is not None
    assert record.failure is not None
    assert (record.outcome, record.failure.code) == ("dead", "crash_cap")
