"""`worker.tasks` in a process that is killed at one verb of the store: DIES_AT is `<script> <before|after> <n>`.

`before`: the n-th time that the script is to be sent; `after`: when it was applied that often, and nobody has heard it.
"""

import os
import signal
from typing import Any

from worker.store.script import Script
from worker.tasks import app

__all__ = ["app"]

_name, _when, _nth = os.environ["DIES_AT"].split()
_run = Script.__call__
_count = 0


async def _die_or_run(self: Script, *args: Any, **options: Any) -> Any:
    global _count  # noqa: PLW0603 - one process, one death
    if self.name == _name:
        _count += 1
        if _when == "before" and _count == int(_nth):
            os.kill(os.getpid(), signal.SIGKILL)
    reply = await _run(self, *args, **options)
    if self.name == _name and _when == "after" and _count == int(_nth):
        os.kill(os.getpid(), signal.SIGKILL)
    return reply


Script.__call__ = _die_or_run  # type: ignore[method-assign]
