"""The outbox: the deliveries of one partition in Redis.

What belongs here: storing what was decided, and only if nobody changed it meanwhile; reading it back. What must not be
known here: which state follows which (that is `channels.delivery.machine`), receivers, the log's entries.

A delivery that has not ended is always in `dlv-due`: whoever looks there next goes on with it, so none is forgotten. A
time there that lies further ahead than any wait is of a clock that was put back since: it is dealt with now.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio

from channels.delivery import machine, model
from channels.delivery.backoff import Backoff
from channels.delivery.model import LIVE, Delivery, Outcome, State
from channels.outbox_keys import OutboxKeys
from worker import ids
from worker.errors import ConfigurationError, StoreError
from worker.store import keys
from worker.store.script import Argument, Script

KEEP_S = 7 * 86400.0
KEEP_DEAD_S = 30 * 86400.0
_PAGE = 200

_FURTHEST_LEASE_MS, _FURTHEST_DUE_MS = 60_000, 86_400_000
"""No relay takes the log for longer, and no delivery waits longer (nor twice its longest wait, where that is more): a
time further ahead is of another clock."""

_CLAIM, _SETTLE, _TAKE, _INSERT, _READMIT = (
    Script("channels", name) for name in ("claim", "settle", "take", "insert", "readmit")
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a relay stands: the last log entry that was dealt with, and the store's time in milliseconds."""

    cursor: str
    now_ms: int


class RelayFenced(StoreError):
    """Another relay owns the log, or the cursor is not where this one left it: take the lease anew."""


