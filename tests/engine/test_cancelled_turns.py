"""Cancels that meet a turn at the worst moment: a real process, a real store, real HTTP, and one end each time.

The heartbeat tells of a cancel within half a second. What must hold before it does is shown by one that never tells.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis.asyncio

from channels.rehearsal.server import StandIn
from tests.support.stack import eventually, stand_in
from worker import api, ids
from worker.codecs.events import ToolCall
from worker.engine import heartbeat, recording
from worker.output.events import Output, TextStreamDiscardedOutput, TurnCompletedOutput
from worker.settings import WorkerSettings
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.lease import claim
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_text, read_turn
from worker.turn.events import InboxMessage
from worker.turn.facts import Committed
from worker.turn.usage import NO_USAGE
from worker.wiring import TurnProcess

WITHIN_S = 20.0
NEVER_S = 3600.0
TOOL = '[[calls]]\nsteps = [ { text = "I will look. " }, { tool = "clock", arguments = {} } ]\n'
STEPS = 'steps = [ { text = "It is noon." } ]\n'
ANSWER = f"[[calls]]\n{STEPS}"
BUSY = "[[calls]]\nstatus = 503\n"
STALL = '[[calls]]\nsteps = [ { text = "It" }, { stall = true } ]\n'


@dataclass
class Scene:
    """A process with one provider."""

    settings: WorkerSettings
    client: redis.asyncio.Redis
    process: TurnProcess
    provider: StandIn
    driving: list[asyncio.Task[None]] = field(default_factory=list)

    async def submit(self, prompt: str = "What is the time?", **more: Any) -> str:
        submitted = await api.submit(
            self.settings,
            self.client,
            prompt=prompt,
            source="test",
            wake=lambda _: None,
            **{"session": "chat/1", "watch_s": 60, **more},
        )
        return submitted.turn

    def drive(self) -> None:
        driving = self.process.run_session("chat/1")
        self.driving.append(asyncio.create_task(driving))  # noqa: TID251 - the scene ends it

    async def cancel(self, turn: str) -> None:
        await api.cancel_turn(self.settings, self.client, turn=turn, by="jo", wake=lambda _: None)

    async def ended(self, turn: str) -> TurnRecord:
        record = await eventually(
            lambda: read_turn(self.client, turn),
            lambda seen: seen is not None and seen.state == "sealed",
            "the turn to end",
            WITHIN_S,
        )
        assert record is not None
        return record

    @property
    def requests(self) -> int:
        return len(self.provider.transcript.exchanges)


@contextlib.asynccontextmanager
async def scene(script: str, folder: Path, url: str, client: redis.asyncio.Redis, **more: Any) -> AsyncIterator[Scene]:
    async with stand_in(script, folder) as provider:
        of_provider = {"base_url": provider.base_url, "model": "stand-in", **more.pop("provider", {})}
        settings = WorkerSettings.model_validate(
            {
                "redis_url": url,
                "providers": {"main": of_provider},
                "agents": {"default": {"tools": ["clock"]}},
                **more,
            }
        )
        process = TurnProcess(settings)
        await process.start()
        made = Scene(settings, client, process, provider)
        try:
            yield made
        finally:
            process.drain()
            for task in made.driving:
                task.cancel()
            await asyncio.gather(*made.driving, return_exceptions=True)
            await process.stop()


@pytest.fixture
def nobody_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat does not look for cancels: what the store refuses is all that a driver hears."""
    monkeypatch.setattr(heartbeat, "_LOOK_S", NEVER_S)
    monkeypatch.setattr(heartbeat.Heartbeat, "_look_for_cancels", lambda _: None)


def before(
    monkeypatch: pytest.MonkeyPatch, verb: str, act: Callable[[ExecutionOutputAccumulator], Awaitable[None]]
) -> None:
    """Do something just before the driver takes this step for the first time."""
    step, done = getattr(ExecutionOutputAccumulator, verb), asyncio.Event()

    async def first_act(self: ExecutionOutputAccumulator, *args: Any, **more: Any) -> Any:
        if not done.is_set():
            done.set()
            await act(self)
        return await step(self, *args, **more)

    monkeypatch.setattr(ExecutionOutputAccumulator, verb, first_act)


async def check(scene: Scene, turn: str, text: str) -> list[Output]:
    record = await scene.ended(turn)
    assert (record.outcome, record.reason) == ("cancelled", "requested")
    outputs = await all_outputs(scene.client, turn)
    assert [each.outcome for each in outputs if isinstance(each, TurnCompletedOutput)] == ["cancelled"]
    assert await read_text(scene.client, turn) == text
    return outputs


