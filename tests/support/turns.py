"""Turns to test with: a machine with small round numbers, and the words of a scene."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.playbook import Playbook
from worker.codecs.events import Completed, Failed, TextDelta, ToolCall, Usage
from worker.codecs.messages import ToolSpec
from worker.turn.commands import NO_USAGE, UsageTotals
from worker.turn.events import Heard
from worker.turn.machine import TurnMachine
from worker.turn.start import TurnLimits, TurnStart
from worker.turn.watchdog import WatchdogLimits

DEADLINE = 7200.0
CLOCK = ToolSpec("clock", "Tells the time.", {"type": "object"})
MAIL = ToolSpec("mail", "Sends a mail.", {"type": "object"})

START = TurnStart(message="What is due?", model="small", provider="main", tools=(CLOCK, MAIL))
LIMITS = TurnLimits(
    watchdog=WatchdogLimits(prefill_s=1800, inter_delta_s=600, progress_s=1200, stall_s=45),
    resume_budget=2,
    resume_backoff_s=0,
    transport_retries=3,
    transport_backoff_s=1,
    transport_backoff_max_s=30,
    max_calls=100,
    crash_cap=3,
    on_drain="handoff",
)


def machine(*, deadline: float = DEADLINE, jitter: Callable[[], float] = lambda: 0.5, **changes: Any) -> TurnMachine:
    """A machine whose jitter changes nothing. `changes`: fields of its start or its limits."""
    of_start = {name: value for name, value in changes.items() if hasattr(START, name)}
    of_limits = {name: value for name, value in changes.items() if name not in of_start}
    return TurnMachine(replace(START, **of_start), replace(LIMITS, **of_limits), deadline, jitter)


def play(**changes: Any) -> Playbook:
    """A scene with such a machine."""
    return Playbook(machine(**changes))


def text(call: int, attempt: int, text: str) -> Heard:
    """The stream says a piece of text."""
    return Heard(call, attempt, TextDelta(text))


def completed(
    call: int,
    attempt: int,
    finish_reason: str | None = "stop",
    *tool_calls: ToolCall,
    usage: Usage | None = None,
    choices: int = 1,
    refusal: str | None = None,
) -> Heard:
    """The stream says that the call is whole."""
    return Heard(call, attempt, Completed(finish_reason, tool_calls, usage, choices, refusal))


def failed(call: int, attempt: int, failure: Any, message: str = "overloaded", **more: Any) -> Heard:
    """The stream says that it ends in an error."""
    return Heard(call, attempt, Failed(failure, message, **more))


def tool_call(name: str = "clock", arguments: dict[str, object] | None = None, id: str = "t1") -> ToolCall:  # noqa: A002 - the field's name
    """A tool call with whole arguments."""
    return ToolCall(id, name, "{}", {} if arguments is None else arguments)


BROKEN_CALL = ToolCall("t9", "clock", '{"timezone": "Eur', None)


def discarded(attempts: int, estimate: int | None = None, totals: UsageTotals = NO_USAGE) -> UsageTotals:
    """Totals with that many discarded attempts."""
    return replace(totals, discarded_resume_attempts=attempts, discarded_resume_estimated_input_tokens=estimate)
