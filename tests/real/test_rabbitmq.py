"""RabbitMQ as the broker, with quorum queues: turns run, and a broker that dies or forgets everything loses none.

Needs `rabbitmq-server` (3.8 or newer) on this machine.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import amqp
import pytest

from ops.chaos_run.broker import RabbitMQ, find_rabbitmq
from tests.faults.scene import SLOW, SLOW_TEXT, ends, faults_of, settings, texts
from tests.support.receiver import Receiver
from tests.support.stack import Stack, stand_in
from worker.app import make_app, wake_session
from worker.output.events import TextDeltaOutput
from worker.store.records import read_turn

pytestmark = [pytest.mark.real, pytest.mark.process, pytest.mark.timeout(240)]


@pytest.fixture
def rabbitmq(tmp_path: Path) -> Iterator[RabbitMQ]:
    program = find_rabbitmq()
    if program is None:
        pytest.skip("rabbitmq-server and epmd are not on PATH")
    with RabbitMQ(program, tmp_path / "rabbitmq") as running:
        yield running


def queues(rabbitmq: RabbitMQ, *names: str) -> dict[str, str]:
    """Of each queue whether it is there as a quorum queue."""
    found = {}
    for name in names:
        with amqp.Connection(f"127.0.0.1:{rabbitmq.port}") as connection:
            try:
                connection.channel().queue_declare(
                    name, durable=True, auto_delete=False, arguments={"x-queue-type": "quorum"}, passive=True
                )
                found[name] = "there"
            except amqp.NotFound:
                found[name] = "missing"
    return found


@pytest.mark.requirement("faults:broker:rabbitmq")
@pytest.mark.parametrize("wiped", [False, True], ids=["killed", "wiped"])
async def test_turns_run_over_rabbitmq_and_outlive_its_death_in_mid_run(
    tmp_path: Path, real_url: str, rabbitmq: RabbitMQ, wiped: bool
) -> None:
    async with stand_in(SLOW, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        there = {"LASTWORD_BROKER_URL": rabbitmq.url, "TOOL_RUNS": str(tmp_path / "runs")}
        processes = [stack.start("delivery", environment=there), stack.start("turns", environment=there)]
        before = await stack.submit("Look before.", destinations=("receiver",))
        await receiver.nth(1, within_s=30)  # a queue that is killed in its first second may never come back
        first = await stack.submit("Look.", destinations=("receiver",), watch_s=60)
        await stack.until(first, lambda output: isinstance(output, TextDeltaOutput) and output.call == 2)
        kept = queues(rabbitmq, "turns", "delivery", "celery_delayed_0")
        rabbitmq.kill()
        second = await stack.submit("Look again.", destinations=("receiver",))
        await asyncio.sleep(3)
        if wiped:
            rabbitmq.wipe()
        await asyncio.to_thread(rabbitmq.start)
        await receiver.nth(3, within_s=60)
        third = await stack.submit("Look once more.", destinations=("receiver",))
        wake_session(
            make_app(stack.settings.model_copy(update={"broker_url": rabbitmq.url}), concurrency=1),
            await session_of(stack, third),
        )
        await receiver.nth(4, within_s=30)
        found = faults_of(processes)
    assert kept == {"turns": "there", "delivery": "there", "celery_delayed_0": "missing"}
    assert texts(receiver) == {turn: [("completed", SLOW_TEXT)] for turn in (before, first, second, third)}
    assert ends(provider) == ["complete"] * 8
    assert found == []


async def session_of(stack: Stack, turn: str) -> str:
    record = await read_turn(stack.client, turn)
    assert record is not None
    return record.session
