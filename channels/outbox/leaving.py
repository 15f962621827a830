"""What becomes of deliveries whose endpoint was deleted: all that could still be sent is cancelled.

What belongs here: the steps from a deleted endpoint to a name that is free again. What must not be known here: how an
endpoint is deleted, who asks.

A name stands in `LEAVING` from the step that deletes its endpoint until nothing of its lane is queued, waiting, held or
in flight, and no endpoint can be made under it meanwhile: otherwise what was meant for the one would be sent to the
other. Each step may be repeated and left undone by whoever dies; delivery processes take it up.

A name that the settings of a delivery process define is taken again: what waits for it is for that endpoint.
"""

from collections.abc import Collection, Sequence
from typing import Any

import redis.asyncio

from channels.delivery import machine
from channels.delivery.lane import Lane
from channels.delivery.model import Delivery
from channels.endpoints.record import LEAVING
from channels.outbox import keys
from channels.outbox.lanes import SETTLE
from channels.outbox.reading import read
from channels.outbox.stored import Change, LaneStep, SeenLane, settle_words
from worker.store import clock
from worker.store.script import Script

STEP = 200
"""So many deliveries are cancelled in one step."""

_LANES_AT_ONCE = 20
_CANCELLED = "endpoint_removed"

_LEAVE = Script("channels.outbox", "leave")


async def finish(client: redis.asyncio.Redis, name: str, steps: int) -> int | None:
    """Cancel what is left of a deleted endpoint, in so many steps at most. None: its name is free.

    Else how many attempts to it are under way: those end as they end, and are not tried again.
    """
    in_flight = 0
    for _ in range(steps):
        cancelled = await _cancel_some(client, name)
        is_free, in_flight = await _LEAVE(client, [LEAVING], [name])
        if is_free:
            return None
        if not cancelled:
            break
    return int(in_flight)


async def go_on(client: redis.asyncio.Redis, given: Collection[str]) -> int:
    """One step for some of the endpoints that were deleted. Gives how many deliveries were cancelled.

    `given`: the names that the settings define.
    """
    if given:
        await client.zrem(LEAVING, *given)
    names: Any = await client.zrandmember(LEAVING, _LANES_AT_ONCE)
    cancelled = 0
    for name in names or ():
        cancelled += await _cancel_some(client, name.decode())
        await _LEAVE(client, [LEAVING], [name])
    return cancelled


async def _cancel_some(client: redis.asyncio.Redis, lane: str) -> int:
    """Cancel at most `STEP` deliveries of a lane that are queued, waiting or held. Gives how many."""
    there = await _in_lane(client, lane)
    now_ms = await clock.now_ms(client)
    why = (_CANCELLED, f"endpoint {lane} was removed")
    open_ = [one for one in there if one.state in {"queued", "waiting", "held"}][:STEP]
    changes = [Change(one, machine.cancel(one, now_ms, *why)) for one in open_]
    if not changes:
        return 0
    step = LaneStep(SeenLane(lane, "", Lane()), changes)
    [(_, verdicts)] = await SETTLE(client, [], settle_words([step], now_ms))
    return sum(verdict == 1 for verdict in verdicts)


async def _in_lane(client: redis.asyncio.Redis, lane: str) -> Sequence[Delivery]:
    """Some deliveries of a lane: also those in a mailbox behind the one that is due or in flight."""
    pipeline = client.pipeline(transaction=False)
    for place in (keys.due(lane), keys.held(lane), keys.flight(lane)):
        pipeline.zrange(place, 0, STEP - 1)
    names = [name.decode() for of_place in await pipeline.execute() for name in of_place]
    first = [one for one in await read(client, names) if one is not None]
    mailboxes = {one.mailbox for one in first if one.mailbox}
    for mailbox in mailboxes:
        pipeline.zrange(keys.mailbox(lane, mailbox), 0, STEP // len(mailboxes))
    of_boxes = [name.decode() for of_box in await pipeline.execute() for name in of_box] if mailboxes else []
    behind = await read(client, [name for name in dict.fromkeys(of_boxes) if name not in set(names)])
    return [*first, *(one for one in behind if one is not None)]
