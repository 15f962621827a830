"""The wake-ups that a process sends beside its event loop.

What belongs here: sending them one after the other, and resting when the broker refuses. What must not be known here:
which sessions are due, what a broker is.

A broker that hangs must hold up nothing else, and a wake-up is only a hint: whatever is lost here, a sweep finds.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic

from worker.observability import warn

REST_S = 2.0
"""How long a process leaves sweeping to others after its broker refused a wake-up."""


class Wakes:
    """Sends wake-ups one after the other, in a thread of its own. One that fails is due again by itself.

    `busy` while any is under way or has failed lately: what a process sweeps and cannot pass on, a healthy one would
    have to wait for. `most`: how many may wait here, 0: any number; what comes then is forgotten. `rest_s`: how long
    it is busy after one that failed.
    """

    def __init__(self, wake: Callable[[str], None], most: int = 0, rest_s: float = REST_S) -> None:
        self._wake = wake
        self._queue: queue.Queue[str] = queue.Queue(most)
        self._rest_s = rest_s
        self._rest_until = 0.0
        self._thread = threading.Thread(target=self._run, name="lastword-wakes", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        self._thread.start()

    def add(self, session: str) -> None:
        """Wake this session as soon as those before it were woken; never blocks."""
        with suppress(queue.Full):
            self._queue.put_nowait(session)

    def busy(self) -> bool:
        """Whether no more should be swept just now."""
        return self._queue.unfinished_tasks > 0 or monotonic() < self._rest_until

    def _run(self) -> None:
        while True:
            session = self._queue.get()
            try:
                self._wake(session)
            except Exception as error:  # noqa: BLE001 - whatever the broker says, the next one is tried
                self._rest_until = monotonic() + self._rest_s
                warn("wake_up_not_sent", session=session, error=type(error).__name__)
            finally:
                self._queue.task_done()
