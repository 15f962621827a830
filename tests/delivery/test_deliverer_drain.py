"""Claiming, sending and settling in one process: how many at a time, and what a fault costs."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import fakeredis
import pytest
import redis.asyncio

from channels.deliverer import Deliverer
from channels.delivery.backoff import OURS_ATTEMPTS, Backoff
from channels.delivery.lane import Limits, Rules, lease_for
from channels.delivery.model import Delivered, Delivery, Hopeless, Outcome, Unsent
from channels.delivery.rate import CATCH_UP_S
from channels.outbox import lanes, reading
from channels.outbox.log import RelayLog
from channels.outbox.outbox import Outbox
from channels.sweeper import Sweeper
from tests.delivery.outboxes import BUSY, KnownRules, insert, made
from tests.delivery.passing_time import let_pass
from worker.errors import NewerRecord, StoreUnavailable

LEASE_S = lease_for(5.0)


class ScriptedSender:
    """A channel that answers by destination, and tells how many attempts run at once."""

    def __init__(self, answers: dict[str, Callable[[], Awaitable[Outcome | Unsent]]] | None = None) -> None:
        self.sent: list[str] = []
        self.running = 0
        self.most = 0
        self.arrived = asyncio.Condition()
        self.prepared: dict[str, Outcome | Unsent] = {}
        self._answers = answers or {}

    async def prepare(self, batch: Sequence[Delivery]) -> Sequence[Any | Outcome | Unsent]:
        return [self.prepared.get(delivery.destination, delivery.id) for delivery in batch]

    async def send(self, delivery: Delivery, prepared: Any, lease_ends: float) -> Outcome | Unsent:
        assert prepared == delivery.id
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


def box(client: redis.asyncio.Redis, rules: Mapping[str, Rules | None] | None = None) -> Outbox:
    usual = Rules(Limits(concurrency=50), Backoff((5.0, 30.0)))
    return Outbox(client, lease_s=LEASE_S, rules=KnownRules(rules, usual=usual), chance=lambda: 0.5)


async def due(client: redis.asyncio.Redis, *destinations: str, partition: int = 0) -> list[str]:
    """Deliveries that are due, by destination; gives their ids."""
    place = await RelayLog(client, partition).take_log("relay", 60)
    assert place is not None
    new = [
        made(f"evt_{place.cursor}_{number}", destination, partition=partition, due_ms=1 + number)
        for number, destination in enumerate(destinations)
    ]
    return [delivery.id for delivery in await insert(client, new, partition)]


def deliverer(
    client: redis.asyncio.Redis,
    sender: ScriptedSender,
    *,
    concurrency: int = 4,
    rules: Mapping[str, Rules | None] | None = None,
) -> Deliverer:
    return Deliverer(box(client, rules), sender, lease_s=LEASE_S, concurrency=concurrency)


async def states(client: redis.asyncio.Redis, delivery_ids: list[str]) -> list[str]:
    return [(await reading.show(client, id_)).state for id_ in delivery_ids]


@pytest.mark.requirement("delivery:drain:everything-due")
async def test_one_wake_up_sends_everything_that_is_due_in_every_partition(any_redis: redis.asyncio.Redis) -> None:
    made = await due(any_redis, *("crm",) * 11) + await due(any_redis, *("audit",) * 3, partition=1)
    sender = ScriptedSender()
    await deliverer(any_redis, sender).drain()
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
    left = await reading.show(fake_redis, made)
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


@pytest.mark.timeout(10)  # one that does not wait gives nobody else a turn, and ends nowhere else
@pytest.mark.requirement("delivery:drain:wake-ups-join")
async def test_a_wake_up_while_all_places_are_taken_waits_for_one(fake_redis: redis.asyncio.Redis) -> None:
    released = asyncio.Event()

    async def hang() -> Outcome:
        await released.wait()
        return Delivered(200)

    sender = ScriptedSender({"hanging": hang})
    one = deliverer(fake_redis, sender, concurrency=1)
    made = await due(fake_redis, "hanging", "crm")
    async with asyncio.TaskGroup() as group:
        group.create_task(one.drain())
        await sender.nth(1)
        await one.drain()
        await asyncio.sleep(0)
        released.set()
    assert await states(fake_redis, made) == ["delivered"] * 2
    assert sender.sent == ["hanging", "crm"]


@pytest.mark.requirement("delivery:drain:wake-ups-join")
async def test_a_wake_up_while_another_is_claiming_is_not_lost(fake_redis: redis.asyncio.Redis) -> None:
    sender = ScriptedSender()
    one = deliverer(fake_redis, sender)
    made = await due(fake_redis, "crm")
    claims = one._outbox.claim

    async def claim_while_more_comes(token: str, *words: Any) -> list[Delivery]:
        batch = await claims(token, *words)
        if not batch and len(made) == 1:
            made.extend(await due(fake_redis, "audit"))
            await bounded(one.drain(), "a drain that finds another claiming to return at once")
        return batch

    one._outbox.claim = claim_while_more_comes  # type: ignore[method-assign,assignment]
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
    assert (await reading.show(fake_redis, crm)).state == "delivered"
    delivery = await reading.show(fake_redis, broken)
    assert (delivery.state, delivery.code, delivery.attempts) == ("waiting", "internal_error", 0)
    assert "secret words" not in delivery.message
    for _ in range(OURS_ATTEMPTS):
        await let_pass(fake_redis, 400)
        await deliverer(fake_redis, sender).drain()
    delivery = await reading.show(fake_redis, broken)
    assert (delivery.state, delivery.code, delivery.ours) == ("dead", "internal_error", OURS_ATTEMPTS)
    [lane] = (await lanes.standings(fake_redis, ["broken"])).values()
    assert (lane.standing, lane.failed) == ("active", 0)


@pytest.mark.requirement("delivery:drain:unsent")
async def test_an_attempt_that_was_not_made_does_not_count(fake_redis: redis.asyncio.Redis) -> None:
    async def decline() -> Unsent:
        one.stop()
        return Unsent("the rest of the lease is too short")

    sender = ScriptedSender({"crm": decline})
    [made] = await due(fake_redis, "crm")
    one = deliverer(fake_redis, sender)
    await one.drain()
    delivery = await reading.show(fake_redis, made)
    assert (delivery.state, delivery.attempts, delivery.log) == ("queued", 0, ())


@pytest.mark.requirement("delivery:drain:unsent")
async def test_an_attempt_whose_turn_could_not_be_read_in_time_does_not_count(fake_redis: redis.asyncio.Redis) -> None:
    async def find_redis_silent() -> Outcome:
        one.stop()
        raise StoreUnavailable("Redis did not answer")

    [made] = await due(fake_redis, "crm")
    one = deliverer(fake_redis, ScriptedSender({"crm": find_redis_silent}))
    await one.drain()
    delivery = await reading.show(fake_redis, made)
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
    delivery = await reading.show(fake_redis, made)
    assert (delivery.state, delivery.code, delivery.attempts) == ("waiting", "internal_error", 0)
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
        return BUSY

    sweeper = Sweeper(box(fake_redis), wake)
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
    claims = one._outbox.claim

    async def claim_once(token: str, *words: Any) -> list[Delivery]:
        if claims_made:
            await sender.nth(1)
            failed.set()
            raise redis.ResponseError("no such luck")
        claims_made.append(token)
        return await claims(token, *words)

    claims_made: list[str] = []
    one._outbox.claim = claim_once  # type: ignore[method-assign,assignment]
    async with asyncio.TaskGroup() as group:
        group.create_task(one.drain())
        await bounded(failed.wait(), "the second claim to fail")
        await one.drain()
        released.set()
    assert await states(fake_redis, [made]) == ["delivered"]
    assert sender.sent == ["slow"]


class LateClaims:
    """Stands before an outbox's claims: the first `lost` of them are made, and their answers lost."""

    def __init__(self, outbox: Outbox, *, lost: int) -> None:
        self.asked = 0
        self.tokens: set[str] = set()
        self.asked_again = asyncio.Event()
        self._lost = lost
        self._claim = outbox.claim
        outbox.claim = self.claim  # type: ignore[method-assign,assignment]

    async def claim(self, token: str, *words: Any) -> list[Delivery]:
        batch = await self._claim(token, *words)
        if self.asked == self._lost:
            return batch
        self.asked += 1
        self.tokens.add(token)
        if self.asked > 1:
            self.asked_again.set()
        raise redis.TimeoutError("no answer")


