"""What holds for every turn, whatever happens in whatever order."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stored_turn import StoredTurn
from tests.support.turns import (
    BACKUP,
    BROKEN_CALL,
    CLOCK,
    LONG_HISTORY,
    MAIL,
    MAIN,
    completed,
    failed,
    machine,
    text,
    tool_call,
)
from worker.codecs.events import Keepalive, ReasoningDelta, Usage
from worker.codecs.messages import ToolSpec
from worker.errors import LocalProtocolError
from worker.turn.commands import (
    AskApproval,
    AskInbox,
    CloseCall,
    Command,
    CommitCall,
    DiscardCall,
    HandOff,
    OpenCall,
    OpenSidecar,
    Park,
    RecordCompaction,
    ReopenCall,
    RunTools,
    Seal,
    StageText,
    Warn,
)
from worker.turn.events import (
    Begin,
    Cancel,
    Decided,
    Died,
    Drain,
    Event,
    Heard,
    InboxMessage,
    InboxMoved,
    InboxRead,
    NotAnswered,
    Sent,
    Tick,
    ToolFinished,
)
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Joined
from worker.turn.machine import TurnMachine
from worker.turn.start import CompactionTerms
from worker.turn.states import State

Step = tuple[str, int, float]
"""What happens, how many attempts ago it was sent, and after how many seconds."""

HAPPENINGS: dict[str, Callable[[int, int], Event]] = {
    "keepalive": lambda c, a: Heard(c, a, Keepalive()),
    "text": lambda c, a: text(c, a, "é"),
    "thinking": lambda c, a: Heard(c, a, ReasoningDelta("hm")),
    "answer": lambda c, a: completed(c, a, usage=Usage(7, 3)),
    "tools": lambda c, a: completed(c, a, "tool_calls", tool_call(), BROKEN_CALL, tool_call("mail", id="t2")),
    "bad_tools": lambda c, a: completed(c, a, "tool_calls", BROKEN_CALL),
    "cut": lambda c, a: completed(c, a, "length"),
    "asks": lambda c, a: completed(c, a, "tool_calls", tool_call("launch"), tool_call("mail", id="t2")),
    "overflow": lambda c, a: failed(c, a, "context_overflow"),
    "sent": Sent,
    "choices": lambda c, a: completed(c, a, choices=3),
    "overloaded": lambda c, a: failed(c, a, "retryable", retry_after=2.0),
    "filtered": lambda c, a: failed(c, a, "content_filter"),
    "refused": lambda c, a: failed(c, a, "refused"),
    "reset": lambda c, a: Died(c, a, "reset", ""),
    "ended": lambda c, a: Died(c, a, "end_of_stream", ""),
    "busy": lambda c, a: NotAnswered(c, a, 503, True, "http_503", "Busy."),
    "unknown key": lambda c, a: NotAnswered(c, a, 401, False, "http_401", "No."),
}

OF_NO_ATTEMPT: dict[str, Event] = {"begin": Begin(), "drain": Drain(), "tick": Tick(), "cancel": Cancel("requested")}

LIKELY = [
    "text",
    "text",
    "keepalive",
    "tools",
    "asks",
    "decide",
    "decide",
    "overflow",
    "answer",
    "bad_tools",
    "reset",
    "overloaded",
    "busy",
    "tick",
    "tool",
    "tool",
    "message",
]
steps = st.lists(
    st.tuples(
        st.sampled_from([*LIKELY, *HAPPENINGS, *OF_NO_ATTEMPT]),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.sampled_from([0.0, 0.5, 1.0, 46.0, 700.0]),
    ),
    max_size=40,
)
settings = st.fixed_dictionaries(
    {
        "resume_budget": st.integers(0, 3),
        "resume_backoff_s": st.sampled_from([0, 1]),
        "transport_retries": st.integers(0, 2),
        "max_calls": st.integers(1, 3),
        "empty_nudges": st.integers(0, 2),
        "providers": st.sampled_from([(MAIN,), (MAIN, BACKUP)]),
        "skipped": st.sampled_from([frozenset(), frozenset({"main"})]),
        "compaction": st.sampled_from([None, CompactionTerms()]),
        "on_drain": st.sampled_from(["fail", "handoff"]),
        "joins": st.booleans(),
    }
)


class Life:
    """One turn, lived through with arbitrary steps; then time passes until it ends."""

    def __init__(self, turn: TurnMachine, steps: list[Step]) -> None:
        self.turn = turn
        self.stored = StoredTurn()
        self.commands: list[Command] = []
        self.now = 0.0
        self._opened: list[tuple[int, int]] = []
        self._running: list[tuple[int, int]] = []
        self._asked: list[ApprovalAsked] = []
        self.withdrawn: list[str] = []
        self.said: list[InboxMessage] = []
        """All messages that may join; those that a commit has not taken yet wait."""
        self._feed(Begin())
        for happening, ago, seconds in steps:
            self.now += seconds
            event = self._event(happening, ago)
            if event is not None:
                self._feed(event)
        self._let_time_pass()

    def _event(self, happening: str, ago: int) -> Event | None:
        if happening in OF_NO_ATTEMPT:
            return OF_NO_ATTEMPT[happening]
        if happening == "message":
            self.said.append(InboxMessage(f"turn_{len(self.said)}", "And?"))
            return None
        if happening == "decide":
            return self._decision("approve_once" if ago else "deny")
        if happening == "tool":
            return ToolFinished(*self._running.pop(), "12:00") if self._running else None
        call, attempt = self._opened[-1 - min(ago, len(self._opened) - 1)]
        return HAPPENINGS[happening](call, attempt)

    def _decision(self, option: str) -> Event | None:
        """People decide only about what is parked: sooner, nobody tells the machine."""
        if self.turn.state is not State.PARKED or not self._asked:
            return None
        asked = self._asked.pop()
        decision = ApprovalDecided(asked.call, asked.index, option)
        self.stored.decide(decision)
        return Decided((decision,))

    def _feed(self, event: Event) -> None:
        try:
            commands = list(self.turn.handle(event, self.now))
        except LocalProtocolError:
            return
        refused = self._withdrawn(commands)
        if refused is not None:
            del commands[-1]
        for command in commands:
            self.stored.perform(command)
            if isinstance(command, OpenCall):
                self._opened.append((command.call, command.attempt))
            if isinstance(command, OpenSidecar):
                self._opened.append((0, command.attempt))
            if isinstance(command, RunTools):
                self._running += [(command.call, index) for index, _ in command.tool_calls]
            if isinstance(command, AskApproval):
                self._asked.append(ApprovalAsked(command.call, command.index, ""))
        self.commands += commands
        if refused is not None:
            self._feed(InboxMoved())
        elif self.turn.state is State.JOINING:
            self._feed(InboxRead(tuple(message for message in self.said if message.turn not in self.taken())))

    def _withdrawn(self, commands: list[Command]) -> InboxMessage | None:
        """Every third message is withdrawn just before a call that carries it is opened: the store refuses that."""
        carries = commands[-1].carries if commands and isinstance(commands[-1], OpenCall) else ()
        gone = next((each for each in self.said if each.turn in carries and each.turn.endswith(("2", "5"))), None)
        if gone is not None:
            self.said.remove(gone)
            self.withdrawn.append(gone.turn)
        return gone

    def taken(self) -> list[str]:
        """The turns whose messages a commit has taken, in order."""
        commits = [command for command in self.commands if isinstance(command, CommitCall)]
        return [fact.turn for command in commits for fact in command.joined]

    def _let_time_pass(self) -> None:
        for _ in range(200):
            while (expiry := self._decision("expired")) is not None:
                self._feed(expiry)
            deadline = self.turn.deadline()
            if deadline is None:
                return
            self.now = max(self.now, deadline)
            self._feed(Tick())
        pytest.fail("time alone does not end this turn")

    def places(self, kind: type[Command], *key: Any) -> list[int]:
        """Where commands of a kind, for a call or an attempt, stand among all commands."""
        return [
            place
            for place, command in enumerate(self.commands)
            if isinstance(command, kind) and key == tuple(getattr(command, n) for n in ("call", "attempt")[: len(key)])
        ]


def a_life(changes: dict[str, Any], taken: list[Step]) -> Life:
    tools = (CLOCK, MAIL, ToolSpec("launch", "Launches.", {"type": "object"}))
    asks = frozenset({"launch"})
    return Life(machine(deadline=5000, history=LONG_HISTORY, tools=tools, asks=asks, **changes), taken)


@pytest.mark.requirement("turn:order:delta-discard-delta")
@given(settings, steps)
def test_the_last_delta_of_a_dead_attempt_comes_before_its_discard_and_that_before_the_next_attempt(
    changes: dict[str, Any], taken: list[Step]
) -> None:
    """Design I3, read off the commands: between an attempt's end and the next request there is no delta."""
    open_attempt: tuple[int, int] | None = None
    for command in a_life(changes, taken).commands:
        match command:
            case OpenCall(call=call, attempt=attempt):
                assert open_attempt is None
                open_attempt = (call, attempt)
            case StageText() | ReopenCall():
                assert open_attempt is not None
            case CommitCall(call=call, attempt=attempt) | DiscardCall(call=call, attempt=attempt):
                assert open_attempt == (call, attempt)
                open_attempt = None
            case (
                RunTools()
                | Seal()
                | HandOff()
                | Park()
                | AskApproval()
                | OpenSidecar()
                | RecordCompaction()
                | AskInbox()
            ):
                assert open_attempt is None


