"""The ends of an attempt: the commit of one that completed, the discard of one that died, the warning before the next.

What belongs here: what each says. What must not be known here: when an attempt ends, what follows.
"""

from worker.codecs.events import Completed
from worker.codecs.messages import Echo
from worker.turn import verdict
from worker.turn.attempt import Attempt
from worker.turn.commands import CommitCall, DiscardCall, Timing, Warn
from worker.turn.facts import Committed, Progress
from worker.turn.usage import Tally, UsageTotals


def committed(call: int, attempt: Attempt, completed: Completed) -> Committed:
    """The fact that a call completed."""
    terms = attempt.terms
    return Committed(
        call=call,
        attempt=attempt.number,
        text=attempt.text,
        tool_calls=completed.tool_calls,
        finish_reason=verdict.finish_reason(completed),
        usage=completed.usage,
        provider=terms.name,
        echo=Echo(terms.name, terms.wire, completed.echo) if completed.echo else None,
    )


def commit(fact: Committed, attempt: Attempt, tally: Tally, first_delta_s: float | None) -> CommitCall:
    """The command that makes the fact stand. `first_delta_s`: as in `Timing`."""
    own = attempt.first_content_at
    return CommitCall(
        call=fact.call,
        attempt=fact.attempt,
        text=fact.text,
        thinking=attempt.thinking,
        tool_calls=fact.tool_calls,
        finish_reason=fact.finish_reason,
        usage=fact.usage,
        totals=tally.totals,
        provider=fact.provider,
        echo=fact.echo,
        timing=Timing(first_delta_s, None if own is None else own - attempt.opened_at),
    )


def discard(call: int, attempt: Attempt, reason: str, totals: UsageTotals, resumes_spent: int | None) -> DiscardCall:
    """The discard of an attempt of ours. `reason`, `resumes_spent`: as in `DiscardCall`."""
    return DiscardCall(
        call=call,
        attempt=attempt.number,
        reason=reason,
        streamed_bytes=attempt.streamed_bytes,
        totals=totals,
        resumes_spent=resumes_spent,
        provider=attempt.terms.name,
        streamed=attempt.watchdog.streamed,
    )


def has_untold_discards(progress: Progress, last: Committed | None) -> bool:
    """Whether earlier drivers discarded attempts of which no completed call has told. `last`: the last one."""
    if progress.totals.discarded_resume_attempts is None:
        return False
    return last is None or last.call < progress.call


def void(progress: Progress, tally: Tally, reason: str = "takeover") -> list[DiscardCall]:
    """Some driver came before: whatever it staged is void, known to be open or not."""
    if not progress.call:
        return []
    if progress.is_open:
        tally.discarded()
    streamed = progress.streamed
    return [DiscardCall(progress.call, progress.attempt, reason, 0, tally.totals, streamed=streamed)]


def resume_warning(  # noqa: PLR0913, PLR0917 - all that the log line says
    call: int, attempt: Attempt, reason: str, budget: int, lasted_s: float, wait_s: float, totals: UsageTotals
) -> Warn:
    """The attempt died and another one follows after `wait_s` seconds."""
    return Warn(
        "turn_call_resumed",
        (
            ("call", call),
            ("attempt", attempt.number),
            ("provider", attempt.terms.name),
            ("resume", attempt.resumes_spent + 1),
            ("budget", budget),
            ("reason", reason),
            ("lasted_s", round(lasted_s, 3)),
            ("wait_s", round(wait_s, 3)),
            ("streamed_bytes", attempt.streamed_bytes),
            ("discarded_resume_attempts", totals.discarded_resume_attempts),
            ("discarded_resume_estimated_input_tokens", totals.discarded_resume_estimated_input_tokens),
        ),
    )
