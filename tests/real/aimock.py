"""aimock on the loopback: a server that answers from fixtures, well or badly.

What belongs here: starting it. The server is the package @copilotkit/aimock.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.real.program import NODE_MODULES, Program

_COMMAND = NODE_MODULES / "@copilotkit" / "aimock" / "dist" / "cli.js"


class Aimock(Program):
    """aimock; it speaks all three wire formats below /v1. Skips where there is no Node to run it."""

    def __init__(self, fixtures: list[dict[str, Any]], folder: Path) -> None:
        super().__init__("aimock", "/health", folder)
        self._fixtures = folder / f"aimock-{self.port}.json"
        self._fixtures.write_text(json.dumps({"fixtures": fixtures}), encoding="utf-8")

    def arguments(self) -> list[str]:
        """The command that starts it."""
        if shutil.which("node") is None or not _COMMAND.is_file():
            pytest.skip("there is no Node, or ops/test --real found no npm to install aimock with")
        listen = ["-h", "127.0.0.1", "-p", str(self.port)]
        return ["node", str(_COMMAND), *listen, "-f", str(self._fixtures), "--validate-on-load"]
