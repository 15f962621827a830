"""Single steps of the outbox that a random life does not single out."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import redis.asyncio

from channels import outbox
from channels.delivery import model
from channels.delivery.backoff import Backoff
from channels.delivery.model import Deferred, Delivered, Delivery, Rejected
from channels.outbox import Outbox, RelayFenced
from tests.delivery.passing_time import let_pass
from worker import ids
from worker.errors import ConfigurationError
from worker.store import keys

NONCE = "relay"
REFUSED = Deferred(None, "connection_refused", "nobody listens", "no")


def box(client: redis.asyncio.Redis, partition: int = 0) -> Outbox:
    return Outbox(client, partition, lease_s=40.0, backoff=Backoff(), chance=lambda: 0.5)


def made(event: str, partition: int = 0, created_ms: int = 1) -> Delivery:
    return Delivery(
        id=ids.delivery_of(partition, event, "crm"),
        event_id=event,
        turn=f"turn_{partition:02x}" + "b" * 20,
        event_type="turn.completed",
        destination="crm",
        created_ms=created_ms,
        due_ms=1,
    )


async def inserted(client: redis.asyncio.Redis, *events: str) -> list[Delivery]:
    deliveries = [made(event) for event in events]
    await box(client).take_log(NONCE, 60)
    await box(client).insert(NONCE, "0-0", "1-0", deliveries)
    return deliveries


async def cursor_of(client: redis.asyncio.Redis, nonce: str) -> str | None:
    place = await box(client).take_log(nonce, 60)
    return None if place is None else place.cursor


async def died(client: redis.asyncio.Redis, event: str) -> Delivery:
    await inserted(client, event)
    [held] = await box(client).claim("claim", 1)
    dead = await box(client).settle(held, Rejected("http_404", "hooks.example answered 404"))
    assert dead is not None
    await known(client, dead)
    return dead


async def known(client: Any, delivery: Delivery) -> None:
    """Let the turn be stored that a delivery tells of."""
    await client.hset(keys.turn_record(delivery.turn), "v", 1)


@pytest.mark.requirement("delivery:outbox:claimed-by-one")
async def test_claims_at_the_same_time_share_the_deliveries_and_none_gets_one_twice(
    any_redis: redis.asyncio.Redis,
) -> None:
    due = await inserted(any_redis, *(f"evt_{number}" for number in range(20)))
    batches = await asyncio.gather(*(box(any_redis).claim(f"claim{number}", 20) for number in range(5)))
    claimed = [delivery.id for batch in batches for delivery in batch]
    assert sorted(claimed) == sorted(delivery.id for delivery in due)


@pytest.mark.requirement("delivery:outbox:claimed-by-one")
async def test_a_claim_that_is_overtaken_after_it_looked_gets_nothing(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    slow, fast = box(any_redis), box(any_redis)
    look = slow._ripe
    taken: list[Delivery] = []

    async def look_and_be_overtaken(limit: int) -> tuple[int, list[Delivery]]:
        found = await look(limit)
        taken.extend(await fast.claim("fast", 20))
        return found

    slow._ripe = look_and_be_overtaken  # type: ignore[method-assign]
    assert await slow.claim("slow", 20) == []
    assert sorted(await outbox.listed(any_redis, 1, 10), key=lambda one: one.id) == sorted(
        taken, key=lambda one: one.id
    )


@pytest.mark.requirement("delivery:outbox:old-token")
async def test_a_sender_that_wakes_after_its_lease_changes_nothing(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    [held] = await box(any_redis).claim("first", 1)
    await let_pass(any_redis, 41)
    assert await box(any_redis).claim("counts-the-first-as-unknown", 1) == []
    await let_pass(any_redis, 6)
    [again] = await box(any_redis).claim("second", 1)
    assert await box(any_redis).settle(held, Delivered(200)) is None
    assert not await box(any_redis).release(held)
    assert await outbox.show(any_redis, held.id) == again
    assert (again.id, again.attempts, again.log[0].code) == (held.id, 2, "lease_expired")


DAY_S = 86_400.0


@pytest.mark.requirement("delivery:clock:due")
@pytest.mark.parametrize("state", ["queued", "waiting"])
async def test_what_waits_for_a_time_of_a_clock_that_was_put_back_is_due_now(any_redis: Any, state: str) -> None:
    """Two days ahead; what waits by the clock of now is left to wait, however many of those there are."""
    deliveries = await inserted(any_redis, *(f"evt_{number}" for number in range(5)))
    for held in await box(any_redis).claim("claim", 10):
        if state == "waiting":
            assert await box(any_redis).settle(held, REFUSED) is not None
        else:
            assert await box(any_redis).release(held)
    await let_pass(any_redis, -10 * 3600)
    assert not await box(any_redis).is_due()
    assert await box(any_redis).claim("too early", 10) == []
    await let_pass(any_redis, -2 * DAY_S)
    assert await box(any_redis).is_due()
    claimed = [await box(any_redis).claim(token, limit) for token, limit in (("two", 2), ("rest", 10))]
    assert [len(batch) for batch in claimed] == [2, 3]
    assert {held.id for batch in claimed for held in batch} == {delivery.id for delivery in deliveries}


@pytest.mark.requirement("delivery:clock:due")
async def test_an_attempt_that_began_before_the_clock_was_put_back_has_one_lease_more_to_end(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    first, second = await box(any_redis).claim("claim", 10)
    await let_pass(any_redis, -2 * DAY_S)
    assert await box(any_redis).is_due()
    assert await box(any_redis).claim("looks", 10) == []
    assert not await box(any_redis).is_due()
    assert await box(any_redis).settle(first, Delivered(200)) is not None
    await let_pass(any_redis, 41)
    assert await box(any_redis).claim("counts-it-as-unknown", 10) == []
    await let_pass(any_redis, 6)
    [again] = await box(any_redis).claim("later", 10)
    assert (again.id, again.attempts, again.log[0].code) == (second.id, 2, "lease_expired")


@pytest.mark.requirement("delivery:outbox:durable-claim")
async def test_a_claimed_batch_is_on_the_disk_before_it_is_given_out(real_redis: redis.asyncio.Redis) -> None:
    await inserted(real_redis, "evt_1", "evt_2")
    await box(real_redis).claim("teaches-the-server-the-script", 1)
    await real_redis.config_resetstat()
    first = await box(real_redis).claim("claim", 1)
    again = await box(real_redis).claim("claim", 1)
    assert len(first) == 1
    assert again == first
    calls = await real_redis.info("commandstats")
    assert calls["cmdstat_waitaof"]["calls"] == 2


@pytest.mark.requirement("delivery:outbox:at-maxmemory")
async def test_deliveries_go_on_when_redis_is_full(real_redis: redis.asyncio.Redis) -> None:
    await box(real_redis).take_log(NONCE, 60)
    await real_redis.config_set("maxmemory", 1)
    try:
        assert await box(real_redis).take_log(NONCE, 60) is not None
        assert await box(real_redis).insert(NONCE, "0-0", "1-0", [made("evt_1")]) == 1
        [held] = await box(real_redis).claim("claim", 1)
        assert await box(real_redis).settle(held, Delivered(200)) is not None
    finally:
        await real_redis.config_set("maxmemory", 0)


async def test_a_record_of_a_newer_version_is_left_alone_and_holds_up_nobody(any_redis: redis.asyncio.Redis) -> None:
    newer, older = await inserted(any_redis, "evt_1", "evt_2")
    stored = b'{"v":2,"delivery":{"shape":"unknown"}}'
    await any_redis.hset(f"lw:{{p00}}:dlv:{newer.id}", "record", stored)
    await any_redis.zadd("lw:{p00}:dlv-due", {newer.id: 0})
    assert [delivery.id for delivery in await box(any_redis).claim("claim", 1)] == [older.id]
    assert await any_redis.hget(f"lw:{{p00}}:dlv:{newer.id}", "record") == stored


async def test_the_outbox_says_when_something_is_due(any_redis: redis.asyncio.Redis) -> None:
    assert not await box(any_redis).is_due()
    await inserted(any_redis, "evt_1")
    assert await box(any_redis).is_due()
    [held] = await box(any_redis).claim("claim", 1)
    assert not await box(any_redis).is_due()
    await box(any_redis).settle(held, REFUSED)
    assert not await box(any_redis).is_due()


async def test_a_lease_that_has_ended_is_due(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    await box(any_redis).claim("claim", 1)
    await let_pass(any_redis, 41)
    assert await box(any_redis).is_due()


@pytest.mark.requirement("delivery:outbox:expiry")
async def test_only_an_ended_delivery_expires_and_then_leaves_every_set(any_redis: redis.asyncio.Redis) -> None:
    first, second = await inserted(any_redis, "evt_1", "evt_2")
    key = f"lw:{{p00}}:dlv:{first.id}"
    held = {delivery.id: delivery for delivery in await box(any_redis).claim("claim", 2)}
    assert await any_redis.ttl(key) == -1
    await box(any_redis).settle(held[first.id], Rejected("http_410", "gone"))
    assert 29 * 86400 < await any_redis.ttl(key) <= 30 * 86400
    await any_redis.delete(key)
    await any_redis.zadd("lw:{p00}:dlv-forget", {first.id: 1})
    await box(any_redis).settle(held[second.id], Delivered(200))
    for name in ("dlv-forget", "dlv-index"):
        assert await any_redis.zrange(f"lw:{{p00}}:{name}", 0, -1) == [second.id.encode()]
    assert not await any_redis.exists("lw:{p00}:dlv-dead", "lw:{p00}:dlv-due")


@pytest.mark.requirement("delivery:outbox:replay")
async def test_a_replayed_delivery_is_due_again_and_no_longer_expires(any_redis: redis.asyncio.Redis) -> None:
    dead = await died(any_redis, "evt_1")
    assert (await outbox.replay(any_redis, dead.id)).state == "queued"
    assert await any_redis.ttl(f"lw:{{p00}}:dlv:{dead.id}") == -1
    assert await outbox.listed(any_redis, 1, 10, "dead") == []
    [held] = await box(any_redis).claim("again", 1)
    assert (held.id, held.attempts) == (dead.id, 1)
    with pytest.raises(ConfigurationError, match="is in_flight: only a dead delivery can be replayed"):
        await outbox.replay(any_redis, dead.id)


@pytest.mark.requirement("delivery:outbox:replay-of-nothing")
async def test_a_dead_delivery_whose_turn_has_expired_is_not_replayed_and_says_why(any_redis: Any) -> None:
    dead = await died(any_redis, "evt_1")
    await any_redis.delete(keys.turn_record(dead.turn))
    with pytest.raises(ConfigurationError, match=rf"turn {dead.turn} is not stored any more.*turns\.keep_s"):
        await outbox.replay(any_redis, dead.id)
    assert await outbox.show(any_redis, dead.id) == dead
    assert await outbox.listed(any_redis, 1, 10, "dead") == [dead]


async def test_deliveries_are_listed_newest_first_over_all_partitions(any_redis: redis.asyncio.Redis) -> None:
    for partition in (0, 1):
        await box(any_redis, partition).take_log(NONCE, 60)
        batch = [made(f"evt_{at}", partition, created_ms=at) for at in range(1 + partition, 7, 2)]
        await box(any_redis, partition).insert(NONCE, "0-0", "1-0", batch)
    await box(any_redis).claim("claim", 1)
    found = await outbox.listed(any_redis, 2, 4)
    assert [delivery.created_ms for delivery in found] == [6, 5, 4, 3]
    assert [one.state for one in await outbox.listed(any_redis, 2, 10, "in_flight")] == ["in_flight"]


async def test_a_delivery_id_that_is_none_or_unknown_is_told_so(any_redis: redis.asyncio.Redis) -> None:
    for wrong in ("", "dlv_1", "turn_00" + "a" * 20):
        with pytest.raises(ConfigurationError, match="is no delivery id"):
            await outbox.show(any_redis, wrong)
    with pytest.raises(ConfigurationError, match="is not known"):
        await outbox.show(any_redis, "dlv_00" + "a" * 20)


@pytest.mark.requirement("delivery:relay:fenced")
async def test_a_relay_that_lost_its_lease_inserts_nothing_and_moves_nothing(any_redis: redis.asyncio.Redis) -> None:
    assert await cursor_of(any_redis, "first") == "0-0"
    await let_pass(any_redis, 3601)
    assert await cursor_of(any_redis, "second") == "0-0"
    assert await cursor_of(any_redis, "first") is None
    with pytest.raises(RelayFenced):
        await box(any_redis).insert("first", "0-0", "1-0", [made("evt_1")])
    assert await outbox.listed(any_redis, 1, 10) == []
    assert await cursor_of(any_redis, "second") == "0-0"


async def test_a_cursor_that_stands_elsewhere_is_not_moved(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    with pytest.raises(RelayFenced):
        await box(any_redis).insert(NONCE, "0-0", "2-0", [made("evt_2")])
    assert [one.event_id for one in await outbox.listed(any_redis, 1, 10)] == ["evt_1"]


async def test_a_relay_that_leaves_lets_the_next_one_in_at_once(any_redis: redis.asyncio.Redis) -> None:
    assert await cursor_of(any_redis, "first") == "0-0"
    assert await cursor_of(any_redis, "second") is None
    await box(any_redis).leave_log("second")
    assert await cursor_of(any_redis, "second") is None
    await box(any_redis).leave_log("first")
    assert await cursor_of(any_redis, "second") == "0-0"


async def test_a_lease_that_ended_is_renewed_by_its_owner_if_nobody_took_it(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    await let_pass(any_redis, 3601)
    assert await box(any_redis).insert(NONCE, "1-0", "2-0", [made("evt_2")]) == 1
    assert await cursor_of(any_redis, NONCE) == "2-0"


@pytest.mark.requirement("delivery:relay:once-per-destination")
async def test_an_event_that_is_read_again_makes_no_second_delivery(any_redis: redis.asyncio.Redis) -> None:
    dead = await died(any_redis, "evt_1")
    assert await box(any_redis).insert(NONCE, "1-0", "2-0", [made("evt_1"), made("evt_2")]) == 1
    assert await outbox.show(any_redis, dead.id) == dead


async def test_the_stored_form_names_its_version(any_redis: Any) -> None:
    [delivery] = await inserted(any_redis, "evt_1")
    stored = await any_redis.hget(f"lw:{{p00}}:dlv:{delivery.id}", "record")
    assert stored.startswith(b'{"v":1,')
    assert model.decode(stored) == replace(delivery)
