"""A receiver of ops/examples, as the process that its reader would start.

What belongs here: starting it, its URL, and what it prints. What must not be known here: what is posted to it.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

EXAMPLES = Path(__file__).parents[2] / "ops" / "examples"


class Example:
    """Runs within its `with`; `url`: where it listens, as it says itself."""

    def __init__(self, command: Sequence[str | Path], secret: str) -> None:
        self.url = ""
        self._command = command
        self._environment = {"PATH": os.environ["PATH"], "WEBHOOK_SECRET": secret, "PORT": "0"}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, env=self._environment, text=True, stdout=subprocess.PIPE)
        self.url = self.line()
        assert self.url.startswith("http://127.0.0.1:"), self.url
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._output.close()
        self._process.wait()

    @property
    def _output(self) -> IO[str]:
        assert self._process.stdout is not None
        return self._process.stdout

    def line(self) -> str:
        """The next line that it prints."""
        return self._output.readline().strip()
