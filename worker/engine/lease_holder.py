"""Where the lease of a turn is held from its claim on.

What belongs here: what the heartbeat tells, kept until there is a driver to be told. What must not be known here: how
a driver is made, what it does.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from worker.engine.driver import TurnDriver


class LeaseHolder:
    """Holds the lease of a turn, also while its driver is still being made: tools come from servers that take time."""

    def __init__(self) -> None:
        self.driver: TurnDriver | None = None
        self.is_lost = False
        self.cancel_reason: str | None = None

    def renewed(self, *, watched: bool) -> None:
        """The lease was renewed."""
        if self.driver is not None:
            self.driver.renewed(watched=watched)

    def lost(self) -> None:
        """Another driver owns the turn."""
        self.is_lost = True
        if self.driver is not None:
            self.driver.lost()

    def cancelled(self, reason: str) -> None:
        """Somebody wants the turn to end."""
        self.cancel_reason = reason
        if self.driver is not None:
            self.driver.cancel(reason)
