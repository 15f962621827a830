"""`worker.tasks` in a process that is killed when its first tool has ended and its second call is about to open."""

import os
import signal

from worker.store.accumulator import ExecutionOutputAccumulator
from worker.tasks import app

__all__ = ["app"]

_open_call = ExecutionOutputAccumulator.open_call


async def _die_or_open(
    self: ExecutionOutputAccumulator, call: int, attempt: int, resumes_spent: int, is_new_call: bool, provider: str = ""
) -> None:
    if call == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await _open_call(self, call, attempt, resumes_spent, is_new_call, provider)


ExecutionOutputAccumulator.open_call = _die_or_open  # type: ignore[method-assign]