@pytest.mark.requirement("turn:order:every-dead-attempt-is-discarded")
@given(settings, steps)
def test_every_attempt_either_commits_or_is_closed_and_discarded_and_never_both(
    changes: dict[str, Any], taken: list[Step]
) -> None:
    life = a_life(changes, taken)
    for command in [command for command in life.commands if isinstance(command, OpenCall)]:
        commits = life.places(CommitCall, command.call, command.attempt)
        discards = life.places(DiscardCall, command.call, command.attempt)
        assert len(commits) + len(discards) == 1
        assert all(life.commands[place - 1] == CloseCall() for place in discards)


@pytest.mark.requirement("turn:resume:budget")
@given(settings, steps)
def test_no_call_is_tried_more_often_than_the_budget_permits_and_none_beyond_the_cap(
    changes: dict[str, Any], taken: list[Step]
) -> None:
    life = a_life(changes, taken)
    opens = [command for command in life.commands if isinstance(command, OpenCall)]
    for command in opens:
        attempts = [other for other in opens if other.call == command.call]
        assert [other.attempt for other in attempts] == list(range(1, len(attempts) + 1))
        overflows = sum(
            isinstance(other, DiscardCall) and (other.call, other.reason) == (command.call, "context_overflow")
            for other in life.commands
        )
        spent = [other.resumes_spent for other in attempts]
        assert spent[0] == 0
        assert sum(later == before for before, later in pairwise(spent)) <= min(overflows, 1)
        assert all(later - before in (0, 1) for before, later in pairwise(spent))
        assert spent[-1] <= changes["resume_budget"]
        if not overflows:
            assert len({(other.provider, id(other.request)) for other in attempts}) <= len(changes["providers"])
        reopened = life.places(ReopenCall, command.call, command.attempt)
        assert len(reopened) <= changes["transport_retries"]
    assert sum(command.is_new_call for command in opens) <= changes["max_calls"]


