"""A broker that takes connections and answers nothing, as one that is frozen or behind a cut that drops packets."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.receiver import Late, Receiver
from tests.support.stack import SECRET, Process, Stack, eventually, stand_in
from tests.support.valkey import Valkey
from worker.engine.shutdown import PARTING_S
from worker.output.events import TextDeltaOutput

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<slow>"
calls = [ { steps = [ { text = "An answer that takes its time.", pieces = 20, every_s = 0.25 } ] } ]
"""
UNDER_LOAD_S = 10.0


def settings(base_url: str, hook: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[delivery]
secret = "{SECRET}"

[endpoints.receiver]
url = "{hook}"
"""


@contextlib.asynccontextmanager
async def processes(tmp_path: Path, real_url: str, hook: str) -> AsyncIterator[tuple[Stack, Valkey, Process, Process]]:
    """A delivery and a turns process that have begun, and their broker."""
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        with Valkey(tmp_path / "broker") as broker:
            stack.configure(settings(provider.base_url, hook))
            environment = {"LASTWORD_BROKER_URL": broker.url}
            delivery = stack.start("delivery", environment=environment)
            turns = stack.start("turns", environment=environment)
            await stack.logged(delivery, "delivery_process_started")
            await stack.logged(turns, "turns_process_started")
            yield stack, broker, delivery, turns


async def ended(process: Process, within_s: float) -> int:
    async def look() -> int | None:
        return process.returncode

    code = await eventually(look, lambda seen: seen is not None, f"the end of {process.name}", within_s)
    assert code is not None
    return code


@pytest.mark.requirement("faults:broker:silent")
async def test_what_ends_is_delivered(tmp_path: Path, real_url: str) -> None:
    async with Receiver() as receiver, processes(tmp_path, real_url, receiver.url) as (stack, broker, _, _):
        streaming = [await stack.submit(f"<slow> {n}", destinations=("receiver",), watch_s=60) for n in range(2)]
        for turn in streaming:
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        os.kill(broker.pid, signal.SIGSTOP)
        for turn in streaming:
            await stack.ended(turn)
        await receiver.nth(2, within_s=UNDER_LOAD_S)


@pytest.mark.requirement("faults:broker:silent-drain")
async def test_a_process_ends_behind_the_last_of_its_work(tmp_path: Path, real_url: str) -> None:
    """Long before the limits of their drains (25 and 40 s), and before anybody gives up the broker (30 s)."""
    answers = asyncio.Event()
    async with (
        Receiver(Late(answers)) as receiver,
        processes(tmp_path, real_url, receiver.url) as (stack, broker, delivery, turns),
    ):
        turn = await stack.submit("Hello.", destinations=("receiver",))
        await receiver.nth(1, within_s=UNDER_LOAD_S)
        os.kill(broker.pid, signal.SIGSTOP)
        for process in (delivery, turns):
            process.send(signal.SIGTERM)
        assert await ended(turns, PARTING_S + UNDER_LOAD_S) == 0
        await stack.logged(delivery, "shutting_down")
        assert delivery.returncode is None
        answers.set()
        assert await ended(delivery, PARTING_S + UNDER_LOAD_S) == 0
        [settled] = [line for line in delivery.lines() if line["event"] == "delivery_settled"]
    assert (settled["turn"], settled["state"]) == (turn, "delivered")
    for process, last in ((delivery, "delivery_process_stopped"), (turns, "turns_process_stopped")):
        assert process.lines()[-1]["event"] == last
