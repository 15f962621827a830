"""Whole turns against a real llama-server: no script, no mock, faults of a real kind."""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.process.test_worker_killed import body_of
from tests.real.llama import LlamaServer, Model, smollm2, tiny
from tests.support.forwarder import Forwarder
from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Stack
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput, ToolResultOutput

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.timeout(300)]

WITHIN_S = 120.0


def settings(model: Model, port: int, hook: str, *, max_tokens: int, agent: str = "") -> str:
    return f"""
[providers.main]
base_url = "http://127.0.0.1:{port}/v1"
model = "{model.name}"
stall_timeout_s = 3

[agents.default]
max_tokens = {max_tokens}
{agent}

[turns]
resume_backoff_s = 0.1

[subscribers.receiver]
url = "{hook}"
secret = "{SECRET}"
"""


def text_in(answer: bytes | bytearray) -> str:
    """The text of a streamed answer as it came over the wire, read without the code under test."""
    return "".join(
        choice["delta"].get("content") or ""
        for line in re.findall(rb"^data: (\{.*\})\s*$", answer, re.MULTILINE)
        for choice in json.loads(line)["choices"]
    )


async def test_a_real_answer_is_delivered_as_the_server_streamed_it(tmp_path: Path, real_url: str) -> None:
    model = smollm2()
    async with (
        LlamaServer(model, tmp_path) as server,
        Forwarder(server.port, record=True) as wire,
        Receiver() as receiver,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(model, wire.port, receiver.url, max_tokens=200))
        stack.start("delivery")
        stack.start("turns")
        await stack.submit("Name three rivers and say a sentence about each.", destinations=("receiver",))
        data = body_of(await receiver.nth(1, WITHIN_S))
    assert data["text"]
    assert data["text"] == text_in(wire.answers[0])


@pytest.mark.parametrize("fault", [signal.SIGSTOP, signal.SIGKILL], ids=["frozen", "killed"])
async def test_a_server_lost_in_mid_stream_is_discarded_and_a_second_one_answers(
    tmp_path: Path, real_url: str, fault: signal.Signals
) -> None:
    model = smollm2()
    async with (
        LlamaServer(model, tmp_path) as first,
        LlamaServer(model, tmp_path) as second,
        Forwarder(first.port, record=True) as wire,
        Receiver() as receiver,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(model, wire.port, receiver.url, max_tokens=150))
        stack.start("delivery")
        stack.start("turns")
        turn = await stack.submit("Tell a story of a river.", destinations=("receiver",), watch_s=300)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput), WITHIN_S)
        wire.target = second.port
        first.process.send_signal(fault)
        outputs = await stack.ended(turn, WITHIN_S)
        data = body_of(await receiver.nth(1, WITHIN_S))
    discards = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    expected = "stall" if fault is signal.SIGSTOP else "reset"
    assert [(each.call, each.attempt, each.reason) for each in discards] == [(1, 1, expected)]
    assert text_in(wire.answers[0])
    assert data["text"]
    assert data["text"] == text_in(wire.answers[1])


async def test_a_real_model_calls_a_tool_and_answers_with_its_result(tmp_path: Path, real_url: str) -> None:
    model = tiny(tmp_path)
    agent = 'tools = ["clock"]\nextra_body = { seed = 3, chat_template_kwargs = { enable_thinking = false } }'
    async with (
        LlamaServer(model, tmp_path) as server,
        Forwarder(server.port, record=True) as wire,
        Receiver() as receiver,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(model, wire.port, receiver.url, max_tokens=3000, agent=agent))
        stack.start("delivery")
        stack.start("turns")
        turn = await stack.submit("What time is it?", destinations=("receiver",))
        outputs = await stack.ended(turn, WITHIN_S)
        data = body_of(await receiver.nth(1, WITHIN_S))
    assert any(isinstance(output, ToolResultOutput) for output in outputs)
    assert data["outcome"] == "completed"
    assert data["text"] == "".join(text_in(answer) for answer in wire.answers)
