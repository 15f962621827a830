"""A random life of an outbox beside a model of it: claims, settles, crashes, lost replies, repeats, stale holders.

Nothing is forgotten, no attempt is uncounted, one claim settles a delivery once, no lane has more in flight than its
cap, and a mailbox is sent in order.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import fakeredis
import pytest
import redis
import redis.asyncio
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from channels.delivery.backoff import Backoff
from channels.delivery.lane import Limits, Rules
from channels.delivery.model import Delivered, Delivery, Failed, Hopeless, Outcome, Withdrawn
from channels.outbox import lanes, reading, replaying, upkeep
from channels.outbox.log import RelayLog
from channels.outbox.outbox import Outbox
from channels.outbox.reading import read
from tests.delivery.outboxes import BUSY, GONE, LEASE_S, MISSING, NONCE, KnownRules, made
from tests.delivery.passing_time import let_pass
from tests.store.lossy import Fault, Lossy
from worker import ids
from worker.errors import ConfigurationError
from worker.store import keys

OF = "lw:{dlv}:"
TURN = "turn_00" + "b" * 20
BACKOFF = Backoff(schedule_s=(5.0, 30.0, 300.0))
RULES: dict[str, Rules] = {
    "crm": Rules(Limits(concurrency=2), BACKOFF),
    "audit": Rules(Limits(), BACKOFF),
    "rated": Rules(Limits(rate_per_s=0.5, burst=2), BACKOFF),
    "ordered": Rules(Limits(concurrency=3), BACKOFF),
}
REMOVED = Withdrawn("endpoint_removed", "nobody is left to tell")
OPEN = {"queued", "waiting", "in_flight", "held"}

outcomes = st.sampled_from(
    [
        Delivered(200),
        Delivered(200),
        BUSY,
        replace(BUSY, retry_after=90.0),
        MISSING,
        GONE,
        Failed("throttled", "http_429", "slow", "yes", retry_after=3.0),
        Failed("ours", "internal_error", "a bug", "perhaps"),
        Hopeless("turn_expired", "nothing is left to tell"),
        Withdrawn("endpoint_removed", "nobody is left to tell"),
    ]
)
faults: st.SearchStrategy[Fault] = st.sampled_from(["none", "none", "request lost", "reply lost"])
any_lane = st.sampled_from(sorted(RULES))


@dataclass(slots=True)
class Held:
    """A delivery as a sender holds it, until it is settled or the sender vanishes."""

    delivery: Delivery
    lost: bool = False


class OutboxLife(RuleBasedStateMachine):
    url: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.run = self.runner.run

    @initialize()
    def open(self) -> None:
        async def open_client() -> redis.asyncio.Redis:
            if self.url is None:
                return fakeredis.FakeAsyncRedis(server=fakeredis.FakeServer(version=(7,)))
            client = redis.asyncio.Redis.from_url(self.url)
            await client.flushall()
            return client

        self.client: Any = self.run(open_client())
        self.line = Lossy(self.client)
        self.known = KnownRules(RULES)
        self.outbox = Outbox(self.client, lease_s=LEASE_S, rules=self.known, chance=lambda: 0.5)
        self.log = RelayLog(self.client, 0)
        self.run(self.log.take_log(NONCE, 60))
        known: Any = self.client.hset(keys.turn_record(TURN), "v", 1)
        self.run(known)
        self.expected: dict[str, Delivery] = {}
        self.order: list[str] = []
        self.held: list[Held] = []
        self.settled_claims: set[tuple[str, str]] = set()
        self.cursor, self.claims = 0, 0

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.all_ends()
            self.run(self.client.aclose())
        self.runner.close()

    @rule(to=st.lists(any_lane, min_size=1, max_size=4), mailbox=st.sampled_from(["a", "b"]), fault=faults)
    def insert(self, to: list[str], mailbox: str, fault: Fault) -> None:
        new = [
            made(f"evt_{self.cursor}_{number}", lane, mailbox=mailbox if lane == "ordered" else "")
            for number, lane in enumerate(to)
        ]
        step = (NONCE, f"{self.cursor}-0", f"{self.cursor + 1}-0", new)
        assert self.answered(lambda: self.log.insert(*step), fault=fault) == len(new)
        self.cursor += 1
        self.expected |= {delivery.id: delivery for delivery in new}
        self.order += [delivery.id for delivery in new]

    @rule(limit=st.integers(1, 5), fault=faults, repeated=st.booleans())
    def claim(self, limit: int, fault: Fault, repeated: bool) -> None:
        self.claims += 1
        token = f"claim{self.claims}"
        batch = self.answered(lambda: self.outbox.claim(token, limit), fault=fault)
        if repeated and batch:
            assert self.run(self.outbox.claim(token, limit)) == batch
        assert len(batch) <= limit
        for delivery in batch:
            before = self.expected[delivery.id]
            assert delivery.token == token
            # A round before may have counted an attempt of which nobody told, and the clock's time may be right again.
            assert before.state in {"queued", "waiting"}
            assert delivery.attempts == before.attempts + 1
            self.held.append(Held(delivery))
        claimed = {delivery.id for delivery in batch}
        for id_, stored in self.stored().items():
            before = self.expected[id_]
            if before.state == "in_flight" and stored.state != "in_flight":
                # Its lease had ended; it is nobody's now.
                assert [each.code for each in stored.log[len(before.log) :]] == ["lease_expired"]
                for one in self.held:
                    one.lost |= one.delivery.id == id_ and one.delivery.token == before.token
            elif stored != before and id_ not in claimed:
                assert before.state in {"queued", "waiting"}
                assert stored.state in {"held", "cancelled"}
        self.expected = self.stored()
        self.nothing_overtakes(batch)

    def nothing_overtakes(self, batch: list[Delivery]) -> None:
        """Of those in order only the first of its mailbox is sent."""
        for one in batch:
            if one.mailbox:
                before = self.order[: self.order.index(one.id)]
                ahead = [self.expected[id_] for id_ in before if self.expected[id_].mailbox == one.mailbox]
                assert not {each.state for each in ahead} & {"queued", "waiting", "in_flight"}

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), outcome=outcomes, fault=faults, repeated=st.booleans(), count=st.integers(1, 3))
    def settle(self, data: st.DataObject, outcome: Outcome, fault: Fault, repeated: bool, count: int) -> None:
        some = self.pick(data, count)
        batch = [(one.delivery, outcome) for one in some]
        before = self.stored()
        settled = self.answered(lambda: self.outbox.settle(batch), fault=fault)
        if repeated:
            log = self.run(self.client.xlen(keys.log(0)))
            again = self.run(self.outbox.settle(batch))
            assert again == settled
            assert self.run(self.client.xlen(keys.log(0))) == log
        self.take_step(some, before, settled)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), fault=faults, count=st.integers(1, 3))
    def release(self, data: st.DataObject, fault: Fault, count: int) -> None:
        some = self.pick(data, count)
        before = self.stored()
        stored = self.answered(lambda: self.outbox.release([(one.delivery, 0) for one in some]), fault=fault)
        self.take_step(some, before, stored)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.held.remove(self.pick(data, 1)[0])

    @rule(seconds=st.sampled_from([1.0, 6.0, 41.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(let_pass(self.client, seconds))
        self.expected = self.stored()

    @precondition(lambda self: any(one.state in {"dead", "held"} for one in self.expected.values()))
    @rule(data=st.data(), fault=faults)
    def replay(self, data: st.DataObject, fault: Fault) -> None:
        standing = self.run(lanes.standings(self.client, list(RULES)))
        over = [
            id_
            for id_, one in sorted(self.expected.items())
            if one.state == "dead" or (one.state == "held" and standing[one.lane].standing == "active")
        ]
        if not over:
            return
        one = data.draw(st.sampled_from(over))
        before, lane = self.expected[one].state, self.expected[one].lane
        if before == "held" and self.run(lanes.standings(self.client, [lane]))[lane].standing != "active":
            with pytest.raises(ConfigurationError, match="resume or enable the endpoint first"):
                self.run(replaying.replay(self.client, one))
            return
        self.line.faults.append(fault)
        try:
            assert self.run(replaying.replay(self.client, one)).state == "queued"
        except redis.ConnectionError:
            assert fault != "none"
        self.line.faults.clear()
        assert self.stored()[one].state == (before if fault == "request lost" else "queued")
        self.expected = self.stored()

    @rule(lane=any_lane, fault=faults, step=st.sampled_from([lanes.pause, lanes.disable, lanes.resume]))
    def stand(self, lane: str, fault: Fault, step: Any) -> None:
        why = () if step is lanes.resume else ("because",)
        self.answered(lambda: step(self.client, lane, *why), fault=fault)

    @rule(lane=any_lane, removed=st.booleans())
    def rules_change(self, lane: str, removed: bool) -> None:
        self.known.rules[lane] = REMOVED if removed else RULES[lane]

    @rule()
    def lanes_are_lost(self) -> None:
        self.run(self.client.delete(OF + "lanes"))
        self.run(upkeep.mend(self.client))
        self.run(upkeep.mend(self.client))

    @invariant()
    def every_delivery_that_has_not_ended_stands_in_its_place(self) -> None:
        if not hasattr(self, "client"):
            return
        stored = self.stored()
        assert stored == self.expected
        for lane in RULES:
            self.check_lane(lane, [one for one in stored.values() if one.lane == lane])
        dead = self.run(self.client.zrange(OF + "dead", 0, -1))
        assert {id_.decode() for id_ in dead} == {id_ for id_, one in stored.items() if one.state == "dead"}
        assert {one.id for one in self.run(reading.listed(self.client, 1000)).deliveries} == set(stored)
        counted = self.run(reading.counts(self.client))
        assert counted[""] == Counter(one.state for one in stored.values() if one.state in OPEN)
        assert sum(sum(each.values()) for lane, each in counted.items() if lane) == sum(counted[""].values())

    def check_lane(self, lane: str, all_: list[Delivery]) -> None:
        flight = {one.id: one.due_ms for one in all_ if one.state == "in_flight"}
        # What lay behind another of its mailbox is not due.
        boxes: dict[str, list[Delivery]] = {}
        for one in sorted(all_, key=lambda one: self.order.index(one.id)):
            if one.mailbox and one.state in OPEN - {"held"}:
                boxes.setdefault(one.mailbox, []).append(one)
        due = {one.id: one.due_ms for one in all_ if not one.mailbox and one.state in {"queued", "waiting"}}
        for row in boxes.values():
            if not any(one.state == "in_flight" for one in row):
                due[row[0].id] = row[0].due_ms
        held = {one.id for one in all_ if one.state == "held"}
        assert self.scores(f"flight:{lane}") == flight
        scores = self.scores(f"due:{lane}")
        assert scores.keys() == due.keys()
        for id_, at in scores.items():  # what comes forth from behind another is looked at at once
            assert at == due[id_] or (at < due[id_] and any(id_ == row[0].id for row in boxes.values()))
        assert self.scores(f"held:{lane}").keys() == held
        assert len(flight) <= RULES[lane].limits.concurrency
        looked = self.scores("lanes").get(lane)
        cap, free, served = self.run(self.client.hmget(OF + "lane:" + lane, "cap", "free", "served"))
        moments = list(flight.values())
        if due and len(flight) < int(cap or 10**9):
            moments.append(max(min(scores.values()), int(free or 0), int(served or 0)))
        assert looked == min(moments, default=None)

    def scores(self, name: str) -> dict[str, int]:
        found = self.run(self.client.zrange(OF + name, 0, -1, withscores=True))
        return {member.decode(): int(score) for member, score in found}

    def all_ends(self) -> None:
        """With a receiver that takes everything, every delivery is delivered, but for those that are to stay."""
        self.known.rules = dict(RULES)
        for lane in RULES:
            self.run(lanes.resume(self.client, lane))
        for _ in range(60):
            self.run(let_pass(self.client, 1000))
            while batch := self.run(self.outbox.claim(ids.new_nonce(), 100)):
                assert None not in self.run(self.outbox.settle([(delivery, Delivered(200)) for delivery in batch]))
        assert {one.state for one in self.stored().values()} <= {"delivered", "dead", "held", "cancelled"}
        assert set(self.stored()) == set(self.expected)

    def pick(self, data: st.DataObject, count: int) -> list[Held]:
        """Some of those that are held, no delivery twice."""
        some = {one.delivery.id: one for one in data.draw(st.permutations(self.held))}
        return list(some.values())[:count]

    def answered(self, call: Callable[[], Coroutine[Any, Any, Any]], *, fault: Fault) -> Any:
        """Repeat a call until it is answered, as its caller would."""
        if fault != "none":
            self.line.faults.append(fault)
        try:
            return self.run(call())
        except redis.ConnectionError:
            return self.run(call())
        finally:
            self.line.faults.clear()

    def take_step(self, some: list[Held], before: dict[str, Delivery], stored: Sequence[object]) -> None:
        after = self.stored()
        touched = {one.delivery.id for one in some}
        assert {id_: one for id_, one in after.items() if id_ not in touched} == {
            id_: one for id_, one in before.items() if id_ not in touched
        }
        for one, after_it in zip(some, stored, strict=True):
            id_ = one.delivery.id
            if after_it and (id_, one.delivery.token) not in self.settled_claims:
                assert not one.lost
                assert before[id_] == one_as_stored(one, before)
                self.settled_claims.add((id_, one.delivery.token))
                assert after[id_].version == before[id_].version + 1
                assert after[id_].token == ""
            else:
                assert after[id_] == before[id_]
            self.held.remove(one)
        self.expected = after

    def stored(self) -> dict[str, Delivery]:
        found = self.run(read(self.client, list(self.expected)))
        return {one.id: one for one in found if one is not None}


def one_as_stored(one: Held, stored: dict[str, Delivery]) -> Delivery:
    """What its holder believes to be stored, but for the time that has passed."""
    now = stored[one.delivery.id]
    return replace(one.delivery, due_ms=now.due_ms, first_ms=now.first_ms)


@pytest.fixture(params=["fake", "real"])
def server_url(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("real_url") if request.param == "real" else None


@pytest.mark.requirement("delivery:outbox:nothing-forgotten")
@pytest.mark.requirement("delivery:outbox:one-claim-settles-once")
@pytest.mark.requirement("delivery:outbox:lost-replies")
@pytest.mark.requirement("outbox:mailbox")
@pytest.mark.requirement("outbox:cap")
@pytest.mark.timeout(300)  # most of a minute of work, on a machine that may be busy
def test_an_outbox_forgets_nothing_and_lets_each_claim_settle_once(server_url: str | None) -> None:
    life = type("Life", (OutboxLife,), {"url": server_url})
    run_state_machine_as_test(
        life,
        settings=settings(
            max_examples=25 if server_url is None else 5,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
