"""Several messages in one session, and people who change their minds: real processes, real HTTP."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from standardwebhooks import Webhook

from channels.rehearsal.server import StandIn
from tests.support.receiver import Received, Receiver
from tests.support.stack import SECRET, Process, Stack, stand_in
from worker import api
from worker.output.events import (
    Output,
    TextDeltaOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    TurnCompletedOutput,
)
from worker.store.cancels import Cancellation
from worker.store.listing import Wanted, find
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_turn

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

STREAMS = """
[[calls]]
steps = [ { text = "An answer that takes its time. ", pieces = 31, every_s = 0.05 }, { keepalive_every_s = 0.05 } ]
"""
AFTER_A_TOOL = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "gate" } ]

[[calls]]
steps = [ { text = "An answer to all of you.", pieces = 24, every_s = 0.02 } ]

[[calls]]
steps = [ { text = "An answer to all of you." } ]
"""
QUICK_LEASE = """
[lease]
ttl_s = 1.2
renew_s = 0.3
sweep_s = 0.2
"""
SLOW_LEASE = """
[lease]
ttl_s = 120
renew_s = 30
"""
WITHIN_S = 1.0
"""How long a cancel may take to stop a stream, from the moment at which it was answered, on a machine that is idle."""


def settings(base_url: str, hook: str, more: str = "") -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[agents.default]
tools = ["gate"]

