"""How attempts ended is stored: what cannot be stored costs itself only."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import redis.asyncio

from channels.delivery.model import Delivered, Delivery, Evidence, Hopeless, Outcome, Unsent
from channels.outbox import reading
from channels.outbox.outbox import Outbox
from channels.outbox.stored import decode_evidence, encode_evidence
from channels.settler import Settler
from tests.delivery.outboxes import LEASE_S, KnownRules, inserted

NAMES = ("crm", "evil", "audit")


class PoisonedOutbox(Outbox):
    """Cannot store these kinds of ends of one destination. `settled`: the destinations of each batch."""

    def __init__(self, client: redis.asyncio.Redis, *poisons: type) -> None:
        super().__init__(client, lease_s=LEASE_S, rules=KnownRules(), chance=lambda: 0.5)
        self.settled: list[list[str]] = []
        self._poisons = poisons

    async def settle(self, batch: Sequence[tuple[Delivery, Outcome]]) -> list[Delivery | None]:
        self.settled.append([held.destination for held, _ in batch])
        if any(held.destination == "evil" and isinstance(outcome, self._poisons) for held, outcome in batch):
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "surrogates not allowed")
        return await super().settle(batch)

    async def release(self, batch: Sequence[tuple[Delivery, float]]) -> list[Delivery | None]:
        if Unsent in self._poisons and any(held.destination == "evil" for held, _ in batch):
            raise ValueError("no number")
        return await super().release(batch)


async def settled(client: Any, outcome: Outcome | Unsent, *poisons: type) -> tuple[PoisonedOutbox, dict[str, Delivery]]:
    """What has become of one delivery of each destination, whose attempts ended together."""
    made = [one for name in NAMES for one in await inserted(client, f"evt_{name}", destination=name)]
    outbox = PoisonedOutbox(client, *poisons)
    batch = await outbox.claim("token", 10)
    assert {held.destination for held in batch} == set(NAMES)
    settler = Settler(outbox, lease_s=40)
    lease_ends = asyncio.get_running_loop().time() + LEASE_S
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        for held in batch:
            group.create_task(settler.settle(group, held, outcome, lease_ends))
    return outbox, {one.destination: await reading.show(client, one.id) for one in made}


def states(after: dict[str, Delivery]) -> dict[str, str]:
    return {name: one.state for name, one in after.items()}


@pytest.mark.requirement("hostile:settled-alone")
async def test_what_cannot_be_stored_is_a_fault_of_ours_and_its_neighbours_are_stored(any_redis: Any) -> None:
    outbox, after = await settled(any_redis, Delivered(200), Delivered)
    assert states(after) == {"crm": "delivered", "evil": "waiting", "audit": "delivered"}
    evil = after["evil"]
    assert (evil.code, evil.ours, len(evil.log)) == ("internal_error", 1, 1)
    assert sorted(map(len, outbox.settled)) == [1, 1, 1, 1, 3]


@pytest.mark.requirement("hostile:settled-alone")
async def test_what_cannot_be_stored_in_any_form_is_left_to_its_lease(any_redis: Any) -> None:
    _, after = await settled(any_redis, Hopeless("turn_expired", "it is gone"), object)
    assert states(after) == {"crm": "dead", "evil": "in_flight", "audit": "dead"}


@pytest.mark.requirement("hostile:settled-alone")
async def test_what_cannot_be_given_back_is_left_to_its_lease_and_its_neighbours_are_given_back(any_redis: Any) -> None:
    _, after = await settled(any_redis, Unsent("no time"), Unsent)
    assert states(after) == {"crm": "queued", "evil": "in_flight", "audit": "queued"}


@pytest.mark.requirement("hostile:bytes")
@pytest.mark.parametrize(
    ("text", "shown"), [("a\udcff", "a\ufffd"), ("\ud83d", "\ufffd"), ("\x00\x7f", "\x00\x7f"), ("\u2028", "\u2028")]
)
def test_evidence_is_stored_whatever_its_texts_are(text: str, shown: str) -> None:
    read = decode_evidence(encode_evidence(Evidence(200, 5, address=text, content_type=text, body=b"\xff")))
    assert (read.status, read.address, read.content_type, read.body) == (200, shown, shown, b"\xff")
