"""Processes that are to outlive a terminal."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import Stack, eventually
from worker.app import DELIVERY_QUEUE, TURNS_QUEUE, make_app, wake_delivery, wake_session

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SETTINGS = """
[providers.main]
base_url = "http://127.0.0.1:9/v1"
model = "none"
"""
UNDER_LOAD_S = 60.0


@pytest.fixture
def nohup() -> Iterator[None]:
    """What a process starts with whose parent ignores hangups."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.requirement("drain:signals:nohup")
@pytest.mark.parametrize("kind", ["turns", "delivery"])
@pytest.mark.usefixtures("nohup")
async def test_a_hangup_is_not_heard_and_the_next_signal_is_the_first(kind: str, tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS)
        process = stack.start(kind)
        app = make_app(stack.settings, concurrency=1)
        queue = TURNS_QUEUE if kind == "turns" else DELIVERY_QUEUE

        async def waiting() -> int:
            return int(await stack.client.llen(queue))

        async def takes_a_wake_up() -> None:
            if kind == "turns":
                wake_session(app, "room/1")
            else:
                wake_delivery(app)
            await eventually(waiting, lambda count: count == 0, f"{kind} to take a wake-up", UNDER_LOAD_S)

        await takes_a_wake_up()  # so it has taken its signals, too
        process.send(signal.SIGHUP)
        await takes_a_wake_up()
        process.send(signal.SIGINT)

        async def code() -> int | None:
            return process.returncode

        await eventually(code, lambda seen: seen is not None, f"the end of {kind}", UNDER_LOAD_S)
        [told] = [line for line in process.lines() if line["event"] == "shutting_down"]
    assert told["signal"] == "SIGINT"
    assert process.lines()[-1]["event"] == f"{kind}_process_stopped"
