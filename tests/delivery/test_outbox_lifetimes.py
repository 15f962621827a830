"""How long things are kept: lanes, what attempts showed, contents, and what is held."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from channels.delivery.model import Delivered, Delivery, Evidence, Hopeless, Outcome
from channels.delivery_settings import DeliverySettings
from channels.outbox import keys, lanes, reading, replaying, upkeep
from channels.outbox.stored import KEEP_CONTENT_S, KEEP_DEAD_S
from tests.delivery.outboxes import BUSY, ONE_TRY, box, insert, inserted, known, limited, made
from tests.delivery.passing_time import let_pass
from worker import ids

DAY_MS = 86_400_000
SHOWN = Evidence(503, 5, body=b"busy")


async def left_ms(client: Any, key: str) -> int:
    return int(await client.pttl(key))


@pytest.mark.requirement("outbox:lifetimes:lane")
async def test_a_lane_of_which_nothing_is_left_is_forgotten_after_thirty_days_without_use(any_redis: Any) -> None:
    url, lane = "https://one.example/x", made("evt_1", "https://one.example/x").lane
    for round_ in range(2):
        await insert(any_redis, [made(f"evt_{round_}", url)])
        [held] = await box(any_redis).claim(ids.new_nonce(), 10)
        assert await left_ms(any_redis, keys.lane(lane)) == -1  # one is in flight
        if not round_:
            await box(any_redis).settle([(held, BUSY)])
            assert await left_ms(any_redis, keys.lane(lane)) == -1  # one waits
            await let_pass(any_redis, 400)
            [held] = await box(any_redis).claim(ids.new_nonce(), 10)
        await box(any_redis).settle([(held, Delivered(200))])
        assert 29 * DAY_MS < await left_ms(any_redis, keys.lane(lane)) <= 30 * DAY_MS


@pytest.mark.requirement("outbox:lifetimes:lane")
async def test_a_lane_that_is_paused_or_holds_something_is_not_forgotten(any_redis: Any) -> None:
    await lanes.pause(any_redis, "crm", "for now")
    assert await left_ms(any_redis, keys.lane("crm")) == -1
    [made_] = await inserted(any_redis, "evt_1")
    await known(any_redis, made_)
    await box(any_redis).claim(ids.new_nonce(), 10)
    await lanes.resume(any_redis, "crm")
    assert await left_ms(any_redis, keys.lane("crm")) == -1  # it holds one
    await replaying.cancel(any_redis, made_.id, "not to be sent")
    assert 29 * DAY_MS < await left_ms(any_redis, keys.lane("crm")) <= 30 * DAY_MS
    await lanes.disable(any_redis, "crm", "gone")
    assert await left_ms(any_redis, keys.lane("crm")) == -1


@pytest.mark.requirement("outbox:lifetimes:lane")
async def test_a_lane_at_its_cap_with_more_that_is_due_is_not_forgotten(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    [held] = await box(any_redis, {"crm": limited(concurrency=1)}).claim(ids.new_nonce(), 10)
    assert await left_ms(any_redis, keys.lane("crm")) == -1
    await box(any_redis, {"crm": limited(concurrency=1)}).settle([(held, Delivered(200))])
    assert await left_ms(any_redis, keys.lane("crm")) == -1


async def same_end(client: Any, delivery: str) -> bool:
    """Whether what attempts showed ends with the record, if that ever does."""
    record = await left_ms(client, keys.record(delivery))
    more = await left_ms(client, keys.more(delivery))
    assert await client.exists(keys.more(delivery))
    return (record == -1 and more == -1) or (record > 0 and more > 0 and abs(record - more) < 5_000)


@pytest.mark.requirement("outbox:lifetimes:evidence")
async def test_what_attempts_showed_is_kept_exactly_as_long_as_the_delivery_however_it_goes_on(any_redis: Any) -> None:
    first, later, at_once, hopeless = await inserted(any_redis, *(f"evt_{number}" for number in range(4)))
    await known(any_redis, first)
    outbox = box(any_redis, {"crm": ONE_TRY})
    held = {one.id: one for one in await outbox.claim(ids.new_nonce(), 10)}
    await outbox.settle([(held[first.id], replace(BUSY, evidence=SHOWN))])
    assert (await reading.show(any_redis, first.id)).state == "dead"
    assert await same_end(any_redis, first.id)
    await replaying.replay(any_redis, first.id)
    assert await same_end(any_redis, first.id)
    await box(any_redis).settle([(held[each.id], replace(BUSY, evidence=SHOWN)) for each in (later, hopeless)])
    await box(any_redis).settle([(held[at_once.id], Delivered(200, SHOWN))])
    assert await same_end(any_redis, later.id)
    assert await same_end(any_redis, at_once.id)
    await let_pass(any_redis, 400)
    again = {one.id: one for one in await box(any_redis).claim(ids.new_nonce(), 10)}
    ends: dict[Delivery, Outcome] = {
        first: Delivered(200),
        later: Delivered(200, SHOWN),
        hopeless: Hopeless("turn_expired", ""),
    }
    await box(any_redis).settle([(again[each.id], how) for each, how in ends.items()])
    for each in ends:
        assert (await reading.show(any_redis, each.id)).ended_ms
        assert await same_end(any_redis, each.id)


@pytest.mark.requirement("outbox:contents")
def test_what_an_event_tells_outlives_its_deliveries_whatever_the_settings_let_them_last() -> None:
    longest_s = 30 * 86400.0
    assert DeliverySettings(give_up_s=longest_s).give_up_s + KEEP_DEAD_S < KEEP_CONTENT_S
    with pytest.raises(ValidationError):
        DeliverySettings(give_up_s=longest_s + 1)


@pytest.mark.requirement("outbox:lifetimes:held")
async def test_what_is_held_and_has_nothing_left_to_tell_is_dead_and_the_rest_stays(
    any_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await lanes.pause(any_redis, "crm", "for now")
    told, gone, event = await insert(
        any_redis, [made("evt_1"), made("evt_2", turn="turn_00" + "c" * 20), made("evt_3", turn="")]
    )
    await known(any_redis, told)
    await box(any_redis).claim(ids.new_nonce(), 10)
    await upkeep.keep_up(any_redis, 1)
    found = {
        one.id: (one.state, one.code) for one in await reading.read(any_redis, [told.id, gone.id, event.id]) if one
    }
    assert found[told.id] == ("held", "endpoint_paused")
    assert found[gone.id] == ("dead", "turn_expired")
    assert found[event.id] == ("dead", "event_expired")
    assert (await reading.counts(any_redis))[""] == {"held": 1}
    assert await any_redis.zrange(keys.held("crm"), 0, -1) == [told.id.encode()]
    assert [vars(one)["lastword"] for one in caplog.records if one.message == "held_deliveries_lapsed"] == [
        {"count": 2}
    ]
    caplog.clear()
    for _ in range(3):
        await upkeep.mend(any_redis)
    assert not [one for one in caplog.records if one.message == "held_deliveries_lapsed"]
