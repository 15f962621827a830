"""A server that answers, but with "not now": nobody takes that for the end of a turn, of a process or of a delivery.

Each fault lasts longer than a lease, in the middle of a stream.
"""

import asyncio
from pathlib import Path

import pytest
import redis

from tests.faults.not_now import (
    Fault,
    a_replica,
    busy,
    cut_off,
    forgetful,
    paused,
    without_disk,
    without_replicas,
)
from tests.faults.scene import SLOW, SLOW_TEXT, TTL_S, ends, faults_of, settings, texts
from tests.support.receiver import Receiver
from tests.support.stack import Stack, stand_in
from tests.support.valkey import Valkey
from worker.output.events import TextDeltaOutput, TextStreamDiscardedOutput
from worker.store.outputs import all_outputs

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]


@pytest.mark.requirement("faults:state:not-now")
@pytest.mark.parametrize("fault", [a_replica, without_replicas, without_disk, busy, paused, cut_off, forgetful])
async def test_a_turn_streams_on_while_the_server_says_not_now_and_nothing_takes_it_for_an_end(
    tmp_path: Path, fault: Fault
) -> None:
    with Valkey(tmp_path / "valkey", "busy-reply-threshold 100") as server, redis.Redis.from_url(server.url) as client:
        async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, server.url) as stack:
            stack.configure(settings(provider.base_url, receiver.url))
            runs = {"TOOL_RUNS": str(tmp_path / "runs")}
            processes = [stack.start("delivery"), stack.start("turns", environment=runs)]
            turn = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
            with fault(client, server.folder):
                await asyncio.sleep(1.5 * TTL_S)
            await receiver.nth(1, within_s=30)
            after = await stack.submit("Look.", destinations=("receiver",))
            await receiver.nth(2, within_s=30)
            outputs = await all_outputs(stack.client, turn)
            found = faults_of(processes)
    assert texts(receiver) == {turn: [("completed", SLOW_TEXT)], after: [("completed", SLOW_TEXT)]}
    assert ends(provider) == ["complete"] * 4
    assert (tmp_path / "runs").read_text(encoding="utf-8") == f"{turn}:1:0\n{after}:1:0\n"
    assert not [output for output in outputs if isinstance(output, TextStreamDiscardedOutput)]
    assert found == []
