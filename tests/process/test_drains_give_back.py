"""Wake-ups that a process has taken as its drain begins: another one finds them at the broker, not only by a sweep."""

import base64
import json
import signal
from pathlib import Path

import pytest

from tests.support.stack import Process, Stack, eventually, stand_in
from tests.support.valkey import Valkey
from worker.app import TURNS_QUEUE, make_app, wake_session
from worker.output.events import TextDeltaOutput
from worker.store import connect

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = """
after_last = "last"

[[calls]]
steps = [ { text = "An answer that takes its time.", pieces = 30, every_s = 0.25 } ]
"""
UNDER_LOAD_S = 30.0
WAITING = 12
ROUNDS = 2
MOST_TRIES = 5


def settings(base_url: str) -> str:
    return f"""
[providers.main]
base_url = "{base_url}"
model = "stand-in"

[processes]
turns_concurrency = 1
"""


async def ended(process: Process) -> int:
    async def look() -> int | None:
        return process.returncode

    code = await eventually(look, lambda seen: seen is not None, f"the end of {process.name}", UNDER_LOAD_S)
    assert code is not None
    return code


class Broker:
    """The queue of wake-ups on a server of its own, which nobody but the process under test takes from."""

    def __init__(self, stack: Stack, url: str) -> None:
        self._client = connect.open_redis_sync(url)
        self._app = make_app(stack.settings.model_copy(update={"broker_url": url}), concurrency=1)

    def wake(self, session: str) -> None:
        wake_session(self._app, session)

    def waiting(self) -> list[str]:
        """The sessions that are in the queue."""
        bodies = [json.loads(message)["body"] for message in self._client.lrange(TURNS_QUEUE, 0, -1)]
        return [json.loads(base64.b64decode(body))[0][0] for body in bodies]

    async def asked(self) -> None:
        """Return once the process waits for a message."""

        async def look() -> int:
            return int(self._client.info("clients")["blocked_clients"])

        await eventually(look, bool, "the process to ask for a message", UNDER_LOAD_S)

    async def emptied(self) -> None:
        """Return once every message is taken."""

        async def look() -> list[str]:
            return self.waiting()

        await eventually(look, lambda waiting: not waiting, "every wake-up to be taken", UNDER_LOAD_S)


@pytest.mark.requirement("drain:wake-ups")
async def test_a_wake_up_that_was_handed_over_as_the_drain_began_is_given_back(tmp_path: Path, real_url: str) -> None:
    """It lies in the socket of the process, which stands still until it has been told to end."""
    with Valkey(tmp_path / "broker") as server:
        async with Stack(tmp_path, real_url) as stack:
            stack.configure(settings("http://127.0.0.1:9/v1"))
            broker = Broker(stack, server.url)
            for number in range(ROUNDS):
                session = f"room/{number}"
                process = stack.start("turns", environment={"LASTWORD_BROKER_URL": server.url})
                await stack.logged(process, "turns_process_started")
                for _ in range(MOST_TRIES):
                    await broker.asked()
                    process.send(signal.SIGSTOP)
                    broker.wake(session)
                    if not broker.waiting():
                        break
                    process.send(signal.SIGCONT)  # it had just ceased to ask
                    await broker.emptied()
                assert not broker.waiting()
                process.send(signal.SIGTERM)
                process.send(signal.SIGCONT)
                assert await ended(process) == 0
                assert session in broker.waiting()


@pytest.mark.requirement("drain:wake-ups")
async def test_wake_ups_that_wait_for_a_seat_as_the_drain_begins_are_given_back(tmp_path: Path, real_url: str) -> None:
    """The drain frees the one seat, and none of them may take it for nothing."""
    sessions = [f"room/{number}" for number in range(WAITING)]
    with Valkey(tmp_path / "broker") as server:
        async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
            stack.configure(settings(provider.base_url))
            broker = Broker(stack, server.url)
            process = stack.start("turns", "takes_without_room", {"LASTWORD_BROKER_URL": server.url})
            turn = await stack.submit("Hello.", watch_s=60)
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
            for session in sessions:
                broker.wake(session)
            await broker.emptied()
            process.send(signal.SIGTERM)
            assert await ended(process) == 0
            assert set(sessions) <= set(broker.waiting())
