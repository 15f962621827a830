"""The states of a turn and what may happen in each.

What belongs here: the table. What must not be known here: what a transition does (that is the machine's).

    READY ── begin ──> CALLING ── first content ──> STREAMING ── completed ──> RUNNING_TOOLS ── all ended ──> CALLING
                        │   ^                        │      │                     │    ^
                        │   └──── WAITING <── died ──┤      └──> SEALED           v    │ decided
                        └───────────┴── drain ───────┴──> HANDED_OFF             PARKED

    COMPACTING comes before CALLING when the conversation has to be summed up first: a call beside the turn runs.
    JOINING comes before it after tools, where waiting messages may join. A cancel leads from every state to SEALED.

A pair that is not in the table is a bug of whoever sent the event: `LocalProtocolError`, and nothing changes.
"""

from enum import Enum

from worker.codecs.events import SUBSTANTIVE, Completed, Failed
from worker.turn.events import (
    Begin,
    Cancel,
    Decided,
    Died,
    Drain,
    Event,
    Heard,
    InboxMoved,
    InboxRead,
    NotAnswered,
    Sent,
    Tick,
    ToolFinished,
)


class State(Enum):
    """Where a turn stands."""

    READY = "ready"
    """Claimed; nothing was done yet."""
    CALLING = "calling"
    """A request was sent; nothing substantive has come."""
    STREAMING = "streaming"
    """Substantive events come."""
    WAITING = "waiting"
    """Between two tries."""
    RUNNING_TOOLS = "running_tools"
    """The call completed; its tools run."""
    PARKED = "parked"
    """Nothing runs; a person must decide. This process is done with it, unless somebody has decided just now."""
    JOINING = "joining"
    """The inbox is asked which waiting messages the next call takes along."""
    COMPACTING = "compacting"
    """A call beside the turn sums the conversation up."""
    SEALED = "sealed"
    """The turn has ended."""
    HANDED_OFF = "handed_off"
    """Another process goes on."""


class Kind(Enum):
    """What an event is to the state it meets."""

    BEGIN = "begin"
    SENT = "sent"
    KEEPALIVE = "keepalive"
    CONTENT = "content"
    COMPLETED = "completed"
    FAILED = "failed"
    NOT_ANSWERED = "not_answered"
    DIED = "died"
    STALE = "stale"
    """It tells of an attempt that is no longer listened to."""
    TOOL_FINISHED = "tool_finished"
    DECIDED = "decided"
    TICK = "tick"
    DRAIN = "drain"
    CANCEL = "cancel"
    INBOX_READ = "inbox_read"
    INBOX_MOVED = "inbox_moved"


_KINDS: dict[type[Event], Kind] = {
    Begin: Kind.BEGIN,
    Sent: Kind.SENT,
    NotAnswered: Kind.NOT_ANSWERED,
    Died: Kind.DIED,
    ToolFinished: Kind.TOOL_FINISHED,
    Decided: Kind.DECIDED,
    Tick: Kind.TICK,
    Drain: Kind.DRAIN,
    Cancel: Kind.CANCEL,
    InboxRead: Kind.INBOX_READ,
    InboxMoved: Kind.INBOX_MOVED,
}


def kind_of(event: Event, *, is_current: bool) -> Kind:
    """`is_current`: a stream's event belongs to the attempt that is listened to."""
    if isinstance(event, Sent | Heard | NotAnswered | Died) and not is_current:
        return Kind.STALE
    if not isinstance(event, Heard):
        return _KINDS[type(event)]
    if isinstance(event.event, Completed):
        return Kind.COMPLETED
    if isinstance(event.event, Failed):
        return Kind.FAILED
    return Kind.CONTENT if isinstance(event.event, SUBSTANTIVE) else Kind.KEEPALIVE


_NEXT_CALL = frozenset({State.CALLING, State.JOINING, State.COMPACTING, State.SEALED, State.HANDED_OFF})
_AFTER_A_DEATH = frozenset({State.CALLING, State.WAITING, State.COMPACTING, State.SEALED})
_AFTER_A_CALL = _NEXT_CALL | {State.RUNNING_TOOLS, State.PARKED}
_COMPACTED = _NEXT_CALL

TRANSITIONS: dict[State, dict[Kind, frozenset[State]]] = {
    State.READY: {
        Kind.BEGIN: _AFTER_A_CALL,
        Kind.DRAIN: frozenset({State.READY, State.HANDED_OFF}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.JOINING: {
        Kind.INBOX_READ: frozenset({State.CALLING}),
        Kind.STALE: frozenset({State.JOINING}),
        Kind.TICK: frozenset({State.JOINING, State.SEALED}),
        Kind.DRAIN: frozenset({State.JOINING, State.HANDED_OFF}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.CALLING: {
        Kind.INBOX_MOVED: frozenset({State.JOINING}),
        Kind.SENT: frozenset({State.CALLING}),
        Kind.KEEPALIVE: frozenset({State.CALLING}),
        Kind.CONTENT: frozenset({State.STREAMING}),
        Kind.COMPLETED: _AFTER_A_CALL,
        Kind.FAILED: _AFTER_A_DEATH,
        Kind.NOT_ANSWERED: _AFTER_A_DEATH,
        Kind.DIED: _AFTER_A_DEATH,
        Kind.STALE: frozenset({State.CALLING}),
        Kind.TICK: _AFTER_A_DEATH,
        Kind.DRAIN: frozenset({State.CALLING, State.HANDED_OFF}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.STREAMING: {
        Kind.KEEPALIVE: frozenset({State.STREAMING}),
        Kind.CONTENT: frozenset({State.STREAMING}),
        Kind.COMPLETED: _AFTER_A_CALL,
        Kind.FAILED: _AFTER_A_DEATH,
        Kind.DIED: _AFTER_A_DEATH,
        Kind.STALE: frozenset({State.STREAMING}),
        Kind.TICK: _AFTER_A_DEATH | {State.STREAMING},
        Kind.DRAIN: frozenset({State.STREAMING, State.HANDED_OFF}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.WAITING: {
        Kind.STALE: frozenset({State.WAITING}),
        Kind.TICK: frozenset({State.CALLING, State.WAITING, State.SEALED}),
        Kind.DRAIN: frozenset({State.HANDED_OFF, State.SEALED}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.RUNNING_TOOLS: {
        Kind.TOOL_FINISHED: _AFTER_A_CALL,
        Kind.STALE: frozenset({State.RUNNING_TOOLS}),
        Kind.TICK: frozenset({State.RUNNING_TOOLS, State.SEALED}),
        Kind.DRAIN: frozenset({State.RUNNING_TOOLS}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.PARKED: {
        Kind.DECIDED: _AFTER_A_CALL,
        Kind.STALE: frozenset({State.PARKED}),
        Kind.TICK: frozenset({State.PARKED}),
        Kind.DRAIN: frozenset({State.PARKED}),
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.COMPACTING: {
        Kind.SENT: frozenset({State.COMPACTING}),
        Kind.KEEPALIVE: frozenset({State.COMPACTING}),
        Kind.CONTENT: frozenset({State.COMPACTING}),
        Kind.COMPLETED: _COMPACTED,
        Kind.FAILED: _COMPACTED,
        Kind.NOT_ANSWERED: _COMPACTED,
        Kind.DIED: _COMPACTED,
        Kind.STALE: frozenset({State.COMPACTING}),
        Kind.TICK: _COMPACTED,
        Kind.DRAIN: _COMPACTED,
        Kind.CANCEL: frozenset({State.SEALED}),
    },
    State.SEALED: {},
    State.HANDED_OFF: {},
}
