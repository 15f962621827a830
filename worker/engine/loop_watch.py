"""The watch over an event loop: a thread that asks it for a sign, and ends the process when none comes any more.

What belongs here: how long the loop owes its sign, and when that is too long. What must not be known here: what runs on
the loop, who gets what it had under way.

A process whose loop hangs looks alive from outside: it holds its place and its connections, and goes on to take work
that it will never begin. So it gives way to one that a supervisor starts. A process that stood still (SIGSTOP, a
machine that slept) owes nothing for that time: only what passes while the watch itself runs is counted.
"""

import contextlib
import sys
import threading
from asyncio import AbstractEventLoop
from pathlib import PurePath
from time import monotonic

from worker.engine.shutdown import end_at_once

LOOP_HUNG = 71
"""Exit code of a process whose loop hung past its limit; the turns that it drove have lost a driver."""

_LOOK_S = 0.25
_LATE_S = 1.0
"""A busy loop answers within this time; from then on it gets no more to do."""

_PATIENCE_S = 10.0


def hung_after_s(ttl_s: float) -> float:
    """After how many seconds a loop among many turns hangs for good: its leases, of `ttl_s`, have long run out."""
    return max(_PATIENCE_S, 2 * ttl_s)


class LoopWatch:
    """Watches a loop from `start` to `stop`.

    `limit_s`: how long it may owe a sign before the process ends; may be changed meanwhile.
    """

    def __init__(self, loop: AbstractEventLoop, limit_s: float) -> None:
        self._loop = loop
        self.limit_s = limit_s
        self._owed_s = 0.0
        self._loop_thread: int | None = None
        self._sign = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-loop-watch", daemon=True)

    @property
    def is_late(self) -> bool:
        """Whether the loop owes a sign for longer than one that is only busy."""
        return self._owed_s >= _LATE_S

    def start(self) -> None:
        """Start the thread. The loop runs, or is about to."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; to be called before the loop is ended."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        self._ask()
        looked_at = monotonic()
        while not self._stop.wait(_LOOK_S):
            now = monotonic()
            passed_s, looked_at = min(now - looked_at, 2 * _LOOK_S), now
            if self._sign.is_set():
                self._owed_s = 0.0
                self._ask()
                continue
            self._owed_s += passed_s
            if self._owed_s > self.limit_s:
                end_at_once("loop_hangs", LOOP_HUNG, for_s=round(self._owed_s, 1), place=self._place())

    def _ask(self) -> None:
        self._sign.clear()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(self._answer)

    def _answer(self) -> None:
        self._loop_thread = threading.get_ident()
        self._sign.set()

    def _place(self) -> str | None:
        """Where the loop's thread stands: file, line and function."""
        frame = None if self._loop_thread is None else sys._current_frames().get(self._loop_thread)  # noqa: SLF001
        if frame is None:
            return None
        return f"{PurePath(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
