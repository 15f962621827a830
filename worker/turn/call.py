"""One call: its attempts, from the first request until it commits or is given up.

What belongs here: hearing an attempt, its death, the next one. What must not be known here: tools, other calls of the
turn, who takes over.

An attempt that ends in any other way than by its commit is closed and discarded before anything else is decided. It
has left no trace in the transcript, so the next attempt sends the same request.
"""

from collections.abc import Callable
from dataclasses import dataclass

from worker.codecs.events import SUBSTANTIVE, Completed, Failed, ReasoningDelta, StreamEvent, TextDelta
from worker.codecs.messages import Request
from worker.turn import failures, resume, verdict
from worker.turn.attempt import Attempt
from worker.turn.commands import (
    CloseCall,
    Command,
    CommitCall,
    DiscardCall,
    Failure,
    OpenCall,
    ReopenCall,
    StageText,
    StageThinking,
    Warn,
)
from worker.turn.events import Died, NotAnswered
from worker.turn.facts import Committed
from worker.turn.start import TurnLimits
from worker.turn.states import State
from worker.turn.usage import Tally
from worker.turn.verdict import Ending


@dataclass(frozen=True, slots=True)
class CallTerms:
    """What holds for all calls of a turn. `turn_deadline` as in `TurnMachine`; `jitter` gives numbers from 0 to 1."""

    provider: str
    limits: TurnLimits
    turn_deadline: float
    jitter: Callable[[], float]


@dataclass(frozen=True, slots=True)
class _Wait:
    """Until when, for which attempt, and what is said if no try follows.

    `reopens`: the same attempt is sent again; else it is dead and discarded, and the next one follows.
    """

    until: float
    attempt: Attempt
    cause: Failure
    reopens: bool


