"""Starting the MCP servers of the tests, and the marks that they leave.

What belongs here: processes and files. What must not be known here: what the code under test makes of a server.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from tests.support.tool_runs import PATIENCE_S
from worker.sections import McpSettings

FOLDER = Path(__file__).parent
PYTHON = sys.executable


class Marks:
    """What a server noted, a line a mark, since it was started or since `anew`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "marks"
        self.file.touch()
        self._earlier = 0

    def anew(self) -> None:
        """Forget what was noted so far."""
        self._earlier += len(self.lines())

    def lines(self) -> list[str]:
        return self.file.read_text(encoding="utf-8").splitlines()[self._earlier :]

    def started(self) -> int:
        """The process id of the server that was started last."""
        return int([line.split()[1] for line in self.lines() if line.startswith("started")][-1])

    def count(self, start: str) -> int:
        return sum(line.startswith(start) for line in self.lines())


def on_stdio(marks: Marks, env: Mapping[str, str] | None = None, **more: object) -> McpSettings:
    """The settings of the library's server over standard input."""
    variables = {"MCP_MARKS": str(marks.file), **(env or {})}
    return McpSettings.model_validate(
        {"command": (PYTHON, str(FOLDER / "mcp_server.py")), "env": variables, "connect_timeout_s": 30, **more}
    )


def by_hand(*behaviour: str, **more: object) -> McpSettings:
    """The settings of the server that was written by hand."""
    program = (PYTHON, str(FOLDER / "mcp_server_raw.py"), *behaviour)
    return McpSettings.model_validate({"command": program, "connect_timeout_s": 30, **more})


class HttpServer:
    """The library's server over streamable HTTP, within its `with`. `legacy`: it knows only the handshake."""

    def __init__(self, folder: Path, marks: Marks, *, legacy: bool = False) -> None:
        self._port_file = folder / "port"
        self._variables = {"MCP_MARKS": str(marks.file)} | ({"MCP_LEGACY": "1"} if legacy else {})
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it; again on the same port after it was killed."""
        self._port_file.unlink(missing_ok=True)
        self._process = subprocess.Popen(
            (PYTHON, str(FOLDER / "mcp_server.py"), "http", str(self._port_file)),
            env=os.environ | self._variables | {"MCP_PORT": str(self.port)},
            stderr=subprocess.DEVNULL,
        )
        deadline = monotonic() + PATIENCE_S
        while not (self._port_file.exists() and self._port_file.read_text()):
            assert monotonic() < deadline
            sleep(0.01)
        self.port = int(self._port_file.read_text())

    def kill(self) -> None:
        """Kill it without a warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def settings(self, path: str = "/mcp", **more: object) -> McpSettings:
        """The settings that reach it."""
        url = f"http://127.0.0.1:{self.port}{path}"
        return McpSettings.model_validate({"url": url, "connect_timeout_s": 30, **more})
