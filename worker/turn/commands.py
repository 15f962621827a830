"""What is to be done: the outputs of the turn machine.

What belongs here: orders, as frozen values, performed by the driver one after the other, in order.
What must not be known here: how they are performed.
"""

from dataclasses import dataclass

from worker.codecs.events import ToolCall, Usage
from worker.codecs.messages import Echo, Request
from worker.output.events import ErrorCategory, Outcome
from worker.turn.facts import Compacted, Joined
from worker.turn.usage import UsageTotals


@dataclass(frozen=True, slots=True)
class OpenCall:
    """Record the attempt, then send `request`.

    `resumes_spent`: resumes of this call so far, stored before the request is sent and never restarted.
    `is_new_call`: the first attempt of this call (counts against the cap on calls). `provider`: whom to ask.
    `streamed`: it goes on where content had come, at the same provider. `carries`: turns whose messages are in the
    request of this new call, as they wait in the inbox, in order; further attempts carry the same.
    """

    call: int
    attempt: int
    resumes_spent: int
    is_new_call: bool
    request: Request
    provider: str = ""
    streamed: bool = False
    carries: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AskInbox:
    """Tell which waiting messages may join the next call; an `InboxRead` follows."""


@dataclass(frozen=True, slots=True)
class ReopenCall:
    """Send the request of the same attempt again: nothing of an answer had come."""

    call: int
    attempt: int
    request: Request
    provider: str = ""


@dataclass(frozen=True, slots=True)
class OpenSidecar:
    """Send a request beside the turn: nothing of it is staged, committed or recorded. Its events name call 0."""

    attempt: int
    request: Request
    provider: str


@dataclass(frozen=True, slots=True)
class Blame:
    """An attempt beside the turn died of its provider; an attempt of the turn says so by its `DiscardCall`."""

    provider: str


@dataclass(frozen=True, slots=True)
class CloseCall:
    """Stop reading the current attempt and drop its connection."""


@dataclass(frozen=True, slots=True)
class StageText:
    """A delta for live readers."""

    text: str


@dataclass(frozen=True, slots=True)
class StageThinking:
    """A thinking delta for live readers."""

    text: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds to the first content. None: there was none.

    `first_delta_s`: from the first request of the call to the first content of any attempt. `surviving_first_delta_s`:
    from the request of the attempt that completed to its own first content.
    """

    first_delta_s: float | None = None
    surviving_first_delta_s: float | None = None


@dataclass(frozen=True, slots=True)
class CommitCall:
    """The call completed: its whole text is written at the marker, with its journal entry and usage, in one step.

    `finish_reason`, `provider`, `echo`: as in `worker.turn.facts.Committed`. `joined`: the messages that it carried;
    their turns end with this step.
    """

    call: int
    attempt: int
    text: str
    thinking: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Usage | None
    totals: UsageTotals
    provider: str = ""
    echo: Echo | None = None
    timing: Timing = Timing()
    joined: tuple[Joined, ...] = ()


@dataclass(frozen=True, slots=True)
class DiscardCall:
    """The attempt is dead: whatever it staged is void. `streamed_bytes`: UTF-8 bytes of text it had streamed.

    `reason`, one word: a budget of the watchdog, a kind of death, a failure class (`refused` also of a request that got
    no stream), or `takeover`, `drain`, `turn_deadline`, `not_answered`, `several_choices`,
    `cancelled`. `resumes_spent`: resumes of
    the call with the one that was just decided on, stored with the discard so that whoever goes on knows of it; None:
    none was, and the count stays. `provider`: who was asked; empty: not known. `streamed`: content had come, in this
    attempt or in the one that it resumed; stored for whoever makes the next attempt.
    """

    call: int
    attempt: int
    reason: str
    streamed_bytes: int
    totals: UsageTotals
    resumes_spent: int | None = None
    provider: str = ""
    streamed: bool = False


@dataclass(frozen=True, slots=True)
class RunTools:
    """Run these tool calls of the completed `call`, given with their index. `attempt`: the one that completed."""

    call: int
    tool_calls: tuple[tuple[int, ToolCall], ...]
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class RecordToolResult:
    """Journal the result of a tool call. `attempt`: the one that completed."""

    call: int
    index: int
    tool_call: ToolCall
    result: str
    failure: str | None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class AskApproval:
    """Ask a person whether this tool call may run; the turn's other tools go on. `attempt`: the one that completed."""

    call: int
    index: int
    tool_call: ToolCall
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """Nothing is left to do until a person decides: give lease and slot back; whoever decides sets the turn due.

    If somebody has decided meanwhile, nothing is given back and a `Decided` follows.
    """


@dataclass(frozen=True, slots=True)
class RecordCompaction:
    """Journal that the conversation was made shorter. `call`: the one that follows.

    `failure`: why the summary that was wanted could not be had; never the turn's end. `usage`: what the sidecar call
    cost, None without one.
    """

    call: int
    fact: Compacted
    totals: UsageTotals
    usage: Usage | None = None
    failure: "Failure | None" = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a turn did not complete. `code` for programs, `message` for a person; neither holds prompt or answer text."""

    category: ErrorCategory
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Seal:
    """The turn ends. Nothing follows; tools that still run are cancelled.

    `has_untold_discards`: attempts were discarded since usage was last told.
    """

    outcome: Outcome
    reason: str | None
    failure: Failure | None
    totals: UsageTotals
    has_untold_discards: bool = False


@dataclass(frozen=True, slots=True)
class HandOff:
    """Give the turn back, due now, for another process to take."""


@dataclass(frozen=True, slots=True)
class Warn:
    """Write a warning to the log. `fields` hold ids, counts and times; never text of prompts or answers."""

    event: str
    fields: tuple[tuple[str, str | int | float | None], ...]


Command = (
    OpenCall
    | AskInbox
    | ReopenCall
    | CloseCall
    | StageText
    | StageThinking
    | CommitCall
    | DiscardCall
    | RunTools
    | RecordToolResult
    | OpenSidecar
    | Blame
    | AskApproval
    | Park
    | RecordCompaction
    | Seal
    | HandOff
    | Warn
)
