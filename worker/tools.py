"""The tools that a model may call.

What belongs here: what a tool is, the built-in ones, and running one within its time. What must not be known here:
turns, journals, wire formats.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import time_ns
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from worker.codecs.messages import ToolSpec
from worker.observability import fault

Arguments = Mapping[str, object]


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

    `run` gets the arguments and an idempotency key, equal for every driver that runs the same tool call of a turn.
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


async def run_tool(tool: Tool, arguments: Arguments, key: str, timeout_s: float) -> ToolResult:
    """Run a tool within `timeout_s` seconds. Never raises: whatever goes wrong is a result that the model can read."""
    try:
        async with asyncio.timeout(timeout_s):
            return ToolResult(await tool.run(arguments, key))
    except TimeoutError:
        return ToolResult(f"Error: the tool did not answer within {timeout_s:g} s", "timeout")
    except ToolRefusal as refusal:
        return ToolResult(f"Error: {refusal}", "refused")
    except Exception as error:  # noqa: BLE001 - a tool is foreign code: its fault is the model's to hear of
        fault("tool_failed", error, tool=tool.spec.name)
        return ToolResult("Error: the tool failed", "failed")