@pytest.mark.requirement("delivery:drain:late-claim")
@pytest.mark.parametrize("has_time", [True, False])
async def test_what_a_claim_holds_whose_answer_comes_late_is_attempted_or_given_back_and_never_charged(
    fake_redis: redis.asyncio.Redis, has_time: bool
) -> None:
    [made] = await due(fake_redis, "crm")
    at = box(fake_redis)
    claims = LateClaims(at, lost=6)  # 20 + 40 + 80 + 160 + 320 + 500 ms
    sender = ScriptedSender()
    send = sender.send

    async def send_in_time(delivery: Delivery, prepared: Any, lease_ends: float) -> Outcome | Unsent:
        one.stop()
        has_time = lease_ends - asyncio.get_running_loop().time() > 1
        return await send(delivery, prepared, lease_ends) if has_time else Unsent("too little is left of the lease", 60)

    sender.send = send_in_time  # type: ignore[method-assign]
    lease_s = 40.0 if has_time else 2.0
    at._lease_ms = round(lease_s * 1000)
    one = Deliverer(at, sender, lease_s=lease_s, concurrency=1)
    await bounded(one.drain(), "the drain to end")
    assert len(claims.tokens) == 1
    left = await reading.show(fake_redis, made)
    assert (left.state, left.attempts, len(sender.sent)) == (("delivered", 1, 1) if has_time else ("queued", 0, 0))


