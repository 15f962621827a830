"""A broker that takes connections and answers nothing, as one that is frozen or behind a cut that drops packets."""

import os
import signal
from pathlib import Path

import pytest

from channels.deliverer import lease_for
from tests.support.receiver import Receiver
from tests.support.stack import SECRET, Stack, eventually, stand_in
from tests.support.valkey import Valkey
from worker.engine.shutdown import OUT_OF_TIME
from worker.output.events import TextDeltaOutput

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<slow>"
calls = [ { steps = [ { text = "An answer that takes its time.", pieces = 20, every_s = 0.25 } ] } ]
"""
TIMEOUT_S = 1.0
UNDER_LOAD_S = 10.0


def settings(base_url: str, hook: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[delivery]
secret = "{SECRET}"
timeout_s = {TIMEOUT_S:g}

[subscribers.receiver]
url = "{hook}"
"""


@pytest.mark.requirement("faults:broker:silent")
async def test_what_ends_is_delivered_and_the_delivery_process_drains(tmp_path: Path, real_url: str) -> None:
    async with (
        stand_in(SCRIPT, tmp_path) as provider,
        Receiver() as receiver,
        Stack(tmp_path, real_url) as stack,
    ):
        with Valkey(tmp_path / "broker") as broker:
            stack.configure(settings(provider.base_url, receiver.url))
            environment = {"LASTWORD_BROKER_URL": broker.url}
            delivery = stack.start("delivery", environment=environment)
            turns = stack.start("turns", environment=environment)
            await stack.logged(delivery, "delivery_process_started")
            await stack.logged(turns, "turns_process_started")
            streaming = [await stack.submit(f"<slow> {n}", destinations=("receiver",), watch_s=60) for n in range(2)]
            for turn in streaming:
                await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
            os.kill(broker.pid, signal.SIGSTOP)
            for turn in streaming:
                await stack.ended(turn)
            await receiver.nth(2, within_s=UNDER_LOAD_S)
            delivery.send(signal.SIGTERM)

            async def look() -> int | None:
                return delivery.returncode

            limit_s = lease_for(TIMEOUT_S) + UNDER_LOAD_S
            code = await eventually(look, lambda seen: seen is not None, "the end of the delivery process", limit_s)
            assert code in {0, OUT_OF_TIME}
