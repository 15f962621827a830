"""`worker.tasks` in a process that is killed when a call that carries messages is about to be committed."""

import os
import signal
from typing import Any

from worker.store.accumulator import ExecutionOutputAccumulator
from worker.tasks import app

__all__ = ["app"]

_commit = ExecutionOutputAccumulator.commit


async def _die_or_commit(
    self: ExecutionOutputAccumulator, fact: Any, totals: Any, outputs: Any, joined: Any = ()
) -> None:
    if joined:
        os.kill(os.getpid(), signal.SIGKILL)
    await _commit(self, fact, totals, outputs, joined)


ExecutionOutputAccumulator.commit = _die_or_commit  # type: ignore[method-assign]