@pytest.mark.requirement("delivery:drain:late-claim")
@pytest.mark.parametrize("stopped", [True, False])
async def test_a_claim_is_asked_for_no_longer_than_its_lease_and_less_by_a_process_that_ends(
    fake_redis: redis.asyncio.Redis, stopped: bool
) -> None:
    await due(fake_redis, "crm")
    at = box(fake_redis)
    claims = LateClaims(at, lost=1000)
    one = Deliverer(at, ScriptedSender(), lease_s=1.2, concurrency=1)
    began = asyncio.get_running_loop().time()
    drain = asyncio.ensure_future(one.drain())
    await bounded(claims.asked_again.wait(), "a second claim")
    if stopped:
        one.stop()
    async with asyncio.timeout(10):
        await drain
    assert (asyncio.get_running_loop().time() - began < 1.2) is stopped


async def test_what_needs_no_attempt_ends_without_one(fake_redis: redis.asyncio.Redis) -> None:
    sender = ScriptedSender()
    sender.prepared = {"old": Hopeless("turn_expired", "it is not stored any more"), "later": Unsent("not now", 60)}
    made = await due(fake_redis, "old", "later", "crm")
    await deliverer(fake_redis, sender).drain()
    assert await states(fake_redis, made) == ["dead", "queued", "delivered"]
    assert sender.sent == ["crm"]


@pytest.mark.requirement("delivery:drain:sender-fault")
async def test_a_fault_in_preparing_costs_those_deliveries_an_attempt(fake_redis: redis.asyncio.Redis) -> None:
    async def prepare(_: Sequence[Delivery]) -> Sequence[Any]:
        raise ValueError("a bug")

    sender = ScriptedSender()
    sender.prepare = prepare  # type: ignore[assignment,method-assign]
    [broken] = await due(fake_redis, "crm")
    await deliverer(fake_redis, sender).drain()
    assert (await reading.show(fake_redis, broken)).code == "internal_error"


@pytest.mark.requirement("outbox:settled-together")
async def test_what_ends_while_a_settle_is_under_way_is_settled_in_one_step(fake_redis: redis.asyncio.Redis) -> None:
    made = await due(fake_redis, *("crm",) * 12)
    one = deliverer(fake_redis, ScriptedSender(), concurrency=12)
    settle, steps = one._outbox.settle, []

    async def slowly(batch: Any) -> Any:
        steps.append(len(batch))
        for _ in range(20):  # the others end meanwhile
            await asyncio.sleep(0)
        return await settle(batch)

    one._outbox.settle = slowly  # type: ignore[method-assign]
    await one.drain()
    assert await states(fake_redis, made) == ["delivered"] * 12
    assert sum(steps) == 12
    assert len(steps) <= 3


@pytest.mark.requirement("outbox:hanging-lane")
async def test_an_endpoint_that_hangs_holds_its_cap_and_the_others_go_on(fake_redis: redis.asyncio.Redis) -> None:
    released = asyncio.Event()

    async def hang() -> Outcome:
        await released.wait()
        return Delivered(200)

    sender = ScriptedSender({"hanging": hang})
    made = await due(fake_redis, *("hanging",) * 20, *("crm",) * 20)
    capped = {"hanging": Rules(Limits(concurrency=3))}
    async with asyncio.TaskGroup() as group:
        group.create_task(deliverer(fake_redis, sender, concurrency=8, rules=capped).drain())
        await sender.nth(23)
        assert sender.sent.count("hanging") == 3
        released.set()
    assert await states(fake_redis, made) == ["delivered"] * 40


@pytest.mark.requirement("outbox:rate")
async def test_a_limited_endpoint_gets_each_free_slot_within_one_drain(fake_redis: redis.asyncio.Redis) -> None:
    at: list[float] = []

    async def tell_time() -> Outcome:
        at.append(asyncio.get_running_loop().time())
        return Delivered(200)

    made = await due(fake_redis, *("slow",) * 6)
    slow = {"slow": Rules(Limits(rate_per_s=20.0, burst=2))}
    await deliverer(fake_redis, ScriptedSender({"slow": tell_time}), rules=slow).drain()
    assert await states(fake_redis, made) == ["delivered"] * 6
    # Two at once, then four slots of 50 ms; the first may come late to its own, and those after it to theirs do not.
    assert at[-1] - at[0] >= 0.2 - CATCH_UP_S - 0.001


@pytest.mark.requirement("delivery:drain:unsent")
async def test_faults_of_our_own_that_come_again_are_met_again_later_and_later(fake_redis: redis.asyncio.Redis) -> None:
    await due(fake_redis, "crm")
    one = deliverer(fake_redis, ScriptedSender({"crm": find_redis_silent}))
    release, waits = one._outbox.release, []

    async def noted(batch: Any) -> Any:
        waits.append(batch[0][1])
        if len(waits) == 3:
            one.stop()
        return await release(batch)

    one._outbox.release = noted  # type: ignore[method-assign]
    await one.drain()
    assert waits == [0, 0.5, 1.0]


async def find_redis_silent() -> Outcome:
    raise StoreUnavailable("Redis did not answer")
