"""The tools of a chaos run: each start and each end is a line of the file CHAOS_LEDGER, on disk before it goes on.

What belongs here: what the turns processes load by an entry point. What must not be known here: the run.

A line: {"event": "start" or "end", "key", "tool", "pid", "process", "at"}. `process`: its name in the run, from
CHAOS_PROCESS. `at`: UTC, ISO 8601. Each line is one write of a file that is open for appending, so the lines of all
processes follow each other whole.
"""

import asyncio
import json
import os
import time
from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field

from worker.tools.decorator import tool
from worker.tools.tool import ToolContext

Wait = Annotated[int, Field(ge=0, le=10_000, description="How long it takes, in milliseconds.")]


@tool
async def book(wait_ms: Wait, context: ToolContext) -> str:
    """Books something. It must not run twice."""
    _write("start", "book", context.key)
    await asyncio.sleep(wait_ms / 1000)
    _write("end", "book", context.key)
    return f"done {context.key}"


@tool(retry_safe=True)
def look(wait_ms: Wait, context: ToolContext) -> str:
    """Looks something up. It may run again."""
    _write("start", "look", context.key)
    time.sleep(wait_ms / 1000)
    _write("end", "look", context.key)
    return f"done {context.key}"


def _write(event: str, name: str, key: str) -> None:
    at = datetime.now(UTC).isoformat(timespec="milliseconds")  # noqa: TID251 - read beside the provider's transcript
    process = {"pid": os.getpid(), "process": os.environ["CHAOS_PROCESS"]}
    line = json.dumps({"event": event, "key": key, "tool": name, **process, "at": at}) + "\n"
    handle = os.open(os.environ["CHAOS_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line.encode())
        os.fsync(handle)
    finally:
        os.close(handle)
