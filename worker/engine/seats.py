"""Work that runs on the event loop of a process without a thread for each, and so much of it at a time.

What belongs here: bounding, handing over, waiting for the end. What must not be known here: turns, Celery.
"""

import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any

from worker.engine.loop import LoopThread

_PATIENCE_S = 2.0
"""How long work may wait for a seat, and then for the loop: as long as wake-ups can be in another's hands soon."""

Ended = Callable[[BaseException | None], None]
"""Told what a coroutine raised, `CancelledError` where it was cancelled; None: it returned. Must not raise."""


class Seats:
    """`count` seats for coroutines on `loop`. May be used from any thread but the loop's own.

    A seat whose work was given up is free again once the loop has come to it.
    """

    def __init__(self, loop: LoopThread, count: int) -> None:
        self._loop = loop
        self._free = count
        self._count = count
        self._changed = threading.Condition()

    @property
    def free(self) -> int:
        """Seats that nobody has."""
        return self._free

    def take(self, work: Callable[[], Coroutine[Any, Any, None]], ended: Ended) -> bool:
        """Run a coroutine in a seat, and return once it has begun.

        False: no seat was free for 2 s, or the loop did not begin for 2 s. Then it is never begun, `ended` never told.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._free > 0, _PATIENCE_S):
                return False
            self._free -= 1
        begins, begun = threading.Lock(), threading.Event()  # whoever gets the lock says whether it begins

        async def sit() -> None:
            if begins.acquire(blocking=False):
                begun.set()
                await work()

        def leave(future: Future[None]) -> None:
            self._leave(ended if begun.is_set() else None, future)

        self._loop.submit(sit()).add_done_callback(leave)
        return begun.wait(_PATIENCE_S) or not begins.acquire(blocking=False)

    def wait(self) -> None:
        """Return once nobody has a seat."""
        with self._changed:
            self._changed.wait_for(lambda: self._free == self._count)

    def _leave(self, ended: Ended | None, future: Future[None]) -> None:
        try:
            if ended is not None:
                ended(CancelledError() if future.cancelled() else future.exception())
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()
