"""The timer of a driver.

What belongs here: when it is set, and that what has arrived is read before it fires. What must not be known here: what
its deadlines mean.
"""

import asyncio
from collections.abc import Callable
from time import monotonic


class LazyTimer:
    """Fires at a deadline of the monotonic clock, on one event loop.

    It is set lazily: a new deadline costs nothing unless it is nearer than the one that is set. `deadline`: the one
    that counts, None where there is none. `fired`: called once it has passed; the timer is not set then.
    """

    def __init__(self, deadline: Callable[[], float | None], fired: Callable[[], None]) -> None:
        self._deadline = deadline
        self._fired = fired
        self._handle: asyncio.TimerHandle | None = None
        self._set_for = 0.0

    def set(self) -> None:
        """Look at the deadline, and set the timer if it would fire too late."""
        deadline = self._deadline()
        if deadline is None or (self._handle is not None and self._set_for <= deadline):
            return
        self.cancel()
        self._set_for = deadline
        self._handle = asyncio.get_running_loop().call_later(deadline - monotonic(), self._look)

    def cancel(self) -> None:
        """Fire no more, unless set again."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _look(self) -> None:
        self._handle = None
        deadline = self._deadline()
        if deadline is not None and deadline <= monotonic():
            # A process that slept or was busy finds its timers due before it has read what came meanwhile. A loop looks
            # at its sockets between a callback and the one that this sets up.
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._fired)
        else:
            self.set()
