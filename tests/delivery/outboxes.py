"""What tests of the outbox share: outboxes, deliveries that are due in them, and the rules of lanes.

What belongs here: making them. What must not be known here: what is tested.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import redis.asyncio

from channels.delivery.backoff import Backoff
from channels.delivery.lane import Limits, Rules
from channels.delivery.model import Delivery, Failed, Outcome, lane_of
from channels.outbox.attempted import Known
from channels.outbox.log import RelayLog
from channels.outbox.outbox import Outbox
from worker import ids
from worker.store import keys

NONCE = "relay"
LEASE_S = 40.0
BUSY = Failed("transient", "http_503", "busy", "yes")
REFUSED = Failed("transient", "connection_refused", "nobody listens", "no")
MISSING = Failed("permanent", "http_404", "hooks.example answered 404", "yes")
GONE = Failed("permanent", "http_410", "hooks.example answered 410", "yes", gone=True)
ONE_TRY = Rules(backoff=Backoff(()))


class KnownRules:
    """The rules of lanes as a test says them; of all others the usual ones."""

    def __init__(self, rules: Mapping[str, Known] | None = None, *, usual: Rules | None = None) -> None:
        self.rules = dict(rules or {})
        self.usual = usual or Rules()
        self.asked = 0

    async def __call__(self, lanes: Sequence[str]) -> Mapping[str, Known]:
        self.asked += 1
        return {lane: self.rules.get(lane, self.usual) for lane in lanes}


def box(client: redis.asyncio.Redis, rules: Mapping[str, Known] | None = None, *, lease_s: float = LEASE_S) -> Outbox:
    return Outbox(client, lease_s=lease_s, rules=KnownRules(rules), chance=lambda: 0.5)


def limited(**limits: Any) -> Rules:
    return Rules(limits=Limits(**limits))


def made(event: str, destination: str = "crm", *, partition: int = 0, **fields: Any) -> Delivery:
    one = Delivery(
        id=ids.delivery_of(partition, event, destination),
        event_id=event,
        turn=f"turn_{partition:02x}" + "b" * 20,
        event_type="turn.completed",
        destination=destination,
        lane=lane_of(destination),
        created_ms=1,
        due_ms=1,
    )
    return replace(one, **fields)


async def insert(client: redis.asyncio.Redis, deliveries: Sequence[Delivery], partition: int = 0) -> list[Delivery]:
    """Let the relay of a partition make them."""
    log = RelayLog(client, partition)
    place = await log.take_log(NONCE, 60)
    assert place is not None
    step = int(place.cursor.partition("-")[0]) + 1
    await log.insert(NONCE, place.cursor, f"{step}-0", deliveries)
    return list(deliveries)


async def inserted(client: redis.asyncio.Redis, *events: str, destination: str = "crm") -> list[Delivery]:
    return await insert(client, [made(event, destination) for event in events])


async def tried(
    client: redis.asyncio.Redis, *outcomes: Outcome, destination: str = "crm", waits: int = 2
) -> list[Delivery]:
    """Let attempts to one destination end so, one after the other; gives the `waits` deliveries that wait behind."""
    there = await inserted(client, *(f"tried_{n}" for n in range(len(outcomes) + waits)), destination=destination)
    outgoing = box(client)
    claimed = await outgoing.claim(f"try-{lane_of(destination)}", len(outcomes))
    for held, outcome in zip(claimed, outcomes, strict=True):
        await outgoing.settle([(held, outcome)])
    return [one for one in there if one.id not in {held.id for held in claimed}]


async def known(client: Any, *deliveries: Delivery) -> None:
    """Let the turns be stored that deliveries tell of."""
    for delivery in deliveries:
        await client.hset(keys.turn_record(delivery.turn), "v", 1)


async def store_as_before_lanes(client: Any, one: Delivery) -> None:
    """Store a delivery in the form, and in the sets, of a release before lanes."""
    fields = asdict(one)
    for later in ("lane", "mailbox", "hard", "ours", "first_ms"):
        fields.pop(later)
    for attempt in fields["log"]:
        attempt.pop("took_ms")
    record = json.dumps({"v": 1, "delivery": fields})
    tag = f"lw:{{p{one.id[4:6]}}}:"
    words = {"version": one.version, "token": one.token, "record": record}
    await client.hset(f"{tag}dlv:{one.id}", mapping=words)
    await client.zadd(f"{tag}dlv-index", {one.id: await client.zcard(f"{tag}dlv-index") + 1})
    if one.due_ms:
        await client.zadd(f"{tag}dlv-due", {one.id: one.due_ms})
    if one.state == "dead":
        await client.zadd(f"{tag}dlv-dead", {one.id: one.ended_ms})
    if one.ended_ms:
        await client.zadd(f"{tag}dlv-forget", {one.id: one.ended_ms + 86_400_000})
