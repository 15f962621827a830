"""A process that is frozen past its lease and wakes while another one drives its turn."""

import signal
from pathlib import Path

import pytest

from tests.process.test_worker_killed import body_of, settings
from tests.support.receiver import Receiver
from tests.support.stack import Stack, eventually, stand_in
from worker.output.events import Output, TextDeltaOutput, TextStreamDiscardedOutput
from worker.store.outputs import all_outputs

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]

SCRIPT = """
[[conversations]]
match = "And now?"
calls = [ { steps = [ { text = "Another turn." } ] } ]

[[calls]]
steps = [ { text = "An old answer that takes long; nobody should hear its end.", pieces = 50, every_s = 0.4 } ]

[[calls]]
steps = [ { text = "A new answer, which takes its time as well.", pieces = 40, every_s = 0.1 } ]
"""
WITHIN_S = 60.0


@pytest.mark.requirement("cases:t15:frozen-process")
async def test_a_process_that_was_frozen_past_its_lease_cancels_its_call_and_says_nothing(
    tmp_path: Path, real_url: str
) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        zombie = stack.start("turns", environment={"TOOL_RUNS": str(tmp_path / "runs")})
        turn = await stack.submit("Say something.", destinations=("receiver",), watch_s=120)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput), WITHIN_S)
        zombie.send(signal.SIGSTOP)
        stack.start("turns", environment={"TOOL_RUNS": str(tmp_path / "runs")})
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.attempt == 2, WITHIN_S)
        zombie.send(signal.SIGCONT)
        assert (await stack.logged(zombie, "turn_lost", WITHIN_S))["turn"] == turn
        data = body_of(await receiver.nth(1, within_s=WITHIN_S))
        outputs: list[Output] = list(await all_outputs(stack.client, turn))

        async def left() -> str | None:
            return provider.transcript.exchanges[0].ended

        assert await eventually(left, bool, "the frozen process to leave its stream") == "client_left"
        assert zombie.returncode is None
        assert len(provider.transcript.exchanges) == 2
        await stack.submit("And now?", destinations=("receiver",))
        assert body_of(await receiver.nth(2, within_s=WITHIN_S))["text"] == "Another turn."
    new = "A new answer, which takes its time as well."
    assert (data["outcome"], data["text"]) == ("completed", new)
    (discard,) = [at for at, output in enumerate(outputs) if isinstance(output, TextStreamDiscardedOutput)]
    assert (outputs[discard].call, outputs[discard].attempt) == (1, 1)
    assert {output.attempt for output in outputs[:discard] if isinstance(output, TextDeltaOutput)} == {1}
    assert {output.attempt for output in outputs[discard:] if isinstance(output, TextDeltaOutput)} == {2}
    told = "".join(each.text for each in outputs[discard:] if isinstance(each, TextDeltaOutput))
    assert new.startswith(told)  # what came since the last tick is told by the commit alone
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
