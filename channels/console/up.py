"""`lastword up`: everything on one machine. Starts the lines of the Procfile, and the embedded server under them.

What belongs here: starting, prefixing, draining and stopping processes. What must not be known here: what they do.

The processes are in sessions of their own, so Ctrl-C reaches this process alone. It tells the workers first; they
drain, and the server stops after them.
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import cycle

from rich.console import Console
from rich.text import Text

from channels.console import exits
from channels.embedded import EmbeddedServer, die_with_parent
from channels.settings import Settings
from worker.errors import ConfigurationError

PROCESSES = {
    "turns": "celery --app worker.tasks worker --queues turns --hostname turns@%h --without-gossip --without-mingle",
    "delivery": (
        "celery --app channels.tasks worker --queues delivery --hostname delivery@%h --without-gossip --without-mingle"
    ),
}
"""The lines of the Procfile. A test holds them equal."""

_DRAIN_LIMIT_S = 60.0
_WATCH_EVERY_S = 0.5
_STYLES = ("cyan", "magenta", "green", "yellow")


def run_up(settings: Settings, processes: Mapping[str, str] = PROCESSES) -> int:
    """Run everything until a signal or a death; returns the exit code."""
    if settings.redis_url is not None:
        return asyncio.run(_Foreman(processes, settings.redis_url, lambda: False).run())
    server = EmbeddedServer(settings.data_dir)
    url = server.start()
    try:
        if not server.owned:
            raise ConfigurationError(
                f"data_dir {settings.data_dir}: another Lastword command runs its server (process {server.pid}); stop "
                "that command first, or give this one a folder of its own with LASTWORD_DATA_DIR"
            )
        return asyncio.run(_Foreman(processes, url, lambda: server.died).run())
    finally:
        server.stop()


class _Foreman:
    """Runs the processes side by side until one ends or a signal comes. `server_died` is asked now and then."""

    def __init__(self, processes: Mapping[str, str], redis_url: str, server_died: Callable[[], bool]) -> None:
        self._lines = processes
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", "LASTWORD_REDIS_URL": redis_url}
        self._server_died = server_died
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._console = Console(highlight=False, soft_wrap=True)

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)
        async with asyncio.TaskGroup() as group:
            for style, (name, line) in zip(cycle(_STYLES), self._lines.items(), strict=False):
                self._running[name] = process = await self._start(line)
                group.create_task(self._echo(name, style, process))
            code = await self._watch()
            await self._drain(group)
        return code

    async def _start(self, line: str) -> asyncio.subprocess.Process:
        program, *arguments = shlex.split(line)
        module = (sys.executable, "-m", program)  # that of this environment, whatever PATH says
        return await asyncio.create_subprocess_exec(
            *module,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            start_new_session=True,
            preexec_fn=die_with_parent if sys.platform == "linux" else None,
        )

    async def _watch(self) -> int:
        """Wait until a signal asks for the end, or something ends by itself: a fault."""
        while not self._stopping.is_set():
            dead = [
                f"{name} (exit code {one.returncode})"
                for name, one in self._running.items()
                if one.returncode is not None
            ]
            if self._server_died():
                dead.append("the embedded server (its log is server.log in data_dir)")
            if dead:
                self._stopping.set()
                self._say(f"died: {', '.join(dead)}; stopping everything")
                return exits.FAILED
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), _WATCH_EVERY_S)
        self._say("stopping: the workers end or hand over what they do; once more kills them")
        return exits.OK

    async def _drain(self, group: asyncio.TaskGroup) -> None:
        alive = [process for process in self._running.values() if process.returncode is None]
        for process in alive:
            with suppress(ProcessLookupError):
                process.terminate()
        ended = group.create_task(_all_ended(alive))
        killed = group.create_task(self._killing.wait())
        await asyncio.wait([ended, killed], timeout=_DRAIN_LIMIT_S, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        for name, process in self._running.items():
            if process.returncode is None:
                self._say(f"killing {name}, which has not ended")
                process.kill()

    async def _echo(self, name: str, style: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        width = max(len(each) for each in self._lines)
        while line := await _line(process.stdout):
            self._console.print(Text.assemble((f"{name:<{width}} | ", style), line))

    def _signalled(self) -> None:
        (self._killing if self._stopping.is_set() else self._stopping).set()

    def _say(self, words: str) -> None:
        self._console.print(Text.assemble(("lastword | ", "bold"), words))


async def _all_ended(processes: list[asyncio.subprocess.Process]) -> None:
    for process in processes:
        await process.wait()


async def _line(stream: asyncio.StreamReader) -> str | None:
    """The next line without its end, or what there is of an endless one; None at the end."""
    try:
        data = await stream.readuntil()
    except asyncio.IncompleteReadError as rest:
        data = rest.partial
    except asyncio.LimitOverrunError as overrun:
        data = await stream.read(max(overrun.consumed, 1))
    return data.decode(errors="replace").rstrip("\r\n") if data else None
