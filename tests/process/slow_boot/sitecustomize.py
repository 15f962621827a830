"""Python reads this as it starts, where it is on the path: the process of a suspect comes up only once GATE is there.

It tells BOOTS that it has begun, and then stands still before its first line, or, with ON_LOOP, on its event loop.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any


def _wait() -> None:
    with Path(os.environ["BOOTS"]).open("a", encoding="utf-8") as boots:
        boots.write(f"{os.getpid()}\n")
    while not Path(os.environ["GATE"]).exists():
        time.sleep(0.02)


def _wait_on_loop() -> None:
    from worker.wiring import TurnProcess  # noqa: PLC0415 - only here

    make = TurnProcess.__init__

    def made(self: TurnProcess, *args: Any, **more: Any) -> None:
        _wait()
        make(self, *args, **more)

    TurnProcess.__init__ = made  # type: ignore[method-assign]


if "worker.suspect" in sys.orig_argv:
    _wait_on_loop() if os.environ.get("ON_LOOP") else _wait()
