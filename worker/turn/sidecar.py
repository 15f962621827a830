"""A call beside the turn, such as the one that sums a conversation up.

What belongs here: what of a call's life a call beside the turn shares, and what its answer is worth. What must not be
known here: what it is asked for.

It is watched, sent again and resumed like any other call. Nothing of it is staged, committed or recorded, and its
failure is a result like another: it never ends the turn.
"""

from dataclasses import dataclass

from worker.codecs.events import Usage
from worker.codecs.messages import Message, Request
from worker.turn.call import Call
from worker.turn.commands import (
    Blame,
    CloseCall,
    Command,
    CommitCall,
    DiscardCall,
    Failure,
    OpenCall,
    OpenSidecar,
    ReopenCall,
    Warn,
)
from worker.turn.events import Died, Event, Heard, NotAnswered, Sent
from worker.turn.resume import is_the_providers
from worker.turn.start import CallTerms, ProviderTerms
from worker.turn.usage import NO_USAGE, Tally
from worker.turn.verdict import Ending

NUMBER = 0
"""The call number of everything beside the turn."""


@dataclass(frozen=True, slots=True)
class SidecarResult:
    """What came of it: the answer's text, or why there is none that could be used.

    `usage`: what the completed attempt cost, also where its answer could not be used; None: not known. `provider`: who
    answered; empty where nobody did.
    """

    text: str
    usage: Usage | None = None
    failure: Failure | None = None
    provider: str = ""


class Sidecar:
    """One request beside the turn, without tools. Over as soon as `result` is set; then only `listens_to` may be asked.

    Its events name call 0. Feed those that it listens to, and a `Tick` once `deadline()` has passed.
    """

    def __init__(
        self, messages: tuple[Message, ...], instructions: str | None, terms: CallTerms, *, draining: bool = False
    ) -> None:
        self.result: SidecarResult | None = None

        def request(provider: ProviderTerms) -> Request:
            return Request(provider.model, messages, instructions, extra_body=provider.extra_body)

        self._call = Call(NUMBER, request, terms, Tally(NO_USAGE, None), draining=draining)

    def open(self, now: float, *, preferred: str = "") -> list[Command]:
        """Send the first attempt. `preferred`: name of the provider to ask first, as in `whom_to_ask`."""
        return self._translated(self._call.open(1, 0, now, preferred=preferred))

    def listens_to(self, call: int, attempt: int) -> bool:
        """Whether the stream of (`call`, `attempt`) is the one that is read."""
        return self.result is None and self._call.listens_to(call, attempt)

    def deadline(self) -> float:
        """When a `Tick` is due."""
        return self._call.deadline()

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take one event of the attempt that is listened to, or a look at the clock."""
        match event:
            case Sent():
                self._call.sent(now)
                return []
            case Heard():
                return self._translated(self._call.hear(event.event, now))
            case NotAnswered():
                return self._translated(self._call.not_answered(event, now))
            case Died():
                return self._translated(self._call.died(event, now))
            case _:
                return self._translated(self._call.tick(now))

    def drain(self) -> list[Command]:
        """Try nothing any more: a stream that is healthy may finish."""
        return self._translated(self._call.drain())

    def _translated(self, commands: list[Command]) -> list[Command]:
        self._conclude(self._call.ending, self._call.overflow)
        translated: list[Command] = []
        for command in commands:
            match command:
                case OpenCall(attempt=attempt, request=request, provider=provider):
                    translated.append(OpenSidecar(attempt, request, provider))
                case ReopenCall(attempt=attempt, request=request, provider=provider):
                    translated.append(OpenSidecar(attempt, request, provider))
                case CloseCall() | Warn():
                    translated.append(command)
                case DiscardCall(reason=reason, provider=provider) if is_the_providers(reason):
                    translated.append(Blame(provider))
                case CommitCall():
                    self.result = _judged(command)
                case _:
                    pass  # staged and discarded is only what readers see
        return translated

    def _conclude(self, ending: Ending | None, overflow: Failure | None) -> None:
        failure = overflow
        if ending is not None:
            failure = ending.failure or _unusable("its provider's filter stopped it", ending.reason or "")
        if failure is not None:
            self.result = SidecarResult("", failure=failure)


def _judged(commit: CommitCall) -> SidecarResult:
    """The answer, unless it is none: a text that was cut by its length is still one."""
    why = ""
    if commit.tool_calls:
        why = "it calls a tool, and none was offered"
    elif commit.finish_reason in ("content_filter", "refusal"):
        why = "the model or a filter refused"
    elif not commit.text.strip():
        why = "it has no text"
    failure = _unusable(why, commit.finish_reason or "none") if why else None
    return SidecarResult("" if why else commit.text, commit.usage, failure, commit.provider)


def _unusable(why: str, finish_reason: str) -> Failure:
    message = f"The answer of the call beside the turn could not be used: {why} (finish reason: {finish_reason})."
    return Failure("provider_failure", "sidecar_answer", message)
