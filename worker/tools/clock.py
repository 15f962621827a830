"""The built-in tool `clock`.

What belongs here: telling the time. What must not be known here: who asks.
"""

from datetime import UTC, datetime
from time import time_ns
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from worker.tools.decorator import tool
from worker.tools.tool import ToolRefusal


@tool(retry_safe=True)
async def clock(
    timezone: Annotated[str, Field(description="IANA name, for example Europe/Berlin.")] = "UTC",
) -> str:
    """Tells the current date and time in a timezone."""
    try:
        there = ZoneInfo(timezone or "UTC")
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ToolRefusal(f"unknown timezone {timezone!r}: give an IANA name such as Europe/Berlin") from None
    return datetime.fromtimestamp(time_ns() / 1e9, UTC).astimezone(there).isoformat(timespec="seconds")
