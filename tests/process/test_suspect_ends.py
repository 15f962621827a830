"""The process of a suspect, and what could keep it, and its room, behind the end of its turn."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stack import Stack

pytestmark = [pytest.mark.process, pytest.mark.timeout(150)]

FULL = Path("/dev/full")
SETTINGS = """
[providers.main]
base_url = "http://127.0.0.1:9/v1"
model = "none"
"""
PROGRAM = """
import runpy, threading, time

threading.Thread(target=time.sleep, args=(600,)).start()  # as a tool may do
runpy.run_module("worker.suspect", run_name="__main__")
"""
WITHIN_S = 60.0


def ended(stack: Stack) -> subprocess.CompletedProcess[str]:
    with FULL.open("wb", buffering=0) as figures:
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, "room/1", str(figures.fileno())],
            cwd=stack.folder,
            env=stack.environment,
            pass_fds=(figures.fileno(),),
            stderr=subprocess.PIPE,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )


@pytest.mark.skipif(not FULL.exists(), reason="only Linux has a disk that is always full")
@pytest.mark.requirement("survive:suspect:not-counted")
async def test_it_ends_though_its_figures_cannot_be_written_and_a_thread_is_left(tmp_path: Path, real_url: str) -> None:
    async with Stack(tmp_path, real_url) as stack:
        stack.configure(SETTINGS)
        process = await asyncio.to_thread(ended, stack)
    lines = [json.loads(line) for line in process.stderr.splitlines()]
    assert [(line["event"], line["error"]) for line in lines] == [("suspect_not_counted", "OSError")]
    assert process.returncode == os.EX_OK
