"""`lastword up`: everything on one machine. Starts the lines of the Procfile, and the embedded server under them.

What belongs here: starting, prefixing, draining and stopping processes, and starting one again that has died. What must
not be known here: what they do.

The processes are in sessions of their own, so Ctrl-C reaches this process alone. It tells the workers first; they
drain, and the server stops after them. Once more kills them: Ctrl-C whenever it comes, and any other signal that comes
two seconds after the first one or later.

A process that dies is started again, after ever longer waits: a few turns that take their process down must not end
everything. Only one that has never yet said that it has started is given up, for it would end in the same way again.
"""

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import cycle

from rich.text import Text

from channels.console import exits
from channels.console.joined import Client, Joined, ask, leave
from channels.console.lines import Lines
from channels.console.terminal import open_console
from channels.delivery.lane import lease_for
from channels.embedded import EmbeddedServer, die_with_parent
from channels.settings import Settings
from worker.engine.shutdown import Words
from worker.engine.started import STARTED_FD
from worker.errors import ConfigurationError

_QUIET = "--without-gossip --without-mingle --without-heartbeat"
"""Nobody listens to what Celery's processes tell each other, and a silent broker would keep them from ending."""

PROCESSES = {
    "turns": f"celery --app worker.tasks worker --queues turns --hostname turns@%h {_QUIET}",
    "delivery": f"celery --app channels.tasks worker --queues delivery --hostname delivery@%h {_QUIET}",
    "web": "lastword web",
}
"""The lines of the Procfile. A test holds them equal."""

_MODULES = {"lastword": "channels"}
"""Modules of programs whose name is another."""

_WATCH_EVERY_S = 0.5
_LOOK_EVERY_S = 0.05
_END_LIMIT_S = 5.0
_PATIENCE_S = 10.0
_SETTLED_S = 5.0
"""Who ends by itself sooner than this after its first start would do so again."""
_MOST_TRIES = 5
"""So often is started again who has never said that it has started."""
_AGAIN_AFTER_S = 1.0
_LONGEST_WAIT_S = 30.0
_STEADY_S = 60.0
"""Who has run so long is started again after the shortest wait."""
_CLOSING_S = 5.0
_STYLES = ("cyan", "magenta", "green", "yellow")


def drain_limit_s(settings: Settings) -> float:
    """The seconds after which every process has ended by itself, and a little more."""
    delivery, web = lease_for(settings.longest_timeout_s), settings.web.drain_s + settings.web.stop_s
    return max(settings.processes.drain_s, delivery, web) + _CLOSING_S


def run_up(settings: Settings, processes: Mapping[str, str] = PROCESSES) -> int:
    """Run everything until a signal or a death; returns the exit code."""
    lines = Lines(open_console())
    code = _run_up(settings, processes, lines)
    if not lines.end(_WATCH_EVERY_S):
        os._exit(code)  # the interpreter would wait for the write that hangs
    return code


def _run_up(settings: Settings, processes: Mapping[str, str], lines: Lines) -> int:
    if settings.redis_url is not None:
        ask(settings, _answers)
        foreman = _Foreman(processes, settings.redis_url, lambda: False, lines, drain_limit_s(settings))
        return asyncio.run(foreman.run())
    server = EmbeddedServer(settings.data_dir)
    url = server.start()
    try:
        if not server.owned:
            raise ConfigurationError(
                f"data_dir {settings.data_dir}: another Lastword command runs its server (process {server.owner}); "
                "stop that command first, or give this one a folder of its own with LASTWORD_DATA_DIR"
            )
        return asyncio.run(_Foreman(processes, url, lambda: server.died, lines, drain_limit_s(settings)).run())
    finally:
        leave(server, _PATIENCE_S)


async def _answers(_: Joined, client: Client) -> int:
    await client.ping()
    return exits.OK


