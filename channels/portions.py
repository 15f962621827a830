"""What is made of a stretch of the log, cut into portions that the store takes in a moment each.

What belongs here: the cuts, and what of the log is dealt with after each. What must not be known here: what is made of
an entry, how it is stored.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from channels.delivery.model import Delivery
from channels.made import Made
from worker.store.log import Entry

MOST_INSERTED = 1000
"""Deliveries that one script makes: a server does that in some 50 ms, in which it answers nobody else."""


@dataclass(slots=True)
class Portion:
    """What one step stores. `end`: the last entry that is wholly dealt with then; `entries`: those that are by it.

    `aside`: of those, what is put aside. `contents`: by event id, what is stored once for its deliveries.
    """

    end: str
    entries: list[Entry] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    contents: dict[str, bytes] = field(default_factory=dict, repr=False)
    aside: list[str] = field(default_factory=list)


def portions(
    entries: Sequence[Entry], made: Sequence[Made | None], start: str, most: int = MOST_INSERTED
) -> Iterator[Portion]:
    """The portions in order, of at most `most` deliveries each. `start`: the entry before the first.

    An entry that has more is stored in parts; the end of a part lies before that entry, so whoever comes after a crash
    begins with it again.
    """
    portion = Portion(start)
    for entry, each in zip(entries, made, strict=True):
        deliveries = () if each is None else each.deliveries
        if portion.deliveries and len(portion.deliveries) + len(deliveries) > most:
            yield portion
            portion = Portion(portion.end)
        if each is not None and each.content:
            portion.contents[each.event_id] = each.content
        while len(deliveries) > most:
            portion.deliveries, deliveries = [*deliveries[:most]], deliveries[most:]
            yield portion
            portion = Portion(portion.end)
        portion.deliveries += deliveries
        portion.end = entry.id
        portion.entries.append(entry)
        if each is None:
            portion.aside.append(entry.id)
    if portion.entries:
        yield portion
