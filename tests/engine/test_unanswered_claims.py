"""A claim whose answer is lost in an outage: the store may have taken it, and nobody but its sender knows of it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.support.stack import eventually, stand_in
from tests.support.whole_turns import settings_of
from worker import api
from worker.engine.heartbeat import Heartbeat
from worker.process_sections import ProcessSettings
from worker.settings import WorkerSettings
from worker.store import claims, keys, lease
from worker.store.records import TurnRecord, read_turn
from worker.wiring import TurnProcess

WITHIN_S = 20.0
SCRIPT = '[[calls]]\nsteps = [ { text = "Done." } ]\n'


class Outage:
    """The store is away from the first claim on, which it `takes` or not, for so many `tries` to ask it afterwards."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, client: redis.asyncio.Redis, *, takes: bool, tries: int
    ) -> None:
        self._client = client
        self._takes = takes
        self.tries_left = tries
        self._began = False
        self.asked = 0
        self.turn = ""
        for name in ("claim", "claim_among_others"):
            monkeypatch.setattr(lease, name, self._once_lost(getattr(lease, name)))
        real = claims.was_taken

        async def was_taken(*args: Any) -> bool:
            self.asked += 1
            self.tries_left -= 1
            if self.tries_left >= 0:
                raise redis.ConnectionError("away")
            return await real(*args)

        monkeypatch.setattr(claims, "was_taken", was_taken)

    def may_claim(self) -> bool:
        """What the heartbeat says: after an outage living drivers come first, for longer than this test lasts."""
        return not self._began

    def _once_lost(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def claim(*args: Any, **more: Any) -> Any:
            if self._began:
                return await real(*args, **more)
            self._began = True
            if self._takes:
                assert await real(*args, **more) is not None
                await self._client.hset(keys.turn_record(self.turn), "lease_ms", 1)  # longer than a lease
            raise redis.ConnectionError("away")

        return claim


async def run(
    outage: Outage,
    client: redis.asyncio.Redis,
    settings: WorkerSettings,
    monkeypatch: pytest.MonkeyPatch,
    *,
    alone: bool,
) -> tuple[TurnProcess, "asyncio.Task[None]"]:
    monkeypatch.setattr(Heartbeat, "may_claim", lambda _: outage.may_claim())
    process = TurnProcess(settings, None if alone else lambda _: None)
    await process.start()
    submitted = await api.submit(settings, client, prompt="Look.", source="test", wake=lambda _: None)
    outage.turn = submitted.turn
    return process, asyncio.get_running_loop().create_task(process.run_turn(submitted.session))


async def asked(outage: Outage) -> None:
    """Return once the store was asked what became of the claim."""

    async def look() -> int:
        return outage.asked

    await eventually(look, bool, "the store to be asked for the claim", WITHIN_S)


async def record_of(client: redis.asyncio.Redis, turn: str) -> TurnRecord:
    record = await read_turn(client, turn)
    assert record is not None
    return record


@pytest.mark.requirement("lease:claim:unanswered")
@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("takes", [True, False])
async def test_a_claim_that_an_outage_cut_off_counts_no_crash(
    real_redis: redis.asyncio.Redis,
    real_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    takes: bool,
    alone: bool,
) -> None:
    """One that was taken is driven on, in the calm after the outage, too; another is left to whoever comes."""
    outage = Outage(monkeypatch, real_redis, takes=takes, tries=3)
    async with stand_in(SCRIPT, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url)
        process, running = await run(outage, real_redis, settings, monkeypatch, alone=alone)
        try:
            async with asyncio.timeout(WITHIN_S):
                await running
        finally:
            await process.stop()
    record = await record_of(real_redis, outage.turn)
    assert (record.state, record.crashes) == ("sealed" if takes else "queued", 0)
    assert record.outcome == ("completed" if takes else None)
    assert outage.asked == 4


@pytest.mark.requirement("lease:claim:unanswered")
async def test_a_process_that_shuts_down_hands_over_what_it_has_unknowingly_claimed(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch, real_redis, takes=True, tries=10**9)
    async with stand_in(SCRIPT, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url)
        process, running = await run(outage, real_redis, settings, monkeypatch, alone=True)
        try:
            await asked(outage)
            process.drain()
            outage.tries_left = 0
            async with asyncio.timeout(WITHIN_S):
                await running
        finally:
            await process.stop()
        assert not provider.transcript.exchanges
    record = await record_of(real_redis, outage.turn)
    assert (record.state, record.crashes) == ("queued", 0)


@pytest.mark.requirement("lease:claim:unanswered")
async def test_a_process_that_shuts_down_in_the_outage_asks_no_longer_than_it_has_time(
    real_redis: redis.asyncio.Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = Outage(monkeypatch, real_redis, takes=True, tries=10**9)
    settings = settings_of(real_url, "http://127.0.0.1:9/v1")
    settings = settings.model_copy(update={"processes": ProcessSettings(drain_s=1)})
    process, running = await run(outage, real_redis, settings, monkeypatch, alone=True)
    try:
        await asked(outage)
        process.drain()
        async with asyncio.timeout(WITHIN_S):
            await running
    finally:
        await process.stop()
