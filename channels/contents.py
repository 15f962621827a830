"""The bodies of deliveries, read from the store and rendered, many at a time.

What belongs here: few round trips, and what is kept at hand. What must not be known here: what has to be read for which
event (`channels.telling` knows that), the JSON form, receivers, attempts.

A batch takes at most two round trips, however many deliveries it holds: the first reads turns, texts and what events
refer to, the second what that refers to. Deliveries of one event are read and rendered once; what was rendered last
stays at hand, since what it is made of changes no more.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import redis.asyncio

from channels.delivery.model import Delivery, Hopeless, Unsent
from channels.telling import Body, Plan, Telling
from channels.webhook.payload import Form
from worker.observability import fault
from worker.store.reads import Read, read_all
from worker.store.repeat import is_unanswered

KEPT_BYTES = 8 * 1024 * 1024
"""Of bodies that are kept at hand."""

_LONGEST_KEPT = 256 * 1024
_MOST_KEPT = 1000
_AWAY_S = 1.0

_Key = tuple[str, str, bool]


class Contents:
    """The bodies of deliveries.

    `content_key`: the name under which the store keeps what the event of a delivery refers to, or brings.
    """

    def __init__(
        self,
        redis: redis.asyncio.Redis,
        form: Form,
        content_key: Callable[[Delivery], str],
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self._redis = redis
        self._telling = Telling(form, content_key)
        self._kept = _Kept(kept_bytes)

    async def bodies(self, requests: Sequence[tuple[Delivery, bool]]) -> list[Body]:
        """The body of each delivery, with True in full; in order.

        `Hopeless`: there is nothing to tell any more. `Unsent`: it cannot be told just now.
        """
        found: dict[_Key, Body] = {}
        plans: dict[_Key, Plan] = {}
        for delivery, full in requests:
            key = _key(delivery, full)
            kept = self._kept.get(key)
            if kept is not None:
                found[key] = kept
            elif key not in plans:
                plans[key] = self._telling.plan(delivery, full=full)
        try:
            rendered = await self._carried_out(plans)
        except Exception as error:
            if not is_unanswered(error):
                raise
            rendered = dict.fromkeys(plans, Unsent("Redis did not answer", _AWAY_S))
        for key, body in rendered.items():
            if isinstance(body, bytes):
                self._kept.put(key, body)
        found |= rendered
        return [found[_key(delivery, full)] for delivery, full in requests]

    async def _carried_out(self, plans: dict[_Key, Plan]) -> dict[_Key, Body]:
        """Take all plans on together: what they ask for at one time is read in one round trip."""
        bodies: dict[_Key, Body] = {}
        given: dict[_Key, Sequence[Any] | None] = dict.fromkeys(plans)
        while given:
            waiting: dict[_Key, Sequence[Read[Any]]] = {}
            for key, answers in given.items():
                try:
                    waiting[key] = next(plans[key]) if answers is None else plans[key].send(answers)
                except StopIteration as ended:
                    bodies[key] = ended.value
                except Exception as error:  # noqa: BLE001 - one event must not stop the others
                    fault("event_unreadable", error, event_id=key[0], event_type=key[1])
                    why = f"what it tells cannot be read: {type(error).__name__}"
                    bodies[key] = Hopeless("unreadable_event", why)
            asked = {read.name: read for reads in waiting.values() for read in reads}
            found = dict(zip(asked, await read_all(self._redis, list(asked.values())), strict=True))
            given = {key: [found[read.name] for read in reads] for key, reads in waiting.items()}
        return bodies


@dataclass(slots=True)
class _Kept:
    """The bodies that were wanted last, by event."""

    most_bytes: int
    size: int = 0
    bodies: OrderedDict[_Key, bytes] = field(default_factory=OrderedDict, repr=False)

    def get(self, key: _Key) -> bytes | None:
        """The body, if it is still at hand."""
        body = self.bodies.get(key)
        if body is not None:
            self.bodies.move_to_end(key)
        return body

    def put(self, key: _Key, body: bytes) -> None:
        """Keep a body, in place of those that nobody has wanted for longest. A long one is not kept."""
        if len(body) > min(_LONGEST_KEPT, self.most_bytes) or key in self.bodies:
            return
        self.bodies[key] = body
        self.size += len(body)
        while self.size > self.most_bytes or len(self.bodies) > _MOST_KEPT:
            _, gone = self.bodies.popitem(last=False)
            self.size -= len(gone)


def _key(delivery: Delivery, full: bool) -> _Key:
    return delivery.event_id, delivery.event_type, full
