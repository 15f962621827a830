"""The accumulator against a plain model, over a line that loses requests and replies, with takeovers at any time."""

from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.store.lossy import Fault, dump
from tests.store.model_machine import FAULTS, StoreMachine, run_on_the_fake, run_on_the_server
from tests.store.turns import (
    SESSION,
    TTL_S,
    log_of,
    new_turn,
    outputs_of,
    record_of,
    refused,
    snapshot_of,
    taken,
)
from worker import ids
from worker.codecs.events import Usage
from worker.errors import Fenced, LocalProtocolError, TurnSealed
from worker.output.buffer import CommitBuffer
from worker.output.events import (
    CallCompletedOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ThinkingDeltaOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
)
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import submit
from worker.store.journal import decode_facts
from worker.store.lease import renew
from worker.store.log import LogEntry
from worker.store.outputs import outputs_after
from worker.store.script import Script
from worker.store.tick import StagingTick
from worker.turn.facts import Committed, Fact, ToolEnded, ToolStarted
from worker.turn.usage import NO_USAGE, UsageTotals

TEXTS = st.sampled_from(["", "a", " ", "one two", "naïve ", "\n", "日本", "🙂 end"])
VERBS = [
    Script("worker.store", verb)
    for verb in ("open_call", "stage", "commit", "discard", "tool_start", "record", "seal", "release")
]
ONE_FAULT = st.sampled_from(["none", "none", "request lost", "reply lost"])


@dataclass
class Model:
    """What one turn should be."""

    turn: str
    facts: list[Fact] = field(default_factory=list)
    outputs: list[tuple[str, int, int, str]] = field(default_factory=list)
    log: list[tuple[str, int, str]] = field(default_factory=list)
    unsent: list[tuple[str, str]] = field(default_factory=list)
    flight: list[tuple[str, str]] | None = None
    flight_applied: bool = False
    staged: str = ""
    open: bool = False
    opened_here: bool = False
    call: int = 0
    attempt: int = 0
    calls: int = 0
    resumes: int = 0
    discards: int = 0
    crashes: int = 0
    epoch: int = 0
    sealed: bool = False
    owned: bool = False
    lapsed: bool = False

    @property
    def text(self) -> str:
        return "".join(fact.text for fact in self.facts if isinstance(fact, Committed))

    def apply_flight(self) -> None:
        """What was sent has come to the store, once."""
        if self.flight is not None and not self.flight_applied:
            for kind, text in self.flight:
                self.outputs.append((kind, self.call, self.attempt, text))
                self.staged += text if kind == "text_delta" else ""
            self.flight_applied = True

    def settle(self) -> None:
        """A verb of the owner: it waits for what is in flight."""
        self.apply_flight()
        self.flight = None

    def close(self) -> None:
        self.open = False
        self.staged = ""
        self.unsent = []


class AccumulatorMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tick = StagingTick(self.client)
        self.turns: list[Model] = []
        self.driver: Any = None
        self.nonce = ""
        self.ghosts: list[tuple[ExecutionOutputAccumulator, str]] = []
        self.reader: tuple[CommitBuffer, str] | None = None
        self.late: tuple[Any, ...] | None = None

    @property
    def model(self) -> Model:
        return self.turns[0]

    def has_driver(self) -> bool:
        return self.driver is not None

    def has_open(self) -> bool:
        return self.has_driver() and self.model.open and self.model.opened_here

    def lose_driver(self) -> None:
        if self.driver is not None:
            self.tick.remove(self.driver)
            self.ghosts.append((self.driver, self.nonce))
        self.driver = None

    def event(self) -> str:
        return ids.event_of(self.model.turn, self.nonce, self.driver._ops._op)

    async def nothing_changes(self, work: Coroutine[Any, Any, Any], *raised: type[Exception]) -> None:
        before = await dump(self.client)
        with pytest.raises(raised):
            await work
        assert await dump(self.client) == before

    # The turns of the session and their drivers.

    @initialize()
    def first(self) -> None:
        self.submit(faults=[])

    @precondition(lambda self: len(self.turns) < 3)
    @rule(faults=FAULTS)
    def submit(self, faults: list[Fault]) -> None:
        new = new_turn()
        self.lossy.faults.extend(faults)
        assert self.run(submit(self.client, new, 1)).turn == new.turn
        self.turns.append(Model(new.turn))

    @precondition(lambda self: self.turns)
    @rule()
    def claim(self) -> None:
        nonce = ids.new_nonce()
        model = self.model
        if model.owned and not model.lapsed:
            assert self.run(refused(self.client))
            return
        grant = self.run(taken(self.client, SESSION, nonce))
        self.lose_driver()
        model.crashes += int(model.owned)
        model.epoch += 1
        model.owned, model.lapsed, model.opened_here = True, False, False
        model.flight, model.unsent = None, []
        assert (grant.turn, grant.marker, grant.facts) == (model.turn, len(model.text.encode()), tuple(model.facts))
        progress = grant.progress
        assert (progress.call, progress.attempt, progress.is_open) == (model.call, model.attempt, model.open)
        assert (progress.calls, progress.crashes) == (model.calls, model.crashes)
        assert progress.resumes_spent == model.resumes
        self.nonce = nonce
        self.driver = ExecutionOutputAccumulator(self.client, grant, lambda: True)
        self.tick.add(self.driver)

    @precondition(has_driver)
    @rule()
    def claim_again_with_the_same_nonce(self) -> None:
        grant = self.run(taken(self.client, SESSION, self.nonce))
        assert (grant.turn, grant.facts, grant.op) == (
            self.model.turn,
            tuple(self.model.facts),
            self.driver._ops._op + int(self.model.flight_applied and self.model.flight is not None),
        )
        self.model.lapsed = False

    @precondition(has_driver)
    @rule()
    def lease_lapses(self) -> None:
        self.run(self.client.hset(keys.turn_record(self.model.turn), "lease_ms", 1))
        self.model.lapsed = True

    @precondition(has_driver)
    @rule()
    def renew(self) -> None:
        assert renew(self.blocking, 0, [(self.model.turn, self.nonce)], TTL_S)[0].held
        self.model.lapsed = False

    @precondition(has_driver)
    @rule(watched=st.booleans())
    def watch(self, watched: bool) -> None:
        self.driver.watched = watched

    # The verbs.

    @precondition(lambda self: self.has_driver() and not self.model.open)
    @rule(faults=FAULTS, again=st.booleans())
    def open_call(self, faults: list[Fault], again: bool) -> None:
        model = self.model
        committed = any(isinstance(fact, Committed) and fact.call == model.call for fact in model.facts)
        is_new = model.call == 0 or committed or not again
        call, attempt = (model.call + 1, 1) if is_new else (model.call, model.attempt + 1)
        self.lossy.faults.extend(faults)
        model.resumes = 0 if is_new else model.resumes
        self.run(self.driver.open_call(call, attempt, model.resumes, is_new))
        model.settle()
        model.call, model.attempt, model.open, model.opened_here = call, attempt, True, True
        model.calls += int(is_new)

    @precondition(lambda self: self.has_driver() and self.model.open)
    @rule()
    def what_is_not_allowed_while_open(self) -> None:
        self.run(self.driver._ops._settle_flight())
        self.model.settle()
        self.run(self.nothing_changes(self.driver.open_call(self.model.call + 1, 1, 0, True), LocalProtocolError))
        sealing = self.driver.seal("completed", None, None, "", NO_USAGE, [])
        self.run(self.nothing_changes(sealing, LocalProtocolError))

    @precondition(has_open)
    @rule(deltas=st.lists(st.tuples(st.booleans(), TEXTS), min_size=1, max_size=4))
    def stage(self, deltas: list[tuple[bool, str]]) -> None:
        for thinking, text in deltas:
            if thinking:
                self.driver.stage_thinking(text)
            else:
                self.driver.stage_text(text)
            if text and (self.driver.watched or not thinking):
                self.model.unsent.append(("thinking_delta" if thinking else "text_delta", text))

    @precondition(lambda self: self.has_open() and (self.driver.watched or self.model.flight))
    @rule(fault=ONE_FAULT)
    def flush(self, fault: Fault) -> None:
        model = self.model
        if model.flight is None:
            if not model.unsent:
                return
            runs = groupby(model.unsent, key=lambda delta: delta[0])
            model.flight = [(kind, "".join(text for _, text in run)) for kind, run in runs]
            model.flight_applied, model.unsent = False, []
        self.lossy.faults.append(fault)
        self.run(self.tick.flush())
        if fault == "request lost":
            self.late = self.lossy.sent[-1]
            return
        model.apply_flight()
        if fault == "none":
            model.flight = None

    @precondition(has_open)
    @rule(faults=FAULTS, other=st.none() | TEXTS)
    def commit(self, faults: list[Fault], other: str | None) -> None:
        model = self.model
        model.settle()
        text = other if other is not None else model.staged
        fact = Committed(model.call, model.attempt, text, (), "stop", Usage(7, 3))
        call, attempt = model.call, model.attempt
        outputs: list[Output] = [CallCompletedOutput(call=call, attempt=attempt, finish_reason="stop")]
        model.outputs.append(("call_completed", call, attempt, ""))
        if text or model.staged:
            outputs.insert(0, TextOutput(call=call, attempt=attempt, text=text))
            model.outputs.insert(-1, ("text", call, attempt, text))
        self.lossy.faults.extend(faults)
        self.run(self.driver.commit(fact, UsageTotals(7, 3), outputs))
        model.facts.append(fact)
        model.log.append(("commit", model.call, self.event()))
        model.close()

    @precondition(lambda self: self.has_driver() and self.model.call)
    @rule(faults=FAULTS, resumes=st.none() | st.integers(1, 3))
    def discard(self, faults: list[Fault], resumes: int | None) -> None:
        model = self.model
        model.settle()
        outputs = [TextStreamDiscardedOutput(call=model.call, attempt=model.attempt)]
        self.lossy.faults.extend(faults)
        self.run(self.driver.discard(model.call, model.attempt, NO_USAGE, outputs, resumes_spent=resumes))
        if model.open and resumes is not None:
            model.resumes = resumes
        self.discarded()

    def discarded(self) -> None:
        model = self.model
        if model.open:
            model.outputs.append(("text_stream_discarded", model.call, model.attempt, ""))
            model.log.append(("discard", model.call, self.event()))
            model.discards += 1
        model.close()

    @precondition(lambda self: self.has_driver() and not self.model.open and self.model.facts)
    @rule(faults=FAULTS)
    def run_a_tool(self, faults: list[Fault]) -> None:
        model = self.model
        model.settle()
        self.lossy.faults.extend(faults)
        called = ToolCallOutput(call=model.call, tool_call_id="1", name="look")
        self.run(self.driver.tool_start(model.call, 0, [called]))
        ended = ToolEnded(model.call, 0, "seen", None)
        self.lossy.faults.extend(faults)
        resulted = ToolResultOutput(call=model.call, tool_call_id="1", name="look", result="seen")
        self.run(self.driver.record(ended, [resulted]))
        model.facts += [ToolStarted(model.call, 0), ended]
        model.outputs += [("tool_call", model.call, 0, ""), ("tool_result", model.call, 0, "")]

    @precondition(lambda self: self.has_driver() and not self.model.open)
    @rule(faults=FAULTS)
    def seal(self, faults: list[Fault]) -> None:
        model = self.model
        model.settle()
        self.lossy.faults.extend(faults)
        end = [TurnCompletedOutput(outcome="completed")]
        self.run(self.driver.seal("completed", None, None, "", NO_USAGE, end))
        model.sealed = True
        model.outputs.append(("turn_completed", 0, 0, ""))
        model.log.append(("seal", 0, self.event()))
        self.turn_is_as_modelled()
        self.sealed[model.turn] = self.run(self.keys_of(model.turn))
        self.lose_driver()
        self.turns.pop(0)
        self.reader = None

    @precondition(has_driver)
    @rule(faults=FAULTS)
    def release(self, faults: list[Fault]) -> None:
        self.model.settle()
        self.lossy.faults.extend(faults)
        self.run(self.driver.release())
        self.discarded()
        self.model.owned = self.model.lapsed = False
        self.lose_driver()

    # What must change nothing.

    @precondition(lambda self: self.ghosts)
    @rule(data=st.data(), verb=st.sampled_from(["open_call", "commit", "discard", "tool_start", "seal", "release"]))
    def an_old_driver_goes_on(self, data: st.DataObject, verb: str) -> None:
        ghost, nonce = data.draw(st.sampled_from(self.ghosts))
        call, attempt = ghost._attempt or (1, 1)
        verbs: dict[str, Any] = {
            "open_call": lambda: ghost.open_call(call + 1, 1, 0, True),
            "commit": lambda: ghost.commit(Committed(call, attempt, "ghost", (), None, None), NO_USAGE, []),
            "discard": lambda: ghost.discard(call, attempt, NO_USAGE, []),
            "tool_start": lambda: ghost.tool_start(call, 0, []),
            "seal": lambda: ghost.seal("failed", None, None, "", NO_USAGE, []),
            "release": ghost.release,
        }
        self.run(self.nothing_changes(verbs[verb](), Fenced, TurnSealed))
        assert not renew(self.blocking, 0, [(ghost.turn, nonce)], TTL_S)[0].held

    @precondition(lambda self: self.verbs_sent())
    @rule(data=st.data())
    def an_old_op_arrives_again(self, data: st.DataObject) -> None:
        command = data.draw(st.sampled_from(self.verbs_sent()))
        before = self.run(dump(self.client))
        self.run(self.resend(command))
        if self.has_driver() and command == self.late and self.model.flight is not None:
            self.model.apply_flight()  # it was never taken until now
        else:
            assert self.run(dump(self.client)) == before

    @precondition(lambda self: self.has_driver() and self.verbs_sent())
    @rule(ahead=st.integers(2, 5))
    def an_op_comes_too_early(self, ahead: int) -> None:
        own = [command for command in self.verbs_sent() if self.nonce in command]
        if not own:
            return
        command = list(own[-1])
        at = command.index(self.nonce) + 4
        command[at] = self.driver._ops._op + 1 + ahead
        before = self.run(dump(self.client))
        assert self.run(self.resend(tuple(command)))[0] == b"REWOUND"
        assert self.run(dump(self.client)) == before

    @rule()
    def scripts_are_forgotten(self) -> None:
        self.run(self.client.script_flush())

    def verbs_sent(self) -> list[tuple[Any, ...]]:
        nonces = {self.nonce, *(nonce for _, nonce in self.ghosts)}
        # A verb has its nonce right before its turn; a claim has not.
        return [
            command
            for command in self.lossy.sent
            if any(
                command[3 + command[2]] == nonce and str(command[4 + command[2]]).startswith("turn_")
                for nonce in nonces
            )
        ]

    async def resend(self, command: tuple[Any, ...]) -> list[Any]:
        for script in VERBS:
            await script.load(self.client)
        reply: list[Any] = await self.lossy.execute(*command)
        return reply

    # Readers.

    @precondition(lambda self: self.turns)
    @rule()
    def reader_attaches(self) -> None:
        snapshot = self.run(snapshot_of(self.client, self.model.turn))
        assert (snapshot.text, snapshot.open_text) == (self.model.text, self.model.staged)
        assert (snapshot.call, snapshot.attempt) == (
            (self.model.call, self.model.attempt) if self.model.open else (0, 0)
        )
        buffer = CommitBuffer()
        if snapshot.text:
            buffer.commit(snapshot.text)
        buffer.stage(snapshot.open_text)
        self.reader = (buffer, snapshot.last_id)

    # The invariants.

    @invariant()
    def turn_is_as_modelled(self) -> None:
        self.lossy.faults.clear()
        if self.turns:
            self.run(self.check_stored())
            self.run(self.check_outputs())

    async def check_stored(self) -> None:
        model = self.model
        record = await record_of(self.client, model.turn)
        text = await self.client.get(keys.text(model.turn)) or b""
        assert text.decode() == model.text
        assert record.marker == len(text)  # I1
        assert (await self.client.get(keys.open_text(model.turn)) or b"").decode() == model.staged
        facts = decode_facts(await self.client.lrange(keys.journal(model.turn), 0, -1), text)
        assert list(facts) == model.facts
        assert "".join(fact.text for fact in facts if isinstance(fact, Committed)) == model.text  # I8
        assert (record.discards, record.crashes, record.calls) == (model.discards, model.crashes, model.calls)
        assert (record.state == "sealed") == model.sealed
        log = [entry for entry in await log_of(self.client) if entry.turn == model.turn]
        assert all(isinstance(entry, LogEntry) for entry in log)
        assert [(entry.kind, entry.call, entry.event_id) for entry in log] == model.log

    async def check_outputs(self) -> None:
        model = self.model
        outputs = await outputs_of(self.client, model.turn)
        assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))  # I3
        told = [(output.type, output.call, output.attempt, getattr(output, "text", "")) for output in outputs]
        assert told == model.outputs
        check_order(outputs)
        buffer = CommitBuffer()
        for output in outputs:
            buffer.apply(output)
        assert (buffer.committed, buffer.staged, buffer.marker) == (model.text, model.staged, len(model.text.encode()))
        if self.reader is not None:
            reader, last = self.reader
            news = await outputs_after(self.client, model.turn, last, 0)
            for _, output in news:
                reader.apply(output)
            self.reader = (reader, news[-1][0] if news else last)
            assert (reader.committed, reader.staged) == (model.text, model.staged)


def check_order(outputs: list[Output]) -> None:
    """A dead attempt's last delta, its discard, the next attempt's first delta (I3)."""
    dead: set[tuple[int, int]] = set()
    for output in outputs:
        attempt = (output.call, output.attempt)
        if isinstance(output, TextStreamDiscardedOutput):
            dead.add(attempt)
        elif isinstance(output, TextDeltaOutput | ThinkingDeltaOutput):
            assert attempt not in dead
            earlier = [(output.call, number) for number in range(1, output.attempt)]
            assert dead.issuperset(earlier)


EXAMPLES = 25


@pytest.mark.requirement("store:model:fake")
@pytest.mark.timeout(180)
def test_on_the_fake_the_accumulator_does_what_the_model_does() -> None:
    run_on_the_fake(AccumulatorMachine, EXAMPLES)


@pytest.mark.requirement("store:model:real")
@pytest.mark.timeout(180)
def test_on_the_server_the_accumulator_does_what_the_model_does(real_url: str) -> None:
    run_on_the_server(AccumulatorMachine, real_url, EXAMPLES)
