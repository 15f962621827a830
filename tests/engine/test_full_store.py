"""A store that becomes full while tools run: what runs ends and is recorded, and nothing further begins."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis.asyncio

from tests.support.stack import eventually, stand_in
from tests.support.whole_turns import settings_of
from worker import api, wiring
from worker.errors import StoreFull
from worker.output.events import ToolCallOutput, ToolResultOutput
from worker.process_sections import ProcessSettings
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.outputs import all_outputs
from worker.store.records import read_text, read_turn
from worker.wiring import TurnProcess

INSTALLED = Path(__file__).parents[1] / "process" / "installed"
WITHIN_S = 20.0
PAUSE_S = 1.5
"""Longer than a lease in the test that has it."""
MOST_STEPS = 50
"""So often the loop turns at most from a release to the end."""
SCRIPT = """
[[calls]]
steps = [ { tool = "gate" }, { tool = "note" } ]

[[calls]]
steps = [ { text = "Done." } ]
"""


def becomes_full(client: redis.asyncio.Redis, folder: Path, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """The store becomes full as the second tool of a call is about to start; set once that was refused."""
    monkeypatch.syspath_prepend(str(INSTALLED))
    monkeypatch.setenv("GATE", str(folder / "gate"))
    monkeypatch.setenv("TOOL_RUNS", str(folder / "runs"))
    start, refused = ExecutionOutputAccumulator.tool_start, asyncio.Event()

    async def full_from_the_second_on(self: ExecutionOutputAccumulator, call: int, index: int, outputs: Any) -> None:
        if index == 0 or refused.is_set():
            await start(self, call, index, outputs)
            return
        await client.config_set("maxmemory", 1)
        with pytest.raises(StoreFull):
            await start(self, call, index, outputs)
        refused.set()
        raise StoreFull("no room")

    monkeypatch.setattr(ExecutionOutputAccumulator, "tool_start", full_from_the_second_on)
    return refused


@pytest.mark.requirement("tools:full-store")
async def test_a_tool_that_runs_when_the_store_becomes_full_ends_and_is_recorded(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = becomes_full(real_redis, tmp_path, monkeypatch)
    async with stand_in(SCRIPT, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url, agents={"default": {"tools": ["gate", "note"]}})
        process = TurnProcess(settings)
        await process.start()
        try:
            turn, session = await _submitted(settings, real_redis)
            driving = asyncio.ensure_future(process.run_session(session))
            async with asyncio.timeout(WITHIN_S):
                await refused.wait()
            (tmp_path / "gate").touch()
            await eventually(
                lambda: all_outputs(real_redis, turn),
                lambda seen: any(isinstance(each, ToolResultOutput) for each in seen),
                "the result of the tool that runs",
                WITHIN_S,
            )
            assert not (tmp_path / "runs").exists()
            await real_redis.config_set("maxmemory", 0)
            async with asyncio.timeout(WITHIN_S):
                await driving
        finally:
            await real_redis.config_set("maxmemory", 0)
            await process.stop()
    record = await read_turn(real_redis, turn)
    assert record is not None
    assert (record.outcome, record.crashes, await read_text(real_redis, turn)) == ("completed", 0, "Done.")
    outputs = await all_outputs(real_redis, turn)
    assert [each.name for each in outputs if isinstance(each, ToolCallOutput)] == ["gate", "note"]
    assert [each.result for each in outputs if isinstance(each, ToolResultOutput)] == ["open", "noted"]
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{turn}:1:1\n"


@pytest.mark.requirement("survive:suspect:full-store")
async def test_who_has_no_room_keeps_the_turn_while_it_waits_and_ends_as_soon_as_it_gives_it_back(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease is renewed meanwhile, so nobody finds the turn due; behind the release nothing keeps the process."""
    release, at_release, released = ExecutionOutputAccumulator.release, asyncio.Event(), asyncio.Event()
    began: list[float] = []

    async def full(*_: Any, **__: Any) -> None:
        began.append(monotonic())
        raise StoreFull("no room")

    async def told(self: ExecutionOutputAccumulator) -> None:
        at_release.set()
        await release(self)
        released.set()

    monkeypatch.setattr(ExecutionOutputAccumulator, "open_call", full)
    monkeypatch.setattr(ExecutionOutputAccumulator, "release", told)
    monkeypatch.setattr(wiring, "_NO_ROOM_PAUSE_S", PAUSE_S)
    async with stand_in(SCRIPT, tmp_path) as provider:
        lease = {"ttl_s": 0.8, "renew_s": 0.1, "sweep_s": 0.1}
        settings = settings_of(real_url, provider.base_url, lease=lease)
        process = TurnProcess(settings)
        await process.start()
        try:
            turn, session = await _submitted(settings, real_redis)
            driving = asyncio.ensure_future(process.run_turn(session))
            async with asyncio.timeout(WITHIN_S):
                await at_release.wait()
                paused_s = monotonic() - began[0]
                record = await read_turn(real_redis, turn)
                await released.wait()
            for _ in range(MOST_STEPS):
                await asyncio.sleep(0)
            is_done = driving.done()
            await driving
        finally:
            await process.stop()
        assert record is not None
        assert (record.state, record.crashes, len(began)) == ("running", 0, 1)
        assert paused_s >= PAUSE_S
        assert is_done, "it does not sleep on a turn that it has given back"
        given_back = await read_turn(real_redis, turn)
        assert given_back is not None
        assert given_back.state == "queued"


async def _submitted(settings: Any, client: redis.asyncio.Redis) -> tuple[str, str]:
    submitted = await api.submit(settings, client, prompt="Look.", source="test", wake=lambda _: None)
    return submitted.turn, submitted.session


@pytest.mark.requirement("tools:full-store:ends")
@pytest.mark.parametrize("how", ["cancel", "drain"])
async def test_a_turn_that_is_to_end_while_the_store_is_full_ends_where_it_runs(
    real_redis: redis.asyncio.Redis,
    real_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    how: str,
) -> None:
    """Its tool runs, and would run on; neither end needs room."""
    caplog.set_level("INFO", logger="lastword")
    refused = becomes_full(real_redis, tmp_path, monkeypatch)
    async with stand_in(SCRIPT, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url, agents={"default": {"tools": ["gate", "note"]}})
        settings = settings.model_copy(update={"processes": ProcessSettings(drain_s=2)})
        process = TurnProcess(settings)
        await process.start()
        try:
            turn, session = await _submitted(settings, real_redis)
            driving = asyncio.ensure_future(process.run_session(session))
            async with asyncio.timeout(WITHIN_S):
                await refused.wait()
                if how == "cancel":
                    await api.cancel_turn(settings, real_redis, turn=turn, by="jo", wake=lambda _: None)
                else:
                    process.drain()
                await driving
        finally:
            await real_redis.config_set("maxmemory", 0)
            await process.stop()
    outputs = await all_outputs(real_redis, turn)
    assert "note" not in [each.name for each in outputs if isinstance(each, ToolResultOutput)]  # it has not begun
    record = await read_turn(real_redis, turn)
    assert record is not None
    ends = {"cancel": ("sealed", "cancelled"), "drain": ("queued", None)}
    assert (record.state, record.outcome) == ends[how]
    assert record.crashes == 0
    assert "turn_waits_for_room" not in caplog.messages
    assert ("turn_handed_off" in caplog.messages) == (how == "drain")
