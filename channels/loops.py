"""Loops that run as long as their process: how they wait, survive and end.

What belongs here: going on. What must not be known here: what a loop does.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from worker.observability import fault, warn
from worker.store.repeat import is_unanswered

_FIRST_WAIT_S = 0.1
_LONGEST_WAIT_S = 2.0


async def keep_going(name: str, step: Callable[[], Awaitable[float]], stop: asyncio.Event) -> None:
    """Take `step` again and again until `stop` is set. It gives the seconds to wait before the next.

    Whatever it raises is told and the loop goes on, after a wait that grows to 2 s while it fails: a loop that ended
    would not be missed until someone missed its work.
    """
    failures = 0
    while not stop.is_set():
        try:
            wait_s = await step()
        except Exception as error:  # noqa: BLE001 - see above
            wait_s = min(_FIRST_WAIT_S * 2**failures, _LONGEST_WAIT_S)
            failures = min(failures + 1, 10)
            if is_unanswered(error):
                warn(f"{name}_lost_redis", error=type(error).__name__)
            else:
                fault(f"{name}_failed", error)
        else:
            failures = 0
        if wait_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await stop.wait()
