"""A tool with an argument that leaves a trace: its idempotency key, a line a run, in the file TOOL_RUNS.

The processes find it by the entry point of `real_tools-1.0.dist-info` beside this file. It is not safe to run twice.
"""

import os
from pathlib import Path

from worker.tools.decorator import tool
from worker.tools.tool import ToolContext


@tool
async def look_up(context: ToolContext, timezone: str = "UTC") -> str:
    """Looks up the time in a timezone."""
    _leave_a_trace(context.key)
    return f"noted for {timezone}"


def _leave_a_trace(key: str) -> None:
    with Path(os.environ["TOOL_RUNS"]).open("a", encoding="utf-8") as runs:
        runs.write(f"{key}\n")
