"""What keeps the outbox whole: what an earlier release has stored, what stands nowhere, whose endpoint was deleted.

What belongs here: small steps, each safe to repeat, of any process. What must not be known here: how often.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import redis.asyncio

from channels.delivery import model
from channels.delivery.model import LIVE
from channels.outbox import keys, leaving
from channels.outbox.replaying import lapse
from channels.outbox.stored import decode, delivery_words
from worker.observability import info, warn
from worker.store import clock
from worker.store.script import Argument, Script

STEP = 200
"""So many deliveries are looked at in one step."""

PAUSE_S = 2.0
"""Between two steps that find nothing to adopt: a million deliveries are looked at within three hours."""

_ADOPT, _MEND = (Script("channels.outbox", name) for name in ("adopt", "mend"))


async def keep_up(client: redis.asyncio.Redis, partitions: int, given: Collection[str] = ()) -> float:
    """One step of all three. Gives the seconds to wait before the next. `given`: the endpoints of the settings."""
    if cancelled := await leaving.go_on(client, given):
        info("deliveries_of_deleted_cancelled", count=cancelled)
    errors: list[Exception] = []
    adopted = 0
    for partition in range(partitions):
        try:
            adopted += await adopt(client, partition)
        except Exception as error:  # noqa: BLE001 - raised below: what cannot be adopted must not keep the rest from it
            errors.append(error)
    if adopted:
        info("deliveries_adopted", count=adopted)
    else:
        mended = await mend(client)
        if mended:
            warn("deliveries_mended", count=mended)
    if errors:
        raise errors[0]
    return 0.0 if adopted or cancelled else PAUSE_S


async def adopt(client: redis.asyncio.Redis, partition: int) -> int:
    """Take over some deliveries that a release before lanes has stored in this partition. Gives how many.

    Such a release may still run, and store more. What its processes have in flight stays theirs until the lease ends.
    """
    former = keys.former(partition)
    for source in (former[3], former[0]):  # what one of its processes replays stands among the due ones alone
        offset = 0
        while names := await _names(client, source, offset):
            adopted = await _adopt(client, former, names)
            if adopted:
                return adopted
            offset += STEP
    return 0


async def _names(client: redis.asyncio.Redis, source: str, offset: int) -> list[str]:
    page: Any = await client.zrange(source, offset, offset + STEP - 1)
    return [name.decode() for name in page]


async def _adopt(client: redis.asyncio.Redis, former: Sequence[str], names: Sequence[str]) -> int:
    pipeline = client.pipeline(transaction=False)
    pipeline.time()
    for name in names:
        pipeline.hmget(keys.record(name), "version", "token", "record")
    time, *found = await pipeline.execute(raise_on_error=False)
    now_ms = clock.ms(time)
    gone: list[Argument] = []
    adopted: list[Argument] = []
    count = 0
    for name, stored in zip(names, found, strict=True):
        if not isinstance(stored, list) or None in stored:
            gone.append(name)
            continue
        one = model.decode(stored[2])
        if one is None or (one.state == "in_flight" and one.due_ms > now_ms):
            continue
        words = delivery_words(None, replace(one, version=one.version + 1))
        adopted += [f"{stored[0].decode()}:{stored[1].decode()}", *words[1:]]
        count += 1
    if not (gone or adopted):
        return 0
    await _ADOPT(client, former, [len(gone), *gone, count, *adopted])
    return count + len(gone)


async def mend(client: redis.asyncio.Redis) -> int:
    """Look at the next deliveries of all, and put back what has not ended and stands nowhere.

    What is held and has nothing left to tell ends. Gives how many were put back. After the last it begins anew; one
    that it passed over is met the next time.
    """
    before: Any = await client.hget(keys.COUNTS, "#mended")
    place = int(await client.get(keys.WALK) or 0)
    names = await _names(client, keys.INDEX, place)
    records: Any = await client.mget([keys.record(name) for name in names]) if names else []
    gone: list[Argument] = [name for name, record in zip(names, records, strict=True) if record is None]
    open_ = [one for one in map(decode, records) if one is not None and (one.state in LIVE or one.state == "held")]
    words = [word for one in open_ for word in delivery_words(one, one)]
    if not (names or place):
        return 0
    following = place + len(names) - len(gone) if names else 0
    (mended,) = await _MEND(client, [], [len(gone), *gone, len(open_), *words, following])
    lapsed = await lapse(client, [one for one in open_ if one.state == "held"])
    if lapsed:
        warn("held_deliveries_lapsed", count=len(lapsed))
    return int(mended) - int(before or 0)
