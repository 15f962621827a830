"""What a driver gives the machine of a turn.

What belongs here: the question and the limits, as frozen values. What must not be known here: settings, stores.
"""

from dataclasses import dataclass, field
from typing import Literal

from worker.codecs.messages import Message, ToolSpec
from worker.turn.facts import Fact, Progress
from worker.turn.watchdog import WatchdogLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStart:
    """What a driver knows when it begins: the message, what the journal says, and what to ask of whom.

    `history`: messages of earlier turns of the session. `retry_safe`: names of tools that may run again when a driver
    vanished while they ran. `provider`: its name in the settings, for messages.
    """

    message: str
    model: str
    provider: str
    history: tuple[Message, ...] = ()
    facts: tuple[Fact, ...] = ()
    progress: Progress = field(default_factory=Progress)
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    retry_safe: frozenset[str] = frozenset()
    max_tokens: int | None = None
    temperature: float | None = None
    extra_body: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnLimits:
    """What a turn may spend. Times in seconds; `max_calls` counts calls, not attempts."""

    watchdog: WatchdogLimits
    resume_budget: int
    resume_backoff_s: float
    transport_retries: int
    transport_backoff_s: float
    transport_backoff_max_s: float
    max_calls: int
    crash_cap: int
    on_drain: Literal["fail", "handoff"]
