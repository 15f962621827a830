"""A dead worker is just another dead call: real processes, killed with SIGKILL."""

import json
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from tests.support.receiver import Received, Receiver
from tests.support.stack import SECRET, Stack, stand_in
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput, ToolResultOutput
from worker.store.outputs import all_outputs

pytestmark = [pytest.mark.process, pytest.mark.timeout(90)]

SCRIPT = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "note" } ]

[[calls]]
steps = [ { text = "The first try of an answer", pieces = 26, every_s = 0.05 }, { stall = true } ]

[[calls]]
steps = [ { text = "The answer that stands." } ]
"""
TWO_CALLS = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "note" } ]

[[calls]]
steps = [ { text = "The answer that stands." } ]
"""


def settings(base_url: str, hook: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[agents.default]
tools = ["note"]

[lease]
ttl_s = 1.2
renew_s = 0.3
sweep_s = 0.2

[endpoints.receiver]
url = "{hook}"
secret = "{SECRET}"
"""


def body_of(received: Received) -> dict[str, object]:
    verified = Webhook(SECRET).verify(received.body.decode(), received.headers)
    assert verified == json.loads(received.body)
    data = verified["data"]
    assert isinstance(data, dict)
    return data


@pytest.mark.requirement("survive:kill:between-tool-and-call")
async def test_a_worker_killed_between_a_tool_and_the_next_call_loses_nothing_and_repeats_nothing(
    tmp_path: Path, real_url: str
) -> None:
    runs = tmp_path / "runs"
    async with stand_in(TWO_CALLS, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        dying = stack.start("turns", "dies_before_the_second_call", {"TOOL_RUNS": str(runs)})
        turn = await stack.submit("Take a note.", destinations=("receiver",))
        await stack.until(turn, lambda output: isinstance(output, ToolResultOutput))
        stack.start("turns", environment={"TOOL_RUNS": str(runs)})
        await stack.ended(turn)
        data = body_of(await receiver.nth(1))
        assert dying.returncode == -9
    assert data["text"] == "I will look. The answer that stands."
    assert data["outcome"] == "completed"
    assert runs.read_text(encoding="utf-8") == f"{turn}:1:0\n"
    assert [exchange.ended for exchange in provider.transcript.exchanges] == ["complete", "complete"]


@pytest.mark.requirement("survive:kill:mid-stream")
@pytest.mark.requirement("cases:t13:tool-done-worker-dies")
async def test_a_worker_killed_in_mid_stream_leaves_a_discard_and_its_turn_goes_on(
    tmp_path: Path, real_url: str
) -> None:
    runs = tmp_path / "runs"
    async with stand_in(SCRIPT, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        dying = stack.start("turns", environment={"TOOL_RUNS": str(runs)})
        turn = await stack.submit("Take a note.", destinations=("receiver",), watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
        dying.kill()
        stack.start("turns", environment={"TOOL_RUNS": str(runs)})
        await stack.ended(turn)
        data = body_of(await receiver.nth(1))
        outputs = await all_outputs(stack.client, turn)
        _, died, again = provider.transcript.exchanges
    assert data["text"] == "I will look. The answer that stands."
    (result,) = [message for message in again.request["messages"] if message["role"] == "tool"]
    assert result["content"] == "noted"
    assert again.request["messages"] == died.request["messages"]
    assert runs.read_text(encoding="utf-8") == f"{turn}:1:0\n"
    discards = [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert [(discard.call, discard.attempt, discard.reason) for discard in discards] == [(2, 1, "takeover")]
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
    assert len(receiver.requests) == 1
