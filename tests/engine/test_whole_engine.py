"""The engine as a whole, on a real store and over real HTTP: fallback, overflow, compaction, approvals, circles."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from channels.rehearsal.server import StandIn
from tests.support.stack import eventually, stand_in
from tests.support.whole_turns import WIRES, settings_of, whole_turn
from worker import api
from worker.output.events import (
    ApprovalDecidedOutput,
    ApprovalRequestOutput,
    CompactionOutput,
    TextOutput,
    UsageOutput,
)
from worker.settings import WorkerSettings
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_text, read_turn
from worker.wiring import TurnProcess

STALLS = 'after_last = "last"\n[[calls]]\nsteps = [ { text = "The tide is hig" }, { stall = true } ]\n'
ANSWERS = 'after_last = "last"\n[[calls]]\nsteps = [ { text = "The tide is low." } ]\n'


@contextlib.asynccontextmanager
async def running(settings: WorkerSettings) -> AsyncIterator[TurnProcess]:
    process = TurnProcess(settings)
    await process.start()
    try:
        yield process
    finally:
        await process.stop()


@contextlib.asynccontextmanager
async def two_providers(folder: Path, first: str, second: str) -> AsyncIterator[tuple[StandIn, StandIn]]:
    for name in ("first", "second"):
        (folder / name).mkdir()
    async with stand_in(first, folder / "first") as one, stand_in(second, folder / "second") as two:
        yield one, two


def with_backup(url: str, one: StandIn, two: StandIn, wire: str, **changes: Any) -> WorkerSettings:
    backup = {"wire": wire, "base_url": two.base_url, "model": "stand-in"}
    return settings_of(url, one.base_url, "chat", fallback="backup", providers={"backup": backup}, **changes)


async def run_turn(
    client: redis.asyncio.Redis, process: TurnProcess, settings: WorkerSettings, prompt: str = "When?", **more: Any
) -> TurnRecord:
    submitted = await api.submit(settings, client, prompt=prompt, source="test", wake=lambda _: None, **more)
    async with asyncio.timeout(30):
        await process.run_session(submitted.session)
    record = await read_turn(client, submitted.turn)
    assert record is not None
    return record


@pytest.mark.requirement("whole:fallback:other-wire")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_turn_whose_provider_stalls_goes_on_with_a_fallback_of_any_wire_format(
    wire: str, real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with two_providers(tmp_path, STALLS, ANSWERS) as (one, two):
        settings = with_backup(real_url, one, two, wire)
        async with running(settings) as process:
            record = await run_turn(real_redis, process, settings)
        assert (record.outcome, await read_text(real_redis, record.turn)) == ("completed", "The tide is low.")
        assert (len(one.transcript.exchanges), len(two.transcript.exchanges)) == (1, 1)
        assert two.transcript.exchanges[0].wire == wire


@pytest.mark.requirement("whole:fallback:unreachable")
async def test_a_provider_that_cannot_be_reached_is_left_for_its_fallback(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with stand_in(ANSWERS, tmp_path) as two:
        settings = settings_of(
            real_url,
            "http://127.0.0.1:9/v1",
            fallback="backup",
            transport_retries=1,
            providers={"backup": {"base_url": two.base_url, "model": "stand-in"}},
        )
        async with running(settings) as process:
            record = await run_turn(real_redis, process, settings)
    assert (record.outcome, record.totals.discarded_resume_attempts) == ("completed", 1)


@pytest.mark.requirement("whole:fallback:skipped-by-all")
async def test_a_provider_that_keeps_stalling_is_skipped_by_every_process(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with two_providers(tmp_path, STALLS, ANSWERS) as (one, two):
        changes = {
            "provider_health": {"deaths": 2, "window_s": 60, "skip_s": 60},
            "lease": {"ttl_s": 0.8, "renew_s": 0.1},
        }
        settings = with_backup(real_url, one, two, "chat", **changes)
        async with running(settings) as seen_it, running(settings) as another:
            await asyncio.gather(*(run_turn(real_redis, seen_it, settings) for _ in range(2)))
            asked = len(one.transcript.exchanges)

            async def asks_the_first() -> bool:
                before = len(one.transcript.exchanges)
                assert (await run_turn(real_redis, another, settings)).outcome == "completed"
                return len(one.transcript.exchanges) > before

            await eventually(asks_the_first, lambda asks: not asks, "the other process to skip the provider", 15)
        assert asked == 2


OVERFLOW = {
    "chat": {"error": {"message": "The maximum context length is 99 tokens.", "code": "context_length_exceeded"}},
    "responses": {"error": {"message": "Your input exceeds the context window.", "code": "context_length_exceeded"}},
    "anthropic": {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 > 8"}},
}


@pytest.mark.requirement("whole:compaction:overflow")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_context_that_overflows_is_summed_up_and_the_turn_completes(
    wire: str, real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    long_answer = "Once upon a time. " * 200
    (tmp_path / "overflow.json").write_text(json.dumps(OVERFLOW[wire]), encoding="utf-8")
    script = f"""
