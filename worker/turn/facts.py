"""What a turn's journal says: the committed facts from which another driver goes on.

What belongs here: facts and counters, as frozen values. What must not be known here: how they are stored.
"""

from dataclasses import dataclass

from worker.codecs.events import ToolCall, Usage
from worker.codecs.messages import Echo
from worker.turn.usage import NO_USAGE, UsageTotals


@dataclass(frozen=True, slots=True)
class Committed:
    """A call completed: its whole text, the tool calls that it asked for, how it finished and what it cost.

    `finish_reason`: as in `worker.codecs.events.Completed`, or `refusal` when the model refused. `provider`: who
    answered, by its name in the settings. `echo`: what that provider wants back.
    """

    call: int
    attempt: int
    text: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    usage: Usage | None
    provider: str = ""
    echo: Echo | None = None


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


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """A person was asked whether the `index`-th tool call of `call` may run.

    `arguments_sha256`: hex digest of the raw arguments that the person was shown.
    """

    call: int
    index: int
    arguments_sha256: str


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """The question has its answer. `option`: an option's key, or `expired`. `by`: who decided; None: nobody did."""

    call: int
    index: int
    option: str
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Compacted:
    """Before call `before_call` the conversation so far was made shorter for the model; nothing else changed.

    Of the tool results only the last `kept_results` are shown from here on. With a `summary`, it stands for all that
    was said before the turn's message and in the turn's calls but the last `kept_calls`. `forced`: the provider had
    said that the context overflowed. `results_cleared`, `messages_before`, `messages_after`: counts, for readers.
    """

    before_call: int
    forced: bool
    kept_results: int
    kept_calls: int = 0
    summary: str | None = None
    results_cleared: int = 0
    messages_before: int = 0
    messages_after: int = 0


@dataclass(frozen=True, slots=True)
class Joined:
    """The message of a waiting `turn` joined with `call`: it was in the request, and the answer is to it too."""

    call: int
    turn: str
    text: str


Fact = Committed | ToolStarted | ToolEnded | ApprovalAsked | ApprovalDecided | Compacted | Joined


@dataclass(frozen=True, slots=True)
class Progress:
    """The counters of a turn as the store holds them.

    `call`, `attempt`: the last attempt that was opened (0: none);
    `is_open`: it has neither committed nor been discarded. `resumes_spent`: resumes of that call. `calls`: calls
    opened so far. `crashes`: drivers that vanished. `last_input_tokens`: of the session's last completed call.
    `streamed`: the last attempt that was discarded had streamed content. `provider`: who was asked last; `died`: the
    same, when the attempt died of it and the next one is due. `granted`: names of tools that a person has
    approved for the rest of the session.
    """

    call: int = 0
    attempt: int = 0
    is_open: bool = False
    resumes_spent: int = 0
    calls: int = 0
    crashes: int = 0
    totals: UsageTotals = NO_USAGE
    last_input_tokens: int | None = None
    streamed: bool = False
    provider: str = ""
    died: str = ""
    granted: frozenset[str] = frozenset()
