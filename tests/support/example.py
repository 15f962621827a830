"""A receiver of ops/examples, as the process that its reader would start.

What belongs here: starting it, its URL, what it prints, and whether it judges requests rightly. What must not be known
here: which language it is written in.
"""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.support.signed_requests import bad, good, post

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

    def takes(self, name: str) -> None:
        """Posts what one of our keys signed, a kind of `GOOD`, and expects that it takes it."""
        message_id = f"dlv_{name.replace(' ', '-')}"
        assert post(self.url, good(name, message_id)).status_code == 204
        assert self.line() == f"{message_id} turn.completed"

    def refuses(self, name: str) -> None:
        """Posts what it must refuse, a kind of `BAD`, and expects that it does, and goes on."""
        headers, body = bad(name)
        assert post(self.url, headers, body).status_code == 400
        self.takes("one key")