class _Foreman:
    """Runs the processes side by side until a signal comes, or until one ends that a new start would not mend.

    `server_died` is asked now and then. `drain_limit_s`: who has not ended so long after the signal is killed.
    """

    def __init__(
        self,
        processes: Mapping[str, str],
        redis_url: str,
        server_died: Callable[[], bool],
        printed: Lines,
        drain_limit_s: float,
    ) -> None:
        self._lines = processes
        self._drain_limit_s = drain_limit_s
        self._environment = {**os.environ, "PYTHONUNBUFFERED": "1", "LASTWORD_REDIS_URL": redis_url}
        self._server_died = server_died
        self._running: dict[str, asyncio.subprocess.Process] = {}
        self._started_at: dict[str, float] = {}
        self._started_pipes: dict[str, int] = {}
        self._have_started: set[str] = set()
        self._failures = dict.fromkeys(processes, 0)
        self._due: dict[str, float] = {}
        self._words = Words()
        self._styles = dict(zip(processes, cycle(_STYLES), strict=False))
        self._echoes: list[asyncio.Task[None]] = []
        self._stopping = asyncio.Event()
        self._killing = asyncio.Event()
        self._printed = printed

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, *_hang_up()):
            loop.add_signal_handler(number, self._signalled, number.name)
        try:
            for name in self._lines:
                await self._start(name)
            code = await self._watch()
            await self._drain()
        finally:
            self._kill()
            await self._all_ended(_END_LIMIT_S)
            # What an ended process has printed is there already, but a child that outlives it may hold the pipe open.
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_EVERY_S):
                    await asyncio.gather(*self._echoes, return_exceptions=True)
        return code

    async def _start(self, name: str) -> None:
        program, *arguments = shlex.split(self._lines[name])
        # That of this environment, whatever PATH says.
        module = (sys.executable, "-m", _MODULES.get(program, program))
        self._started_pipes[name], told = os.pipe()
        try:
            self._running[name] = process = await asyncio.create_subprocess_exec(
                *module,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment | {STARTED_FD: str(told)},
                pass_fds=(told,),
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        finally:
            os.close(told)
        loop = asyncio.get_running_loop()
        self._started_at[name] = loop.time()
        self._echoes.append(loop.create_task(self._echo(name, self._styles[name], process)))

    async def _watch(self) -> int:
        """Wait until a signal asks for the end, or something ends by itself for good: a fault."""
        while not self._stopping.is_set():
            dead = [f"{name} ({_manner(self._running[name])})" for name in self._ended() if not self._comes_again(name)]
            if self._server_died():
                dead.append("the embedded server (its log is server.log in data_dir)")
            if dead:
                self._stopping.set()
                self._say(f"died: {', '.join(dead)}; stopping everything")
                return exits.FAILED
            now = asyncio.get_running_loop().time()
            for name in [name for name, due in self._due.items() if due <= now]:
                del self._due[name]
                await self._start(name)
            with suppress(TimeoutError):
                async with asyncio.timeout(_WATCH_EVERY_S):
                    await self._stopping.wait()
        self._say("stopping: the workers end or hand over what they do; once more kills them")
        return exits.OK

    def _ended(self) -> list[str]:
        """Those of which it is not yet decided whether they are started again."""
        return [name for name, one in self._running.items() if one.returncode is not None and name not in self._due]

    def _comes_again(self, name: str) -> bool:
        """Whether a new start may mend it; then it has a time for that."""
        now, ended = asyncio.get_running_loop().time(), self._running[name]
        ran_s = now - self._started_at[name]
        if _was_told(self._started_pipes.pop(name)):
            self._have_started.add(name)
        if ran_s >= _STEADY_S:
            self._failures[name] = 0
        elif name not in self._have_started:
            was_killed = (ended.returncode or 0) < 0
            if self._failures[name] == _MOST_TRIES or not (was_killed or ran_s >= _SETTLED_S):
                return False
        wait_s = min(_AGAIN_AFTER_S * 2 ** min(self._failures[name], 10), _LONGEST_WAIT_S)
        self._failures[name] += 1
        self._due[name] = now + wait_s
        self._say(f"{name} died ({_manner(ended)}); starting it again in {wait_s:g} s")
        return True

    async def _drain(self) -> None:
        for process in self._alive().values():
            with suppress(ProcessLookupError):
                process.terminate()
        await self._all_ended(self._drain_limit_s, unless=self._killing)
        for name in self._alive():
            self._say(f"killing {name}, which has not ended")

    def _alive(self) -> dict[str, asyncio.subprocess.Process]:
        return {name: process for name, process in self._running.items() if process.returncode is None}

    def _kill(self) -> None:
        for process in self._alive().values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # it leads a group: that of its session

    async def _all_ended(self, limit_s: float, unless: asyncio.Event | None = None) -> None:
        """Wait until every process has ended; its `wait` would wait for the end of its pipe, too."""
        limit = asyncio.get_running_loop().time() + limit_s
        cut_short = asyncio.Event() if unless is None else unless
        while self._alive() and not cut_short.is_set() and asyncio.get_running_loop().time() < limit:
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_EVERY_S):
                    await cut_short.wait()

    async def _echo(self, name: str, style: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        width = max(len(each) for each in self._lines)
        while (line := await _line(process.stdout)) is not None:
            self._printed.say(Text.assemble((f"{name:<{width}} | ", style), line))

    def _signalled(self, name: str) -> None:
        word = self._words.hear(name)
        if word == "again" or (word == "first" and self._stopping.is_set()):
            self._killing.set()
        self._stopping.set()

    def _say(self, words: str) -> None:
        self._printed.say(Text.assemble(("lastword | ", "bold"), words))


def _hang_up() -> list[signal.Signals]:
    """SIGHUP, by which a terminal takes leave, unless this process is to outlive it."""
    return [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]


def _was_told(pipe: int) -> bool:
    """Whether an ended process has said into this pipe that it had started."""
    os.set_blocking(pipe, False)  # what it has left behind may hold the other end
    with os.fdopen(pipe, "rb", buffering=0) as told:
        return bool(told.read(1))


def _manner(process: asyncio.subprocess.Process) -> str:
    code = process.returncode or 0
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def _line(stream: asyncio.StreamReader) -> str | None:
    """The next line without its end, or what there is of an endless one; None at the end."""
    try:
        data = await stream.readuntil()
    except asyncio.IncompleteReadError as rest:
        data = rest.partial
    except asyncio.LimitOverrunError as overrun:
        data = await stream.read(max(overrun.consumed, 1))
    return data.decode(errors="replace").rstrip("\r\n") if data else None
