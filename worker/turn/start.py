"""What a driver gives the machine of a turn.

What belongs here: the question and the limits, as frozen values. What must not be known here: settings, stores.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Literal

from worker.codecs.messages import Message, ToolSpec
from worker.turn.facts import Fact, Joined, Progress
from worker.turn.watchdog import WatchdogLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderTerms:
    """One provider as a turn may ask it. `name`: in the settings. Times in seconds.

    `context_tokens`: what the model can hold; None: not known, so the conversation is made shorter only when the
    provider says that it overflows. `extra_body` is merged over the encoded body, key by key.
    """

    name: str
    wire: str
    model: str
    watchdog: WatchdogLimits
    transport_retries: int
    transport_backoff_s: float
    transport_backoff_max_s: float
    context_tokens: int | None = None
    extra_body: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionTerms:
    """When the conversation is made shorter for the model, and what is kept of it as it is.

    `threshold`: share of the context, 0 to 1. `kept_results`: of tools. `kept_calls`: of the turn, when a summary takes
    the place of the others. `summarises`: false only drops old results. `timeout_s`: longest wait for a summary, in
    seconds; it never takes more than half of what the turn has left.
    """

    threshold: float = 0.75
    kept_results: int = 3
    kept_calls: int = 1
    summarises: bool = True
    timeout_s: float = 180


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """What a driver knows when it begins: the message, what the journal says, and what to ask of whom.

    `history`: messages of earlier turns of the session. `retry_safe`: names of tools that may run again when a driver
    vanished while they ran. `asks`: names of tools that run only once a person has approved. `providers`: whom to ask,
    the agent's own first, then its fallbacks in order; never empty. `joins`: waiting messages may join the turn after
    its tools. `carried`: those that the last call took along, unless it has completed.
    """

    message: str
    providers: tuple[ProviderTerms, ...]
    history: tuple[Message, ...] = ()
    facts: tuple[Fact, ...] = ()
    progress: Progress = field(default_factory=Progress)
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    retry_safe: frozenset[str] = frozenset()
    asks: frozenset[str] = frozenset()
    max_tokens: int | None = None
    temperature: float | None = None
    joins: bool = False
    carried: tuple[Joined, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """What a turn may spend. Times in seconds; `max_calls` counts calls, not attempts.

    `empty_nudges`, `empty_nudges_after_tools`: how often in a row an answer without text is asked for again, before and
    after the turn has run a tool. `compaction`: None: never.
    """

    resume_budget: int
    resume_backoff_s: float
    max_calls: int
    empty_nudges: int = 5
    empty_nudges_after_tools: int = 8
    compaction: CompactionTerms | None = None
    crash_cap: int
    on_drain: Literal["fail", "handoff"]


@dataclass(frozen=True, slots=True)
class CallTerms:
    """What holds for all calls of a turn. `turn_deadline`, `jitter` and `skipped` as in `TurnMachine`."""

    providers: tuple[ProviderTerms, ...]
    limits: TurnLimits
    turn_deadline: float
    jitter: Callable[[], float]
    skipped: Callable[[], Collection[str]]
