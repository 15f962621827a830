"""Whole turns against a real llama-server with a real model: no script, no mock, faults of a real kind."""

import signal
from pathlib import Path

import pytest

from tests.process.test_worker_killed import body_of
from tests.real.field import WIRES, field
from tests.real.llama import LlamaServer, smollm2
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput

pytestmark = [
    pytest.mark.real,
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.parametrize("wire", WIRES),
]

WITHIN_S = 120.0
SETTINGS = """
[turns]
resume_backoff_s = 0.1
"""


@pytest.mark.requirement("real:turns:whole")
async def test_a_real_answer_is_delivered_as_the_server_streamed_it(tmp_path: Path, real_url: str, wire: str) -> None:
    async with LlamaServer(smollm2(), tmp_path) as server:
        roots = {wire: (server.port, "/v1")}
        async with field(tmp_path, real_url, roots, SETTINGS, "max_tokens = 80") as running:
            came = await running.ask(wire, "Name three rivers and say a sentence about each.", plain=True)
    assert came.end[0] in {"completed", "incomplete"}
    assert came.data["text"]
    assert came.data["text"] == came.read[0].text


@pytest.mark.requirement("real:turns:faults")
@pytest.mark.parametrize(("fault", "reason"), [(signal.SIGSTOP, "stall"), (signal.SIGKILL, "reset")])
async def test_a_server_lost_in_mid_stream_is_discarded_and_a_second_one_answers(
    tmp_path: Path, real_url: str, wire: str, fault: signal.Signals, reason: str
) -> None:
    model = smollm2()
    async with LlamaServer(model, tmp_path) as first, LlamaServer(model, tmp_path) as second:
        roots = {wire: (first.port, "/v1")}
        async with field(tmp_path, real_url, roots, SETTINGS, "max_tokens = 100") as running:
            stack, tap = running.stack, running.taps[wire]
            turn = await stack.submit(
                "Tell a story of a river.", agent=f"plain-{wire}", destinations=("receiver",), watch_s=300
            )
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput), WITHIN_S)
            tap.target = second.port
            first.process.send_signal(fault)
            outputs = await stack.ended(turn, WITHIN_S)
            data = body_of(await running.receiver.nth(1, WITHIN_S))
            half, whole = running.streams(wire)
    discards = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert [(each.call, each.attempt, each.reason) for each in discards] == [(1, 1, reason)]
    assert half.text
    assert not half.complete
    assert data["text"]
    assert data["text"] == whole.text
