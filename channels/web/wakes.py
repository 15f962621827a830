"""Wake-ups sent beside the event loop.

What belongs here: one thread that sends them in order, and forgets what it cannot send. What must not be known here:
what is woken.

A broker that hangs must not hold up a request, and a wake-up is only a hint: whatever is lost here, a sweep finds.
"""

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from worker.observability import warn

_MOST = 1_000


class Wakes:
    """Sends with `wake(session)`, which may block or raise."""

    def __init__(self, wake: Callable[[str], None]) -> None:
        self._wake = wake
        self._queue: queue.Queue[str] = queue.Queue(_MOST)
        self._thread = threading.Thread(target=self._run, name="lastword-wakes", daemon=True)

    def start(self) -> None:
        """Start the thread; it ends with the process."""
        self._thread.start()

    def add(self, session: str) -> None:
        """Wake this session soon; never blocks."""
        with suppress(queue.Full):
            self._queue.put_nowait(session)

    def _run(self) -> None:
        while True:
            session = self._queue.get()
            try:
                self._wake(session)
            except Exception as error:  # noqa: BLE001 - whatever the broker says, the next one is tried
                warn("wake_up_not_sent", error=type(error).__name__)
