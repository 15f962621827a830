"""The table of a turn: what may happen in which state, and that nothing else may."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.turns import completed, failed, machine, text, tool_call
from worker.codecs.events import Keepalive
from worker.codecs.messages import AssistantMessage, UserMessage
from worker.errors import LocalProtocolError
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
from worker.turn.facts import ApprovalDecided
from worker.turn.machine import TurnMachine
from worker.turn.start import CompactionTerms
from worker.turn.states import TRANSITIONS, Kind, State

EVENTS: dict[Kind, Event] = {
    Kind.BEGIN: Begin(),
    Kind.SENT: Sent(1, 1),
    Kind.KEEPALIVE: Heard(1, 1, Keepalive()),
    Kind.CONTENT: text(1, 1, "a"),
    Kind.COMPLETED: completed(1, 1, "tool_calls", tool_call(), tool_call("mail", id="t2")),
    Kind.FAILED: failed(1, 1, "retryable"),
    Kind.NOT_ANSWERED: NotAnswered(1, 1, 503, True, "http_503", "Busy."),
    Kind.DIED: Died(1, 1, "reset", ""),
    Kind.STALE: text(0, 0, "a"),
    Kind.TOOL_FINISHED: ToolFinished(1, 0, "12:00"),
    Kind.DECIDED: Decided((ApprovalDecided(1, 1, "deny"),)),
    Kind.TICK: Tick(),
    Kind.DRAIN: Drain(),
    Kind.CANCEL: Cancel("requested"),
    Kind.INBOX_READ: InboxRead((InboxMessage("turn_a", "And?"),)),
    Kind.INBOX_MOVED: InboxMoved(),
}

WAYS: dict[State, list[Event]] = {
    State.READY: [],
    State.CALLING: [Begin()],
    State.STREAMING: [Begin(), text(1, 1, "a")],
    State.WAITING: [Begin(), EVENTS[Kind.NOT_ANSWERED]],
    State.RUNNING_TOOLS: [Begin(), EVENTS[Kind.COMPLETED]],
    State.PARKED: [Begin(), EVENTS[Kind.COMPLETED], EVENTS[Kind.TOOL_FINISHED]],
    State.JOINING: [Begin(), EVENTS[Kind.COMPLETED], ToolFinished(1, 0, "12:00"), ToolFinished(1, 1, "sent")],
    State.COMPACTING: [Begin(), failed(1, 1, "context_overflow")],
    State.SEALED: [Begin(), text(1, 1, "a"), completed(1, 1)],
    State.HANDED_OFF: [Begin(), Drain()],
}
"""How to get into each state."""

STREAM_KINDS = {Kind.SENT, Kind.KEEPALIVE, Kind.CONTENT, Kind.COMPLETED, Kind.FAILED, Kind.NOT_ANSWERED, Kind.DIED}
LISTENING = {State.CALLING, State.STREAMING}


def in_state(state: State) -> TurnMachine:
    history = tuple(
        message for number in range(9) for message in (UserMessage(f"{number}" * 99), AssistantMessage("Yes."))
    )
    asks = frozenset({"mail"}) if state is State.PARKED else frozenset()
    turn = machine(asks=asks, history=history, compaction=CompactionTerms(), joins=True)
    for event in WAYS[state]:
        turn.handle(event, 0)
    assert turn.state is state
    return turn


def everything_in(value: Any) -> Any:
    """All that an object holds, as plain values that can be compared."""
    if hasattr(value, "__dict__") and not isinstance(value, type | State | Callable):
        return {name: everything_in(inner) for name, inner in vars(value).items()}
    return value.copy() if isinstance(value, list | set | dict) else value


def as_met(state: State, kind: Kind) -> Kind:
    """What an event of the first attempt is to a machine in that state: stale where nobody listens to the attempt."""
    return Kind.STALE if kind in STREAM_KINDS and state not in LISTENING else kind


@pytest.mark.requirement("turn:table:unknown-pair")
@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("state", State)
def test_a_pair_that_is_not_in_the_table_is_refused_and_changes_nothing_and_all_others_are_taken(
    state: State, kind: Kind
) -> None:
    turn = in_state(state)
    allowed = TRANSITIONS[state].get(as_met(state, kind))
    before = everything_in(turn)
    if allowed is None:
        with pytest.raises(LocalProtocolError, match=state.value):
            turn.handle(EVENTS[kind], 1)
        assert everything_in(turn) == before
    else:
        turn.handle(EVENTS[kind], 1)
        assert turn.state in allowed


def test_every_state_has_its_row_and_the_last_two_take_nothing() -> None:
    assert set(TRANSITIONS) == set(State)
    assert [state for state, row in TRANSITIONS.items() if not row] == [State.SEALED, State.HANDED_OFF]


def test_the_comparison_would_see_a_change() -> None:
    turn = in_state(State.CALLING)
    before = everything_in(turn)
    turn.handle(text(1, 1, "a"), 1)
    assert everything_in(turn) != before