@pytest.mark.requirement("cancel:refused-step")
@pytest.mark.requirement("cases:t19:before-the-commit")
@pytest.mark.usefixtures("nobody_tells")
@pytest.mark.parametrize(
    ("verb", "script", "text", "requests"),
    [
        ("open_call", ANSWER, "", 0),
        ("commit", ANSWER, "", 1),
        ("tool_start", TOOL + ANSWER, "I will look. ", 1),
    ],
)
async def test_a_cancel_just_before_a_step_ends_the_turn_there(
    monkeypatch: pytest.MonkeyPatch,
    real_redis: redis.asyncio.Redis,
    real_url: str,
    tmp_path: Path,
    verb: str,
    script: str,
    text: str,
    requests: int,
) -> None:
    async with scene(script, tmp_path, real_url, real_redis) as it:
        before(monkeypatch, verb, lambda accumulator: it.cancel(accumulator.turn))
        turn = await it.submit()
        it.drive()
        outputs = await check(it, turn, text)
        assert it.requests == requests
    discards = [(each.call, each.reason) for each in outputs if isinstance(each, TextStreamDiscardedOutput)]
    assert discards == ([(1, "cancelled")] if verb == "commit" else [])


@pytest.mark.requirement("cancel:refused-step")
@pytest.mark.usefixtures("nobody_tells")
async def test_a_process_that_shuts_down_meanwhile_still_ends_the_turn(
    monkeypatch: pytest.MonkeyPatch, real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with scene(ANSWER, tmp_path, real_url, real_redis) as it:

        async def cancel_and_drain(accumulator: ExecutionOutputAccumulator) -> None:
            await it.cancel(accumulator.turn)
            it.process.drain()

        before(monkeypatch, "open_call", cancel_and_drain)
        turn = await it.submit()
        it.drive()
        await check(it, turn, "")
        assert (await it.ended(turn)).crashes == 0


@pytest.mark.requirement("cancel:no-request-after")
@pytest.mark.requirement("cases:t19:resume-backoff")
@pytest.mark.usefixtures("nobody_tells")
@pytest.mark.parametrize(
    ("script", "more"),
    [
        (BUSY + ANSWER, {"provider": {"transport_backoff_s": 0.5}}),
        (STALL + ANSWER, {"provider": {"stall_timeout_s": 0.3}, "turns": {"resume_backoff_s": 0.5}}),
    ],
    ids=["the request goes out again", "the next attempt"],
)
async def test_no_request_starts_once_the_end_is_wanted_though_nobody_has_told_the_driver(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, script: str, more: dict[str, Any]
) -> None:
    async with scene(script, tmp_path, real_url, real_redis, **more) as it:
        turn = await it.submit()
        it.drive()
        await it.provider.transcript.wait_for_end(1)
        await it.cancel(turn)
        await check(it, turn, "")
        assert it.requests == 1


@pytest.mark.requirement("cancel:told")
@pytest.mark.requirement("cases:t19:before-headers")
async def test_a_request_that_was_not_answered_yet_is_dropped(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with scene(f"[[calls]]\ndelay_s = 60\n{STEPS}", tmp_path, real_url, real_redis) as it:
        turn = await it.submit()
        it.drive()
        await it.provider.transcript.wait_for_request(1)
        await it.cancel(turn)
        await check(it, turn, "")
        assert (await it.provider.transcript.wait_for_end(1)).ended == "stall", "silent until its client left"
        assert it.requests == 1


@pytest.mark.requirement("cancel:told")
async def test_a_driver_is_told_while_it_waits_for_the_next_attempt(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    waits: dict[str, Any] = {"provider": {"stall_timeout_s": 0.3}, "turns": {"resume_backoff_s": 60}}
    async with scene(STALL + ANSWER, tmp_path, real_url, real_redis, **waits) as it:
        turn = await it.submit()
        it.drive()
        await it.provider.transcript.wait_for_end(1)
        await it.cancel(turn)
        await check(it, turn, "")
        assert it.requests == 1


@pytest.mark.requirement("cancel:told")
async def test_a_turn_whose_tools_are_out_of_reach_is_not_waited_for(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    away: dict[str, Any] = {
        "mcp": {"gone": {"url": "http://127.0.0.1:9/mcp"}},
        "agents": {"default": {"tools": ["mcp:gone"]}},
        "turns": {"tool_timeout_s": 600},
    }
    async with scene(ANSWER, tmp_path, real_url, real_redis, **away) as it:
        turn = await it.submit()
        it.drive()
        await eventually(
            lambda: read_turn(real_redis, turn),
            lambda seen: seen is not None and seen.state == "running",
            "the turn to be claimed",
            WITHIN_S,
        )
        await it.cancel(turn)
        await check(it, turn, "")
        assert it.requests == 0


@pytest.mark.requirement("cancel:told")
async def test_a_turn_whose_server_of_tools_hangs_is_not_waited_for(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    asked = asyncio.Event()

    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        try:
            await asyncio.sleep(NEVER_S)
        finally:
            writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    hangs: dict[str, Any] = {
        "mcp": {"slow": {"url": f"http://127.0.0.1:{port}/mcp"}},
        "agents": {"default": {"tools": ["mcp:slow"]}},
    }
    async with scene(ANSWER, tmp_path, real_url, real_redis, **hangs) as it:
        turn = await it.submit()
        it.drive()
        async with asyncio.timeout(WITHIN_S):
            await asked.wait()
        began = monotonic()
        await it.cancel(turn)
        await check(it, turn, "")
        assert monotonic() - began < 5, "as fast as any other cancel"
        assert it.requests == 0
    server.close()


@pytest.mark.requirement("cancel:one-line")
async def test_a_cancel_that_finds_nothing_open_tells_of_no_discard(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(recording, "warn", lambda event, **_: told.append(event))
    async with scene(ANSWER, tmp_path, real_url, real_redis) as it:
        turn = await it.submit()
        grant = await claim(real_redis, "chat/1", ids.new_nonce(), 0.1, 1)
        assert grant is not None
        accumulator = ExecutionOutputAccumulator(real_redis, grant, lambda: True)
        await accumulator.open_call(1, 1, 0, True)
        await accumulator.commit(
            Committed(1, 1, "I look. ", (ToolCall("t1", "clock", "{}", {}),), "tool_calls", None), NO_USAGE, []
        )
        await it.cancel(turn)
        await real_redis.hset(keys.turn_record(turn), "lease_ms", 1)
        it.drive()
        await check(it, turn, "I look. ")
    assert "turn_taken_over" in told
    assert "call_discarded" not in told


@pytest.mark.requirement("cancel:first-writer-wins")
@pytest.mark.requirement("cases:t19:after-the-commit")
async def test_a_cancel_between_the_last_commit_and_the_end_finds_the_answer_standing(
    monkeypatch: pytest.MonkeyPatch, real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    async with scene(ANSWER, tmp_path, real_url, real_redis) as it:
        before(monkeypatch, "seal", lambda accumulator: it.cancel(accumulator.turn))
        turn = await it.submit()
        it.drive()
        record = await it.ended(turn)
        assert (record.outcome, record.cancelled_by) == ("completed", "jo")
        assert await read_text(real_redis, turn) == "It is noon."


@pytest.mark.requirement("sessions:join:inbox-moved")
async def test_a_message_that_is_cancelled_between_the_look_and_the_call_is_not_in_the_request(
    monkeypatch: pytest.MonkeyPatch, real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path
) -> None:
    looked = ExecutionOutputAccumulator.waiting_messages
    cancelled: list[str] = []

    async with scene(TOOL + ANSWER, tmp_path, real_url, real_redis) as it:

        async def look_then_lose_the_first(self: ExecutionOutputAccumulator) -> tuple[InboxMessage, ...]:
            messages = await looked(self)
            if not cancelled:
                cancelled.append(messages[0].turn)
                await it.cancel(messages[0].turn)
            return messages

        monkeypatch.setattr(ExecutionOutputAccumulator, "waiting_messages", look_then_lose_the_first)
        turn = await it.submit(joins=True)
        gone, stays = [await it.submit(text, joins=True) for text in ("Never mind?", "And in Oslo?")]
        it.drive()
        assert (await it.ended(turn)).outcome == "completed"
        assert (await it.ended(gone)).outcome == "cancelled"
        assert (await it.ended(stays)).outcome == "merged"
        asked = it.provider.transcript.exchanges[1].request["messages"]
    assert cancelled == [gone]
    assert [each["content"] for each in asked if each["role"] == "user"] == ["What is the time?", "And in Oslo?"]


@pytest.mark.requirement("sessions:join:wires")
@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
async def test_messages_that_join_are_asked_in_every_wire_format(
    real_redis: redis.asyncio.Redis, real_url: str, tmp_path: Path, wire: str
) -> None:
    """The stand-in refuses what the real API would."""
    async with scene(TOOL + ANSWER, tmp_path, real_url, real_redis, provider={"wire": wire}) as it:
        turn = await it.submit(joins=True)
        others = [await it.submit(text, joins=True) for text in ("And in Bergen?", "And in Oslo?")]
        it.drive()
        assert (await it.ended(turn)).outcome == "completed"
        assert [(await it.ended(other)).merged_into for other in others] == [turn, turn]
        asked = json.dumps(it.provider.transcript.exchanges[1].request, ensure_ascii=False)
        assert await read_text(real_redis, turn) == "I will look. It is noon."
    places = [asked.index(text) for text in ("What is the time?", "I will look. ", "And in Bergen?", "And in Oslo?")]
    assert places == sorted(places)
