"""What the relay of one partition does in Redis: its lease, its cursor, and the deliveries it makes of the log.

What belongs here: storing. What must not be known here: what is made of an entry, what is delivered when.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import redis.asyncio

from channels.delivery.model import Delivery
from channels.outbox import keys
from channels.outbox.stored import KEEP_CONTENT_S, delivery_words
from worker.errors import StoreError
from worker.store import keys as store_keys
from worker.store.script import Argument, Script

_FURTHEST_LEASE_MS = 60_000
"""No relay takes the log for longer: a lease that ends later is of another clock."""

_TAKE, _INSERT, _READMIT = (Script("channels.outbox", name) for name in ("take", "insert", "readmit"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a relay stands: the last log entry that was dealt with, and the store's time in milliseconds."""

    cursor: str
    now_ms: int


class RelayFenced(StoreError):
    """Another relay owns the log, or the cursor is not where this one left it: take the lease anew."""


class RelayLog:
    """The log of one partition, as its relay sees it."""

    def __init__(self, client: redis.asyncio.Redis, partition: int) -> None:
        self.partition = partition
        self._redis = client
        self._relay = keys.relay(partition)
        self._aside = store_keys.log_aside(partition)

    async def take_log(self, nonce: str, ttl_s: float) -> Place | None:
        """Take or renew the relay's lease, for `ttl_s` seconds, 60 at most. None while another relay holds it."""
        taken, *place = await _TAKE(self._redis, [self._relay], [nonce, round(ttl_s * 1000), _FURTHEST_LEASE_MS])
        return Place(place[0].decode(), int(place[1])) if taken else None

    async def leave_log(self, nonce: str) -> None:
        """Let another relay take over at once."""
        await _TAKE(self._redis, [self._relay], [nonce, 0, _FURTHEST_LEASE_MS])

    async def insert(  # noqa: PLR0913 - a stretch of the log, and all that is made of it
        self,
        nonce: str,
        start: str,
        end: str,
        deliveries: Sequence[Delivery],
        aside: Sequence[str] = (),
        *,
        contents: Mapping[str, bytes] | None = None,
    ) -> int:
        """Record the deliveries of the log from `start` to `end`, in order, and move the cursor to `end`.

        Where `end` is `start`, they are some of those of the next entry, and the others must follow.
        `aside`: entries in between that are put aside for a newer release. `contents`: of events that bring their own,
        a JSON object each, by event id. Gives how many deliveries were new. Raises `RelayFenced` and changes nothing
        when the log is no longer ours.
        """
        arguments: list[Argument] = [nonce, start, end, len(aside), *aside]
        arguments += [*self._contents(contents or {}), *_made(deliveries)]
        names = [self._relay, store_keys.log(self.partition), self._aside]
        answer = await _INSERT(self._redis, names, arguments)
        if not answer[0]:
            raise RelayFenced(f"the cursor of partition {self.partition} was not at {start}, or not ours to move")
        return int(answer[1])

    async def readmit(
        self,
        aside: str,
        deliveries: Sequence[Delivery],
        *,
        contents: Mapping[str, bytes] | None = None,
        more_follow: bool = False,
    ) -> int:
        """Record the deliveries of an entry that was put aside, which it is then no more. Gives how many were new.

        `more_follow`: these are not all of them yet, and the entry stays aside.
        Any process may, whoever owns the log: only the first of them changes anything.
        """
        arguments: list[Argument] = [aside, int(more_follow), *self._contents(contents or {}), *_made(deliveries)]
        return int((await _READMIT(self._redis, [self._relay, self._aside], arguments))[0])

    def _contents(self, contents: Mapping[str, bytes]) -> list[Argument]:
        words: list[Argument] = [len(contents)]
        for event, content in contents.items():
            words += [keys.content(self.partition, event), content, round(KEEP_CONTENT_S * 1000)]
        return words


def _made(deliveries: Sequence[Delivery]) -> list[Argument]:
    words: list[Argument] = [len(deliveries)]
    for delivery in deliveries:
        words += [*delivery_words(None, delivery), "" if delivery.destination else delivery.event_id]
    return words
