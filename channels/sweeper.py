"""The sweeper: looks when something is due, and wakes those who deliver.

What belongs here: when to look. What must not be known here: claims, senders, tasks.
"""

from collections.abc import Awaitable, Callable

from channels.outbox.outbox import Outbox

SWEEP_S = 1.0
"""Nothing is due for longer than this before somebody looks."""

_LEAST_SWEEP_S = 0.1


class Sweeper:
    """Wakes a deliverer when something is due: a retry whose time has come, or a lease that ended unsettled."""

    def __init__(self, outbox: Outbox, wake: Callable[[], Awaitable[None]]) -> None:
        self._outbox = outbox
        self._wake = wake

    async def step(self) -> float:
        """Look once. Gives the seconds to wait before the next look."""
        due_in_s = await self._outbox.due_in()
        if due_in_s == 0:
            await self._wake()
        return SWEEP_S if not due_in_s else min(max(due_in_s, _LEAST_SWEEP_S), SWEEP_S)
