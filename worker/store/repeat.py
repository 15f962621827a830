"""Repeating a step whose reply was lost.

What belongs here: what counts as no answer, and how long to wait before asking again. What must not be known here: the
steps. They must be safe to repeat.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError, TryAgainError

UNANSWERED = (redis.ConnectionError, redis.TimeoutError, ReadOnlyError, MasterDownError, TryAgainError, OSError)
"""Nothing was said about the step: it may have been taken or not. (A server that loads its file answers so, too.)"""

_BUSY = ("MISCONF", "BUSY ", "NOREPLICAS")
"""A server that cannot write just now: its disk is full, a script hangs, its replicas are away."""

_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.5
"""From a blip to an outage: 20, 40, 80, 160, 320, then every 500 ms; 10 s without Redis cost some 24 tries."""

T = TypeVar("T")


def is_unanswered(error: Exception) -> bool:
    """Whether an exception says nothing about the step: it may be taken again."""
    return isinstance(error, UNANSWERED) or (isinstance(error, ResponseError) and str(error).startswith(_BUSY))


async def until_answered(step: Callable[[], Awaitable[T]], going: Callable[[], bool]) -> T:
    """Take the step again and again until it is answered; once `going()` is false, raise what the last try raised."""
    wait = _FIRST_WAIT_S
    while True:
        try:
            return await step()
        except Exception as error:
            if not is_unanswered(error) or not going():
                raise
        await asyncio.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_S)
