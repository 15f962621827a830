"""Single steps of the outbox that a random life does not single out."""

import asyncio
from typing import Any

import pytest
import redis.asyncio

from channels.delivery.model import Delivered, Delivery
from channels.outbox import reading, replaying
from channels.outbox.log import RelayFenced, RelayLog
from channels.outbox.stored import decode
from tests.delivery.outboxes import GONE, MISSING, NONCE, ONE_TRY, REFUSED, box, insert, inserted, known, limited, made
from tests.delivery.passing_time import let_pass
from worker.errors import ConfigurationError
from worker.store import clock, keys


async def cursor_of(client: redis.asyncio.Redis, nonce: str) -> str | None:
    place = await RelayLog(client, 0).take_log(nonce, 60)
    return None if place is None else place.cursor


async def died(client: redis.asyncio.Redis, event: str) -> Delivery:
    await inserted(client, event)
    [held] = await box(client).claim("claim", 1)
    [dead] = await box(client, {"crm": ONE_TRY}).settle([(held, MISSING)])
    assert dead is not None
    assert dead.state == "dead"
    await known(client, dead)
    return dead


@pytest.mark.requirement("delivery:outbox:claimed-by-one")
async def test_claims_at_the_same_time_share_the_deliveries_and_none_gets_one_twice(
    any_redis: redis.asyncio.Redis,
) -> None:
    due = await inserted(any_redis, *(f"evt_{number}" for number in range(20)))
    wide = {"crm": limited(concurrency=20)}
    batches = await asyncio.gather(*(box(any_redis, wide).claim(f"claim{number}", 20) for number in range(5)))
    claimed = [delivery.id for batch in batches for delivery in batch]
    assert sorted(claimed) == sorted(delivery.id for delivery in due)


