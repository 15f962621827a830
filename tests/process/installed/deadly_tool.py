"""Tools that end or hold up the process that runs them. They are found as `counts_tools` is."""

import os
import signal
import threading
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
def litter() -> str:
    """Leaves a thread behind that no interpreter ends without."""
    threading.Thread(target=time.sleep, args=(600,), daemon=False).start()
    return "done"


@tool
async def freeze() -> str:
    """Blocks the loop of its process for longer than any test lasts; says before which it is, where TOOL_RUNS is."""
    if "TOOL_RUNS" in os.environ:
        Path(os.environ["TOOL_RUNS"]).write_text(str(os.getpid()), encoding="utf-8")  # noqa: ASYNC240 - it blocks anyway
    time.sleep(600)  # noqa: ASYNC251 - what a careless tool does
    return "never said"


@tool(retry_safe=True)
async def freeze_again() -> str:
    """As `freeze`, each time anew."""
    time.sleep(600)  # noqa: ASYNC251 - what a careless tool does
    return "never said"
