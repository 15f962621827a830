"""`worker.tasks` in a process that is killed when its first tool has ended and its second call is about to open."""

import os
import signal
from typing import Any

from worker.store.accumulator import ExecutionOutputAccumulator
from worker.tasks import app

__all__ = ["app"]

_open_call = ExecutionOutputAccumulator.open_call


async def _die_or_open(self: ExecutionOutputAccumulator, call: int, *rest: Any, **more: Any) -> None:
    if call == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    await _open_call(self, call, *rest, **more)


ExecutionOutputAccumulator.open_call = _die_or_open  # type: ignore[method-assign]
