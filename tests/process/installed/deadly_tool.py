"""Tools that end or hold up the process that runs them. They are found as `counts_tools` is."""

import os
import signal
import time
from pathlib import Path

from worker.tools.decorator import tool
from worker.tools.tool import ToolContext


@tool(retry_safe=True)
def poison(context: ToolContext) -> str:
    """Takes its process down, each time anew; leaves a trace before."""
    with Path(os.environ["TOOL_RUNS"]).open("a", encoding="utf-8") as runs:
        runs.write(f"poison {context.key} {os.getpid()}\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never said"


@tool
def block() -> str:
    """Blocks its thread for longer than any test lasts."""
    time.sleep(600)
    return "never said"


@tool
async def freeze() -> str:
    """Blocks the loop of its process for longer than any test lasts."""
    time.sleep(600)  # noqa: ASYNC251 - what a careless tool does
    return "never said"


@tool(retry_safe=True)
async def freeze_again() -> str:
    """As `freeze`, each time anew."""
    time.sleep(600)  # noqa: ASYNC251 - what a careless tool does
    return "never said"
