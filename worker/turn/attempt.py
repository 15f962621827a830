"""The attempt that is open right now, and the wait for the next try.

What belongs here: what has been heard of it, and what the next attempt inherits. What must not be known here: what its
end leads to.
"""

from dataclasses import dataclass

from worker.codecs.events import SUBSTANTIVE, ReasoningDelta, StreamEvent, TextDelta
from worker.turn.commands import Failure
from worker.turn.start import ProviderTerms
from worker.turn.watchdog import Watchdog


class Attempt:
    """Attempt `number` of a call, from the moment its request is sent to the provider of `terms`.

    `resumes_spent`: resumes of the call so far. `streamed`: the attempt that this one resumes had died in mid-stream,
    not in prefill. `is_last`: none may follow it, so it runs without the stall detector.
    """

    def __init__(  # noqa: PLR0913 - what an attempt inherits, each by its name
        self, number: int, terms: ProviderTerms, now: float, *, resumes_spent: int, streamed: bool, is_last: bool
    ) -> None:
        self.number = number
        self.terms = terms
        self.resumes_spent = resumes_spent
        self.opened_at = now
        self.first_content_at: float | None = None
        self.retries = 0
        """How often its request got no stream and was sent again."""
        self.streamed_bytes = 0
        """UTF-8 bytes of text so far."""
        self._is_last = is_last
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self.watchdog = self._guard(now, streamed=streamed)

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def thinking(self) -> str:
        """The thinking so far."""
        return "".join(self._thoughts)

    def heard(self, event: StreamEvent, now: float) -> None:
        """Take one event of the stream."""
        if isinstance(event, SUBSTANTIVE):
            is_blank = isinstance(event, TextDelta) and event.text.isspace()
            self.watchdog.progressed(now, thinks=None if is_blank else isinstance(event, ReasoningDelta))
            if self.first_content_at is None:
                self.first_content_at = now
        else:
            self.watchdog.lives(now)
        if isinstance(event, TextDelta):
            self._texts.append(event.text)
            self.streamed_bytes += len(event.text.encode())
        elif isinstance(event, ReasoningDelta):
            self._thoughts.append(event.text)

    def sent(self, now: float) -> None:
        """The request goes out only now: the silence begins here."""
        self.opened_at = now
        self.watchdog = self._guard(now, streamed=self.watchdog.streamed)

    def sent_again(self, now: float) -> None:
        """The request goes out once more: the silence begins anew."""
        self.watchdog = self._guard(now, streamed=self.watchdog.streamed)

    def _guard(self, now: float, *, streamed: bool) -> Watchdog:
        return Watchdog(self.terms.watchdog, now, streamed=streamed, detects_stalls=not self._is_last)


@dataclass(frozen=True, slots=True)
class Wait:
    """Until when, for which attempt, and what is said if no try follows.

    `reopens`: the same attempt is sent again; else it is dead and discarded, and the next one follows.
    """

    until: float
    attempt: Attempt
    cause: Failure
    reopens: bool
