"""A tool that waits for a file to be there: GATE. It is found as `counts_tools` is."""

import asyncio
import os
from pathlib import Path

from worker.tools.decorator import tool


@tool
async def gate() -> str:
    """Waits until it is let through."""
    while not Path(os.environ["GATE"]).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
        await asyncio.sleep(0.02)
    return "open"
