"""Requests, answers, parking, claims, the end of the time and of the turn against a plain model, over a bad line."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    rule,
)

from tests.store.lossy import dump
from tests.store.model_machine import FAULTS, StoreMachine, run_on_the_fake, run_on_the_server
from tests.store.turns import (
    SESSION,
    Redis,
    ask,
    commit,
    driver_of,
    log_of,
    new_turn,
    outputs_of,
    record_of,
    refused,
    seal,
    snapshot_of,
    taken,
)
from worker.errors import Fenced, LocalProtocolError, TurnSealed
from worker.output.approvals import OPTIONS
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.approvals import Resolution, expire_due, resolve
from worker.store.inbox import submit
from worker.store.pending import find_all
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed, Fact

PEOPLE = st.sampled_from(["U1", "U2", "Jo Doe"])
CHOICES = st.sampled_from([*(option.key for option in OPTIONS), "approve_everything"])
TOOLS = ("mail", "clock")
A_WHILE_MS = 200_000
CLOSE_S = 100.0
"""Far more than a run takes, and less than one step of passing time."""


@dataclass
class Request:
    """What one tool call's request should be."""

    approval: str
    call: int
    index: int
    tool: str
    overdue: bool = False
    decision: ApprovalDecided | None = None


@dataclass
class Model:
    """What one turn should be."""

    turn: str
    requester: str | None
    state: str = "queued"
    lapsed: bool = False
    requests: list[Request] = field(default_factory=list)
    decisions: list[ApprovalDecided] = field(default_factory=list)
    known: int = 0
    facts: list[Fact] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    text: str = ""
    call: int = 0
    open: bool = False
    claimed: bool = False
    spent_ms: int = 0
    crashes: int = 0

    @property
    def waiting(self) -> list[Request]:
        return [request for request in self.requests if request.decision is None]

    def decide(self, request: Request, option: str, by: str | None) -> None:
        request.decision = ApprovalDecided(request.call, request.index, option, by)
        self.decisions.append(request.decision)
        self.facts.append(request.decision)
        self.outputs.append("approval_decided")
        self.log.append("decision")
        self.state = "queued" if self.state == "parked" else self.state

    def expire(self) -> None:
        for request in self.waiting:
            if request.overdue:
                self.decide(request, "expired", None)
                self.outputs.append("prompt_expired")

    def refusal(self, request: Request, option: str, by: str) -> str | None:
        """Why an answer does not count; what it does all the same is done."""
        if self.state == "sealed":
            return "prompt_expired"
        if request.decision is None and request.overdue:
            self.expire()
            return "prompt_expired"
        why = None
        if request.decision is not None:
            why = "prompt_expired"
        elif self.requester not in (None, by):
            why = "wrong_requester"
        elif option not in {one.key for one in OPTIONS}:
            why = "option_unavailable"
        if why is not None:
            self.outputs.append(why)
        return why


class ApprovalsMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.draw: Callable[[st.SearchStrategy[Any]], Any]
        self.turns: list[Model] = []
        self.ended: list[Model] = []
        self.driver: ExecutionOutputAccumulator | None = None
        self.ghosts: list[ExecutionOutputAccumulator] = []
        self.granted: set[str] = set()
        self.woken = False
        """A message has made the session due while its turn was parked."""
        self.answers: dict[tuple[str, str, str], str] = {}

    @property
    def model(self) -> Model:
        return self.turns[0]

    @property
    def mine(self) -> ExecutionOutputAccumulator:
        assert self.driver is not None
        return self.driver

    def has_driver(self) -> bool:
        return self.driver is not None

    def can_act(self) -> bool:
        return self.driver is not None and not self.model.open

    def can_ask(self) -> bool:
        return self.can_act() and self.model.call > 0 and len(self.model.requests) < 5

    def lose_driver(self) -> None:
        if self.driver is not None:
            self.ghosts.append(self.driver)
        self.driver = None

    # The turns of the session and their drivers.

    @initialize(data=st.data())
    def first(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.submit()
        self.claim()
        self.ask()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One of the steps that are possible; what leads far comes more often."""
        self.draw = data.draw
        steps: list[tuple[int, Callable[[], None], object]] = [
            (1, self.submit, len(self.turns) < 3),
            (4, self.claim, self.can_claim()),
            (1, self.lease_lapses, self.has_driver() and not self.model.lapsed),
            (1, self.time_passes, self.turns and self.model.claimed and self.model.state != "queued"),
            (1, self.call_opens, self.can_act() and not self.model.waiting),
            (3, self.call_completes, self.has_driver() and self.model.open),
            (3, self.ask, self.can_ask() and self.committed()),
            (4, self.park, self.can_act()),
            (1, self.release, self.has_driver()),
            (1, self.seal, self.can_act() and len(self.model.requests) > 2),
            (1, self.an_old_driver_goes_on, self.ghosts),
            (5, self.answer, self.every_request()),
            (1, self.a_request_falls_due, self.turns and self.model.waiting),
            (1, self.someone_sweeps, True),
        ]
        data.draw(
            st.sampled_from([take for weight, take, is_possible in steps if is_possible for _ in range(weight)])
        )()

    def break_the_line(self) -> None:
        """The next scripts, and the next replies, are lost."""
        self.lossy.faults.extend(self.draw(FAULTS))

    def submit(self) -> None:
        requester = self.draw(st.none() | PEOPLE)
        new = new_turn(requester=requester)
        self.run(submit(self.client, new, 1))
        self.woken = True
        self.turns.append(Model(new.turn, requester))

    def can_claim(self) -> bool:
        return bool(self.turns) and (self.model.state == "queued" or self.model.lapsed)

    def claim(self) -> None:
        model = self.model
        grant = self.run(taken(self.client))
        self.lose_driver()
        model.crashes += int(model.state == "running")
        model.state, model.lapsed, model.claimed = "running", False, True
        model.known = len(model.decisions)
        assert (grant.turn, grant.facts, grant.requester) == (model.turn, tuple(model.facts), model.requester)
        assert (grant.progress.granted, grant.progress.crashes) == (frozenset(self.granted), model.crashes)
        assert abs(grant.remaining_s - (7200 - model.spent_ms / 1000)) < CLOSE_S
        self.driver = driver_of(self.client, grant)
        if not model.call:
            self.call_opens()
            self.call_completes()

    def lease_lapses(self) -> None:
        self.run(self.client.hset(keys.turn_record(self.model.turn), "lease_ms", 1))
        self.model.lapsed = True

    def time_passes(self) -> None:
        """As if every stored time of the turn lay further back; what is parked gets it back in the end."""
        record = keys.turn_record(self.model.turn)
        self.run(self.client.hincrby(record, "deadline_ms", -A_WHILE_MS))
        if self.model.state == "parked":
            self.run(self.client.hincrby(record, "parked_ms", -A_WHILE_MS))
        else:
            self.model.spent_ms += A_WHILE_MS

    # The verbs of the owner.

    def call_opens(self) -> None:
        self.break_the_line()
        self.run(self.mine.open_call(self.model.call + 1, 1, 0, True))
        self.model.call += 1
        self.model.open = True

    def call_completes(self) -> None:
        model = self.model
        attempt = (model.call, self.run(record_attempt(self.client, model.turn)))
        self.break_the_line()
        self.run(commit(self.mine, *attempt, "naïve "))
        model.facts.append(Committed(*attempt, "naïve ", (), "stop", None))
        model.outputs += ["text", "call_completed"]
        model.log.append("commit")
        model.text += "naïve "
        model.open = False

    def ask(self) -> None:
        model, tool = self.model, self.draw(st.sampled_from(TOOLS))
        index = len(model.requests)
        self.break_the_line()
        expire_s = self.draw(st.integers(1000, 2000))
        approval = self.run(
            ask(self.mine, index, call=model.call, tool=tool, requester=model.requester, expire_s=expire_s)
        )
        model.requests.append(Request(approval, model.call, index, tool))
        model.facts.append(ApprovalAsked(model.call, index, "digest"))
        model.outputs.append("approval_request")
        model.log.append("approval")

    def committed(self) -> bool:
        return any(isinstance(fact, Committed) and fact.call == self.model.call for fact in self.model.facts)

    def park(self) -> None:
        model = self.model
        news = tuple(model.decisions[model.known :])
        self.break_the_line()
        if not news and not model.waiting:
            with pytest.raises(LocalProtocolError, match="nothing"):
                self.run(self.mine.park())
            return
        assert self.run(self.mine.park()) == news
        model.known = len(model.decisions)
        if not news:
            model.state, model.lapsed, self.woken = "parked", False, False
            self.lose_driver()

    def release(self) -> None:
        model = self.model
        self.break_the_line()
        self.run(self.mine.release())
        if model.open:
            model.outputs.append("text_stream_discarded")
            model.log.append("discard")
            model.open = False
        model.state, model.lapsed = "queued", False
        self.lose_driver()

    def seal(self) -> None:
        model = self.model
        self.break_the_line()
        self.run(seal(self.mine))
        model.state = "sealed"
        model.outputs.append("turn_completed")
        model.log.append("seal")
        self.as_modelled()
        self.sealed[model.turn] = self.run(self.keys_of(model.turn))
        self.lose_driver()
        self.ended.append(self.turns.pop(0))

    def an_old_driver_goes_on(self) -> None:
        ghost = self.draw(st.sampled_from(self.ghosts))
        verbs: dict[str, Any] = {
            "ask": lambda: ask(ghost, 9),
            "park": ghost.park,
            "seal": lambda: seal(ghost),
            "open_call": lambda: ghost.open_call(99, 1, 0, True),
        }
        before = self.run(dump(self.client))
        with pytest.raises((Fenced, TurnSealed)):
            self.run(verbs[self.draw(st.sampled_from(sorted(verbs)))]())
        assert self.run(dump(self.client)) == before

    # People, and the end of their time.

    def every_request(self) -> list[tuple[Model, Request]]:
        return [(model, request) for model in [*self.ended, *self.turns] for request in model.requests]

    def answer(self) -> None:
        model, request = self.draw(st.sampled_from(self.every_request()))
        option, by = self.draw(CHOICES), self.draw(PEOPLE)
        key = (request.approval, option, by)
        self.break_the_line()
        answer = self.run(resolve(self.client, request.approval, option, by))
        told = "counts" if isinstance(answer, Resolution) else answer
        if key not in self.answers:
            refusal = model.refusal(request, option, by)
            if refusal is None:
                model.decide(request, option, by)
                if option == "approve_session":
                    self.granted.add(request.tool)
            self.answers[key] = refusal or "counts"
        assert told == self.answers[key]

    def a_request_falls_due(self) -> None:
        request = self.draw(st.sampled_from(self.model.waiting))
        request.overdue = True
        name = f"{request.call}_{request.index}:expires"
        self.run(self.client.hset(keys.approvals(self.model.turn), name, 1))
        self.run(self.client.zadd(keys.due(0), {keys.DUE_APPROVAL + self.model.turn: 1}))

    def someone_sweeps(self) -> None:
        expire_due(self.blocking, 0)
        for model in self.turns:
            model.expire()

    # The invariants.

    @invariant()
    def as_modelled(self) -> None:
        self.lossy.faults.clear()
        waiting = {request.approval for model in self.turns for request in model.waiting if model.state != "sealed"}
        assert {one.approval for one in self.run(find_all(self.client, 1))} == waiting
        if self.turns:
            self.run(self.check(self.model))
            if not self.can_claim() and self.model.state != "sealed":
                assert self.run(refused(self.client))
                self.woken = False

    async def check(self, model: Model) -> None:
        record = await record_of(self.client, model.turn)
        assert (record.state, record.marker) == (model.state, len(model.text.encode()))
        snapshot = await snapshot_of(self.client, model.turn)
        assert (snapshot.text, snapshot.call > 0) == (model.text, model.open)
        outputs = await outputs_of(self.client, model.turn)
        assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
        assert [getattr(output, "notice", None) or output.type for output in outputs] == model.outputs
        assert [entry.kind for entry in await log_of(self.client) if entry.turn == model.turn] == model.log
        due = {member.decode(): at for member, at in await self.client.zrange(keys.due(0), 0, -1, withscores=True)}
        stored = await self.client.hgetall(keys.approvals(model.turn))
        expiries = [int(stored[b"%d_%d:expires" % (request.call, request.index)]) for request in model.waiting]
        first = min(expiries, default=None) if model.state != "sealed" else None
        assert due.get(keys.DUE_APPROVAL + model.turn) == first
        if model.state != "sealed":
            assert (keys.DUE_LEASE + SESSION in due) == (model.state != "parked" or self.woken)


async def record_attempt(client: Redis, turn: str) -> int:
    return int(await client.hget(keys.turn_record(turn), "attempt"))


EXAMPLES = 25


@pytest.mark.requirement("approvals:model:fake")
@pytest.mark.timeout(180)
def test_on_the_fake_approvals_do_what_the_model_does() -> None:
    run_on_the_fake(ApprovalsMachine, EXAMPLES)


@pytest.mark.requirement("approvals:model:real")
@pytest.mark.timeout(180)
def test_on_the_server_approvals_do_what_the_model_does(real_url: str) -> None:
    run_on_the_server(ApprovalsMachine, real_url, EXAMPLES)
