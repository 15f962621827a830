"""The whole of Lastword as an operator runs it: real Celery processes on a real server, against real HTTP.

What belongs here: starting and ending processes, submitting, bounded waits that name what they waited for.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest
import redis
import redis.asyncio

from channels.console.run import FOLLOW_BLOCK_S
from channels.console.up import PROCESSES
from channels.delivery.model import Delivery
from channels.embedded import EmbeddedServer, die_with_parent
from channels.outbox import reading
from channels.rehearsal.script import load_script
from channels.rehearsal.server import StandIn
from channels.settings import Settings, load_settings
from tests.support.egress import ALLOW_LOOPBACK
from worker import api
from worker.output.events import Output, TurnCompletedOutput
from worker.store import connect
from worker.store.outputs import outputs_after, watch

SECRET = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYw=="
WITHIN_S = 30.0
_END_S = 30.0
_LOOK_EVERY_S = 0.05
_ROOT = Path(__file__).resolve().parents[2]
_PROCESS = _ROOT / "tests" / "process"
_Seen = TypeVar("_Seen")


class Process:
    """One worker process, its output in a log file."""

    def __init__(self, name: str, arguments: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                cwd=folder,
                env=environment,
                # Whoever kills the tests leaves no processes of theirs behind.
                preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.poll()

    def lines(self) -> list[dict[str, Any]]:
        """The JSON lines that it has logged so far."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int:
        """SIGTERM, and its exit code; fails when it does not end."""
        self._process.terminate()
        return self.exit_code()

    def exit_code(self) -> int:
        """Its exit code, once it has ended; fails when it does not."""
        try:
            return self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.name} did not end within {_END_S} s:\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-4000:]


