"""Running a tool so that whatever it does ends in a result that the model can read.

What belongs here: time, protection, and the form of results. What must not be known here: turns, journals, wire
formats, where the tool came from.

A tool is late when it has been silent for too long: when it has neither ended nor called `alive` of its context. One
that never calls it has that time as a whole.
"""

import asyncio
import json
from dataclasses import dataclass, replace
from time import monotonic

from pydantic_core import to_jsonable_python

from worker.codecs.wirejson import well_formed
from worker.observability import fault, warn
from worker.tools.clamp import clamped
from worker.tools.tool import Arguments, Tool, ToolContext, ToolRefusal

GRACE_S = 1.0
"""How long a tool that was cancelled may take to end."""

_left_behind: set[asyncio.Task["ToolResult"]] = set()
"""Tools that went on after their cancellation; the event loop alone would not keep them."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model will read.

    `failure`, None when all went well: `refused` and `failed` by the tool (or `failed` for a fault of it),
    `bad_arguments`: it did not run; `timeout`; `cancelled`: by the tool itself. With one, the text begins `Error: `.
    """

    text: str
    failure: str | None = None


class _Silence:
    """How long a tool has been silent. Told from any thread, asked on the loop."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._ends = monotonic() + timeout_s

    def broken(self) -> None:
        self._ends = monotonic() + self._timeout_s

    def left_s(self) -> float:
        return self._ends - monotonic()


async def run_tool(  # noqa: PLR0913, PLR0917 - the tool, what it gets, and its three limits
    tool: Tool,
    arguments: Arguments,
    context: ToolContext,
    timeout_s: float,
    result_chars: int,
    grace_s: float = GRACE_S,
) -> ToolResult:
    """Run a tool. Never raises: whatever goes wrong is a result that the model can read.

    `timeout_s`: longest silence in seconds, where the tool has none of its own. `result_chars`: longest result; of a
    longer one both ends are kept. A tool that is late, or whose turn has ended, is cancelled; one that has not ended
    `grace_s` seconds later is left behind. Only the caller's own cancellation passes.
    """
    longest_s = timeout_s if tool.timeout_s is None else tool.timeout_s
    silence = _Silence(longest_s)
    listening = replace(context, alive=silence.broken)
    running = asyncio.create_task(  # noqa: TID251 - awaited below, cancelled by `_stop`
        _ran(tool, arguments, listening, result_chars)
    )
    try:
        while not running.done() and (left_s := silence.left_s()) > 0:
            await asyncio.wait({running}, timeout=left_s)
        in_time = running.done()
    finally:
        if not running.done():
            await _stop(running, tool, grace_s)
    if not in_time:
        return ToolResult(f"Error: the tool gave no sign of life for {longest_s:g} s and was stopped", "timeout")
    if running.cancelled():  # not by us: the tool did it to itself
        return ToolResult("Error: the tool was cancelled", "cancelled")
    return running.result()


async def _ran(tool: Tool, arguments: Arguments, context: ToolContext, result_chars: int) -> ToolResult:
    try:
        try:
            text, failure = _text(await tool.run(arguments, context)), None
        except ToolRefusal as refusal:
            text, failure = well_formed(f"Error: {refusal}"), refusal.failure
        return ToolResult(clamped(text, result_chars), failure)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - foreign code; a KeyboardInterrupt here is no person's, but a fault
        fault("tool_failed", error, tool=tool.spec.name)
        return ToolResult("Error: the tool failed", "failed")


def _text(result: object) -> str:
    if isinstance(result, str):
        return well_formed(result)
    return well_formed(json.dumps(result, ensure_ascii=False, default=_plain))


def _plain(value: object) -> object:
    """A value that JSON does not know, as one that it does: a model by its fields, a date in ISO 8601."""
    return to_jsonable_python(value, fallback=str, bytes_mode="base64")


async def _stop(running: asyncio.Task[ToolResult], tool: Tool, grace_s: float) -> None:
    _left_behind.add(running)
    running.add_done_callback(_left_behind.discard)
    running.cancel()
    ended, _ = await asyncio.wait({running}, timeout=grace_s)
    if not ended:
        warn("tool_left_behind", tool=tool.spec.name)
