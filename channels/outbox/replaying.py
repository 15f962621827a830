"""What is done to single deliveries beside attempts: replayed when dead or held, cancelled, ended when held too long.

What belongs here: the steps, and why one is refused. What must not be known here: how many at a time, who asks.
"""

from collections.abc import Sequence

import redis.asyncio

from channels.delivery import machine
from channels.delivery.lane import Lane
from channels.delivery.model import Delivery
from channels.outbox import keys
from channels.outbox.lanes import SETTLE, standings
from channels.outbox.reading import read, show
from channels.outbox.stored import Change, LaneStep, SeenLane, delivery_words, settle_words
from channels.webhook.address import shown
from worker.errors import ConfigurationError
from worker.store import clock
from worker.store import keys as store_keys
from worker.store.script import Script

_PUT_BACK = Script("channels.outbox", "put_back")


async def replay(client: redis.asyncio.Redis, delivery: str) -> Delivery:
    """Make a dead or held delivery due now, or put a dead log entry back into the log.

    Raises `ConfigurationError` when it is not known, of another state, changed meanwhile, held by an endpoint that
    still is paused or disabled, or has nothing left to tell.
    """
    found = await show(client, delivery)
    if found.state not in {"dead", "held"}:
        raise ConfigurationError(f"delivery {delivery} is {found.state}: only a dead or held one can be replayed")
    if not await _has_something_to_tell(client, [found]):
        raise ConfigurationError(
            f"delivery {delivery} has nothing left to tell: turn {found.turn} is not stored any more; raise "
            "turns.keep_s to keep later turns for longer"
        )
    if found.state == "held":
        _check_active(found, (await standings(client, [found.lane]))[found.lane])
    now_ms = await clock.now_ms(client)
    if not found.destination:
        return await _put_back(client, found, now_ms)
    return _changed(await _store(client, [Change(found, machine.replay(found, now_ms))], now_ms), delivery)


def _check_active(found: Delivery, lane: Lane) -> None:
    if lane.standing != "active":
        raise ConfigurationError(
            f"delivery {found.id} is held: {shown(found.destination)} is {lane.standing}, so it would be held again; "
            "resume or enable the endpoint first"
        )


async def replay_some(client: redis.asyncio.Redis, deliveries: Sequence[str]) -> list[Delivery]:
    """Make those of the deliveries due now that are dead or held and have something left to tell. Gives them.

    What is held stays so while its endpoint is paused or disabled: it would be held again at once.
    """
    there = [one for one in await read(client, deliveries) if one and one.state in {"dead", "held"} and one.destination]
    there = await _has_something_to_tell(client, there)
    lanes = await standings(client, sorted({one.lane for one in there if one.state == "held"}))
    there = [one for one in there if one.state == "dead" or lanes[one.lane].standing == "active"]
    now_ms = await clock.now_ms(client)
    return await _store(client, [Change(one, machine.replay(one, now_ms)) for one in there], now_ms)


async def cancel(client: redis.asyncio.Redis, delivery: str, why: str) -> Delivery:
    """Let a delivery that is queued, waiting or held not be sent any more.

    Raises `ConfigurationError` when it is not known, of another state, or changed meanwhile.
    """
    found = await show(client, delivery)
    if found.state not in {"queued", "waiting", "held"}:
        raise ConfigurationError(
            f"delivery {delivery} is {found.state}: only one that is queued, waiting or held can be cancelled"
        )
    now_ms = await clock.now_ms(client)
    return _changed(
        await _store(client, [Change(found, machine.cancel(found, now_ms, "cancelled", why))], now_ms), delivery
    )


async def lapse(client: redis.asyncio.Redis, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """End those of these held deliveries that have nothing left to tell. Gives these."""
    told = {one.id for one in await _has_something_to_tell(client, deliveries)}
    now_ms = await clock.now_ms(client)
    changes = [Change(one, machine.lapse(one, now_ms)) for one in deliveries if one.id not in told]
    return await _store(client, changes, now_ms)


def _changed(stored: Sequence[Delivery], delivery: str) -> Delivery:
    if not stored:
        raise ConfigurationError(f"delivery {delivery} was changed meanwhile: look at it again")
    return stored[0]


async def _store(client: redis.asyncio.Redis, changes: Sequence[Change], now_ms: int) -> list[Delivery]:
    """Store the changes of deliveries that nobody else has changed meanwhile. Gives these."""
    if not changes:
        return []
    steps = [LaneStep(SeenLane(each.new.lane, "", Lane()), [each]) for each in changes]
    stored = await SETTLE(client, [], settle_words(steps, now_ms))
    return [each.new for each, (_, [verdict]) in zip(changes, stored, strict=True) if verdict == 1]


async def _put_back(client: redis.asyncio.Redis, letter: Delivery, now_ms: int) -> Delivery:
    left = machine.put_back(letter, now_ms)
    log = store_keys.log(keys.partition_of(letter.id))
    answer = await _PUT_BACK(client, [log], delivery_words(letter, left))
    return _changed([left] if answer[0] else [], letter.id)


async def _has_something_to_tell(client: redis.asyncio.Redis, deliveries: Sequence[Delivery]) -> list[Delivery]:
    """Those of the deliveries whose turn, or whose event's own content, is stored."""
    if not deliveries:
        return []
    pipeline = client.pipeline(transaction=False)
    for one in deliveries:
        of_event = keys.content_of(one)
        pipeline.exists(*([store_keys.turn_record(one.turn)] if one.turn else []), of_event)
    there = await pipeline.execute()
    return [one for one, found in zip(deliveries, there, strict=True) if found or not (one.turn or one.destination)]
