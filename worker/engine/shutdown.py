"""How a Celery process is told to end, and that it does.

What belongs here: the first word, the last word, and the time between them. What must not be known here: Celery, what
the process does meanwhile.

SIGTERM begins a drain, and so does SIGHUP, with which Celery would restart itself. Whoever says more, SIGQUIT or a
SIGTERM two seconds later or more, wants the process gone: it ends at once, as if it had crashed, and others take over
what it held. Celery would wait for its threads then, and they for their turns. A SIGTERM that comes sooner is the first
one again: many supervisors signal each process of a unit, and a parent passes on to its children what they heard, too.
A second SIGINT is a person's, who is not made to wait.

Behind the last of the work Celery has words with its broker, and waits for each as long as for any other: half a minute
where that is silent. Nobody else waits for it: a wake-up that is lost does no harm. Nor does anybody wait for what
Python does behind that: it joins what tools have left behind, and takes seconds on a busy machine.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from types import FrameType
from typing import Literal, NoReturn

from worker.observability import Field, fault, flush_reports, info, warn

OUT_OF_TIME = 75
"""Exit code of a process that had to be cut off in its drain: EX_TEMPFAIL of sysexits.h."""

AGAIN_AFTER_S = 2.0
"""What a supervisor sends sooner than this after the first signal is that one again."""

PARTING_S = 3.0
"""So long may Celery part from its broker, which answers within a second if it does."""

_SIGNALLED = 128
_LINE_LIMIT_S = 0.5
_PASSED_ON = ("SIGTERM", "SIGHUP")
"""What supervisors and parents send."""


class Words:
    """The signals by which one process is told to end. May be used from a signal handler."""

    def __init__(self) -> None:
        self._first: float | None = None

    def hear(self, name: str) -> Literal["first", "echo", "again"]:
        """The signal `name` has come: the first, the same once more, or one of somebody who insists."""
        now = monotonic()
        if self._first is None:
            self._first = now
            return "first"
        return "echo" if name in _PASSED_ON and now - self._first < AGAIN_AFTER_S else "again"


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


def end_here(code: int) -> NoReturn:
    """End this process, in which nothing is left to do: what it has reported leaves, what tools left behind is cut."""
    flush_reports()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or nobody reads it
            stream.flush()
    os._exit(code)


@dataclass(slots=True)
class Leaving:
    """The end of a process that is Celery's. `work_ends`: returns once a drain has left nothing to do.

    `close`: ends and closes everything else, once.
    """

    work_ends: Callable[[], object]
    close: Callable[[], object]
    _begun: threading.Event = field(default_factory=threading.Event)
    _closing: threading.Lock = field(default_factory=threading.Lock)

    def leave(self) -> None:
        """Close what is open, and return. Whoever comes second has nothing to do any more, but wait for the first."""
        with self._closing:
            if not self._begun.is_set():
                self._begun.set()
                self.close()

    def leave_anyway(self) -> None:
        """End the process behind the last of its work, unless Celery comes to `leave` soon. For a thread of its own."""
        try:
            self.work_ends()
        except CancelledError:  # it was closed meanwhile
            return
        if not self._begun.wait(PARTING_S):
            info("broker_left_silent", for_s=PARTING_S)
            try:
                self.leave()
            except Exception as error:  # noqa: BLE001 - the last place that sees it; what is open ends with the process
                fault("process_not_closed", error)
            end_here(0)


class Shutdown:
    """The end of one process. `drain`: begins it; may be called from a signal handler.

    `limit_s`: seconds from the first word to the end of the process, come what may; None: without limit. `leaving`:
    how it ends by itself, where it is Celery's.
    """

    def __init__(
        self, drain: Callable[[], object], limit_s: float | None = None, leaving: Leaving | None = None
    ) -> None:
        self._drain = drain
        self._limit_s = limit_s
        self._leaving = leaving
        self._words = Words()
        self._is_told = False
        self._hears_hangups = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # as under nohup

    def listen(self) -> None:
        """Let SIGQUIT end this process at once, and SIGHUP be a SIGTERM. To be called on the main thread."""
        signal.signal(signal.SIGQUIT, self._quit)
        signal.signal(signal.SIGHUP, self._hang_up if self._hears_hangups else signal.SIG_IGN)

    def told(self, name: str) -> None:
        """The process was told to end by the signal `name`."""
        word = self._words.hear(name)
        if name == "SIGQUIT" or word == "again":
            end_at_once(name, _SIGNALLED + getattr(signal, name, signal.SIGTERM))
        if word == "echo":
            return
        self._is_told = True
        info("shutting_down", signal=name, limit_s=self._limit_s)
        if self._limit_s is not None:
            timer = threading.Timer(self._limit_s, end_at_once, ("no_time_left", OUT_OF_TIME))
            timer.daemon = True
            timer.start()
        self._drain()
        if self._leaving is not None:
            threading.Thread(target=self._leaving.leave_anyway, name="lastword-leaving", daemon=True).start()

    def parted(self) -> None:
        """Celery has parted from its broker: close what is open, and end a process that was told to end.

        Whatever else has ended it, Celery has an exit code for.
        """
        if self._leaving is not None:
            self._leaving.leave()
        if self._is_told:
            end_here(0)

    @staticmethod
    def _hang_up(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGTERM)

    def _quit(self, number: int, _frame: FrameType | None) -> None:
        end_at_once(signal.Signals(number).name, _SIGNALLED + number)