@pytest.mark.requirement("turn:tools:only-after-a-commit")
@given(settings, steps)
def test_tools_run_once_and_only_from_a_call_that_completed(changes: dict[str, Any], taken: list[Step]) -> None:
    life = a_life(changes, taken)
    ran: list[tuple[int, int]] = []
    for place, command in enumerate(life.commands):
        if isinstance(command, RunTools):
            (commit,) = life.places(CommitCall, command.call, command.attempt)
            assert commit < place
            ran += [(command.call, index) for index, _ in command.tool_calls]
    assert len(ran) == len(set(ran))


@pytest.mark.requirement("turn:order:one-end")
@given(settings, steps)
def test_a_turn_ends_exactly_once_and_nothing_follows(changes: dict[str, Any], taken: list[Step]) -> None:
    life = a_life(changes, taken)
    ends = [command for command in life.commands if isinstance(command, Seal | HandOff)]
    assert ends == life.commands[-1:]
    assert life.turn.state in (State.SEALED, State.HANDED_OFF)
    for event in (Begin(), Tick(), Drain()):
        with pytest.raises(LocalProtocolError):
            life.turn.handle(event, life.now)


@pytest.mark.requirement("turn:order:exactly-the-completed-calls")
@given(settings, steps)
def test_readers_end_with_the_text_of_the_calls_that_completed(changes: dict[str, Any], taken: list[Step]) -> None:
    life = a_life(changes, taken)
    commits = [command.text for command in life.commands if isinstance(command, CommitCall)]
    assert life.stored.text == "".join(commits)


@pytest.mark.requirement("turn:usage:discarded-estimate")
@given(settings, steps)
def test_the_count_of_discarded_attempts_is_that_of_the_discards_that_another_attempt_follows(
    changes: dict[str, Any], taken: list[Step]
) -> None:
    life = a_life(changes, taken)
    last = life.commands[-1]
    counted = [command for command in life.commands if isinstance(command, DiscardCall)][-1:]
    totals = last.totals if isinstance(last, Seal) else counted[0].totals if counted else None
    spent: dict[int, int] = {}
    for command in life.commands:
        if isinstance(command, OpenCall):
            spent[command.call] = command.resumes_spent
    resumed = sum(spent.values())
    warned = [dict(command.fields) for command in life.commands if isinstance(command, Warn)]
    waited = sum(bool(fields.get("resume")) and fields["call"] != 0 for fields in warned) - resumed
    handed_off = isinstance(last, HandOff) and life.commands[-2:-1] == counted != []
    expected = resumed + waited + handed_off
    assert (totals.discarded_resume_attempts if totals else None) == (expected or None)


@pytest.mark.requirement("sessions:join:order")
@given(settings, steps)
def test_messages_join_once_in_their_order_and_all_attempts_of_a_call_carry_the_same(
    changes: dict[str, Any], taken: list[Step]
) -> None:
    life = a_life({**changes, "joins": True}, taken)
    assert life.taken() == [message.turn for message in life.said][: len(life.taken())]
    assert not set(life.taken()) & set(life.withdrawn)
    for commit in [command for command in life.commands if isinstance(command, CommitCall)]:
        opens = [each for each in life.commands if isinstance(each, OpenCall) and each.call == commit.call]
        carried = tuple(fact.turn for fact in commit.joined)
        assert [each.carries for each in opens] == [carried] + [()] * (len(opens) - 1)
        for each in opens:
            shown = [message.text for message in each.request.messages[len(each.request.messages) - len(carried) :]]
            assert shown == [fact.text for fact in commit.joined]
    assert [fact for fact in life.stored.facts if isinstance(fact, Joined)] == [
        fact for command in life.commands if isinstance(command, CommitCall) for fact in command.joined
    ]
