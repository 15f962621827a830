"""The tools that a model may call.

What belongs here: what a tool is, the built-in ones, and running one within its time. What must not be known here:
turns, journals, wire formats.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time_ns
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from worker.codecs.messages import ToolSpec
from worker.codecs.wirejson import well_formed
from worker.observability import fault, warn

Arguments = Mapping[str, object]

GRACE_S = 1.0
"""How long a tool that was cancelled may take to end."""

_left_behind: set[asyncio.Task["ToolResult"]] = set()
"""Tools that went on after their cancellation; the event loop alone would not keep them."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model will read. `failure` names why the tool did not succeed, or is None."""

    text: str
    failure: str | None = None


class ToolRefusal(Exception):
    """A tool cannot do what it was asked; its words are told to the model."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool: how it is offered, and the function that runs it.

    `run` gets the arguments and an idempotency key, equal for every driver that runs the same tool call of a turn. It
    gives a text; anything else is told to the model as JSON.
    `retry_safe`: it may run again when a driver vanished while it ran.
    """

    spec: ToolSpec
    run: Callable[[Arguments, str], Awaitable[str]]
    retry_safe: bool = False


async def _clock(arguments: Arguments, _key: str) -> str:
    zone = str(arguments.get("timezone") or "UTC")
    try:
        there = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):
        raise ToolRefusal(f"unknown timezone {zone!r}: give an IANA name such as Europe/Berlin") from None
    now = datetime.fromtimestamp(time_ns() / 1e9, UTC).astimezone(there)
    return now.isoformat(timespec="seconds")


BUILT_IN: dict[str, Tool] = {
    "clock": Tool(
        spec=ToolSpec(
            name="clock",
            description="Tells the current date and time in a timezone.",
            parameters={
                "type": "object",
                "properties": {
                    "timezone": {"type": "string", "description": "IANA name, for example Europe/Berlin. Default UTC."}
                },
                "additionalProperties": False,
            },
        ),
        run=_clock,
        retry_safe=True,
    )
}


async def run_tool(
    tool: Tool, arguments: Arguments, key: str, timeout_s: float, *, grace_s: float = GRACE_S
) -> ToolResult:
    """Run a tool within `timeout_s` seconds. Never raises: whatever goes wrong is a result that the model can read.

    A tool that is late, or whose turn has ended, is cancelled; one that has not ended `grace_s` seconds later is left
    behind. Only KeyboardInterrupt and the caller's own cancellation pass.
    """
    running = asyncio.create_task(_ran(tool, arguments, key))  # noqa: TID251 - awaited below, cancelled by `_stop`
    try:
        in_time, _ = await asyncio.wait({running}, timeout=timeout_s)
    finally:
        if not running.done():
            await _stop(running, tool, grace_s)
    if not in_time:
        return ToolResult(f"Error: the tool did not answer within {timeout_s:g} s", "timeout")
    if running.cancelled():  # not by us: the tool did it to itself
        return _FAILED
    return running.result()


_FAILED = ToolResult("Error: the tool failed", "failed")


async def _ran(tool: Tool, arguments: Arguments, key: str) -> ToolResult:
    try:
        return ToolResult(_text(await tool.run(arguments, key)))
    except ToolRefusal as refusal:
        return ToolResult(well_formed(f"Error: {refusal}"), "refused")
    except (asyncio.CancelledError, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001 - a tool is foreign code: its fault is the model's to hear of
        fault("tool_failed", error, tool=tool.spec.name)
        return _FAILED


def _text(result: object) -> str:
    return well_formed(result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str))


async def _stop(running: asyncio.Task[ToolResult], tool: Tool, grace_s: float) -> None:
    _left_behind.add(running)
    running.add_done_callback(_left_behind.discard)
    running.cancel()
    ended, _ = await asyncio.wait({running}, timeout=grace_s)
    if not ended:
        warn("tool_left_behind", tool=tool.spec.name)