class Outbox:
    """The deliveries of one partition.

    `lease_s`: how long a claim holds its batch. `chance`: numbers from 0 to 1, which spread the retries.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        partition: int,
        *,
        lease_s: float,
        backoff: Backoff,
        chance: Callable[[], float],
    ) -> None:
        self.partition = partition
        self._redis = client
        self._names = OutboxKeys(partition)
        self._lease_ms = round(lease_s * 1000)
        self._backoff = backoff
        self._furthest_ms = max(_FURTHEST_DUE_MS, 2 * backoff.longest_ms, 2 * self._lease_ms)
        self._chance = chance

    async def is_due(self) -> bool:
        """Whether a delivery's time has come, or is of another clock, or the lease of one in flight has ended."""
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        for end in (0, -1):
            pipeline.zrange(self._names.due, end, end, withscores=True)
        time, first, last = await pipeline.execute()
        return bool(first) and (first[0][1] <= _ms(time) or last[0][1] > _ms(time) + self._furthest_ms)

    async def claim(self, token: str, limit: int) -> list[Delivery]:
        """At most `limit` due deliveries, each with one more attempt begun; on the server's disk where it can tell.

        Repeated with the same token it gives the same batch, under the lease that began with the first claim. On the
        way, attempts whose lease has ended unsettled are counted and given their next time.
        """
        now_ms, ripe = await self._ripe(limit)
        memo = self._names.memo(token)
        if not ripe and not await self._redis.exists(memo):
            return []
        arguments: list[Argument] = [self._lease_ms]
        for delivery in ripe:
            arguments += [delivery.version, delivery.token, *_stored(self._decided(delivery, token, now_ms))]
        names = [*self._names.sets, memo, *(self._names.record(delivery.id) for delivery in ripe)]
        records = await _CLAIM(self._redis, names, arguments, durable=True)
        return [delivery for delivery in map(model.decode, records) if delivery and delivery.token == token]

    def _decided(self, delivery: Delivery, token: str, now_ms: int) -> Delivery:
        if delivery.due_ms > now_ms:
            delivery = machine.put_right(delivery, now_ms, self._lease_ms)
        if delivery.state != "in_flight":
            return machine.claim(delivery, token, now_ms, self._lease_ms)
        held = delivery.due_ms > now_ms
        return delivery if held else machine.expire(delivery, now_ms, self._chance(), self._backoff)

    async def _ripe(self, limit: int) -> tuple[int, list[Delivery]]:
        """The time, and the deliveries that this version can read: due, or of another clock."""
        now_ms, ripe = await self._looked_for(limit, of_another_clock=False)
        if len(ripe) < limit:
            now_ms, others = await self._looked_for(limit - len(ripe), of_another_clock=True)
            ripe += others
        return now_ms, ripe

    async def _looked_for(self, limit: int, *, of_another_clock: bool) -> tuple[int, list[Delivery]]:
        def is_wanted(due_ms: float) -> bool:
            return due_ms > now_ms + self._furthest_ms if of_another_clock else due_ms <= now_ms

        found: list[Delivery] = []
        offset = 0
        while True:
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.time()
            pipeline.zrange(self._names.due, offset, offset + limit - 1, desc=of_another_clock, withscores=True)
            time, page = await pipeline.execute()
            now_ms = _ms(time)
            due = [name.decode() for name, score in page if is_wanted(score)]
            # Between the two reads another claim may have been faster.
            there = await _read(self._redis, self._names, due)
            found += [one for one in there if is_wanted(one.due_ms) and one.state in LIVE]
            if len(due) < limit or len(found) >= limit:
                return now_ms, found[:limit]
            offset += limit

    async def settle(self, held: Delivery, outcome: Outcome) -> Delivery | None:
        """Store how the attempt ended. None: another claim has the delivery by now, nothing was changed."""
        now_ms = _ms(await self._redis.time())
        settled = machine.settle(held, outcome, now_ms, self._chance(), self._backoff)
        return settled if await _store(self._redis, self._names, held, settled, now_ms) else None

    async def release(self, held: Delivery, after_s: float = 0) -> bool:
        """Give a delivery back unsent, due after so many seconds.

        False: another claim has it by now, nothing was changed.
        """
        now_ms = _ms(await self._redis.time())
        released = machine.release(held, now_ms, round(after_s * 1000))
        return await _store(self._redis, self._names, held, released, now_ms)

    async def take_log(self, nonce: str, ttl_s: float) -> Place | None:
        """Take or renew the relay's lease, for `ttl_s` seconds, 60 at most. None while another relay holds it."""
        taken, *place = await _TAKE(self._redis, [self._names.relay], [nonce, round(ttl_s * 1000), _FURTHEST_LEASE_MS])
        return Place(place[0].decode(), int(place[1])) if taken else None

    async def leave_log(self, nonce: str) -> None:
        """Let another relay take over at once."""
        await _TAKE(self._redis, [self._names.relay], [nonce, 0, _FURTHEST_LEASE_MS])

    async def insert(
        self, nonce: str, start: str, end: str, deliveries: Sequence[Delivery], aside: Sequence[str] = ()
    ) -> int:
        """Record the deliveries of the log from `start` to `end`, in order, and move the cursor to `end`.

        `aside`: entries in between that are put aside for a newer release. Gives how many deliveries were new. Raises
        `RelayFenced` and changes nothing when the log is no longer ours.
        """
        arguments: list[Argument] = [nonce, start, end, len(aside), *aside]
        for delivery in deliveries:
            arguments += [*_stored(delivery), "" if delivery.destination else delivery.event_id]
        names = [*self._names.sets, self._names.relay, keys.log(self.partition), keys.log_aside(self.partition)]
        names += [self._names.record(delivery.id) for delivery in deliveries]
        answer = await _INSERT(self._redis, names, arguments)
        if not answer[0]:
            raise RelayFenced(f"the cursor of partition {self.partition} was not at {start}, or not ours to move")
        return int(answer[1])

    async def readmit(self, aside: str, deliveries: Sequence[Delivery]) -> int:
        """Record the deliveries of an entry that was put aside, which it is then no more. Gives how many were new.

        Any process may, whoever owns the log: only the first of them changes anything.
        """
        arguments: list[Argument] = [aside]
        for delivery in deliveries:
            arguments += [*_stored(delivery), "" if delivery.destination else delivery.event_id]
        names = [*self._names.sets, self._names.relay, keys.log_aside(self.partition)]
        names += [self._names.record(delivery.id) for delivery in deliveries]
        return int((await _READMIT(self._redis, names, arguments))[0])


async def show(client: redis.asyncio.Redis, delivery: str) -> Delivery:
    """The delivery of that id. Raises `ConfigurationError` when there is none."""
    names = _names_of(delivery)
    found = await _read(client, names, [delivery])
    if not found:
        raise ConfigurationError(
            f"delivery {delivery} is not known: it has expired or was never made; see `lastword deliveries list`"
        )
    return found[0]


