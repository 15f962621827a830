"""Work that runs on the event loop of a process without a thread for each, and so much of it at a time.

What belongs here: bounding, handing over, waiting for the end. What must not be known here: turns, Celery.
"""

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from worker.engine.loop import LoopThread

Ended = Callable[[BaseException | None], None]
"""Told what a coroutine raised, `CancelledError` where it was cancelled; None: it returned. Must not raise."""


class Seats:
    """`count` seats for coroutines on `loop`. May be used from any thread but the loop's own."""

    def __init__(self, loop: LoopThread, count: int) -> None:
        self._loop = loop
        self._free = count
        self._count = count
        self._changed = threading.Condition()

    @property
    def free(self) -> int:
        """Seats that nobody has."""
        return self._free

    def take(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Ended) -> None:
        """Run a coroutine in a seat and return at once; blocks as long as no seat is free."""
        with self._changed:
            self._changed.wait_for(lambda: self._free > 0)
            self._free -= 1
        self._loop.submit(work()).add_done_callback(partial(self._leave, ended))

    def wait(self) -> None:
        """Return once nobody has a seat."""
        with self._changed:
            self._changed.wait_for(lambda: self._free == self._count)

    def _leave(self, ended: Ended, future: Future[None]) -> None:
        try:
            ended(CancelledError() if future.cancelled() else future.exception())
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
