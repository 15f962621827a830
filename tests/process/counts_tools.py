"""`worker.tasks` with a tool that leaves a trace: its idempotency key, a line a run, in the file TOOL_RUNS.

It is not safe to run twice.
"""

import os
from dataclasses import replace
from pathlib import Path

from worker.tasks import app
from worker.tools import BUILT_IN, Arguments

__all__ = ["app"]


def _leave_a_trace(key: str) -> None:
    with Path(os.environ["TOOL_RUNS"]).open("a", encoding="utf-8") as runs:
        runs.write(f"{key}\n")


async def _noted(_arguments: Arguments, key: str) -> str:
    _leave_a_trace(key)
    return "noted"


BUILT_IN["clock"] = replace(BUILT_IN["clock"], run=_noted, retry_safe=False)