async def listed(
    client: redis.asyncio.Redis, partitions: int, limit: int, state: State | None = None
) -> list[Delivery]:
    """At most `limit` deliveries, the newest first; of one state when it is given."""
    found: list[Delivery] = []
    for partition in range(partitions):
        names = OutboxKeys(partition)
        source = names.dead if state == "dead" else names.index
        found += await _newest(client, names, source, limit, state)
    return sorted(found, key=lambda delivery: delivery.created_ms, reverse=True)[:limit]


async def replay(client: redis.asyncio.Redis, delivery: str) -> Delivery:
    """Make a dead delivery due now, or put a dead log entry back into the log.

    Raises `ConfigurationError` when it is not known, not dead or no longer dead, or its turn has expired.
    """
    names, dead = _names_of(delivery), await show(client, delivery)
    if dead.state != "dead":
        raise ConfigurationError(f"delivery {delivery} is {dead.state}: only a dead delivery can be replayed")
    if dead.turn and not await client.exists(keys.turn_record(dead.turn)):
        raise ConfigurationError(
            f"delivery {delivery} has nothing left to tell: turn {dead.turn} is not stored any more; raise "
            "turns.keep_s to keep later turns for longer"
        )
    now_ms = _ms(await client.time())
    if dead.destination:
        replayed, log = machine.replay(dead, now_ms), []
    else:
        replayed, log = machine.put_back(dead, now_ms), [keys.log(names.partition)]
    if not await _store(client, names, dead, replayed, now_ms, log=log):
        raise ConfigurationError(f"delivery {delivery} was changed meanwhile: look at it again")
    return replayed


def _names_of(delivery: str) -> OutboxKeys:
    partition = ids.partition_of(delivery) if delivery.startswith("dlv_") else None
    if partition is None:
        message = (
            f"delivery {delivery[:80]!r} is no delivery id: give dlv_ and 22 hex digits, as `lastword deliveries list`"
        )
        raise ConfigurationError(message)
    return OutboxKeys(partition)


async def _store(  # noqa: PLR0913 - a step: where, from what, to what, when
    client: redis.asyncio.Redis,
    names: OutboxKeys,
    old: Delivery,
    new: Delivery,
    now_ms: int,
    *,
    log: Sequence[str] = (),
) -> bool:
    arguments = [old.version, old.token, now_ms, *_stored(new)]
    return bool((await _SETTLE(client, [*names.sets, names.record(old.id), *log], arguments))[0])


async def _newest(
    client: redis.asyncio.Redis, names: OutboxKeys, source: str, limit: int, state: State | None
) -> list[Delivery]:
    found: list[Delivery] = []
    offset = 0
    while len(found) < limit:
        page: list[Any] = await client.zrevrange(source, offset, offset + _PAGE - 1)
        if not page:
            break
        there = await _read(client, names, [name.decode() for name in page])
        found += [one for one in there if state is None or one.state == state]
        offset += _PAGE
    return found[:limit]


async def _read(client: redis.asyncio.Redis, names: OutboxKeys, deliveries: Sequence[str]) -> list[Delivery]:
    """Those of the deliveries that exist and that this version can read, in order."""
    pipeline = client.pipeline(transaction=False)
    for delivery in deliveries:
        pipeline.hget(names.record(delivery), "record")
    return [one for one in (model.decode(record) for record in await pipeline.execute() if record) if one]


def _stored(delivery: Delivery) -> list[Argument]:
    """A delivery as the scripts take it: the seven arguments of put.lua."""
    forget: Argument = ""
    if delivery.ended_ms:
        keep_s = KEEP_DEAD_S if delivery.state == "dead" else KEEP_S
        forget = delivery.ended_ms + round(keep_s * 1000)
    return [
        delivery.id,
        delivery.version,
        delivery.token,
        model.encode(delivery),
        delivery.due_ms or "",
        delivery.ended_ms if delivery.state == "dead" else "",
        forget,
    ]


def _ms(time: tuple[int, int]) -> int:
    return time[0] * 1000 + time[1] // 1000
