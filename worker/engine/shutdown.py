"""How a Celery process is told to end, and that it does.

What belongs here: the first word, the last word, and the time between them. What must not be known here: Celery, what
the process does meanwhile.

SIGTERM begins a drain. Whoever says more, SIGQUIT or a second SIGTERM, wants the process gone: it ends at once, as if
it had crashed, and others take over what it held. Celery would wait for its threads then, and they for their turns.
"""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from worker.observability import Field, info, warn

OUT_OF_TIME = 75
"""Exit code of a process that had to be cut off in its drain: EX_TEMPFAIL of sysexits.h."""

_SIGNALLED = 128
_LINE_LIMIT_S = 0.5


def end_at_once(why: str, code: int, **fields: Field) -> NoReturn:
    """End this process here, with a line that says why; the turns that it drives go on elsewhere, as after a crash.

    The line is written by another thread: whoever was interrupted, or hangs, may hold the log's lock.
    """
    with suppress(Exception):
        told = {"why": why, **fields}
        line = threading.Thread(target=warn, args=("process_cut_off",), kwargs=told, daemon=True)
        line.start()
        line.join(_LINE_LIMIT_S)
    os._exit(code)


class Shutdown:
    """The end of one process. `drain`: begins it; may be called from a signal handler.

    `limit_s`: seconds from the first word to the end of the process, come what may; None: without limit.
    """

    def __init__(self, drain: Callable[[], object], limit_s: float | None = None) -> None:
        self._drain = drain
        self._limit_s = limit_s
        self._is_told = False

    def listen(self) -> None:
        """Let SIGQUIT end this process at once. To be called on the main thread."""
        signal.signal(signal.SIGQUIT, self._quit)

    def told(self, name: str) -> None:
        """The process was told to end by the signal `name`."""
        if self._is_told:
            end_at_once(name, _SIGNALLED + getattr(signal, name, signal.SIGTERM))
        self._is_told = True
        info("shutting_down", signal=name, limit_s=self._limit_s)
        if self._limit_s is not None:
            timer = threading.Timer(self._limit_s, end_at_once, ("no_time_left", OUT_OF_TIME))
            timer.daemon = True
            timer.start()
        self._drain()

    def _quit(self, number: int, _frame: FrameType | None) -> None:
        end_at_once(signal.Signals(number).name, _SIGNALLED + number)
