"""What a turn's journal says: the committed facts from which another driver goes on.

What belongs here: facts and counters, as frozen values. What must not be known here: how they are stored.
"""

from dataclasses import dataclass

from worker.codecs.events import ToolCall, Usage
from worker.turn.commands import NO_USAGE, UsageTotals


@dataclass(frozen=True, slots=True)
class Committed:
    """A call completed: its whole text, the tool calls that it asked for, how it finished and what it cost.

    `finish_reason`: the provider's word, or `refusal` when the model refused.
    """

    call: int
    attempt: int
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Usage | None


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """The `index`-th tool call of `call` was about to run."""

    call: int
    index: int


@dataclass(frozen=True, slots=True)
class ToolEnded:
    """The `index`-th tool call of `call` has its result."""

    call: int
    index: int
    result: str
    failure: str | None


Fact = Committed | ToolStarted | ToolEnded


@dataclass(frozen=True, slots=True)
class Progress:
    """The counters of a turn as the store holds them.

    `began`: some driver opened a call or more. `call`, `attempt`: the last attempt that was opened (0: none);
    `is_open`: it has neither committed nor been discarded. `resumes_spent`: resumes of that call. `calls`: calls
    opened so far. `crashes`: drivers that vanished. `last_input_tokens`: of the session's last completed call.
    """

    began: bool = False
    call: int = 0
    attempt: int = 0
    is_open: bool = False
    resumes_spent: int = 0
    calls: int = 0
    crashes: int = 0
    totals: UsageTotals = NO_USAGE
    last_input_tokens: int | None = None
