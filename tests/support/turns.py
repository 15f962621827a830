"""Turns to test with: a machine with small round numbers, and the words of a scene."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast
from unittest.mock import ANY

from tests.support.playbook import Playbook
from worker.codecs.events import Completed, Failed, TextDelta, ToolCall, Usage
from worker.codecs.messages import AssistantMessage, Message, ToolSpec, UserMessage
from worker.turn.commands import CommitCall, DiscardCall, OpenCall, ReopenCall, Timing
from worker.turn.events import Begin, Heard
from worker.turn.machine import TurnMachine
from worker.turn.start import ProviderTerms, TurnLimits, TurnStart
from worker.turn.usage import NO_USAGE, UsageTotals
from worker.turn.watchdog import WatchdogLimits

DEADLINE = 7200.0
CLOCK = ToolSpec("clock", "Tells the time.", {"type": "object"})
MAIL = ToolSpec("mail", "Sends a mail.", {"type": "object"})

MAIN = ProviderTerms(
    name="main",
    wire="chat",
    model="small",
    watchdog=WatchdogLimits(prefill_s=1800, inter_delta_s=600, progress_s=1200, stall_s=45),
    transport_retries=3,
    transport_backoff_s=1,
    transport_backoff_max_s=30,
)
BACKUP = replace(MAIN, name="backup", model="other")

LONG_HISTORY: tuple[Message, ...] = tuple(
    message
    for number in range(9)
    for message in (
        UserMessage(f"Question {number} " + "so " * 200),
        AssistantMessage(f"Answer {number} " + "ah " * 99),
    )
)
"""Earlier turns that are worth a summary."""

START = TurnStart(message="What is due?", providers=(MAIN,), tools=(CLOCK, MAIL))
LIMITS = TurnLimits(
    resume_budget=2,
    resume_backoff_s=0,
    max_calls=100,
    crash_cap=3,
    on_drain="handoff",
)


def machine(*, deadline: float = DEADLINE, jitter: Callable[[], float] = lambda: 0.5, **changes: Any) -> TurnMachine:
    """A machine whose jitter changes nothing. `changes`: fields of its provider, its start or its limits.

    `skipped`: names of providers to be left alone.
    """
    skipped = changes.pop("skipped", frozenset())
    of_provider = {name: value for name, value in changes.items() if hasattr(MAIN, name)}
    of_start = {name: value for name, value in changes.items() if hasattr(START, name)}
    of_limits = {name: value for name, value in changes.items() if name not in {*of_provider, *of_start}}
    start = replace(START, **of_start)
    if of_provider:
        start = replace(start, providers=tuple(replace(each, **of_provider) for each in start.providers))
    return TurnMachine(start, replace(LIMITS, **of_limits), deadline, jitter, lambda: skipped)


def play(**changes: Any) -> Playbook:
    """A scene with such a machine."""
    return Playbook(machine(**changes))


def begun(**changes: Any) -> Playbook:
    """A scene whose first call was opened."""
    scene = play(**changes).given(Begin())
    scene.take()
    return scene


def opened(
    call: int,
    attempt: int,
    resumes_spent: int,
    is_new_call: bool,
    request: Any = ANY,
    provider: str = "main",
    carries: tuple[str, ...] = (),
) -> OpenCall:
    return OpenCall(call, attempt, resumes_spent, is_new_call, request, provider, ANY, carries)


def reopened(call: int, attempt: int, request: Any = ANY, provider: str = "main") -> ReopenCall:
    """The same attempt's request goes out again."""
    return ReopenCall(call, attempt, request, provider)


def dropped(
    call: int,
    attempt: int,
    reason: str,
    streamed_bytes: int,
    totals: UsageTotals,
    resumes_spent: int | None = None,
    provider: str = "main",
) -> DiscardCall:
    return DiscardCall(call, attempt, reason, streamed_bytes, totals, resumes_spent, provider, ANY)


def taken_over(call: int, attempt: int, totals: UsageTotals) -> DiscardCall:
    """What another driver had staged is void."""
    return DiscardCall(call, attempt, "takeover", 0, totals)


def committed_as(
    call: int, attempt: int, text: str, thinking: str, tool_calls: Any, finish_reason: Any, usage: Any, totals: Any
) -> CommitCall:
    """A commit, whenever its first content came."""
    return CommitCall(
        call, attempt, text, thinking, tool_calls, finish_reason, usage, totals, "main", None, cast("Timing", ANY)
    )


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
