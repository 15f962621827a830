"""What happened: the inputs of the turn machine.

What belongs here: facts, as frozen values. What must not be known here: how they came about.
"""

from dataclasses import dataclass
from typing import Literal

from worker.codecs.events import StreamEvent
from worker.turn.facts import ApprovalDecided

DeathKind = Literal["timeout", "reset", "end_of_stream", "provider_error", "protocol"]
"""How an attempt died after its stream had begun. All are resumable."""


@dataclass(frozen=True, slots=True)
class Begin:
    """The lease is held and the journal replayed: go."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The request of (`call`, `attempt`) goes out now: recording the attempt may have taken its time."""

    call: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Heard:
    """The stream of (`call`, `attempt`) said something. Ignored when that attempt is no longer the current one.

    Call 0 is the one beside the turn, here and in the events that follow.
    """

    call: int
    attempt: int
    event: StreamEvent


@dataclass(frozen=True, slots=True)
class NotAnswered:
    """The request of (`call`, `attempt`) got no stream: it could not be sent, or the answer was an error.

    `status` is the HTTP status, or None when there was none. `retryable`: the same request may succeed later.
    `retry_after`: seconds the provider asked for. `code` is a short word for programs; `message` is for a person.
    """

    call: int
    attempt: int
    status: int | None
    retryable: bool
    code: str
    message: str
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class Died:
    """The stream of (`call`, `attempt`) broke off without its terminal mark."""

    call: int
    attempt: int
    kind: DeathKind
    message: str


@dataclass(frozen=True, slots=True)
class ToolFinished:
    """The `index`-th tool call of `call` has its result. `failure` names why it did not succeed."""

    call: int
    index: int
    result: str
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Decided:
    """People, or the end of the time to decide, have answered some of the `AskApproval`s. Stored already."""

    decisions: tuple[ApprovalDecided, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed `TurnMachine.deadline()`, or may have."""


@dataclass(frozen=True, slots=True)
class Drain:
    """This process is shutting down."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Somebody wants the turn to end, and the store lets no call and no tool of it through any more.

    `reason`: one word, told with the outcome.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class InboxMessage:
    """The message of a turn that waits behind this one."""

    turn: str
    text: str


@dataclass(frozen=True, slots=True)
class InboxRead:
    """The answer to `AskInbox`: what may join now, in order; often nothing."""

    messages: tuple[InboxMessage, ...]


@dataclass(frozen=True, slots=True)
class InboxMoved:
    """The last `OpenCall` was refused: what it carries waits no more. Nothing was recorded, and nothing was sent."""


Event = (
    Begin | Sent | Heard | NotAnswered | Died | ToolFinished | Decided | Tick | Drain | Cancel | InboxRead | InboxMoved
)
