"""A store whose clock ran ahead and was put back: what it wrote is sent now, and what waits rightly goes on waiting."""

from typing import Any

import pytest

from channels.delivery.lane import Rules
from channels.delivery.model import Attempt, Delivered, Delivery
from channels.outbox import reading
from tests.delivery.outboxes import box, insert, limited, made
from worker.store import clock

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CLOCK = "lw:{dlv}:clock"


async def ahead_ms(client: Any, days: float) -> int:
    """A moment so far ahead, at which the last look was made: the clock was put back since."""
    at = await clock.now_ms(client) + round(days * DAY_MS)
    await client.set(CLOCK, at)
    return at


def queued(at_ms: int, *numbers: int, **fields: Any) -> list[Delivery]:
    return [made(f"evt_{number}", due_ms=at_ms, created_ms=at_ms, **fields) for number in numbers]


def waiting(event: str, tried_ms: int, due_ms: int) -> Delivery:
    log = (Attempt(1, tried_ms, "http_503", "busy", "yes"),)
    return made(event, state="waiting", due_ms=due_ms, attempts=1, first_ms=tried_ms, log=log)


async def all_sent(client: Any, rules: Rules | None = None) -> list[str]:
    """The events that are sent now, as long as somebody must look at once."""
    outbox = box(client, {"crm": rules or Rules()})
    sent: list[str] = []
    while await outbox.due_in() == 0:
        batch = await outbox.claim(f"claim-{len(sent)}", 100)
        await outbox.settle([(one, Delivered(200)) for one in batch])
        sent += [one.event_id for one in batch]
        assert batch, "somebody must look, and found nothing"
    return sent


@pytest.mark.requirement("delivery:clock:due")
@pytest.mark.parametrize("days", [0.1, 1, 8, 20])
async def test_all_that_a_clock_ahead_has_queued_is_sent_when_it_is_right_again(any_redis: Any, days: float) -> None:
    """Also where there is room for a few at a time, and beside one that waits rightly for an hour."""
    now_ms, at_ms = await clock.now_ms(any_redis), await ahead_ms(any_redis, days)
    rightly = waiting("evt_rightly", now_ms, now_ms + HOUR_MS)
    await insert(any_redis, [*queued(at_ms, *range(10)), rightly])
    assert sorted(await all_sent(any_redis, limited(concurrency=3))) == [f"evt_{number}" for number in range(10)]
    due_in = await box(any_redis).due_in()
    assert due_in is not None
    assert 3590 < due_in <= 3600
    assert (await reading.show(any_redis, rightly.id)).due_ms == rightly.due_ms


@pytest.mark.requirement("delivery:clock:due")
async def test_what_waits_from_an_attempt_of_a_clock_ahead_is_due_when_that_is_right_again(any_redis: Any) -> None:
    at_ms = await ahead_ms(any_redis, 0.5)
    await insert(any_redis, [waiting("evt_1", at_ms - 60_000, at_ms + HOUR_MS)])
    assert await all_sent(any_redis) == ["evt_1"]


@pytest.mark.requirement("delivery:clock:due")
async def test_a_mailbox_that_a_clock_ahead_has_filled_is_sent_in_order_and_at_once(any_redis: Any) -> None:
    at_ms = await ahead_ms(any_redis, 1)
    await insert(any_redis, queued(at_ms, *range(5), mailbox="room/1"))
    assert await all_sent(any_redis) == [f"evt_{number}" for number in range(5)]


@pytest.mark.requirement("delivery:clock:due")
async def test_what_is_more_than_one_look_brings_near_is_brought_by_the_next(real_redis: Any) -> None:
    at_ms = await ahead_ms(real_redis, 1)
    await insert(real_redis, queued(at_ms, *range(5200)))
    left = []
    for number in range(3):
        assert len(await box(real_redis).claim(f"claim-{number}", 2)) == 2
        left.append(await real_redis.zcount("lw:{dlv}:due:crm", at_ms, "+inf"))
    assert left == [200, 0, 0]
    assert int(await real_redis.get(CLOCK)) < at_ms


@pytest.mark.requirement("delivery:clock:due")
async def test_what_lies_further_ahead_than_anything_is_planned_hides_behind_nothing(any_redis: Any) -> None:
    """Where nobody noticed that the clock was put back, as where a release of before has looked first."""
    now_ms = await clock.now_ms(any_redis)
    rightly = waiting("evt_rightly", now_ms, now_ms + HOUR_MS)
    await insert(any_redis, [*queued(now_ms + 20 * DAY_MS, *range(10)), rightly])
    assert sorted(await all_sent(any_redis, limited(concurrency=3))) == [f"evt_{number}" for number in range(10)]


@pytest.mark.requirement("delivery:clock:due")
async def test_a_clock_that_was_put_back_by_a_second_moves_nothing_that_waits(any_redis: Any) -> None:
    now_ms = await clock.now_ms(any_redis)
    await insert(any_redis, [waiting("evt_1", now_ms, now_ms + HOUR_MS)])
    await any_redis.set(CLOCK, now_ms + 5_000)
    assert await box(any_redis).claim("looks", 10) == []
    assert await any_redis.zscore("lw:{dlv}:due:crm", made("evt_1").id) == now_ms + HOUR_MS
