"""What an entry of the log becomes: deliveries, or a dead letter of its own.

What belongs here: these values, and that a dead letter is told in the log. What must not be known here: who gets what,
how it is stored.
"""

from dataclasses import dataclass, field

from channels.delivery.model import Delivery
from worker import ids
from worker.observability import warn


@dataclass(frozen=True, slots=True)
class Made:
    """The deliveries of one event, and what is stored of it once; empty: it is read from the turn itself."""

    deliveries: tuple[Delivery, ...] = ()
    event_id: str = ""
    content: bytes = field(default=b"", repr=False)


NOTHING = Made()


def dead_letter(  # noqa: PLR0913 - what is known of an entry
    partition: int, place: str, code: str, why: str, now_ms: int, *, turn: str = "", event_type: str = "unknown"
) -> Made:
    """What stands for the entry at a place of the log of which nothing can be made, for this reason."""
    warn("log_entry_dead", partition=partition, entry=place, code=code)
    letter = Delivery(
        id=ids.delivery_of(partition, place, ""),
        event_id=place,
        turn=turn,
        event_type=event_type,
        destination="",
        created_ms=int(place.partition("-")[0]),
        due_ms=0,
        state="dead",
        ended_ms=now_ms,
        code=code,
        message=f"log entry {place}: {why}",
    )
    return Made((letter,))