class Call:
    """The call that a turn waits for. Over as soon as `committed` or `ending` is set.

    `committed`: it completed. `ending`: it did not, and the turn ends so. `draining`: no try follows another one.
    """

    def __init__(self, number: int, request: Request, terms: CallTerms, tally: Tally, *, draining: bool) -> None:
        self.state = State.CALLING
        self.committed: Committed | None = None
        self.ending: Ending | None = None
        self._number = number
        self._request = request
        self._terms = terms
        self._tally = tally
        self._draining = draining
        self._attempt: Attempt | None = None
        """Opened, and neither committed nor discarded."""
        self._wait: _Wait | None = None

    def open(self, attempt: int, resumes_spent: int, now: float, *, streamed: bool = False) -> list[Command]:
        """Send attempt number `attempt`. `streamed`: the one before had died in mid-stream."""
        self._attempt = Attempt(attempt, self._terms.limits, now, resumes_spent=resumes_spent, streamed=streamed)
        self.state = State.CALLING
        return [OpenCall(self._number, attempt, resumes_spent, attempt == 1, self._request)]

    def listens_to(self, call: int, attempt: int) -> bool:
        """Whether the stream of (`call`, `attempt`) is the one that is read."""
        if self._attempt is None or self._wait is not None:
            return False
        return (call, attempt) == (self._number, self._attempt.number)

    def deadline(self) -> float:
        """When the next wait is over or the attempt is dead, whichever can come."""
        if self._wait is not None:
            return self._wait.until
        return self._open_attempt().watchdog.deadline()

    def hear(self, event: StreamEvent, now: float) -> list[Command]:
        """The stream says something."""
        self._open_attempt().heard(event, now)
        if isinstance(event, SUBSTANTIVE):
            self.state = State.STREAMING
        match event:
            case TextDelta(text=text):
                return [StageText(text)]
            case ReasoningDelta(text=text):
                return [StageThinking(text)]
            case Completed():
                return self._completed(event)
            case Failed():
                return self._failed(event, now)
            case _:
                return []

    def not_answered(self, answer: NotAnswered, now: float) -> list[Command]:
        """The request got no stream: send it again after a wait, or give up."""
        attempt, limits, provider = self._open_attempt(), self._terms.limits, self._terms.provider
        cause = failures.not_answered(answer)
        wait_s = resume.transport_wait(
            attempt.retries,
            limits.transport_backoff_s,
            limits.transport_backoff_max_s,
            self._terms.jitter(),
            answer.retry_after,
        )
        if not answer.retryable:
            failure = cause
        elif attempt.retries >= limits.transport_retries:
            failure = failures.retries_spent(cause, provider, attempt.retries + 1, limits.transport_retries)
        elif self._draining:
            failure = failures.draining(cause)
        elif now + wait_s >= self._terms.turn_deadline:
            failure = failures.no_time_left(cause, wait_s)
        else:
            attempt.retries += 1
            return self._try_again(_Wait(now + wait_s, attempt, cause, reopens=True), now)
        return self._give_up("not_answered", failure)

    def died(self, death: Died, now: float) -> list[Command]:
        """The stream broke off."""
        return self._die(death.kind, failures.broken_stream(self._terms.provider, death), now)

    def tick(self, now: float) -> list[Command]:
        """Time has passed: end a wait, or notice a silence that is too long."""
        if self._wait is not None:
            return self._try_again(self._wait, now)
        budget = self._open_attempt().watchdog.expired(now)
        if budget is None:
            return []
        cause = failures.silence(self._terms.provider, budget, self._terms.limits.watchdog.seconds(budget))
        return self._die(budget, cause, now)

    def drain(self) -> list[Command]:
        """Try nothing any more: a stream that is healthy may finish, a call that waits for its next try has failed."""
        self._draining = True
        if self._wait is None:
            return []
        return self._give_up("drain", failures.draining(self._wait.cause))

    def hand_off(self) -> list[Command]:
        """Stop, so that another process can make the next attempt; no resume is spent on it."""
        if self._attempt is None:
            return []
        self._tally.discarded()
        return self.abandon("drain")

    def abandon(self, reason: str, resumes_spent: int | None = None) -> list[Command]:
        """Close and discard the attempt, if one is open. `resumes_spent` as in `DiscardCall`."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return []
        return [
            CloseCall(),
            DiscardCall(
                self._number,
                attempt.number,
                reason,
                attempt.streamed_bytes,
                self._tally.totals,
                resumes_spent,
            ),
        ]

    def _completed(self, completed: Completed) -> list[Command]:
        if completed.choices > 1:
            failure = failures.several_choices(self._terms.provider, completed.choices)
            return self._give_up("several_choices", failure)
        attempt = self._open_attempt()
        self._attempt = None
        self._tally.completed(completed.usage)
        reason = verdict.finish_reason(completed)
        self.committed = Committed(
            self._number, attempt.number, attempt.text, completed.tool_calls, reason, completed.usage
        )
        return [
            CommitCall(
                self._number,
                attempt.number,
                attempt.text,
                attempt.thinking,
                completed.tool_calls,
                reason,
                completed.usage,
                self._tally.totals,
            )
        ]

    def _failed(self, error: Failed, now: float) -> list[Command]:
        if error.failure in ("retryable", "protocol"):
            cause = failures.error_in_stream(self._terms.provider, error)
            return self._die(cause.code, cause, now, error.retry_after)
        if error.failure == "content_filter":
            self.ending = Ending("incomplete", "content_filter")
            return self.abandon("content_filter")
        return self._give_up(error.failure, failures.refused_in_stream(self._terms.provider, error))

    def _die(self, reason: str, cause: Failure, now: float, retry_after: float | None = None) -> list[Command]:
        attempt, budget = self._open_attempt(), self._terms.limits.resume_budget
        wait_s = resume.resume_wait(self._terms.limits.resume_backoff_s, self._terms.jitter(), retry_after)
        if self._draining:
            return self._give_up(reason, failures.draining(cause))
        if resume.is_last_attempt(budget, attempt.resumes_spent):
            return self._give_up(reason, failures.budget_spent(cause, 1 + attempt.resumes_spent, budget))
        if now + wait_s >= self._terms.turn_deadline:
            return self._give_up(reason, failures.no_time_left(cause, wait_s))
        self._tally.discarded()
        return [
            *self.abandon(reason, attempt.resumes_spent + 1),
            self._resume_warning(attempt, reason, now - attempt.opened_at, wait_s),
            *self._try_again(_Wait(now + wait_s, attempt, cause, reopens=False), now),
        ]

    def _give_up(self, reason: str, failure: Failure) -> list[Command]:
        self.ending = Ending("failed", None, failure)
        return self.abandon(reason)

    def _try_again(self, wait: _Wait, now: float) -> list[Command]:
        if now < wait.until:
            self._wait = wait
            self.state = State.WAITING
            return []
        self._wait = None
        attempt = wait.attempt
        if not wait.reopens:
            return self.open(attempt.number + 1, attempt.resumes_spent + 1, now, streamed=attempt.watchdog.streamed)
        attempt.sent_again(now)
        self.state = State.CALLING
        return [ReopenCall(self._number, attempt.number, self._request)]

    def _resume_warning(self, attempt: Attempt, reason: str, lasted_s: float, wait_s: float) -> Warn:
        totals = self._tally.totals
        return Warn(
            "turn_call_resumed",
            (
                ("call", self._number),
                ("attempt", attempt.number),
                ("resume", attempt.resumes_spent + 1),
                ("budget", self._terms.limits.resume_budget),
                ("reason", reason),
                ("lasted_s", round(lasted_s, 3)),
                ("wait_s", round(wait_s, 3)),
                ("streamed_bytes", attempt.streamed_bytes),
                ("discarded_resume_attempts", totals.discarded_resume_attempts),
                ("discarded_resume_estimated_input_tokens", totals.discarded_resume_estimated_input_tokens),
            ),
        )

    def _open_attempt(self) -> Attempt:
        assert self._attempt is not None, "the table lets no such event in while no attempt is open"
        return self._attempt
