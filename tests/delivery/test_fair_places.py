"""The places of one process: endpoints that answer slowly hold most of them at the most, and nobody asks in vain."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.deliverer import Deliverer
from channels.delivery.lane import Rules
from channels.delivery.model import Delivered, Delivery
from channels.outbox import lanes
from channels.outbox.deciding import shared
from tests.delivery.outboxes import LEASE_S, box, insert, limited, made

lanes_wanting = st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=12)


@pytest.mark.requirement("outbox:fair-places")
@given(st.integers(0, 40), lanes_wanting, st.integers(0, 10))
def test_the_places_that_are_kept_go_one_each_to_those_that_have_none(
    limit: int, asked: list[tuple[int, bool]], kept: int
) -> None:
    wanted, busy = [want for want, _ in asked], [is_busy for _, is_busy in asked]
    given_ = shared(limit, wanted, busy, kept)
    assert all(0 <= got <= want for got, want in zip(given_, wanted, strict=True))
    firsts = [got > 0 for got, want, is_busy in zip(given_, wanted, busy, strict=True) if want and not is_busy]
    assert sum(firsts) == min(len(firsts), limit)
    beyond = sum(given_) - sum(firsts)
    assert beyond == min(max(0, limit - sum(firsts) - kept), sum(wanted) - sum(firsts))


@pytest.mark.requirement("outbox:fair")
@given(st.integers(0, 40), st.lists(st.integers(0, 30), max_size=12))
def test_none_gets_a_second_place_before_each_has_one(limit: int, wanted: list[int]) -> None:
    given_ = shared(limit, wanted)
    assert sum(given_) == min(limit, sum(wanted))
    if max(given_, default=0) > 1:
        assert all(got or not want for got, want in zip(given_, wanted, strict=True))


class Slow:
    """A channel whose lanes named slow answer when they are let, and the others at once."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.got: list[str] = []
        self.changed = asyncio.Condition()
        self.let = asyncio.Event()

    async def prepare(self, batch: Sequence[Delivery]) -> Sequence[Any]:
        return [None] * len(batch)

    async def send(self, delivery: Delivery, prepared: None, lease_ends: float) -> Delivered:
        del prepared, lease_ends
        async with self.changed:
            self.running[delivery.lane] += 1
            self.got.append(delivery.lane)
            self.changed.notify_all()
        if delivery.lane.startswith("slow"):
            await self.let.wait()
        self.running[delivery.lane] -= 1
        return Delivered(200)

    async def come(self, count: int, name: str) -> None:
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: sum(lane.startswith(name) for lane in self.got) >= count)


@pytest.mark.requirement("outbox:fair-places")
async def test_ten_endpoints_that_answer_do_not_wait_for_two_that_answer_slowly(any_redis: Any) -> None:
    for lane in ("slow1", "slow2"):
        await insert(any_redis, [made(f"evt_{lane}_{number}", lane) for number in range(50)])
    sender = Slow()
    one = Deliverer(box(any_redis), sender, lease_s=LEASE_S, concurrency=20)
    drain = asyncio.ensure_future(one.drain())
    await sender.come(15, "slow")
    await insert(any_redis, [made(f"evt_{number}", f"well{number % 10}") for number in range(40)])
    await one.drain()
    await sender.come(40, "well")
    assert sender.running["slow1"] + sender.running["slow2"] == 15  # they hold as many as before, and have not answered
    one.stop()
    sender.let.set()
    await drain


@pytest.mark.requirement("outbox:fair-places")
async def test_while_only_lanes_are_due_that_get_no_place_nobody_asks_again_and_again(fake_redis: Any) -> None:
    await insert(fake_redis, [made(f"evt_{number}", "slow") for number in range(30)])
    sender, outbox = Slow(), box(fake_redis, {"slow": limited(concurrency=30)})
    one = Deliverer(outbox, sender, lease_s=LEASE_S, concurrency=8)
    claim, claims = outbox.claim, []

    async def counted(token: str, *words: Any) -> list[Delivery]:
        claims.append(token)
        return await claim(token, *words)

    outbox.claim = counted  # type: ignore[method-assign,assignment]
    drain = asyncio.ensure_future(one.drain())
    await sender.come(6, "slow")
    await asyncio.sleep(0.5)
    assert len(claims) < 10
    sender.let.set()
    async with asyncio.timeout(10):
        await drain
    assert len(sender.got) == 30


@pytest.mark.requirement("outbox:fair-places")
async def test_what_becomes_due_in_another_lane_meanwhile_takes_a_place_that_is_kept(any_redis: Any) -> None:
    rules: dict[str, Rules | None] = {"slow": limited(concurrency=30)}
    await insert(any_redis, [made(f"evt_{number}", "slow") for number in range(30)])
    seconds, micros = await any_redis.time()
    soon = seconds * 1000 + micros // 1000 + 400
    await insert(any_redis, [made("evt_later", "well", due_ms=soon)])
    sender = Slow()
    one = Deliverer(box(any_redis, rules), sender, lease_s=LEASE_S, concurrency=8)
    drain = asyncio.ensure_future(one.drain())
    await sender.come(1, "well")
    assert sender.running["slow"] == 6
    one.stop()
    sender.let.set()
    await drain
    assert (await lanes.standings(any_redis, ["well"]))["well"].window_all == 1