[[conversations]]
match = "TALE"
calls = [
  {{ steps = [ {{ text = "{long_answer}" }} ] }},
  {{ status = 400, body = {_toml(OVERFLOW[wire])} }},
]

[[conversations]]
match = "write the summary"
calls = [ {{ steps = [ {{ text = "A tale was told." }} ] }} ]

[[calls]]
steps = [ {{ text = "The end." }} ]
"""
    async with stand_in(script, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url, wire)
        async with running(settings) as process:
            first = await run_turn(real_redis, process, settings, "Tell me a TALE.")
            record = await run_turn(real_redis, process, settings, "How does it end?", session=first.session)
        outputs = await all_outputs(real_redis, record.turn)
        assert (record.outcome, await read_text(real_redis, record.turn)) == ("completed", "The end.")
        (compaction,) = [output for output in outputs if isinstance(output, CompactionOutput)]
        assert (compaction.forced, compaction.summarised, compaction.failure) == (True, True, None)
        beside = [output for output in outputs if isinstance(output, UsageOutput) and output.purpose == "compaction"]
        assert len(beside) == 1
        assert record.totals.discarded_resume_attempts is None
        last = json.dumps(provider.transcript.exchanges[-1].request)
        assert "A tale was told." in last
        assert "Once upon a time." not in last


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(entry)}" for key, entry in value.items()) + " }"
    return json.dumps(value)


ASKS = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "clock", arguments = { timezone = "UTC" } } ]

[[calls]]
steps = [ { text = "It is noon." } ]
"""


async def parked(client: redis.asyncio.Redis, process: TurnProcess, settings: WorkerSettings) -> TurnRecord:
    record = await run_turn(client, process, settings, requester="ana")
    assert (record.state, record.outcome) == ("parked", None)
    return record


