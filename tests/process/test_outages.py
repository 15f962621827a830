"""Redis goes away in the middle of a turn; a process is told to shut down; nothing is lost and nothing said twice."""

import asyncio
import signal
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.process.test_worker_killed import body_of
from tests.support.forwarder import Forwarder
from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Stack, stand_in
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput
from worker.store.outputs import all_outputs

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SLOW = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "clock" } ]

[[calls]]
steps = [
  { text = "An answer that takes its time and is spoken through an outage of the store.", pieces = 70, every_s = 0.1 },
]

[[calls]]
steps = [ { text = "A second try." } ]
"""


def settings(base_url: str, hook: str, more: str = "") -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[agents.default]
tools = ["clock"]

[endpoints.receiver]
url = "{hook}"
secret = "{SECRET}"
{more}
"""


@pytest.mark.requirement("survive:redis:away-for-10-s")
async def test_redis_away_for_ten_seconds_in_mid_stream_costs_neither_the_turn_nor_the_stream(
    tmp_path: Path, real_url: str
) -> None:
    """Longer than a lease: the driver keeps its stream, nobody takes over, and the answer of the one stream stands."""
    port = urlsplit(real_url).port
    assert port is not None
    async with (
        stand_in(SLOW, tmp_path) as provider,
        Receiver() as receiver,
        Forwarder(port) as network,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(provider.base_url, receiver.url))
        through = {"LASTWORD_REDIS_URL": real_url.replace(str(port), str(network.port))}
        stack.start("delivery", environment=through)
        stack.start("turns", environment=through)
        turn = await stack.submit("What time is it?", destinations=("receiver",), watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
        async with network.away():
            await asyncio.sleep(10)
        data = body_of(await receiver.nth(1, within_s=40))
        outputs = await all_outputs(stack.client, turn)
        exchanges = list(provider.transcript.exchanges)
    assert [exchange.ended for exchange in exchanges] == ["complete", "complete"]
    assert data["text"] == "".join(exchange.sent.text for exchange in exchanges)
    assert not [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))


@pytest.mark.requirement("survive:drain:handoff")
async def test_a_process_told_to_stop_hands_its_turn_over_and_ends(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        first = stack.start("turns")
        turn = await stack.submit("What time is it?", destinations=("receiver",), watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
        first.send(signal.SIGTERM)
        await stack.until(turn, lambda output: isinstance(output, TextStreamDiscardedOutput))
        assert first.exit_code() == 0
        stack.start("turns")
        data = body_of(await receiver.nth(1))
    assert (data["outcome"], data["text"]) == ("completed", "I will look. A second try.")


@pytest.mark.requirement("survive:drain:fail")
@pytest.mark.requirement("tuning:turns:on-drain")
async def test_a_process_that_does_not_hand_over_lets_a_healthy_stream_end(tmp_path: Path, real_url: str) -> None:
    """Only a call that times out while the process shuts down fails its turn."""
    async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url, '[turns]\non_drain = "fail"'))
        stack.start("delivery")
        first = stack.start("turns")
        turn = await stack.submit("What time is it?", destinations=("receiver",), watch_s=60)
        await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
        first.send(signal.SIGTERM)
        data = body_of(await receiver.nth(1))
        assert first.exit_code() == 0
    assert data["outcome"] == "completed"


@pytest.mark.requirement("survive:redis:late")
async def test_processes_that_start_before_redis_work_as_soon_as_it_is_there(tmp_path: Path, real_url: str) -> None:
    port = urlsplit(real_url).port
    assert port is not None
    script = '[[calls]]\nsteps = [ { text = "An answer." } ]'
    async with (
        stand_in(script, tmp_path) as provider,
        Receiver() as receiver,
        Forwarder(port) as network,
        Stack(tmp_path, real_url) as stack,
    ):
        stack.configure(settings(provider.base_url, receiver.url))
        through = {"LASTWORD_REDIS_URL": real_url.replace(str(port), str(network.port))}
        async with network.away():
            early = [stack.start("delivery", environment=through), stack.start("turns", environment=through)]
            await asyncio.sleep(4)
        await stack.submit("Say something.", destinations=("receiver",))
        data = body_of(await receiver.nth(1, within_s=40))
        assert [process.returncode for process in early] == [None, None]
    assert data["text"] == "An answer."
