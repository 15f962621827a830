"""A tool that leaves a trace: its idempotency key, a line a run, in the file TOOL_RUNS. It is not safe to run twice.

The processes of these tests find it as those of a user find theirs: by the entry point of an installed distribution,
`process_tools-1.0.dist-info` beside this file.
"""

import os
from pathlib import Path

from worker.tools.decorator import tool
from worker.tools.tool import ToolContext


@tool
async def note(context: ToolContext) -> str:
    """Leaves a trace."""
    _leave_a_trace(context.key)
    return "noted"


def _leave_a_trace(key: str) -> None:
    with Path(os.environ["TOOL_RUNS"]).open("a", encoding="utf-8") as runs:
        runs.write(f"{key}\n")
