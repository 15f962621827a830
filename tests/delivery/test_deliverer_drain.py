"""Claiming, sending and settling in one process: how many at a time, and what a fault costs."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import fakeredis
import pytest
import redis.asyncio

from channels import outbox
from channels.deliverer import Deliverer, Sweeper, lease_for
from channels.delivery.backoff import Backoff
from channels.delivery.model import Deferred, Delivered, Delivery, Outcome, Unsent
from channels.outbox import Outbox
from tests.delivery.passing_time import let_pass
from worker import ids
from worker.errors import NewerRecord, StoreUnavailable

LEASE_S = lease_for(5.0)


class ScriptedSender:
    """A channel that answers by destination, and tells how many attempts run at once."""

    def __init__(self, answers: dict[str, Callable[[], Awaitable[Outcome | Unsent]]] | None = None) -> None:
        self.sent: list[str] = []
        self.running = 0
        self.most = 0
        self.arrived = asyncio.Condition()
        self._answers = answers or {}

    async def send(self, delivery: Delivery, lease_ends: float) -> Outcome | Unsent:
        assert lease_ends > asyncio.get_running_loop().time()
        self.running += 1
        self.most = max(self.most, self.running)
        async with self.arrived:
            self.sent.append(delivery.destination)
            self.arrived.notify_all()
        try:
            answer = self._answers.get(delivery.destination)
            return Delivered(200) if answer is None else await answer()
        finally:
            self.running -= 1

    async def nth(self, number: int) -> None:
        async with self.arrived:
            await bounded(self.arrived.wait_for(lambda: len(self.sent) >= number), f"attempt {number}")


async def bounded(waiting: Coroutine[Any, Any, Any], what: str) -> None:
    try:
        await asyncio.wait_for(waiting, 10)
    except TimeoutError:
        pytest.fail(f"waited 10 s for {what}")


def box(client: redis.asyncio.Redis, partition: int = 0) -> Outbox:
    return Outbox(client, partition, lease_s=LEASE_S, backoff=Backoff((5.0, 30.0)), chance=lambda: 0.5)


async def due(client: redis.asyncio.Redis, *destinations: str, partition: int = 0) -> list[str]:
    """Deliveries that are due, by destination; gives their ids."""
    place = await box(client, partition).take_log("relay", 60)
    assert place is not None
    step = int(place.cursor.partition("-")[0]) + 1
    made = [
        Delivery(
            id=ids.delivery_of(partition, f"evt_{step}_{number}", destination),
            event_id=f"evt_{step}_{number}",
            turn=f"turn_{partition:02x}" + "b" * 20,
            event_type="turn.completed",
            destination=destination,
            created_ms=1,
            due_ms=1 + number,
        )
        for number, destination in enumerate(destinations)
    ]
    await box(client, partition).insert("relay", place.cursor, f"{step}-0", made)
    return [delivery.id for delivery in made]


def deliverer(
    client: redis.asyncio.Redis, sender: ScriptedSender, *, concurrency: int = 4, partitions: int = 1
) -> Deliverer:
    outboxes = [box(client, partition) for partition in range(partitions)]
    return Deliverer(outboxes, sender, lease_s=LEASE_S, concurrency=concurrency)


async def states(client: redis.asyncio.Redis, delivery_ids: list[str]) -> list[str]:
    return [(await outbox.show(client, id_)).state for id_ in delivery_ids]


@pytest.mark.requirement("delivery:drain:everything-due")
async def test_one_wake_up_sends_everything_that_is_due_in_every_partition(any_redis: redis.asyncio.Redis) -> None:
    made = await due(any_redis, *("crm",) * 11) + await due(any_redis, *("audit",) * 3, partition=1)
    sender = ScriptedSender()
    await deliverer(any_redis, sender, partitions=2).drain()
    assert await states(any_redis, made) == ["delivered"] * 14
    assert len(sender.sent) == 14


@pytest.mark.requirement("delivery:drain:newer")
async def test_what_only_a_newer_release_can_tell_is_left_to_it_and_costs_no_attempt(
    fake_redis: redis.asyncio.Redis,
) -> None:
    async def newer() -> Outcome:
        raise NewerRecord("its record has version 99")

    [made] = await due(fake_redis, "crm")
    sender = ScriptedSender({"crm": newer})
    await deliverer(fake_redis, sender).drain()
    left = await outbox.show(fake_redis, made)
    assert (left.state, left.attempts, sender.sent) == ("queued", 0, ["crm"])
    now = await fake_redis.time()
    assert left.due_ms > now[0] * 1000 + 2000


@pytest.mark.requirement("delivery:drain:concurrency")
async def test_no_more_attempts_run_at_once_than_allowed_and_one_that_hangs_holds_one_place(
    fake_redis: redis.asyncio.Redis,
) -> None:
    released = asyncio.Event()

    async def hang() -> Outcome:
        await released.wait()
        return Delivered(200)

    async def answer_in_pairs() -> Outcome:
        await pair.wait()
        return Delivered(200)

    pair = asyncio.Barrier(2)
    sender = ScriptedSender({"hanging": hang, "crm": answer_in_pairs})
    made = await due(fake_redis, "hanging", *("crm",) * 20)
    async with asyncio.TaskGroup() as group:
        group.create_task(deliverer(fake_redis, sender, concurrency=3).drain())
        await sender.nth(21)
        released.set()
    assert await states(fake_redis, made) == ["delivered"] * 21
    assert sender.most == 3


@pytest.mark.requirement("delivery:drain:wake-ups-join")
async def test_a_wake_up_while_another_is_claiming_is_not_lost(fake_redis: redis.asyncio.Redis) -> None:
    sender = ScriptedSender()
    one = deliverer(fake_redis, sender)
    made = await due(fake_redis, "crm")
    claims = one._outboxes[0].claim

    async def claim_while_more_comes(token: str, limit: int) -> list[Delivery]:
        batch = await claims(token, limit)
        if not batch and len(made) == 1:
            made.extend(await due(fake_redis, "audit"))
            await bounded(one.drain(), "a drain that finds another claiming to return at once")
        return batch

    one._outboxes[0].claim = claim_while_more_comes  # type: ignore[method-assign]
    await one.drain()
    assert await states(fake_redis, made) == ["delivered", "delivered"]


@pytest.mark.requirement("delivery:drain:sender-fault")
async def test_a_fault_of_a_sender_costs_its_delivery_an_attempt_and_no_other_anything(
    fake_redis: redis.asyncio.Redis,
) -> None:
    async def crash() -> Outcome:
        raise ValueError("a bug, and secret words")

    sender = ScriptedSender({"broken": crash})
    broken, crm = await due(fake_redis, "broken", "crm")
    await deliverer(fake_redis, sender).drain()
    assert (await outbox.show(fake_redis, crm)).state == "delivered"
    delivery = await outbox.show(fake_redis, broken)
    assert (delivery.state, delivery.code, delivery.attempts) == ("waiting", "internal_error", 1)
    assert "secret words" not in delivery.message
    for _ in range(5):
        await let_pass(fake_redis, 40)
        await deliverer(fake_redis, sender).drain()
    delivery = await outbox.show(fake_redis, broken)
    assert (delivery.state, delivery.code, delivery.attempts) == ("dead", "attempts_spent", 3)


@pytest.mark.requirement("delivery:drain:unsent")
async def test_an_attempt_that_was_not_made_does_not_count(fake_redis: redis.asyncio.Redis) -> None:
    async def decline() -> Unsent:
        one.stop()
        return Unsent("the rest of the lease is too short")

    sender = ScriptedSender({"crm": decline})
    [made] = await due(fake_redis, "crm")
    one = deliverer(fake_redis, sender)
    await one.drain()
    delivery = await outbox.show(fake_redis, made)
    assert (delivery.state, delivery.attempts, delivery.log) == ("queued", 0, ())


@pytest.mark.requirement("delivery:drain:unsent")
async def test_an_attempt_whose_turn_could_not_be_read_in_time_does_not_count(fake_redis: redis.asyncio.Redis) -> None:
    async def find_redis_silent() -> Outcome:
        one.stop()
        raise StoreUnavailable("Redis did not answer")

    [made] = await due(fake_redis, "crm")
    one = deliverer(fake_redis, ScriptedSender({"crm": find_redis_silent}))
    await one.drain()
    delivery = await outbox.show(fake_redis, made)
    assert (delivery.state, delivery.attempts, delivery.log) == ("queued", 0, ())


@pytest.mark.requirement("delivery:drain:sender-fault")
@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), TimeoutError(), ConnectionResetError()])
async def test_a_fault_of_the_machine_in_a_sender_is_not_taken_for_a_silent_redis(
    fake_redis: redis.asyncio.Redis, error: OSError
) -> None:
    async def fail() -> Outcome:
        one.stop()
        raise error

    [made] = await due(fake_redis, "crm")
    one = deliverer(fake_redis, ScriptedSender({"crm": fail}))
    await one.drain()
    delivery = await outbox.show(fake_redis, made)
    assert (delivery.state, delivery.code, delivery.attempts) == ("waiting", "internal_error", 1)
    assert type(error).__name__ in delivery.message


async def test_a_stopped_deliverer_claims_nothing_more_and_ends_what_it_began(fake_redis: redis.asyncio.Redis) -> None:
    released = asyncio.Event()

    async def hang() -> Outcome:
        await released.wait()
        return Delivered(200)

    sender = ScriptedSender({"slow": hang})
    first, second = await due(fake_redis, "slow", "crm")
    one = deliverer(fake_redis, sender, concurrency=1)
    async with asyncio.TaskGroup() as group:
        group.create_task(one.drain())
        await sender.nth(1)
        one.stop()
        released.set()
    assert await states(fake_redis, [first, second]) == ["delivered", "queued"]
    await one.drain()
    assert await states(fake_redis, [second]) == ["queued"]


@pytest.mark.requirement("delivery:drain:redis-away")
async def test_an_outcome_is_stored_although_redis_was_away_when_it_came() -> None:
    server = fakeredis.FakeServer(version=(7,))
    client = fakeredis.FakeAsyncRedis(server=server)
    back = asyncio.Event()

    def come_back() -> None:
        server.connected = True
        back.set()

    async def answered_while_redis_is_away() -> Outcome:
        server.connected = False
        asyncio.get_running_loop().call_later(0.2, come_back)
        return Delivered(200)

    [made] = await due(client, "crm")
    sender = ScriptedSender({"crm": answered_while_redis_is_away})
    await bounded(deliverer(client, sender).drain(), "the drain to outlive the absence")
    assert back.is_set()
    assert await states(client, [made]) == ["delivered"]
    assert sender.sent == ["crm"]
    await client.aclose()


async def test_a_sweep_wakes_when_a_retry_is_due_or_a_lease_has_ended_and_not_before(
    fake_redis: redis.asyncio.Redis,
) -> None:
    woken: list[str] = []

    async def wake() -> None:
        woken.append("woken")

    async def refuse() -> Outcome:
        return Deferred(None, "refused", "nobody listens", "no")

    sweeper = Sweeper([box(fake_redis, 1), box(fake_redis)], wake)
    await sweeper.step()
    await due(fake_redis, "crm")
    await deliverer(fake_redis, ScriptedSender({"crm": refuse})).drain()
    await sweeper.step()
    assert woken == []
    await let_pass(fake_redis, 6)
    await sweeper.step()
    assert woken == ["woken"]
    await box(fake_redis).claim("a sender that vanishes", 1)
    await sweeper.step()
    assert woken == ["woken"]
    await let_pass(fake_redis, LEASE_S + 1)
    await sweeper.step()
    assert woken == ["woken", "woken"]


def test_the_lease_outlives_the_longest_attempt_with_room_for_what_is_around_it() -> None:
    for deadline_s in (0.1, 15.0, 300.0):
        assert lease_for(deadline_s) - deadline_s >= deadline_s + 10


async def test_a_claim_that_fails_ends_its_drain_and_cuts_off_nothing(fake_redis: redis.asyncio.Redis) -> None:
    released, failed = asyncio.Event(), asyncio.Event()

    async def hang() -> Outcome:
        await released.wait()
        return Delivered(200)

    sender = ScriptedSender({"slow": hang})
    [made] = await due(fake_redis, "slow")
    one = deliverer(fake_redis, sender)
    claims = one._outboxes[0].claim

    async def claim_once(token: str, limit: int) -> list[Delivery]:
        if claims_made:
            await sender.nth(1)
            failed.set()
            raise redis.ResponseError("no such luck")
        claims_made.append(token)
        return await claims(token, limit)

    claims_made: list[str] = []
    one._outboxes[0].claim = claim_once  # type: ignore[method-assign]
    async with asyncio.TaskGroup() as group:
        group.create_task(one.drain())
        await bounded(failed.wait(), "the second claim to fail")
        await one.drain()
        released.set()
    assert await states(fake_redis, [made]) == ["delivered"]
    assert sender.sent == ["slow"]


class LateClaims:
    """Stands before an outbox's claims: the first `lost` of them get no answer, each for `silence_s`."""

    def __init__(self, outbox: Outbox, *, lost: int, silence_s: float) -> None:
        self.asked = 0
        self._lost = lost
        self._silence_s = silence_s
        self._claim = outbox.claim
        outbox.claim = self.claim  # type: ignore[method-assign]

    async def claim(self, token: str, limit: int) -> list[Delivery]:
        self.asked += 1
        if self.asked > self._lost:
            return await self._claim(token, limit)
        try:
            await asyncio.wait_for(asyncio.Event().wait(), self._silence_s)
        except TimeoutError:
            raise redis.TimeoutError("no answer") from None
        raise AssertionError("unreachable")


@pytest.mark.requirement("delivery:drain:late-claim")
@pytest.mark.parametrize(("lease_s", "silence_s", "asked"), [(40.0, 0.0, 2), (1.0, 0.3, 1)])
async def test_a_claim_is_asked_for_again_only_while_enough_of_its_lease_would_be_left(
    fake_redis: redis.asyncio.Redis, lease_s: float, silence_s: float, asked: int
) -> None:
    [made] = await due(fake_redis, "crm")
    at = box(fake_redis)
    claims = LateClaims(at, lost=1, silence_s=silence_s)

    async def end() -> Outcome:
        one.stop()
        return Delivered(200)

    one = Deliverer([at], ScriptedSender({"crm": end}), lease_s=lease_s, concurrency=1)
    await bounded(one.drain(), "the drain to end")
    assert claims.asked == asked
    assert await states(fake_redis, [made]) == ["delivered" if asked > 1 else "queued"]
