"""Turns that need no driver any more, or for which none can be made."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio

from tests.support.stack import eventually
from tests.support.whole_turns import settings_of
from worker import api, ids
from worker.output.events import UsageOutput
from worker.settings import WorkerSettings
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.lease import claim
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_text, read_turn
from worker.turn.facts import Committed
from worker.turn.usage import NO_USAGE, UsageTotals
from worker.wiring import TurnProcess

NOWHERE = "http://127.0.0.1:9"
LEASE: dict[str, float] = {"ttl_s": 0.4, "renew_s": 0.1}
AWAY: dict[str, Any] = {"mcp": {"gone": {"url": f"{NOWHERE}/mcp"}}, "agents": {"default": {"tools": ["mcp:gone"]}}}


@contextlib.asynccontextmanager
async def running(settings: WorkerSettings) -> AsyncIterator[TurnProcess]:
    process = TurnProcess(settings)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


async def begun(
    client: redis.asyncio.Redis, settings: WorkerSettings, agent: str = "default"
) -> tuple[str, str, ExecutionOutputAccumulator]:
    """A turn, its session, and what a driver that will vanish can do with it."""
    submitted = await api.submit(settings, client, prompt="When?", source="test", agent=agent, wake=lambda _: None)
    grant = await claim(client, submitted.session, ids.new_nonce(), LEASE["ttl_s"], 1)
    assert grant is not None
    return submitted.turn, submitted.session, ExecutionOutputAccumulator(client, grant, lambda: True)


async def ended(client: redis.asyncio.Redis, process: TurnProcess, session: str, turn: str) -> TurnRecord:
    async def look() -> TurnRecord | None:
        await process.run_session(session)
        return await read_turn(client, turn)

    record = await eventually(look, lambda seen: seen is not None and seen.state == "sealed", "the turn to end", 20)
    assert record is not None
    return record


@pytest.mark.requirement("lease:not-driven:answered")
@pytest.mark.parametrize(
    "of_the_other_process",
    [{"agents": {"default": {"tools": []}}}, {**AWAY, "agents": {**AWAY["agents"], "old": {"tools": ["mcp:gone"]}}}],
    ids=["the agent is gone", "its tools are away"],
)
async def test_a_turn_that_has_its_answer_ends_with_it_whatever_became_of_its_agent(
    of_the_other_process: dict[str, Any], real_url: str, real_redis: redis.asyncio.Redis
) -> None:
    before = settings_of(real_url, f"{NOWHERE}/v1", lease=LEASE, agents={"default": {}, "old": {}})
    turn, session, accumulator = await begun(real_redis, before, "old")
    await accumulator.open_call(1, 1, 0, True, "main")
    await accumulator.commit(Committed(1, 1, "All done.", (), "stop", None, "main"), NO_USAGE, [])
    async with running(settings_of(real_url, f"{NOWHERE}/v1", lease=LEASE, **of_the_other_process)) as process:
        record = await ended(real_redis, process, session, turn)
    assert (record.outcome, record.failure, await read_text(real_redis, turn)) == ("completed", None, "All done.")


@pytest.mark.requirement("lease:not-driven:usage")
async def test_a_turn_that_cannot_be_driven_tells_what_its_discards_cost(
    real_url: str, real_redis: redis.asyncio.Redis
) -> None:
    settings = settings_of(real_url, f"{NOWHERE}/v1", lease=LEASE, turns={"tool_timeout_s": 0.5}, **AWAY)
    turn, session, accumulator = await begun(real_redis, settings)
    await accumulator.open_call(1, 1, 0, True, "main")
    await accumulator.discard(1, 1, UsageTotals(discarded_resume_attempts=1), [], resumes_spent=1)
    await accumulator.open_call(1, 2, 1, False, "main")
    async with running(settings) as process:
        record = await ended(real_redis, process, session, turn)
    assert record.failure is not None
    assert record.failure.code == "tools_unavailable"
    assert record.totals.discarded_resume_attempts == 2, "the one that was left open counts as well"
    told = [output for output in await all_outputs(real_redis, turn) if isinstance(output, UsageOutput)]
    assert [output.discarded_resume_attempts for output in told] == [2]


@pytest.mark.requirement("lease:not-driven:drain")
async def test_a_process_that_waits_for_tools_gives_its_turn_back_as_soon_as_it_shuts_down(
    real_url: str, real_redis: redis.asyncio.Redis
) -> None:
    settings = settings_of(real_url, f"{NOWHERE}/v1", lease=LEASE, **AWAY)
    submitted = await api.submit(settings, real_redis, prompt="When?", source="test", wake=lambda _: None)
    async with running(settings) as process:
        driving = asyncio.ensure_future(process.run_session(submitted.session))

        async def state() -> str:
            record = await read_turn(real_redis, submitted.turn)
            assert record is not None
            return record.state

        await eventually(state, lambda seen: seen == "running", "the turn to be claimed", 10)
        process.drain()
        async with asyncio.timeout(5):
            await driving
        assert await state() == "queued"
        record = await read_turn(real_redis, submitted.turn)
        assert record is not None
        assert record.crashes == 0
