"""Scenes with one lane: what happened to it, what it lets through, and what an operator was told.

Time is set by hand, in seconds since the scene began.
"""

from typing import Self

from channels.delivery import lane as lanes
from channels.delivery.lane import Lane, Limits, Notice
from channels.delivery.model import Delivered, Failed, Outcome

T0_MS = 1_800_000_000_000

TAKEN = Delivered(200)
DOWN = Failed("transient", "http_503", "busy", "yes")
NOT_FOUND = Failed("permanent", "http_404", "no such path", "yes")
GONE = Failed("permanent", "http_410", "gone", "yes", gone=True)
THROTTLED = Failed("throttled", "http_429", "slow down", "yes")
OURS = Failed("ours", "cannot_sign", "no key", "no")


class Scene:
    """A lane, its limits and the clock it lives by."""

    def __init__(self, limits: Limits | None = None, lane: Lane | None = None) -> None:
        self.limits = limits or Limits()
        self.lane = lane or Lane()
        self.now_ms = T0_MS
        self.in_flight = 0
        self.told: list[Notice] = []

    def at(self, seconds: float) -> Self:
        """Set the clock, forth or back."""
        self.now_ms = T0_MS + round(seconds * 1000)
        return self

    def room(self, wanted: int = 1_000, waiting_ms: int | None = None) -> int:
        return lanes.room(self.lane, self.limits, self.in_flight, wanted, self.now_ms, waiting_ms)

    def begin(self, wanted: int = 1_000, waiting_ms: int | None = None) -> int:
        """Begin what there is room for; gives how many."""
        count = self.room(wanted, waiting_ms)
        self.lane = lanes.taken(self.lane, self.limits, count, self.now_ms, waiting_ms)
        self.in_flight += count
        return count

    def end(self, *outcomes: Outcome, died: bool = False) -> tuple[Notice, ...]:
        """Attempts end so, all at once; gives what was told."""
        before = self.lane
        self.lane, told = lanes.after(self.lane, self.limits, outcomes, self.now_ms, died=died)
        assert (self.lane == before) == (self.lane.version == before.version)
        assert self.lane.version - before.version in {0, 1}
        self.told += told
        return told

    def free_in_s(self) -> float:
        """When it has room, as seconds from now; 0 at once."""
        right = lanes.put_right(self.lane, self.limits, self.now_ms)
        return max(0, lanes.free_ms(right, self.limits) - self.now_ms) / 1000

    @property
    def open_for_s(self) -> float:
        return max(0, self.lane.open_until_ms - self.now_ms) / 1000