[endpoints.receiver]
url = "{hook}"
secret = "{SECRET}"
{more}
"""


def body_of(received: Received) -> dict[str, Any]:
    verified: Any = Webhook(SECRET).verify(received.body.decode(), received.headers)
    data: dict[str, Any] = verified["data"]
    return {"type": verified["type"], **data}


async def cancel(stack: Stack, turn: str) -> Cancellation:
    return await api.cancel_turn(stack.settings, stack.client, turn=turn, by="jo", wake=lambda _: None)


async def stopped_after_s(stack: Stack, provider: StandIn, turn: str) -> float:
    """How long after the answer to its cancel the stream of a turn was closed."""
    await stack.until(turn, is_delta)
    number = len(provider.transcript.exchanges)
    answer = await cancel(stack, turn)
    answered = monotonic()
    exchange = await provider.transcript.wait_for_end(number, 30)
    assert (answer.state, exchange.ended) == ("cancelling", "client_left")
    return monotonic() - answered


async def record_of(stack: Stack, turn: str) -> TurnRecord:
    record = await read_turn(stack.client, turn)
    assert record is not None
    return record


def said_in(request: dict[str, Any]) -> list[str]:
    """What people said, as the provider was asked."""
    return [message["content"] for message in request["messages"] if message["role"] == "user"]


def is_delta(output: Output) -> bool:
    return isinstance(output, TextDeltaOutput)


@pytest.mark.requirement("cancel:stops-a-stream")
@pytest.mark.requirement("streams:k:cancel-closes-the-response")
async def test_a_cancel_stops_a_stream_within_a_second_and_is_delivered(tmp_path: Path, real_url: str) -> None:
    """Long before the next sign of life. A machine under load may be late, and not three times."""
    async with stand_in(STREAMS, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url, SLOW_LEASE))
        stack.start("delivery")
        stack.start("turns")
        turn = await stack.submit("Take your time.", destinations=("receiver",), watch_s=60)
        stopped_s = [await stopped_after_s(stack, provider, turn)]
        outputs = await stack.ended(turn)
        data = body_of(await receiver.nth(1))
        record = await record_of(stack, turn)
        stopped_s += [
            await stopped_after_s(stack, provider, await stack.submit("Again.", watch_s=60)) for _ in range(2)
        ]
    assert min(stopped_s) < WITHIN_S
    assert max(stopped_s) < 10
    assert (data["type"], data["outcome"], data["reason"], data["text"]) == (
        *("turn.cancelled", "cancelled", "requested"),
        "",
    )
    assert data["error"] is None
    assert (record.outcome, record.cancelled_by) == ("cancelled", "jo")
    discards = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert [(discard.call, discard.attempt, discard.reason) for discard in discards] == [(1, 1, "cancelled")]
    assert outputs[-1] == outputs[-1].model_copy(update={"outcome": "cancelled", "reason": "requested"})
    assert len(provider.transcript.exchanges) == 3


@pytest.mark.requirement("cancel:stops-a-stream")
async def test_a_cancel_while_a_tool_runs_ends_the_turn_with_what_was_committed(tmp_path: Path, real_url: str) -> None:
    async with stand_in(AFTER_A_TOOL, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        stack.start("turns", environment={"GATE": str(tmp_path / "gate")})
        turn = await stack.submit("What is due?", destinations=("receiver",), watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, ToolCallOutput))
        await cancel(stack, turn)
        await stack.ended(turn)
        data = body_of(await receiver.nth(1))
    assert (data["type"], data["text"]) == ("turn.cancelled", "I will look. ")
    assert len(provider.transcript.exchanges) == 1


@pytest.mark.requirement("cancel:driver-dead:next-seals")
async def test_a_turn_whose_worker_was_killed_is_ended_by_the_next_one_without_asking_again(
    tmp_path: Path, real_url: str
) -> None:
    async with stand_in(STREAMS, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "http://127.0.0.1:9/", QUICK_LEASE))
        dying = stack.start("turns")
        turn = await stack.submit("Take your time.", watch_s=60)
        await stack.until(turn, is_delta)
        dying.kill()
        assert (await cancel(stack, turn)).state == "cancelling"
        stack.start("turns")
        outputs = await stack.ended(turn)
    (discard,) = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert discard.reason == "cancelled"
    assert outputs[-1].model_dump()["outcome"] == "cancelled"
    assert len(provider.transcript.exchanges) == 1


@pytest.mark.requirement("sessions:on-busy:interrupt")
async def test_a_message_that_interrupts_is_answered_and_the_turn_before_it_is_delivered_as_cancelled(
    tmp_path: Path, real_url: str
) -> None:
    script = STREAMS + '[[calls]]\nsteps = [ { text = "Quickly." } ]\n'
    async with stand_in(script, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        stack.start("turns")
        first = await stack.submit("Take your time.", session="chat/1", destinations=("receiver",), watch_s=60)
        await stack.until(first, is_delta)
        second = await stack.submit(
            "No, quickly.", session="chat/1", destinations=("receiver",), watch_s=60, on_busy="interrupt"
        )
        await stack.ended(second)
        arrived = [body_of(await receiver.nth(number)) for number in (1, 2)]
    bodies = sorted(arrived, key=lambda body: body["turn"] == second)  # two that are due at once race to their receiver
    assert [(body["turn"], body["outcome"], body["reason"]) for body in bodies] == [
        (first, "cancelled", "interrupted"),
        (second, "completed", None),
    ]
    assert bodies[1]["text"] == "Quickly."


async def chat(stack: Stack, *texts: str, **more: Any) -> list[str]:
    return [
        await stack.submit(text, session="chat/1", destinations=("receiver",), watch_s=60, joins=True, **more)
        for text in texts
    ]


def check_merged(turn: str, into: str, outputs: Sequence[Output]) -> None:
    (end,) = outputs
    assert isinstance(end, TurnCompletedOutput)
    assert (end.turn, end.outcome, end.merged_into, end.seq) == (turn, "merged", into, 1)


@pytest.mark.requirement("sessions:join:one-answer")
async def test_three_messages_while_a_tool_runs_get_one_answer(tmp_path: Path, real_url: str) -> None:
    gate = tmp_path / "gate"
    async with stand_in(AFTER_A_TOOL, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        stack.start("turns", environment={"GATE": str(gate)})
        (turn,) = await chat(stack, "What is due?")
        await stack.until(turn, lambda output: isinstance(output, ToolCallOutput))
        texts = ["And for Bob?", "And for Eve?", "Thanks!"]
        others = await chat(stack, *texts)
        gate.touch()
        await stack.ended(turn)
        for other in others:
            check_merged(other, turn, await stack.ended(other))
        data = body_of(await receiver.nth(1))
        shown = await shown_by_the_console(stack, others[0])
        (after,) = await chat(stack, "One more.")
        await stack.ended(after)
        assert body_of(await receiver.nth(2))["turn"] == after
    assert data["text"] == "I will look. An answer to all of you."
    asked = [exchange.request for exchange in provider.transcript.exchanges]
    assert [said_in(request) for request in asked] == [
        ["What is due?"],
        ["What is due?", *texts],
        ["What is due?", *texts, "One more."],
    ]
    assert [message["role"] for message in asked[1]["messages"]][-4:] == ["tool", "user", "user", "user"]
    assert (shown["outcome"], shown["merged_into"]) == ("merged", turn)
    assert len(receiver.requests) == 2


async def shown_by_the_console(stack: Stack, turn: str) -> dict[str, Any]:
    arguments = [sys.executable, "-m", "channels", "turns", "show", turn, "--json"]
    ran = subprocess.run(  # noqa: ASYNC221 - nothing else waits here
        arguments, cwd=stack.folder, env=stack.environment, capture_output=True, check=False, timeout=30
    )
    assert ran.returncode == 0, ran.stderr
    shown: dict[str, Any] = json.loads(ran.stdout)
    return shown


@pytest.mark.requirement("sessions:join:killed-worker")
async def test_a_worker_killed_before_the_commit_of_a_call_that_carries_messages_loses_none(
    tmp_path: Path, real_url: str
) -> None:
    gate = tmp_path / "gate"
    async with stand_in(AFTER_A_TOOL, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url, QUICK_LEASE))
        stack.start("delivery")
        dying = stack.start("turns", "dies_with_carried_messages", {"GATE": str(gate)})
        (turn,) = await chat(stack, "What is due?")
        await stack.until(turn, lambda output: isinstance(output, ToolCallOutput))
        others = await chat(stack, "And for Bob?", "And for Eve?")
        gate.touch()
        assert await ended(dying) == -9
        late = await chat(stack, "Too late for that call.")
        stack.start("turns", environment={"GATE": str(gate)})
        await stack.ended(turn)
        for other in others:
            check_merged(other, turn, await stack.ended(other))
        data = body_of(await receiver.nth(1))
        await stack.ended(late[0])
        bodies = [data, body_of(await receiver.nth(2))]
        outputs = await all_outputs(stack.client, turn)
    assert [(body["turn"], body["outcome"]) for body in bodies] == [(turn, "completed"), (late[0], "completed")]
    assert data["text"] == "I will look. An answer to all of you."
    asked = [exchange.request["messages"] for exchange in provider.transcript.exchanges]
    assert asked[1] == asked[2], "a dead call is asked again unchanged"
    assert said_in({"messages": asked[2]}) == ["What is due?", "And for Bob?", "And for Eve?"]
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))


async def ended(process: Process) -> int:
    return await asyncio.to_thread(process.exit_code)


@pytest.mark.requirement("cancel:run")
async def test_a_turn_of_lastword_run_that_is_cancelled_ends_with_6(tmp_path: Path, real_url: str) -> None:
    async with stand_in(STREAMS, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "http://127.0.0.1:9/"))
        arguments = [sys.executable, "-m", "channels", "run", "Take your time.", "--json"]
        ran = await asyncio.create_subprocess_exec(
            *arguments, cwd=stack.folder, env=stack.environment, stdout=asyncio.subprocess.PIPE
        )
        await provider.transcript.wait_for_request(1, 30)
        (record,) = (await find(stack.client, stack.settings.partitions, Wanted(), 10)).turns
        await cancel(stack, record.turn)
        async with asyncio.timeout(30):
            out, _ = await ran.communicate()
    told = json.loads(out)
    assert (ran.returncode, told["outcome"], told["reason"], told["text"]) == (6, "cancelled", "requested", "")
