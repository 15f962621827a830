"""Messages of one session that wait, are refused, interrupt, join and are cancelled, against a plain model, over a bad
line: none is lost, none is answered twice, their order stands, and each ends once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from tests.store.model_machine import FAULTS, StoreMachine, run_on_the_fake, run_on_the_server
from tests.store.turns import (
    SESSION,
    completed,
    discard,
    driver_of,
    log_of,
    new_turn,
    outputs_of,
    outputs_of_commit,
    record_of,
    refused,
    with_tools,
)
from worker.errors import InboxChanged, TurnCancelled
from worker.output.events import TurnCompletedOutput
from worker.store import keys, repeat
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.cancels import cancel
from worker.store.inbox import SessionBusy, submit
from worker.store.lease import claim
from worker.turn.events import InboxMessage
from worker.turn.facts import Committed, Joined
from worker.turn.usage import NO_USAGE


@dataclass
class Said:
    """What one message, and its turn, should be."""

    turn: str
    text: str
    joins: bool
    state: str = "queued"
    outcome: str | None = None
    wanted: str | None = None
    """Why it is to end."""
    call: int = 0
    is_open: bool = False
    carried: list["Said"] = field(default_factory=list)
    answered: int = 0
    """How many calls have answered it: of its own turn (the last one), or of the one that it joined."""
    into: str | None = None


class SessionsMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.draw: Callable[[st.SearchStrategy[Any]], Any]
        self.said: list[Said] = []
        self.queue: list[Said] = []
        self.driver: ExecutionOutputAccumulator | None = None
        self.seen: tuple[InboxMessage, ...] | None = None
        """What the driver has found in the inbox, and has not used yet."""
        self.checked: set[str] = set()
        """Turns whose end was looked at; `sealed` tells if it changes."""

    @property
    def head(self) -> Said:
        return self.queue[0]

    @property
    def mine(self) -> ExecutionOutputAccumulator:
        assert self.driver is not None
        return self.driver

    def end(self, said: Said, outcome: str) -> None:
        said.state, said.outcome = "sealed", outcome
        self.queue.remove(said)
        self.sealed[said.turn] = self.run(self.keys_of(said.turn))

    # What happens.

    @initialize(data=st.data())
    def first(self, data: st.DataObject) -> None:
        self.draw = data.draw
        self.say()
        self.take()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One of the steps that are possible; what leads far comes more often."""
        self.draw = data.draw
        drives = self.driver is not None
        head = self.head if self.queue else None
        is_idle = drives and head is not None and not head.is_open
        steps: list[tuple[int, Callable[[], None], object]] = [
            (5, self.say, len(self.said) < 30),
            (9, self.take, not drives and head is not None),
            (1, self.nobody_else_takes, drives or head is None),
            (1, self.driver_dies, drives),
            (1, self.hand_over, drives),
            (9, self.look, is_idle and head is not None and head.call == 1 and self.seen is None),
            (6, self.open_with_what_was_seen, is_idle and self.seen is not None),
            (6, self.answer, drives and head is not None and head.is_open),
            (2, self.attempt_dies, drives and head is not None and head.is_open),
            (1, self.end_the_turn, is_idle),
            (2, self.cancel_any, self.queue),
            (4, self.cancel_what_was_seen, bool(self.seen)),
            (1, self.cancel_what_has_ended, len(self.said) > len(self.queue)),
        ]
        data.draw(
            st.sampled_from([take for weight, take, is_possible in steps if is_possible for _ in range(weight)])
        )()

    def break_the_line(self) -> None:
        """The next scripts, and the next replies, are lost."""
        self.lossy.faults.extend(self.draw(FAULTS))

    def say(self) -> None:
        joins = self.draw(st.sampled_from([True, True, True, True, False]))
        on_busy = self.draw(
            st.sampled_from(["queue", "queue", "queue", "queue", "queue", "queue", "reject", "interrupt"])
        )
        new = new_turn(f"message {len(self.said)}", joins=joins, on_busy=on_busy)
        said, head = Said(new.turn, new.message, joins), self.head if self.queue else None
        self.break_the_line()
        if on_busy == "reject" and head is not None:
            with pytest.raises(SessionBusy, match=head.turn):
                self.run(submit(self.client, new, 1))
            assert self.run(self.keys_of(new.turn)) == {}
            return
        submitted = self.run(submit(self.client, new, 1))
        self.said.append(said)
        self.queue.append(said)
        if on_busy == "interrupt" and head is not None:
            assert submitted.interrupted == head.turn
            self.want_end(head, "interrupted")
        else:
            assert submitted.interrupted is None

    def want_end(self, said: Said, why: str) -> None:
        """What a cancel does to a turn that has not ended."""
        said.wanted = said.wanted or why
        if said.state != "running":
            self.end(said, "cancelled")

    def cancel_what_has_ended(self) -> None:
        said = self.draw(st.sampled_from([said for said in self.said if said.state == "sealed"]))
        self.break_the_line()
        answer = self.run(cancel(self.client, said.turn, "jo", 60))
        assert answer is not None
        assert (answer.state, answer.outcome) == ("ended", said.outcome)

    def cancel_what_was_seen(self) -> None:
        """Between a look into the inbox and the call that is to carry what was there."""
        seen = {message.turn for message in self.seen or ()}
        self.cancel_one(self.draw(st.sampled_from([said for said in self.said if said.turn in seen])))

    def cancel_any(self) -> None:
        self.cancel_one(self.draw(st.sampled_from([*self.queue[1:], *self.queue])))

    def cancel_one(self, said: Said) -> None:
        if said.state == "sealed":
            return
        self.break_the_line()
        answer = self.run(cancel(self.client, said.turn, "jo", 60))
        assert answer is not None
        assert answer.state == ("cancelling" if said.state == "running" else "cancelled")
        self.want_end(said, "requested")

    def take(self) -> None:
        self.break_the_line()
        head = self.head
        grant = self.run(self.claimed())
        assert (grant.turn, grant.message, grant.joins) == (head.turn, head.text, head.joins)
        assert (grant.cancelled, grant.progress.is_open) == (head.wanted, head.is_open)
        assert [(each.turn, each.text) for each in grant.carried] == [(each.turn, each.text) for each in head.carried]
        head.state = "running"
        self.driver = driver_of(self.client, grant)
        if head.is_open:
            self.attempt_dies()
        elif head.call == 0:
            self.ask_for_a_tool()

    async def claimed(self) -> Any:
        """As a process claims: once more with the same nonce where it was not answered."""
        nonce = f"nonce {len(self.lossy.sent)}"
        while True:
            try:
                grant = await claim(self.client, SESSION, nonce, 8.0, 1)
            except redis.ConnectionError:
                continue
            assert grant is not None
            return grant

    def nobody_else_takes(self) -> None:
        assert self.run(refused(self.client))

    def driver_dies(self) -> None:
        self.driver, self.seen = None, None
        self.run(self.lapse())

    async def lapse(self) -> None:
        await self.client.hset(keys.turn_record(self.head.turn), "lease_ms", 1)

    def hand_over(self) -> None:
        self.break_the_line()
        self.run(self.mine.release())
        self.head.state, self.head.is_open = "queued", False
        self.driver, self.seen = None, None

    def ask_for_a_tool(self) -> None:
        if self.head.wanted:
            with pytest.raises(TurnCancelled):
                self.run(with_tools(self.mine, "mail"))
            return
        self.run(with_tools(self.mine, "mail"))
        self.head.call = 1

    def look(self) -> None:
        self.break_the_line()
        self.seen = self.run(self.mine.waiting_messages())
        may_join: list[Said] = []
        for said in self.queue[1:] if self.head.joins else []:
            if not said.joins:
                break
            may_join.append(said)
        assert [(each.turn, each.text) for each in self.seen] == [(said.turn, said.text) for said in may_join[:20]]

    def open_with_what_was_seen(self) -> None:
        seen, self.seen = self.seen or (), None
        head = self.head
        carries = [each.turn for each in seen]
        self.break_the_line()
        opening = self.mine.open_call(2, 1, 0, True, carries=carries)
        if head.call == 2:
            return self.loop.run_until_complete(self.never(opening))
        if head.wanted:
            with pytest.raises(TurnCancelled):
                self.run(opening)
        elif carries != [said.turn for said in self.queue[1 : 1 + len(carries)]]:
            with pytest.raises(InboxChanged):
                self.run(opening)
        else:
            self.run(opening)
            head.call, head.is_open = 2, True
            head.carried = self.queue[1 : 1 + len(carries)]
        return None

    async def never(self, opening: Any) -> None:
        opening.close()

    def answer(self) -> None:
        head = self.head
        attempt = self.run(self.attempt())
        fact: Committed = completed(2, attempt, "An answer.")
        joined = tuple(Joined(2, said.turn, said.text) for said in head.carried)
        self.break_the_line()
        committing = self.mine.commit(fact, NO_USAGE, outputs_of_commit(fact), joined)
        if head.wanted:
            with pytest.raises(TurnCancelled):
                self.run(committing)
            return
        self.run(committing)
        head.is_open = False
        head.answered += 1
        for said in head.carried:
            said.answered += 1
            if said.state != "sealed":
                said.into = head.turn
                self.end(said, "merged")
        head.carried = []
        self.finish("completed")

    async def attempt(self) -> int:
        return int(await self.client.hget(keys.turn_record(self.head.turn), "attempt"))

    def attempt_dies(self) -> None:
        self.break_the_line()
        attempt = self.run(self.attempt())
        self.run(discard(self.mine, 2, attempt))
        self.head.is_open = False
        self.reopen(attempt + 1)

    def reopen(self, attempt: int) -> None:
        opening = self.mine.open_call(2, attempt, attempt - 1, False)
        if self.head.wanted:
            with pytest.raises(TurnCancelled):
                self.run(opening)
        else:
            self.run(opening)
            self.head.is_open = True

    def end_the_turn(self) -> None:
        self.finish("cancelled" if self.head.wanted else "failed")

    def finish(self, outcome: Any) -> None:
        self.break_the_line()
        end = TurnCompletedOutput(outcome=outcome)
        self.run(self.mine.seal(outcome, None, None, "", NO_USAGE, [end]))
        self.driver, self.seen = None, None
        self.head.carried = []
        self.end(self.head, outcome)

    # What must hold.

    @invariant()
    def all_is_as_it_should_be(self) -> None:
        self.lossy.faults.clear()
        self.run(self.check())

    async def check(self) -> None:
        stored = [turn.decode() for turn in await self.client.lrange(keys.queue(0, SESSION), 0, -1)]
        assert stored == [said.turn for said in self.queue], "order"
        live = {turn.decode() for turn in await self.client.zrange(keys.live(0), 0, -1)}
        assert live == set(stored)
        log = await log_of(self.client)
        for said in [said for said in self.said if said.turn not in self.checked]:
            record = await record_of(self.client, said.turn)
            assert (record.state, record.outcome, record.merged_into) == (said.state, said.outcome, said.into)
            told = [each.outcome for each in await outputs_of(self.client, said.turn) if is_end(each)]
            logged = [entry.outcome for entry in log if entry.turn == said.turn and entry.kind == "seal"]
            assert told == logged == ([] if said.outcome is None else [said.outcome])
            assert said.answered <= 1
            assert said.answered or said.outcome not in ("completed", "merged")
            if said.outcome is not None:
                self.checked.add(said.turn)
        due = await self.client.zscore(keys.due(0), keys.DUE_LEASE + SESSION)
        assert (due is not None) == bool(self.queue)
        cancels = {turn.decode() for turn in await self.client.zrange(keys.cancels(0), 0, -1)}
        assert cancels == {said.turn for said in self.queue if said.wanted}


def is_end(output: Any) -> bool:
    return isinstance(output, TurnCompletedOutput)


EXAMPLES = 40


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not answered is asked again at once."""
    monkeypatch.setattr(repeat, "_FIRST_WAIT_S", 0.0)


@pytest.mark.requirement("sessions:model:fake")
@pytest.mark.timeout(180)
def test_on_the_fake_sessions_do_what_the_model_does() -> None:
    run_on_the_fake(SessionsMachine, EXAMPLES)


@pytest.mark.requirement("sessions:model:real")
@pytest.mark.timeout(180)
def test_on_the_server_sessions_do_what_the_model_does(real_url: str) -> None:
    run_on_the_server(SessionsMachine, real_url, EXAMPLES)
