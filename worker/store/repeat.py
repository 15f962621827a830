"""Repeating a step whose reply was lost.

What belongs here: what counts as no answer, and how long to wait before asking again. What must not be known here: the
steps. They must be safe to repeat.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import TypeVar

import redis
from redis.exceptions import MasterDownError, ReadOnlyError, ResponseError, TryAgainError

UNANSWERED = (redis.ConnectionError, redis.TimeoutError, ReadOnlyError, MasterDownError, TryAgainError, OSError)
"""Nothing was said about the step: it may have been taken or not. (A server that loads its file answers so, too.)"""

_CANNOT_NOW = re.compile(r"""(?:^|caused error: (?:\(['"])?)(?:MISCONF|BUSY|NOREPLICAS|UNBLOCKED)\b""")
"""A server that cannot write just now: its disk is full, a script hangs, its replicas are away, it has become one
itself. In a pipeline the client puts the place of the command before the server's words."""

_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.5
"""From a blip to an outage: 20, 40, 80, 160, 320, then every 500 ms; 10 s without Redis cost some 24 tries."""

T = TypeVar("T")


def is_unanswered(error: Exception) -> bool:
    """Whether an exception says nothing about the step: it may be taken again."""
    return isinstance(error, UNANSWERED) or (isinstance(error, ResponseError) and bool(_CANNOT_NOW.search(str(error))))


async def until_answered(step: Callable[[], Awaitable[T]], going: Callable[[], bool]) -> T:
    """Take the step again and again until it is answered; once `going()` is false, raise what the last try raised.

    That is one of `UNANSWERED`, also for a server that says that it cannot.
    """
    wait = _FIRST_WAIT_S
    while True:
        try:
            return await step()
        except Exception as error:
            if not is_unanswered(error):
                raise
            if not going():
                if isinstance(error, UNANSWERED):
                    raise
                raise redis.ConnectionError(str(error)) from error
        await asyncio.sleep(wait)
        wait = min(wait * 2, _LONGEST_WAIT_S)
