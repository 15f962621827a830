"""A random life of an outbox beside a model of it: claims, settles, crashes, lost replies, repeats, stale holders.

Nothing is forgotten, no attempt is uncounted, and one claim settles a delivery once.
"""

import asyncio
from collections.abc import Callable, Coroutine
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

from channels import outbox
from channels.delivery import model
from channels.delivery.backoff import Backoff
from channels.delivery.model import Deferred, Delivered, Delivery, Outcome, Rejected
from channels.outbox import Outbox
from tests.delivery.passing_time import let_pass
from tests.store.lossy import Fault, Lossy
from worker import ids
from worker.store import keys

LEASE_S = 40.0
BACKOFF = Backoff(schedule_s=(5.0, 30.0, 300.0))
NONCE = "relay"
TAG = "lw:{p00}:"
TURN = "turn_00" + "b" * 20

outcomes = st.sampled_from(
    [
        Delivered(200),
        Deferred(None, "http_503", "busy", "yes"),
        Deferred(90.0, "http_429", "slow", "yes"),
        Rejected("http_404", "no"),
    ]
)
faults: st.SearchStrategy[Fault] = st.sampled_from(["none", "none", "request lost", "reply lost"])


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

        self.client = self.run(open_client())
        self.line = Lossy(self.client)
        self.outbox = Outbox(self.client, 0, lease_s=LEASE_S, backoff=BACKOFF, chance=lambda: 0.5)
        self.run(self.outbox.take_log(NONCE, 60))
        client: Any = self.client
        self.run(client.hset(keys.turn_record(TURN), "v", 1))
        self.expected: dict[str, Delivery] = {}
        self.held: list[Held] = []
        self.settled_claims: set[tuple[str, str]] = set()
        self.cursor, self.claims = 0, 0

    def teardown(self) -> None:
        if hasattr(self, "client"):
            self.all_ends()
            self.run(self.client.aclose())
        self.runner.close()

    @rule(count=st.integers(1, 4), fault=faults)
    def insert(self, count: int, fault: Fault) -> None:
        made = [
            Delivery(
                id=ids.delivery_of(0, f"evt_{self.cursor}_{number}", "crm"),
                event_id=f"evt_{self.cursor}_{number}",
                turn=TURN,
                event_type="turn.completed",
                destination="crm",
                created_ms=1,
                due_ms=1,
            )
            for number in range(count)
        ]
        step = (NONCE, f"{self.cursor}-0", f"{self.cursor + 1}-0", made)
        assert self.answered(lambda: self.outbox.insert(*step), fault=fault) == count
        self.cursor += 1
        self.expected |= {delivery.id: delivery for delivery in made}

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
            assert before.state in {"queued", "waiting"}
            assert (delivery.attempts, delivery.token) == (before.attempts + 1, token)
            self.held.append(Held(delivery))
        # A claim also counts the attempts whose lease had ended; they are nobody's now.
        for id_, stored in self.stored().items():
            if self.expected[id_].state == "in_flight" and stored.state != "in_flight":
                assert stored.code in {"lease_expired", "attempts_spent"}
                assert stored.attempts == self.expected[id_].attempts
                for one in self.held:
                    one.lost |= one.delivery.id == id_ and one.delivery.token == self.expected[id_].token
        self.expected = self.stored()

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), outcome=outcomes, fault=faults, repeated=st.booleans())
    def settle(self, data: st.DataObject, outcome: Outcome, fault: Fault, repeated: bool) -> None:
        one = self.pick(data)
        before = self.stored()
        settled = self.answered(lambda: self.outbox.settle(one.delivery, outcome), fault=fault)
        if repeated:
            again = self.run(self.outbox.settle(one.delivery, outcome))
            assert (again is None) == (settled is None)
        self.take_step(one, before, stored=settled is not None)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data(), fault=faults)
    def release(self, data: st.DataObject, fault: Fault) -> None:
        one = self.pick(data)
        before = self.stored()
        stored = self.answered(lambda: self.outbox.release(one.delivery), fault=fault)
        self.take_step(one, before, stored=stored)

    @precondition(lambda self: any(self.held))
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.held.remove(self.pick(data))

    @rule(seconds=st.sampled_from([1.0, 6.0, 41.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(let_pass(self.client, seconds))
        self.expected = self.stored()

    @precondition(lambda self: any(one.state == "dead" for one in self.expected.values()))
    @rule(data=st.data(), fault=faults)
    def replay(self, data: st.DataObject, fault: Fault) -> None:
        dead = data.draw(st.sampled_from(sorted(id_ for id_, one in self.expected.items() if one.state == "dead")))
        self.line.faults.append(fault)
        try:
            assert self.run(outbox.replay(self.client, dead)).state == "queued"
        except redis.ConnectionError:
            assert fault != "none"
        self.line.faults.clear()
        assert self.stored()[dead].state in {"queued", "dead" if fault == "request lost" else "queued"}
        self.expected = self.stored()

    @invariant()
    def every_delivery_that_has_not_ended_is_in_the_due_set(self) -> None:
        if not hasattr(self, "client"):
            return
        client: Any = self.client
        stored = self.stored()
        assert stored == self.expected
        due = dict(self.run(client.zrange(TAG + "dlv-due", 0, -1, withscores=True)))
        assert {id_.decode(): int(score) for id_, score in due.items()} == {
            id_: one.due_ms for id_, one in stored.items() if one.state in {"queued", "waiting", "in_flight"}
        }
        dead = self.run(client.zrange(TAG + "dlv-dead", 0, -1))
        assert {id_.decode() for id_ in dead} == {id_ for id_, one in stored.items() if one.state == "dead"}
        assert {one.id for one in self.run(outbox.listed(self.client, 1, 1000))} == set(stored)

    def all_ends(self) -> None:
        """With a receiver that takes everything, every delivery that is not dead is delivered."""
        for _ in range(10):
            self.run(let_pass(self.client, 10_000))
            while batch := self.run(self.outbox.claim(ids.new_nonce(), 100)):
                for delivery in batch:
                    assert self.run(self.outbox.settle(delivery, Delivered(200)))
        assert {one.state for one in self.stored().values()} <= {"delivered", "dead"}
        assert set(self.stored()) == set(self.expected)

    def pick(self, data: st.DataObject) -> Held:
        return self.held[data.draw(st.integers(0, len(self.held) - 1))]

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

    def take_step(self, one: Held, before: dict[str, Delivery], *, stored: bool) -> None:
        after = self.stored()
        claim = (one.delivery.id, one.delivery.token)
        if stored and claim not in self.settled_claims:
            assert not one.lost
            assert before[one.delivery.id] == one_as_stored(one, before)
            self.settled_claims.add(claim)
            assert after[one.delivery.id].version == before[one.delivery.id].version + 1
            assert after[one.delivery.id].token == ""
        else:
            assert after == before
        self.held.remove(one)
        self.expected = after

    def stored(self) -> dict[str, Delivery]:
        async def read() -> dict[str, Delivery]:
            client: Any = self.client
            found = [model.decode(await client.hget(f"{TAG}dlv:{id_}", "record")) for id_ in self.expected]
            return {one.id: one for one in found if one is not None}

        return self.run(read())


def one_as_stored(one: Held, stored: dict[str, Delivery]) -> Delivery:
    """What its holder believes to be stored, but for the time that has passed."""
    return replace(one.delivery, due_ms=stored[one.delivery.id].due_ms)


@pytest.fixture(params=["fake", "real"])
def server_url(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue("real_url") if request.param == "real" else None


@pytest.mark.requirement("delivery:outbox:nothing-forgotten")
@pytest.mark.requirement("delivery:outbox:one-claim-settles-once")
@pytest.mark.requirement("delivery:outbox:lost-replies")
def test_an_outbox_forgets_nothing_and_lets_each_claim_settle_once(server_url: str | None) -> None:
    life = type("Life", (OutboxLife,), {"url": server_url})
    run_state_machine_as_test(
        life,
        settings=settings(
            max_examples=25 if server_url is None else 5,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
