"""Tools for tests, and running one.

What belongs here: what the tests of tools share. It knows nothing of where tools come from.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from worker.codecs.messages import ToolSpec
from worker.tools.running import ToolResult, run_tool
from worker.tools.tool import Approval, Tool, ToolContext

LONG_S = 30.0
SHORT_S = 0.02
PATIENCE_S = 30.0
CONTEXT = ToolContext(key="turn_1:1:0", turn="turn_1", session="s", agent="default")

Run = Callable[..., Coroutine[Any, Any, Any]]

_SPEC = ToolSpec("odd", "Does odd things.", {"type": "object"})


@dataclass(frozen=True)
class OddTool:
    """A tool that is no function: what any object with these attributes is."""

    run: Run
    spec: ToolSpec = _SPEC
    retry_safe: bool = False
    approval: Approval = "never"
    timeout_s: float | None = None


async def result_of(
    tool: Tool,
    arguments: Mapping[str, object] | None = None,
    timeout_s: float = LONG_S,
    result_chars: int = 100_000,
    context: ToolContext = CONTEXT,
) -> ToolResult:
    """Run a tool to its result, within the patience of a test."""
    running = run_tool(tool, arguments or {}, context, timeout_s, result_chars, grace_s=SHORT_S)
    return await asyncio.wait_for(running, PATIENCE_S)


async def until(holds: Callable[[], bool]) -> None:
    """Wait for a condition, within the patience of a test."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - what is waited for knows no event
            await asyncio.sleep(0.01)