@pytest.mark.requirement("whole:approval:parks-and-goes-on")
@pytest.mark.parametrize(
    ("option", "result"), [("approve_once", None), ("approve_session", None), ("deny", "not_approved")]
)
async def test_a_turn_that_needs_a_person_parks_without_a_lease_and_goes_on_in_another_process(
    option: str, result: str | None, real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with stand_in(ASKS, tmp_path) as provider:
        settings = settings_of(real_url, provider.base_url, tools={"clock": {"approval": "ask"}})
        async with running(settings) as process:
            record = await parked(real_redis, process, settings)
        (waiting,) = await api.list_approvals(real_redis, settings.partitions)
        assert (waiting.turn, waiting.tool, waiting.requester) == (record.turn, "clock", "ana")
        assert json.loads(waiting.arguments) == {"timezone": "UTC"}
        with pytest.raises(api.ApprovalRefused) as refused:
            await api.resolve_approval(
                settings, real_redis, approval=waiting.approval, option=option, by="bo", wake=lambda _: None
            )
        assert refused.value.code == "wrong_requester"
        woken: list[str] = []
        await api.resolve_approval(
            settings, real_redis, approval=waiting.approval, option=option, by="ana", wake=woken.append
        )
        assert woken == [record.session]
        async with running(settings) as other:
            await other.run_session(record.session)
    ended = await read_turn(real_redis, record.turn)
    assert ended is not None
    outputs = await all_outputs(real_redis, record.turn)
    assert (ended.outcome, ended.crashes) == ("completed", 0)
    assert await read_text(real_redis, record.turn) == "I will look. It is noon."
    (request,) = [output for output in outputs if isinstance(output, ApprovalRequestOutput)]
    (decided,) = [output for output in outputs if isinstance(output, ApprovalDecidedOutput)]
    (notice,) = [output for output in outputs if isinstance(output, TextOutput) and output.notice]
    assert (request.approval, request.is_call_boundary) == (waiting.approval, False)
    assert (decided.option, decided.by) == (option, "ana")
    assert (notice.notice, notice.is_call_boundary) == ("wrong_requester", False)
    results = [output.failure for output in outputs if output.type == "tool_result"]  # type: ignore[attr-defined]
    assert results == [result]


@pytest.mark.requirement("whole:approval:expires")
async def test_an_approval_that_nobody_answers_expires_and_the_turn_goes_on_without_the_tool(
    real_url: str, real_redis: redis.asyncio.Redis, tmp_path: Path
) -> None:
    async with stand_in(ASKS, tmp_path) as provider:
        settings = settings_of(
            real_url,
            provider.base_url,
            tools={"clock": {"approval": "ask"}},
            approvals={"expire_s": 1},
            lease={"ttl_s": 0.8, "renew_s": 0.1, "sweep_s": 0.1},
        )
        async with running(settings) as process:
            record = await parked(real_redis, process, settings)

            async def ended() -> TurnRecord | None:
                await process.run_session(record.session)
                return await read_turn(real_redis, record.turn)

            sealed: Callable[[TurnRecord | None], bool] = lambda seen: seen is not None and seen.state == "sealed"  # noqa: E731
            await eventually(ended, sealed, "the approval to expire and the turn to end", 20)
    outputs = await all_outputs(real_redis, record.turn)
    assert await read_text(real_redis, record.turn) == "I will look. It is noon."
    assert [output.failure for output in outputs if output.type == "tool_result"] == ["approval_expired"]  # type: ignore[attr-defined]
    assert [output.notice for output in outputs if isinstance(output, TextOutput) and output.notice] == [
        "prompt_expired"
    ]


@pytest.mark.requirement("whole:circles")
@pytest.mark.parametrize("wire", WIRES)
async def test_a_model_that_goes_round_in_circles_is_stopped(wire: str, real_url: str, tmp_path: Path) -> None:
    script = """
after_last = "last"

[[calls]]
steps = [ { text = "Again. " }, { tool = "clock", arguments = { timezone = "Nowhere/Land" } } ]
"""
    turn = await whole_turn(real_url, tmp_path, script, wire)
    assert (turn.record.outcome, turn.code) == ("failed", "tool_loop")
    assert turn.text == "Again. " * 4
    assert [result.failure for result in turn.tool_results] == ["refused", "refused", "repeated"]


@pytest.mark.requirement("whole:results:clamped")
async def test_a_result_that_is_too_long_is_shown_to_the_model_by_its_two_ends(real_url: str, tmp_path: Path) -> None:
    zone = "Nowhere/" + "x" * 900
    script = f"""
[[calls]]
steps = [ {{ tool = "clock", arguments = {{ timezone = "{zone}" }} }} ]

[[calls]]
steps = [ {{ text = "No such place." }} ]
"""
    turn = await whole_turn(real_url, tmp_path, script, turns={"tool_result_chars": 300})
    assert turn.record.outcome == "completed"
    (result,) = turn.tool_results
    assert len(result.result) <= 300
    assert result.result.startswith("Error: unknown timezone")
