"""A message that Redis has handed over to a process which has no room any more: it is taken, and never left to lie."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack import Stack, eventually, stand_in
from tests.support.valkey import Valkey
from worker.app import TURNS_QUEUE, make_app, wake_session
from worker.output.events import TextOutput
from worker.store import connect

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SCRIPT = """
after_last = "last"

[[calls]]
steps = [ { text = "Here." } ]
"""
UNDER_LOAD_S = 30.0
MOST_TRIES = 5


class Broker:
    """The queue on a server of its own, and the one process that takes from it."""

    def __init__(self, stack: Stack, url: str) -> None:
        self._client = connect.open_redis_sync(url)
        self._app = make_app(stack.settings.model_copy(update={"broker_url": url}), concurrency=1)

    def wake(self, session: str) -> None:
        wake_session(self._app, session)

    @property
    def is_empty(self) -> bool:
        return not self._client.llen(TURNS_QUEUE)

    def asking(self) -> list[int]:
        """The connections that wait for a message."""
        return [
            int(each["id"]) for each in self._client.client_list() if each["cmd"] == "brpop" and "b" in each["flags"]
        ]

    async def until(self, wanted: Callable[[], object], awaited: str) -> None:
        async def look() -> bool:
            return bool(wanted())

        await eventually(look, bool, awaited, UNDER_LOAD_S)

    async def cut(self) -> None:
        """Cut every connection, and return once the process asks through a new one."""
        before = self.asking()
        self._client.client_kill_filter(_type="normal", skipme=True)
        await self.until(lambda: set(self.asking()) - set(before), "the process to ask through a new connection")


@pytest.mark.requirement("survive:broker:takes-what-came")
async def test_what_was_handed_over_through_a_new_connection_is_taken_too(tmp_path: Path, real_url: str) -> None:
    """The message lies in the socket of a process that stands still, and has no room when it goes on."""
    gate = tmp_path / "gate"
    with Valkey(tmp_path / "broker") as server:
        async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
            # Nothing but the wake-up finds the turn.
            stack.configure(
                f'[providers.main]\nbase_url = "{provider.base_url}"\nmodel = "stand-in"\n[lease]\nsweep_s = 60\n'
            )
            broker = Broker(stack, server.url)
            environment = {"LASTWORD_BROKER_URL": server.url, "ROOM_GATE": str(gate)}
            process = stack.start("turns", "takes_unless_gate", environment)
            await broker.until(broker.asking, "the process to ask")
            await broker.cut()
            turn = await stack.submit("Hello.", session="room/1")
            for _ in range(MOST_TRIES):
                await broker.until(broker.asking, "the process to ask")
                process.send(signal.SIGSTOP)
                gate.touch()
                broker.wake("room/1")
                if broker.is_empty:
                    break
                gate.unlink()  # it had just ceased to ask
                process.send(signal.SIGCONT)
                await broker.until(lambda: broker.is_empty, "the wake-up to be taken")
                turn = await stack.submit("Hello.", session="room/1")
            process.send(signal.SIGCONT)
            outputs = await stack.ended(turn)
            assert gate.exists()
    assert "".join(each.text for each in outputs if isinstance(each, TextOutput)) == "Here."
