"""What a claim finds and leaves alone: what is stored of a lane or a delivery is not as this release knows it.

What belongs here: telling that from the rest, and saying so once in a while. What must not be known here: Redis, what
is decided of the rest.
"""

from collections.abc import Collection, Sequence
from time import monotonic

from channels.delivery.model import Delivery, State
from channels.outbox.deciding import Look
from channels.outbox.stored import LaneStep, decode, mark_of
from worker.observability import fault, warn

TELL_EVERY_S = 600.0
"""What is left alone is met again every few seconds, by each process."""


def readable(words: Sequence[bytes], lane: str, states: Collection[State]) -> tuple[list[Delivery], list[str]]:
    """Of ids and records in turn: the deliveries, and the ids of those that are left alone.

    Left alone is, too, what does not belong where it stands, or is not what the line before it says: whatever became of
    it could not be stored in its place.
    """
    there: list[Delivery] = []
    left: list[str] = []
    for name, record in zip(words[::2], words[1::2], strict=True):
        delivery, one = name.decode(), decode(record)
        is_right = one is not None and (one.id, one.lane) == (delivery, lane) and one.state in states
        if one is not None and is_right and record.startswith(f"{mark_of(one)} ".encode()):
            there.append(one)
        else:
            left.append(delivery)
    return there, left


class LeftAlone:
    """Says of a process what it leaves alone: of each kind one line in `TELL_EVERY_S`, with an example."""

    def __init__(self) -> None:
        self._told_at: dict[str, float] = {}

    def tell(self, looks: Sequence[Look], steps: Sequence[LaneStep]) -> None:
        """Say what a claim has left alone."""
        lanes = [look.seen.name for look in looks if not look.seen.is_readable]
        if lanes and self._may_tell("lanes"):
            warn("lane_left_alone", lane=lanes[0], count=len(lanes))
        deliveries = [each for look in looks for each in look.unreadable]
        if deliveries and self._may_tell("deliveries"):
            warn("delivery_left_alone", delivery=deliveries[0], count=len(deliveries))
        for step in steps:
            if step.fault is not None and self._may_tell("faults"):
                fault("lane_undecided", step.fault, lane=step.seen.name)

    def _may_tell(self, kind: str) -> bool:
        now = monotonic()
        if kind in self._told_at and now - self._told_at[kind] < TELL_EVERY_S:
            return False
        self._told_at[kind] = now
        return True
