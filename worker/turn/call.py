"""One call: its attempts, from the first request until it commits or is given up.

What belongs here: hearing an attempt, its death, the next one. What must not be known here: tools, other calls of the
turn, who takes over.

An attempt that ends in any other way than by its commit is closed and discarded before anything else is decided. It
has left no trace in the transcript, so the next attempt sends the same request.
"""

from collections.abc import Callable

from worker.codecs.events import SUBSTANTIVE, Completed, Failed, ReasoningDelta, StreamEvent, TextDelta
from worker.codecs.messages import Request
from worker.turn import ends, failures, resume
from worker.turn.asking import whom_to_ask
from worker.turn.attempt import Attempt, Wait
from worker.turn.commands import (
    CloseCall,
    Command,
    Failure,
    OpenCall,
    ReopenCall,
    StageText,
    StageThinking,
)
from worker.turn.events import Died, NotAnswered
from worker.turn.facts import Committed
from worker.turn.start import CallTerms, ProviderTerms
from worker.turn.states import State
from worker.turn.usage import Tally
from worker.turn.verdict import Ending

RequestFor = Callable[[ProviderTerms], Request]


class Call:
    """The call that a turn waits for. Over as soon as `committed`, `ending` or `overflow` is set.

    `committed`: it completed. `ending`: it did not, and the turn ends so. `overflow`: the provider says that the
    conversation is longer than the model's context. `draining`: no try follows another one. `request`: what to send to
    a provider; the same for the same provider, so that an attempt is reissued unchanged.
    """

    committed: Committed | None = None

    def __init__(self, number: int, request: RequestFor, terms: CallTerms, tally: Tally, *, draining: bool) -> None:
        self.state = State.CALLING
        self.ending: Ending | None = None
        self.overflow: Failure | None = None
        self.number = number
        self._request_for = request
        self._requests: dict[str, Request] = {}
        self._terms = terms
        self._tally = tally
        self._draining = draining
        self._attempt: Attempt | None = None
        """Opened, and neither committed nor discarded."""
        self._wait: Wait | None = None
        self._opened_at: float | None = None
        self._first_content_at: float | None = None
        """Of any attempt."""
        self.attempts = self.resumes_spent = 0
        """Number of the last attempt that was opened, and resumes so far."""
        self._not_before: dict[str, float] = {}
        """When providers that asked to be left alone may be asked again."""
        self.asked = ""
        """Name of the provider that was asked last."""

    def open(  # noqa: PLR0913 - what the attempt begins with, each by its name
        self,
        attempt: int,
        resumes_spent: int,
        now: float,
        *,
        streamed: bool = False,
        preferred: str = "",
        died: str = "",
        before: str = "",
    ) -> list[Command]:
        """Send attempt number `attempt`. `streamed`: the one before, at provider `before`, had died in mid-stream.

        `preferred`, `died`: names of providers, as in `whom_to_ask`. What the dead attempt had streamed says nothing of
        another provider, which has to begin anew.
        """
        limits, terms = self._terms.limits, self._terms
        provider = whom_to_ask(terms.providers, terms.skipped(), preferred=preferred, died=died)
        self._attempt = Attempt(
            attempt,
            provider,
            now,
            resumes_spent=resumes_spent,
            streamed=streamed and before == provider.name,
            is_last=resume.is_last_attempt(limits.resume_budget, resumes_spent),
        )
        self._opened_at = now if self._opened_at is None else self._opened_at
        self.attempts, self.resumes_spent, self.asked = attempt, resumes_spent, provider.name
        self.state = State.CALLING
        inherits = streamed and before == provider.name
        request = self._request(provider)
        return [OpenCall(self.number, attempt, resumes_spent, attempt == 1, request, provider.name, inherits)]

    def open_after(self, overflowed: "Call", now: float) -> list[Command]:
        """Send the next attempt of a call that overflowed to the same provider; it costs no resume."""
        commands = self.open(overflowed.attempts + 1, overflowed.resumes_spent, now, preferred=overflowed.asked)
        self._opened_at, self._first_content_at = overflowed._opened_at, overflowed._first_content_at  # noqa: SLF001
        return commands

    def sent(self, now: float) -> None:
        """The request goes out."""
        self._open_attempt().sent(now)

    def listens_to(self, call: int, attempt: int) -> bool:
        """Whether the stream of (`call`, `attempt`) is the one that is read."""
        if self._attempt is None or self._wait is not None:
            return False
        return (call, attempt) == (self.number, self._attempt.number)

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
            if self._first_content_at is None:
                self._first_content_at = now
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
        """The request got no stream: send it again after a wait, ask another provider, or give up."""
        attempt = self._open_attempt()
        terms = attempt.terms
        cause = failures.not_answered(answer)
        wait_s = resume.transport_wait(
            attempt.retries,
            terms.transport_backoff_s,
            terms.transport_backoff_max_s,
            self._terms.jitter(),
            answer.retry_after,
        )
        if answer.code == "context_overflow":
            return self._overflows(cause)
        if not answer.retryable:
            return self._give_up("refused", cause)
        is_spent = attempt.retries >= terms.transport_retries
        if is_spent:
            cause = failures.retries_spent(cause, terms.name, attempt.retries + 1, terms.transport_retries)
        asks_to_stay_away = (answer.retry_after or 0) > terms.transport_backoff_max_s
        if (is_spent or asks_to_stay_away) and self._has_another(attempt):
            return self._die("not_answered", cause, now, answer.retry_after)
        if is_spent:
            failure = cause
        elif self._draining:
            failure = failures.draining(cause)
        elif now + wait_s >= self._terms.turn_deadline:
            failure = failures.no_time_left(cause, wait_s)
        else:
            attempt.retries += 1
            return self._try_again(Wait(now + wait_s, attempt, cause, reopens=True), now)
        return self._give_up("not_answered", failure)

    def died(self, death: Died, now: float) -> list[Command]:
        """The stream broke off."""
        return self._die(death.kind, failures.broken_stream(self._open_attempt().terms.name, death), now)

    def tick(self, now: float) -> list[Command]:
        """Time has passed: end a wait, or notice a silence that is too long."""
        if self._wait is not None:
            return self._try_again(self._wait, now)
        attempt = self._open_attempt()
        budget = attempt.watchdog.expired(now)
        if budget is None:
            return []
        cause = failures.silence(attempt.terms.name, budget, attempt.terms.watchdog.seconds(budget))
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
            ends.discard(self.number, attempt, reason, self._tally.totals, resumes_spent),
        ]

    def _completed(self, completed: Completed) -> list[Command]:
        attempt = self._open_attempt()
        if completed.choices > 1:
            return self._give_up("several_choices", failures.several_choices(attempt.terms.name, completed.choices))
        self._attempt = None
        self._tally.completed(completed.usage)
        self.committed = ends.committed(self.number, attempt, completed)
        first_s = None if self._first_content_at is None else self._first_content_at - (self._opened_at or 0.0)
        return [ends.commit(self.committed, attempt, self._tally, first_s)]

    def _failed(self, error: Failed, now: float) -> list[Command]:
        provider = self._open_attempt().terms.name
        if error.failure in ("retryable", "protocol"):
            cause = failures.error_in_stream(provider, error)
            return self._die(failures.kind_of(error), cause, now, error.retry_after)
        if error.failure == "content_filter":
            self.ending = Ending("incomplete", "content_filter")
            return self.abandon("content_filter")
        cause = failures.refused_in_stream(provider, error)
        if error.failure == "context_overflow":
            return self._overflows(cause)
        return self._give_up(error.failure, cause)

    def _overflows(self, cause: Failure) -> list[Command]:
        self.overflow = cause
        return self.abandon("context_overflow")

    def _has_another(self, attempt: Attempt) -> bool:
        """Whether the call may be resumed, and then asks another provider."""
        terms = self._terms
        if self._draining or resume.is_last_attempt(terms.limits.resume_budget, attempt.resumes_spent):
            return False
        return self._next_after(attempt) != attempt.terms.name

    def _next_after(self, attempt: Attempt) -> str:
        return whom_to_ask(self._terms.providers, self._terms.skipped(), died=attempt.terms.name).name

    def _die(self, reason: str, cause: Failure, now: float, retry_after: float | None = None) -> list[Command]:
        attempt, budget = self._open_attempt(), self._terms.limits.resume_budget
        if retry_after is not None:
            self._not_before[attempt.terms.name] = now + retry_after
        asks_s = self._not_before.get(self._next_after(attempt), now) - now
        wait_s = resume.resume_wait(self._terms.limits.resume_backoff_s, self._terms.jitter(), asks_s)
        if self._draining:
            return self._give_up(reason, failures.draining(cause))
        if resume.is_last_attempt(budget, attempt.resumes_spent):
            return self._give_up(reason, failures.budget_spent(cause, 1 + attempt.resumes_spent, budget))
        if now + wait_s >= self._terms.turn_deadline:
            return self._give_up(reason, failures.no_time_left(cause, wait_s))
        self._tally.discarded()
        return [
            *self.abandon(reason, attempt.resumes_spent + 1),
            ends.resume_warning(
                self.number, attempt, reason, budget, now - attempt.opened_at, wait_s, self._tally.totals
            ),
            *self._try_again(Wait(now + wait_s, attempt, cause, reopens=False), now),
        ]

    def _give_up(self, reason: str, failure: Failure) -> list[Command]:
        self.ending = Ending("failed", None, failure)
        return self.abandon(reason)

    def _try_again(self, wait: Wait, now: float) -> list[Command]:
        if now < wait.until:
            self._wait = wait
            self.state = State.WAITING
            return []
        self._wait = None
        attempt = wait.attempt
        if not wait.reopens:
            streamed, died = attempt.watchdog.streamed, attempt.terms.name
            return self.open(
                attempt.number + 1, attempt.resumes_spent + 1, now, streamed=streamed, died=died, before=died
            )
        attempt.sent_again(now)
        self.state = State.CALLING
        return [ReopenCall(self.number, attempt.number, self._request(attempt.terms), attempt.terms.name)]

    def _request(self, provider: ProviderTerms) -> Request:
        if provider.name not in self._requests:
            self._requests[provider.name] = self._request_for(provider)
        return self._requests[provider.name]

    def _open_attempt(self) -> Attempt:
        assert self._attempt is not None, "the table lets no such event in while no attempt is open"
        return self._attempt
