"""What a process says to whoever has started it: that it has started, though its log does not say it."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from select import select

import pytest

from channels.console.up import PROCESSES
from channels.embedded import die_with_parent
from tests.support.ports import free_port
from tests.support.stack import Stack
from worker.engine.started import STARTED_FD

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

SETTINGS = """
log_level = "error"

[providers.main]
base_url = "http://127.0.0.1:9/v1"
model = "none"

[web]
port = {port}
"""
WITHIN_S = 60.0


def started(arguments: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], int]:
    """A process, and where it says that it has started."""
    reads, told = os.pipe()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=log,
            stderr=log,
            cwd=folder,
            env={**environment, STARTED_FD: str(told)},
            pass_fds=(told,),
            preexec_fn=die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509 - one system call
        )
    os.close(told)
    return process, reads


@pytest.mark.requirement("console:up:told-of-start")
@pytest.mark.parametrize("name", list(PROCESSES))
async def test_a_process_whose_log_keeps_silent_says_once_that_it_has_started(
    name: str, tmp_path: Path, real_url: str
) -> None:
    """It closes the pipe behind the word, so that nothing that it starts holds it open."""
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS.format(port=free_port()))
        arguments = PROCESSES[name].replace("lastword", "channels").split()
        process, reads = started(arguments, tmp_path, stack.environment)
        try:
            said = b""
            while not said.endswith(b"END"):
                assert select([reads], [], [], WITHIN_S)[0], f"waited {WITHIN_S} s for a word of {name}"
                said += os.read(reads, 1) or b"END"
            assert process.poll() is None
        finally:
            os.close(reads)
            process.kill()
            process.wait()
    assert said == b"\nEND", (tmp_path / "log").read_text(encoding="utf-8")
    assert "_process_started" not in (tmp_path / "log").read_text(encoding="utf-8")