@pytest.mark.requirement("delivery:outbox:claimed-by-one")
async def test_a_claim_that_is_overtaken_after_it_looked_gets_nothing(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    slow, fast = box(any_redis), box(any_redis)
    look = slow._look
    taken: list[Delivery] = []

    async def look_and_be_overtaken(token: str, limit: int) -> Any:
        found = await look(token, limit)
        taken.extend([] if taken else await fast.claim("fast", 20))
        return found

    slow._look = look_and_be_overtaken  # type: ignore[method-assign]
    assert await slow.claim("slow", 20) == []
    listed = (await reading.listed(any_redis, 10)).deliveries
    assert sorted(listed, key=lambda one: one.id) == sorted(taken, key=lambda one: one.id)


@pytest.mark.requirement("delivery:outbox:claimed-by-one")
async def test_a_claim_that_is_asked_for_again_gives_what_it_still_holds_and_nothing_of_another(
    any_redis: redis.asyncio.Redis,
) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    first, second = await box(any_redis).claim("mine", 10)
    await box(any_redis).release([(first, 0)])
    [taken] = await box(any_redis).claim("another's", 10)
    assert taken.id == first.id
    assert [one.id for one in await box(any_redis).claim("mine", 10)] == [second.id]


@pytest.mark.requirement("outbox:listed")
async def test_deliveries_of_one_millisecond_are_listed_in_the_order_in_which_they_were_made(
    any_redis: redis.asyncio.Redis,
) -> None:
    there = await insert(any_redis, [made(f"evt_{number}", created_ms=5) for number in range(30)])
    listed = (await reading.listed(any_redis, 30)).deliveries
    assert [one.event_id for one in listed] == [one.event_id for one in reversed(there)]


@pytest.mark.requirement("delivery:outbox:old-token")
async def test_a_sender_that_wakes_after_its_lease_changes_nothing(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    [held] = await box(any_redis).claim("first", 1)
    await let_pass(any_redis, 41)
    assert await box(any_redis).claim("counts-the-first-as-unknown", 1) == []
    await let_pass(any_redis, 6)
    [again] = await box(any_redis).claim("second", 1)
    assert await box(any_redis).settle([(held, Delivered(200))]) == [None]
    assert await box(any_redis).release([(held, 0)]) == [None]
    assert await reading.show(any_redis, held.id) == again
    assert (again.id, again.attempts, again.log[0].code) == (held.id, 2, "lease_expired")


DAY_S = 86_400.0


@pytest.mark.requirement("delivery:clock:due")
async def test_what_waits_for_a_time_of_a_clock_that_was_put_back_is_due_now(any_redis: Any) -> None:
    """Nine days ahead; what waits by the clock of now is left to wait, however many of those there are."""
    deliveries = await inserted(any_redis, *(f"evt_{number}" for number in range(4)))
    for held in await box(any_redis).claim("claim", 10):
        assert await box(any_redis).settle([(held, REFUSED)]) != [None]
    await let_pass(any_redis, -10 * 3600)
    assert await box(any_redis).due_in() == 0
    assert await box(any_redis).claim("too early", 10) == []
    assert await box(any_redis).due_in() != 0
    await let_pass(any_redis, -9 * DAY_S)
    assert await box(any_redis).due_in() == 0
    first = await box(any_redis).claim("one", 1)
    await box(any_redis).settle([(held, Delivered(200)) for held in first])
    rest = await box(any_redis).claim("rest", 10)
    assert [len(first), len(rest)] == [1, 3]
    assert {held.id for held in [*first, *rest]} == {delivery.id for delivery in deliveries}


@pytest.mark.requirement("delivery:clock:due")
async def test_an_attempt_that_began_before_the_clock_was_put_back_has_one_lease_more_to_end(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    first, second = await box(any_redis).claim("claim", 10)
    await let_pass(any_redis, -3 * DAY_S)
    assert await box(any_redis).due_in() == 0
    assert await box(any_redis).claim("looks", 10) == []
    assert await box(any_redis).due_in() != 0
    assert await box(any_redis).settle([(first, Delivered(200))]) != [None]
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
    await RelayLog(real_redis, 0).take_log(NONCE, 60)
    await real_redis.config_set("maxmemory", 1)
    try:
        assert await RelayLog(real_redis, 0).take_log(NONCE, 60) is not None
        assert await RelayLog(real_redis, 0).insert(NONCE, "0-0", "1-0", [made("evt_1")]) == 1
        [held] = await box(real_redis).claim("claim", 1)
        assert await box(real_redis).settle([(held, Delivered(200))]) != [None]
    finally:
        await real_redis.config_set("maxmemory", 0)


async def test_a_record_of_a_newer_version_is_left_alone_and_holds_up_nobody(any_redis: redis.asyncio.Redis) -> None:
    newer, older = await inserted(any_redis, "evt_1", "evt_2")
    key = f"lw:{{p00}}:dlv:{newer.id}"
    stored = b'7: - 1 -\n[99,"of tomorrow"]'
    await any_redis.set(key, stored)
    assert [delivery.id for delivery in await box(any_redis).claim("claim", 2)] == [older.id]
    assert await any_redis.get(key) == stored
    assert await box(any_redis).due_in() != 0
    await let_pass(any_redis, 3)
    assert await box(any_redis).due_in() == 0


async def test_the_outbox_says_when_something_is_due(any_redis: redis.asyncio.Redis) -> None:
    assert await box(any_redis).due_in() != 0
    await inserted(any_redis, "evt_1")
    assert await box(any_redis).due_in() == 0
    [held] = await box(any_redis).claim("claim", 1)
    assert await box(any_redis).due_in() != 0
    await box(any_redis).settle([(held, REFUSED)])
    assert await box(any_redis).due_in() != 0


async def test_a_lease_that_has_ended_is_due(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    await box(any_redis).claim("claim", 1)
    await let_pass(any_redis, 41)
    assert await box(any_redis).due_in() == 0


@pytest.mark.requirement("delivery:outbox:expiry")
async def test_only_an_ended_delivery_expires_and_then_leaves_every_set(any_redis: Any) -> None:
    first, second = await inserted(any_redis, "evt_1", "evt_2")
    key = f"lw:{{p00}}:dlv:{first.id}"
    held = {delivery.id: delivery for delivery in await box(any_redis).claim("claim", 2)}
    assert await any_redis.ttl(key) == -1
    await box(any_redis).settle([(held[first.id], GONE)])
    assert 29 * 86400 < await any_redis.ttl(key) <= 30 * 86400
    await any_redis.delete(key)
    await any_redis.zadd("lw:{dlv}:forget", {first.id: 1})
    await box(any_redis).settle([(held[second.id], Delivered(200))])
    for name in ("forget", "index"):
        assert await any_redis.zrange(f"lw:{{dlv}}:{name}", 0, -1) == [second.id.encode()]
    assert not await any_redis.exists("lw:{dlv}:dead", "lw:{dlv}:due:crm", "lw:{dlv}:flight:crm", "lw:{dlv}:lanes")
    assert await reading.counts(any_redis) == {"": {}}


@pytest.mark.requirement("delivery:outbox:replay")
async def test_a_replayed_delivery_is_due_again_and_no_longer_expires(any_redis: redis.asyncio.Redis) -> None:
    dead = await died(any_redis, "evt_1")
    assert (await replaying.replay(any_redis, dead.id)).state == "queued"
    assert await any_redis.ttl(f"lw:{{p00}}:dlv:{dead.id}") == -1
    assert (await reading.listed(any_redis, 10, state="dead")).deliveries == []
    [held] = await box(any_redis).claim("again", 1)
    assert (held.id, held.attempts) == (dead.id, 1)
    with pytest.raises(ConfigurationError, match="is in_flight: only a dead or held one can be replayed"):
        await replaying.replay(any_redis, dead.id)


@pytest.mark.requirement("delivery:outbox:replay-of-nothing")
async def test_a_dead_delivery_whose_turn_has_expired_is_not_replayed_and_says_why(any_redis: Any) -> None:
    dead = await died(any_redis, "evt_1")
    await any_redis.delete(keys.turn_record(dead.turn))
    with pytest.raises(ConfigurationError, match=rf"turn {dead.turn} is not stored any more.*turns\.keep_s"):
        await replaying.replay(any_redis, dead.id)
    assert await reading.show(any_redis, dead.id) == dead
    assert (await reading.listed(any_redis, 10, state="dead")).deliveries == [dead]


@pytest.mark.requirement("outbox:listed")
async def test_deliveries_are_listed_newest_first_over_all_partitions_page_by_page(
    any_redis: redis.asyncio.Redis,
) -> None:
    for partition in (0, 1):
        batch = [
            made(f"evt_{at}", partition=partition, created_ms=(at + 1) // 2 * 2) for at in range(1 + partition, 9, 2)
        ]
        await insert(any_redis, batch, partition)
    page, seen = await reading.listed(any_redis, 3), []
    while page.after:
        seen += page.deliveries
        assert len(page.deliveries) == 3
        page = await reading.listed(any_redis, 3, after=page.after)
    seen += page.deliveries
    assert [delivery.created_ms for delivery in seen] == [8, 8, 6, 6, 4, 4, 2, 2]
    assert len({delivery.id for delivery in seen}) == 8
    with pytest.raises(ConfigurationError, match="is no place in the list"):
        await reading.listed(any_redis, 3, after="elsewhere")


@pytest.mark.requirement("outbox:listed")
async def test_deliveries_are_listed_by_state_destination_type_turn_and_time(any_redis: redis.asyncio.Redis) -> None:
    others = [made(f"evt_{at}", created_ms=at) for at in range(10)]
    one = made("evt_one", "audit", turn="turn_00" + "c" * 20, event_type="turn.failed", created_ms=5)
    await insert(any_redis, [*others, one])

    async def found(**wanted: Any) -> list[str]:
        return [each.event_id for each in (await reading.listed(any_redis, 10, **wanted)).deliveries]

    for wanted in ({"destination": "audit"}, {"event_type": "turn.failed"}, {"turn": one.turn}):
        assert await found(**wanted) == ["evt_one"]
    assert await found(since_ms=4, until_ms=6, destination="crm") == ["evt_5", "evt_4"]
    assert await found(state="in_flight") == []
    [held] = await box(any_redis).claim("claim", 1)
    assert await found(state="in_flight") == [held.event_id]


@pytest.mark.requirement("delivery:clock:due")
async def test_an_idle_process_sees_what_waits_for_a_time_of_a_clock_that_was_put_back(
    any_redis: redis.asyncio.Redis,
) -> None:
    ahead_ms = await clock.now_ms(any_redis) + 60 * 86_400_000
    await insert(any_redis, [made("evt_1", due_ms=ahead_ms)])
    assert await box(any_redis).due_in() == 0
    assert len(await box(any_redis).claim("claim", 1)) == 1


@pytest.mark.requirement("outbox:listed")
async def test_dead_deliveries_are_listed_by_their_death_page_by_page(any_redis: redis.asyncio.Redis) -> None:
    at_ms = await clock.now_ms(any_redis) - 1000
    died = {"evt_first": 30, "evt_second": 10, "evt_third": 20}
    dead = [
        made(name, created_ms=at_ms + number, state="dead", due_ms=0, ended_ms=at_ms + died[name])
        for number, name in enumerate(died)
    ]
    await insert(any_redis, [*dead, made("evt_waits", created_ms=at_ms)])
    page = await reading.listed(any_redis, 2, state="dead")
    assert [one.event_id for one in page.deliveries] == ["evt_first", "evt_third"]
    page = await reading.listed(any_redis, 2, state="dead", after=page.after)
    assert ([one.event_id for one in page.deliveries], page.after) == (["evt_second"], "")


async def test_a_delivery_id_that_is_none_or_unknown_is_told_so(any_redis: redis.asyncio.Redis) -> None:
    for wrong in ("", "dlv_1", "turn_00" + "a" * 20):
        with pytest.raises(ConfigurationError, match="is no delivery id"):
            await reading.show(any_redis, wrong)
    with pytest.raises(ConfigurationError, match="is not known"):
        await reading.show(any_redis, "dlv_00" + "a" * 20)


@pytest.mark.requirement("delivery:relay:fenced")
async def test_a_relay_that_lost_its_lease_inserts_nothing_and_moves_nothing(any_redis: redis.asyncio.Redis) -> None:
    assert await cursor_of(any_redis, "first") == "0-0"
    await let_pass(any_redis, 3601)
    assert await cursor_of(any_redis, "second") == "0-0"
    assert await cursor_of(any_redis, "first") is None
    with pytest.raises(RelayFenced):
        await RelayLog(any_redis, 0).insert("first", "0-0", "1-0", [made("evt_1")])
    assert (await reading.listed(any_redis, 10)).deliveries == []
    assert await cursor_of(any_redis, "second") == "0-0"


async def test_a_cursor_that_stands_elsewhere_is_not_moved(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    with pytest.raises(RelayFenced):
        await RelayLog(any_redis, 0).insert(NONCE, "0-0", "2-0", [made("evt_2")])
    assert [one.event_id for one in (await reading.listed(any_redis, 10)).deliveries] == ["evt_1"]


async def test_a_relay_that_leaves_lets_the_next_one_in_at_once(any_redis: redis.asyncio.Redis) -> None:
    assert await cursor_of(any_redis, "first") == "0-0"
    assert await cursor_of(any_redis, "second") is None
    await RelayLog(any_redis, 0).leave_log("second")
    assert await cursor_of(any_redis, "second") is None
    await RelayLog(any_redis, 0).leave_log("first")
    assert await cursor_of(any_redis, "second") == "0-0"


async def test_a_lease_that_ended_is_renewed_by_its_owner_if_nobody_took_it(any_redis: redis.asyncio.Redis) -> None:
    await inserted(any_redis, "evt_1")
    await let_pass(any_redis, 3601)
    assert await RelayLog(any_redis, 0).insert(NONCE, "1-0", "2-0", [made("evt_2")]) == 1
    assert await cursor_of(any_redis, NONCE) == "2-0"


@pytest.mark.requirement("delivery:relay:once-per-destination")
async def test_an_event_that_is_read_again_makes_no_second_delivery(any_redis: redis.asyncio.Redis) -> None:
    dead = await died(any_redis, "evt_1")
    assert await RelayLog(any_redis, 0).insert(NONCE, "1-0", "2-0", [made("evt_1"), made("evt_2")]) == 1
    assert await reading.show(any_redis, dead.id) == dead


async def test_the_stored_form_names_its_version(any_redis: Any) -> None:
    [delivery] = await inserted(any_redis, "evt_1")
    stored = await any_redis.get(f"lw:{{p00}}:dlv:{delivery.id}")
    assert stored.startswith(b"1: - 1 -\n[2,")
    assert decode(stored) == delivery
