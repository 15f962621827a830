"""A tool that never ends. It is found as `counts_tools` is."""

import asyncio

from worker.tools.decorator import tool


@tool
async def hang() -> str:
    """Never says a word."""
    await asyncio.Event().wait()
    return "never said"
