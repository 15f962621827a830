"""What a completed call means for the turn.

What belongs here: judging the committed facts of one call, so that the driver that heard it and one that reads it in
the journal come to the same; and whether it may still run. What must not be known here: streams, states, time.
"""

from dataclasses import dataclass

from worker.codecs.events import Completed, ToolCall
from worker.output.events import Outcome
from worker.turn import failures
from worker.turn.commands import Failure
from worker.turn.facts import Committed, Progress

REFUSAL = "refusal"
PAUSED = "pause_turn"
"""Anthropic's word, while it runs tools of its own. No other wire format has one."""
_CUT_OFF = ("length", "content_filter")


@dataclass(frozen=True, slots=True)
class Ending:
    """The turn ends."""

    outcome: Outcome
    reason: str | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class ToolRefusal:
    """A tool call that is not run: what the model is told, and a word for programs."""

    result: str
    failure: str


NOT_APPROVED = ToolRefusal(
    "Error: a person was asked whether this tool call may run, and said no. Do not call it again in this form.",
    "not_approved",
)
NOBODY_DECIDED = ToolRefusal(
    "Error: a person was asked whether this tool call may run, and nobody answered in time. It was not run.",
    "approval_expired",
)
NOT_WHAT_WAS_SHOWN = ToolRefusal(
    "Error: the arguments are not those that a person approved, so nothing was run.",
    "approval_mismatch",
)
OUTCOME_UNKNOWN = ToolRefusal(
    "Error: this tool call was interrupted and its outcome is unknown. It may have taken effect: find out before you "
    "call it again.",
    "outcome_unknown",
)


def finish_reason(completed: Completed) -> str | None:
    """How a call finished: the provider's word, or `refusal` when the model refused.

    Some wire formats tell a refusal by a field beside the finish reason; the journal keeps one word.
    """
    if completed.refusal and completed.finish_reason != "content_filter":
        return REFUSAL
    return completed.finish_reason


def is_paused(committed: Committed) -> bool:
    """Whether the provider has stopped in the middle of its own work and goes on when it gets its answer back."""
    return committed.finish_reason == PAUSED and committed.echo is not None and not committed.tool_calls


def is_empty(committed: Committed) -> bool:
    """Whether the call answered nothing at all: no text, and no tool call that could be run.

    A model that spent its tokens on thinking ends so too, by `length`; what a filter or the model itself refused does
    not count.
    """
    if committed.finish_reason in ("content_filter", REFUSAL) or committed.text.strip() or is_paused(committed):
        return False
    return committed.finish_reason == "length" or not committed.tool_calls


def ending(committed: Committed, offered: tuple[str, ...], *, may_nudge: bool) -> Ending | None:
    """How the turn ends with this call, or None when it goes on: with tools, or by asking for (the rest of) an answer.

    `offered`: names of the tools offered. `may_nudge`: an empty answer may be asked for again.
    """
    if is_paused(committed) or (may_nudge and is_empty(committed)):
        return None
    if committed.finish_reason in (*_CUT_OFF, REFUSAL):
        return Ending("incomplete", committed.finish_reason)
    if committed.tool_calls:
        return None if offered else Ending("failed", None, failures.unknown_tool(committed.tool_calls[0].name))
    if is_empty(committed):
        return Ending("failed", None, failures.empty_answer(committed.provider, committed.finish_reason))
    return Ending("completed")


def death(progress: Progress, crash_cap: int) -> Ending | None:
    """The turn took down its own process too often; None: it may run."""
    if progress.suspect_crashes <= crash_cap:
        return None
    return Ending("dead", None, failures.crash_cap(progress.suspect_crashes, crash_cap))


def is_final(committed: Committed) -> bool:
    """Whether the turn ends with this call whatever tools are offered."""
    if committed.finish_reason in (*_CUT_OFF, REFUSAL):
        return not is_empty(committed)
    return not (committed.tool_calls or is_empty(committed) or is_paused(committed))


def refusal_to_run(tool_call: ToolCall, offered: tuple[str, ...]) -> ToolRefusal | None:
    """Why a tool call cannot be run, or None when it can."""
    if tool_call.name not in offered:
        return ToolRefusal(
            f"Error: there is no such tool. The tools are: {', '.join(offered)}.",
            "unknown_tool",
        )
    if tool_call.arguments_json is None:
        return ToolRefusal(
            "Error: the arguments are not one whole JSON object, so nothing was run. Call the tool again.",
            "bad_arguments",
        )
    return None