class Stack:
    """A folder with settings, and the processes that read them. Use as `async with`; all it started ends with it."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.processes: list[Process] = []
        self.client: redis.asyncio.Redis
        self.settings: Settings

    async def __aenter__(self) -> Self:
        self.client = connect.open_redis(self.url, block_s=FOLLOW_BLOCK_S)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.processes:
            if process.returncode is None:
                process.send(signal.SIGCONT)
                process.kill()
        if error is not None:
            for process in self.processes:
                error.add_note(f"--- {process.name} ---\n{process.tail()}")
        await self.client.aclose()

    async def reconnect(self) -> None:
        """To be called once the server was started anew: whether the client has seen yet that it was gone is chance."""
        await self.client.connection_pool.disconnect()

    def configure(self, text: str) -> None:
        """Write the settings file; processes started from now on read it. Receivers may be on the loopback."""
        path = self.folder / "lastword.toml"
        more = "" if "[egress]" in text else ALLOW_LOOPBACK
        path.write_text(f'data_dir = "{self.folder / "data"}"\n{text}\n{more}', encoding="utf-8")
        with pytest.MonkeyPatch.context() as patch:
            for name in [name for name in os.environ if name.startswith("LASTWORD_")]:
                patch.delenv(name)
            patch.setenv("LASTWORD_CONFIG", str(path))
            patch.setenv("LASTWORD_REDIS_URL", self.url)
            self.settings = load_settings()

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("LASTWORD_")}
        return {
            **kept,
            "LASTWORD_CONFIG": str(self.folder / "lastword.toml"),
            "LASTWORD_REDIS_URL": self.url,
            "PYTHONPATH": os.pathsep.join(map(str, (_ROOT, _PROCESS, _PROCESS / "installed"))),
        }

    def start(self, name: str, app: str | None = None, environment: Mapping[str, str] | None = None) -> Process:
        """Start the Procfile's line of `name`; of `turns` and `delivery` with another Celery app if one is given."""
        arguments = PROCESSES[name].split()
        if name == "web":
            return self._start(f"web-{len(self.processes)}", ["channels", "web", "--port", "0"], environment)
        if app is not None:
            arguments[arguments.index("--app") + 1] = app
        label = f"{name}-{len(self.processes)}"
        arguments[arguments.index("--hostname") + 1] = f"{label}@%h"
        return self._start(label, arguments, environment)

    def _start(self, label: str, arguments: list[str], environment: Mapping[str, str] | None) -> Process:
        process = Process(
            label, [sys.executable, "-m", *arguments], self.folder, {**self.environment, **(environment or {})}
        )
        self.processes.append(process)
        return process

    async def submit(self, prompt: str, **more: Any) -> str:
        """Submit a message; no wake-up is sent: the sweepers find it. Returns the turn."""
        submitted = await api.submit(
            self.settings, self.client, prompt=prompt, source="test", wake=lambda _: None, **more
        )
        return submitted.turn

    async def outputs(self, turn: str, within_s: float = WITHIN_S) -> AsyncIterator[Output]:
        """The outputs of a watched turn as they come, to its end; fails after `within_s` seconds."""
        last, seen = "0-0", 0
        try:
            async with asyncio.timeout(within_s):
                while True:
                    await watch(self.client, turn, 30)
                    for last_id, output in await outputs_after(self.client, turn, last, round(FOLLOW_BLOCK_S * 1000)):
                        last = last_id
                        seen += 1
                        yield output
                        if isinstance(output, TurnCompletedOutput):
                            return
        except TimeoutError:
            raise AssertionError(f"waited {within_s} s for the end of {turn}; {seen} outputs came") from None

    async def ended(self, turn: str, within_s: float = WITHIN_S) -> list[Output]:
        """All outputs of a turn, once it has ended."""
        return [output async for output in self.outputs(turn, within_s)]

    async def until(self, turn: str, wanted: Callable[[Output], bool], within_s: float = WITHIN_S) -> Output:
        """The first output that is wanted; fails when the turn ends without it."""
        async for output in self.outputs(turn, within_s):
            if wanted(output):
                return output
        raise AssertionError(f"{turn} ended without the output that was waited for")

    async def deliveries(
        self, wanted: Callable[[Delivery], bool], count: int, within_s: float = WITHIN_S
    ) -> list[Delivery]:
        """The deliveries that are wanted, once there are `count` of them."""

        async def look() -> list[Delivery]:
            page = await reading.listed(self.client, 1000)
            return [delivery for delivery in page.deliveries if wanted(delivery)]

        return await eventually(look, lambda found: len(found) >= count, f"{count} deliveries", within_s)

    async def logged(self, process: Process, event: str, within_s: float = WITHIN_S) -> dict[str, Any]:
        """The first line of that event in the log of a process, as soon as it is there."""

        async def look() -> list[dict[str, Any]]:
            return [line for line in process.lines() if line["event"] == event]

        return (await eventually(look, bool, f"{event} in the log of {process.name}", within_s))[0]


async def eventually(
    look: Callable[[], Awaitable[_Seen]], wanted: Callable[[_Seen], bool], awaited: str, within_s: float = WITHIN_S
) -> _Seen:
    """What `look` sees, as soon as it is wanted; fails after `within_s` seconds and names what was awaited."""
    seen = await look()
    try:
        async with asyncio.timeout(within_s):
            while not wanted(seen):
                await asyncio.sleep(_LOOK_EVERY_S)
                seen = await look()
    except TimeoutError:
        raise AssertionError(f"waited {within_s} s for {awaited}; saw {seen}") from None
    return seen


def is_alive(pid: int) -> bool:
    """Whether a process is there and more than a name (a zombie whose parent has not looked)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def database(server: EmbeddedServer, number: int) -> str:
    """The URL of one of the server's databases, emptied: stacks in different ones know nothing of each other."""
    url = f"{server.url.removesuffix('/0')}/{number}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url


def stand_in(script: str, folder: Path) -> StandIn:
    """A stand-in provider for `async with`, that plays `script` on a free port; files of a script are in `folder`."""
    path = folder / "script.toml"
    path.write_text(script, encoding="utf-8")
    return StandIn(load_script(path), transcript_path=folder / "transcript.jsonl")
