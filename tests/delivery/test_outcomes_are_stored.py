"""How attempts ended is stored whatever the store does meanwhile: it is away for long, or refuses one of a batch."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest
import redis

from channels.deliverer import Deliverer
from channels.delivery.model import Delivered, Delivery, Outcome, Unsent
from channels.outbox import reading
from channels.outbox.outbox import Outbox
from tests.delivery.outboxes import LEASE_S, box, inserted
from tests.delivery.passing_time import let_pass
from worker import ids


class Answering:
    """A channel that answers by event."""

    def __init__(self, answers: dict[str, Outcome | Unsent] | None = None) -> None:
        self.sent: list[str] = []
        self._answers = answers or {}

    async def prepare(self, batch: Sequence[Delivery]) -> Sequence[Any]:
        return [None] * len(batch)

    async def send(self, delivery: Delivery, prepared: None, lease_ends: float) -> Outcome | Unsent:
        del prepared, lease_ends
        self.sent.append(delivery.event_id)
        return self._answers.get(delivery.event_id, Delivered(200))


class Away:
    """A store that is away: what is asked of it raises until it is back. `asked`: how often."""

    def __init__(self, outbox: Outbox, *steps: str) -> None:
        self.asked = 0
        self.asked_again = asyncio.Event()
        self.is_away = True
        for name in steps:
            setattr(outbox, name, self._step(getattr(outbox, name)))

    def _step(self, real: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def step(*words: Any) -> Any:
            if self.is_away:
                self.asked += 1
                if self.asked > 3:
                    self.asked_again.set()
                raise redis.ConnectionError("away")
            return await real(*words)

        return step


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    logger = logging.getLogger("lastword")
    logger.addHandler(caplog.handler)
    yield
    logger.removeHandler(caplog.handler)


def told_in(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    found = [(record.message, vars(record)["lastword"]) for record in caplog.records if "lastword" in vars(record)]
    return [(name, words) for name, words in found if name != "delivery_settled"]


async def states(client: Any, deliveries: Sequence[Delivery]) -> list[str]:
    return [(await reading.show(client, one.id)).state for one in deliveries]


@pytest.mark.requirement("delivery:drain:known-outcome")
@pytest.mark.parametrize("stopped", [False, True])
async def test_what_was_taken_is_settled_after_an_absence_of_redis_longer_than_its_lease(
    fake_redis: Any, stopped: bool
) -> None:
    made = await inserted(fake_redis, "evt_1")
    outbox, sender = box(fake_redis), Answering()
    away = Away(outbox, "settle")
    # To it the lease of 40 s is over as soon as it has begun.
    one = Deliverer(outbox, sender, lease_s=LEASE_S, concurrency=4)
    drain = asyncio.ensure_future(one.drain())
    async with asyncio.timeout(10):
        await away.asked_again.wait()
    if stopped:
        one.stop()
    await let_pass(fake_redis, LEASE_S + 1)
    away.is_away = False
    async with asyncio.timeout(10):
        await drain
    assert await states(fake_redis, made) == ["delivered"]
    assert sender.sent == ["evt_1"]


@pytest.mark.requirement("delivery:drain:known-outcome")
async def test_an_outcome_that_waits_for_redis_outlives_its_lease_by_the_clock_of_its_process(fake_redis: Any) -> None:
    made = await inserted(fake_redis, "evt_1")
    outbox = box(fake_redis, lease_s=0.02)
    away = Away(outbox, "settle")
    # With a place left it would claim again, on a busy machine after this lease and before it knows of the absence.
    drain = asyncio.ensure_future(Deliverer(outbox, Answering(), lease_s=0.02, concurrency=1).drain())
    async with asyncio.timeout(10):
        await away.asked_again.wait()  # 20 + 40 + 80 ms at least
    away.is_away = False
    async with asyncio.timeout(10):
        await drain
    assert await states(fake_redis, made) == ["delivered"]


@pytest.mark.requirement("delivery:drain:known-outcome")
async def test_a_process_that_ends_leaves_a_store_that_stays_away_after_a_lease(
    fake_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    await inserted(fake_redis, "evt_1")
    outbox = box(fake_redis, lease_s=0.1)
    away = Away(outbox, "settle")
    one = Deliverer(outbox, Answering(), lease_s=0.1, concurrency=4)
    drain = asyncio.ensure_future(one.drain())
    async with asyncio.timeout(10):
        await away.asked_again.wait()
        one.stop()
        await drain
    assert [name for name, _ in told_in(caplog)] == ["delivery_not_settled"]


@pytest.mark.requirement("delivery:drain:known-outcome")
async def test_nothing_is_claimed_while_an_outcome_waits_for_redis(fake_redis: Any) -> None:
    [first] = await inserted(fake_redis, "evt_1")
    outbox = box(fake_redis)
    away = Away(outbox, "settle")
    one = Deliverer(outbox, Answering(), lease_s=LEASE_S, concurrency=4)
    drain = asyncio.ensure_future(one.drain())
    async with asyncio.timeout(10):
        await away.asked_again.wait()
    # Its lease has ended: a claim would count the attempt as lost, and have it made again.
    await let_pass(fake_redis, LEASE_S + 1)
    await one.drain()
    for _ in range(20):
        await asyncio.sleep(0)
    assert await states(fake_redis, [first]) == ["in_flight"]
    away.is_away = False
    async with asyncio.timeout(10):
        await drain
    assert await states(fake_redis, [first]) == ["delivered"]


@pytest.mark.requirement("delivery:drain:refused-outcome")
async def test_one_outcome_that_is_refused_leaves_the_others_of_its_batch_stored_and_given_back(
    fake_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    made = await inserted(fake_redis, *(f"evt_{number}" for number in range(4)))
    outbox = box(fake_redis)
    settle = outbox.settle

    async def refuse(batch: Any) -> Any:
        if any(held.event_id == "evt_1" for held, _ in batch):
            raise redis.ResponseError("it cannot be stored")
        return await settle(batch)

    outbox.settle = refuse  # type: ignore[method-assign]
    sender = Answering({"evt_2": Unsent("not now", 60.0)})
    one = Deliverer(outbox, sender, lease_s=LEASE_S, concurrency=8)
    await one.drain()
    assert await states(fake_redis, made) == ["delivered", "in_flight", "queued", "delivered"]
    told = [words["delivery"] for name, words in told_in(caplog) if name == "delivery_not_settled"]
    assert told == [made[1].id] * 2, "as it ended, and as a fault of ours instead"


@pytest.mark.requirement("delivery:drain:known-outcome")
async def test_what_another_has_claimed_meanwhile_is_left_to_it(
    fake_redis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    [made] = await inserted(fake_redis, "evt_1")
    outbox = box(fake_redis)
    away = Away(outbox, "settle")
    drain = asyncio.ensure_future(Deliverer(outbox, Answering(), lease_s=LEASE_S, concurrency=4).drain())
    async with asyncio.timeout(10):
        await away.asked_again.wait()
    await let_pass(fake_redis, LEASE_S + 1)
    await box(fake_redis).claim(ids.new_nonce(), 10)
    away.is_away = False
    async with asyncio.timeout(10):
        await drain
    assert (await reading.show(fake_redis, made.id)).code == "lease_expired"
    assert told_in(caplog)[-1][0] == "delivery_lost"
