"""A server of somebody else's making, started on a free loopback port.

What belongs here: starting, waiting until it answers, ending. Python packages are in `.venv-real`, Node packages in
`.venv-real/node`; `ops/test --real` puts them there.
"""

import asyncio
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv-real" / "bin"
PYTHON = BIN / "python"
NODE_MODULES = ROOT / ".venv-real" / "node" / "node_modules"
_READY_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1
_TAIL = 1000


def ask_python(code: str) -> str:
    """What a line of Python prints in the environment of the real tests."""
    return subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


class Program:
    """Runs within its `async with`; `process` may be frozen or killed. `health`: a path that answers 200 once ready."""

    def __init__(self, name: str, health: str, folder: Path) -> None:
        self.port = free_port()
        self.process: subprocess.Popen[bytes]
        self._name = name
        self._health = health
        self._log = folder / f"{name}-{self.port}.log"

    @property
    def root(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def arguments(self) -> list[str]:
        """The command that starts it."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(self.arguments(), stdout=log, stderr=log)  # noqa: ASYNC220 - it does not wait
        try:
            await self._until_ready()
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.wait()

    async def _until_ready(self) -> None:
        try:
            async with asyncio.timeout(_READY_WITHIN_S), httpx.AsyncClient() as client:
                while not await self._is_healthy(client):
                    assert self.process.poll() is None, f"{self._name} ended"
                    await asyncio.sleep(_LOOK_EVERY_S)
        except (TimeoutError, AssertionError) as error:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-_TAIL:]
            message = f"waited {_READY_WITHIN_S} s for {self._name}; the end of its log:\n{tail}"
            raise AssertionError(message) from error

    async def _is_healthy(self, client: httpx.AsyncClient) -> bool:
        try:
            answer = await client.get(self.root + self._health)
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK
