"""Reading what a bulk replay asks for: the oldest first, page after page, wherever the one before has ended.

What belongs here: pages of dead and held deliveries. What must not be known here: what is replayed, and how fast.
"""

import redis.asyncio

from channels.delivery.model import Delivery, lane_of
from channels.delivery.replay import Job, Page, admits
from channels.outbox import keys
from channels.outbox.reading import PAGE, parse_after, place_of, places, read

_SEEN_MOST = 2000
"""A step looks at no more than so many deliveries, also where hardly any is wanted."""


async def page_of(client: redis.asyncio.Redis, job: Job, count: int) -> Page:
    """At most `count` deliveries that the job admits, from its cursor on. It may be empty and not the last."""
    source, is_by_making = _source(job)
    score, last = parse_after(job.cursor) if job.cursor else (float(job.filters.since_ms), "")
    wanted: list[Delivery] = []
    seen = 0
    while seen < _SEEN_MOST:
        page = await places(client, source, score, last)
        for (name, at), one in zip(page, await read(client, [name for name, _ in page]), strict=True):
            if is_by_making and at >= job.filters.until_ms:
                return Page(wanted, None)
            score, last = at, name
            if one is not None and admits(job, one):
                wanted.append(one)
            if len(wanted) == count:
                return Page(wanted, place_of(score, last))
        seen += len(page)
        if len(page) < PAGE:
            return Page(wanted, None)
    return Page(wanted, place_of(score, last))


def _source(job: Job) -> tuple[str, bool]:
    """The set to look through, and whether it is in the order in which deliveries were made."""
    if job.reading == "dead":
        return keys.DEAD, False
    return (keys.held(lane_of(job.filters.destination)) if job.filters.destination else keys.INDEX), True
