"""The processes of a run: started, told apart, started again when they die, and ended.

What belongs here: processes, their environment, their logs. What must not be known here: when they are struck, what is
right. Each life of a process has a name of its own (`turns-1.2`: the second life of the first); the stand-in provider
and the receiver hear it in a header of every request.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from channels.console.up import PROCESSES
from channels.embedded import EmbeddedServer, die_with_parent, find_binary
from ops.chaos_run.story import TOOLS, WIRES

HEADER = "x-chaos-process"
HEADER_SETTINGS = (
    *(f"LASTWORD_PROVIDERS__{wire.upper()}__HEADERS" for wire in WIRES),
    "LASTWORD_ENDPOINTS__RECEIVER__HEADERS",
)
_PAUSE_S = 0.2
_LOAD_LIMIT_S = 120.0
_END_LIMIT_S = 15.0


class Server(EmbeddedServer):
    """The embedded server as the product starts it, which can be started again after a kill, at the same address."""

    @property
    def pid(self) -> int:
        """The process that is the server now."""
        assert self._process is not None
        return self._process.pid

    async def revive(self) -> None:
        """Start it again with what is on its disk, and wait until it has read that."""
        address = urlsplit(self.url)
        assert address.port is not None
        assert address.password is not None
        # Here, not in a thread: the server ends with the thread that started it.
        self._process = self._launch(find_binary(), address.port, address.password)
        limit = asyncio.get_running_loop().time() + _LOAD_LIMIT_S
        if not await asyncio.to_thread(self._wait_ready, limit):
            raise RuntimeError(f"the server did not come back; the end of its log:\n{self._log()}")


class Worker:
    """One place of the Procfile: a process that is started again whenever it dies.

    `kind`: `turns`, `delivery` or `web`; the last one listens on `port`. `headers`: the settings that make its peers
    hear its name.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a process is started with
        self,
        kind: str,
        number: int,
        folder: Path,
        environment: Mapping[str, str],
        port: int = 0,
        headers: Sequence[str] = HEADER_SETTINGS,
    ) -> None:
        self.kind = kind
        self.lives = 0
        self.ended_by_itself: list[str] = []
        self._port = port
        self._headers = headers
        self._place = f"{kind}-{number}"
        self._folder = folder
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None
        self._expected: set[int] = set()
        self._is_stopping = False

    @property
    def name(self) -> str:
        """The name of its present life."""
        return f"{self._place}.{self.lives}"

    @property
    def pid(self) -> int | None:
        """Its process, if there is one."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    async def keep_alive(self) -> None:
        """Start the process, and start it again after each death, until it is told to stop."""
        while not self._is_stopping:
            self.lives += 1
            self._expected = set()
            self._process = await self._start()
            code = await self._process.wait()
            if not (code in self._expected or self._is_stopping):
                self.ended_by_itself.append(f"{self.name} ended by itself with code {code}")
            await asyncio.sleep(_PAUSE_S)

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if there is one."""
        self._expected |= {signal.SIGKILL: {-signal.SIGKILL}, signal.SIGTERM: {0}}.get(number, set())
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def stop(self) -> None:
        """Let it end; kill it when it does not."""
        self._is_stopping = True
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self._process is not None:
            try:
                async with asyncio.timeout(_END_LIMIT_S):
                    await self._process.wait()
            except TimeoutError:
                self.ended_by_itself.append(f"{self.name} did not end within {_END_LIMIT_S:g} s of SIGTERM")
                self.kill()

    def kill(self) -> None:
        """Kill it for good."""
        self._is_stopping = True
        self.send(signal.SIGKILL)

    def is_ready(self) -> bool:
        """Whether its present life has said that it has started."""
        started = f'"{self.kind}_process_started"'
        log = self._folder / f"{self.name}.log"
        return log.exists() and started in log.read_text(encoding="utf-8", errors="replace")

    async def _start(self) -> asyncio.subprocess.Process:
        if self.kind == "web":
            arguments = ["channels", "web", "--port", str(self._port)]
        else:
            arguments = PROCESSES[self.kind].split()
            arguments[arguments.index("--hostname") + 1] = f"{self.name}@%h"
        header = json.dumps({HEADER: self.name})
        with (self._folder / f"{self.name}.log").open("wb") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env={**self._environment, **dict.fromkeys(self._headers, header), "CHAOS_PROCESS": self.name},
                start_new_session=True,  # Ctrl-C is for the run alone, which ends what it started
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )


async def until(holds: Callable[[], object], awaited: str, within_s: float, every_s: float = 0.02) -> None:
    """Wait for a condition. Raises TimeoutError that names what was awaited."""
    try:
        async with asyncio.timeout(within_s):
            while not holds():  # noqa: ASYNC110 - what is waited for happens in other processes
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise TimeoutError(f"waited {within_s:g} s for {awaited}") from None


def free_ports(count: int) -> list[int]:
    """Ports of the loopback that nobody listens on, all different."""
    with contextlib.ExitStack() as open_:
        probes = [open_.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without settings of the user's own."""
    return {name: value for name, value in environment.items() if not name.startswith("LASTWORD_")}


def install_tools(folder: Path) -> Path:
    """A folder for PYTHONPATH in which the tools of `ops.chaos_run.tools` are an installed distribution."""
    installed = folder / "installed"
    distribution = installed / "chaos_tools-1.0.dist-info"
    distribution.mkdir(parents=True)
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: chaos-tools\nVersion: 1.0\n", encoding="utf-8")
    entries = "".join(f"{name} = ops.chaos_run.tools:{name}\n" for name in TOOLS)
    (distribution / "entry_points.txt").write_text(f"[lastword.tools]\n{entries}", encoding="utf-8")
    return installed


def python_path(*folders: Path) -> str:
    """PYTHONPATH with these folders first."""
    before = os.environ.get("PYTHONPATH")
    return os.pathsep.join([*map(str, folders), *([before] if before else [])])
