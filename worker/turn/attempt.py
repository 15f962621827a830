"""The attempt that is open right now.

What belongs here: what has been heard of it, and what the next attempt inherits. What must not be known here: what its
end leads to.
"""

from worker.codecs.events import SUBSTANTIVE, ReasoningDelta, StreamEvent, TextDelta
from worker.turn import resume
from worker.turn.start import TurnLimits
from worker.turn.watchdog import Watchdog


class Attempt:
    """Attempt `number` of a call, from the moment its request is sent.

    `resumes_spent`: resumes of the call so far. `streamed`: the attempt that this one resumes had died in mid-stream,
    not in prefill. The last attempt that is permitted runs without the stall detector.
    """

    def __init__(self, number: int, limits: TurnLimits, now: float, *, resumes_spent: int, streamed: bool) -> None:
        self.number = number
        self.resumes_spent = resumes_spent
        self.opened_at = now
        self.retries = 0
        """How often its request got no stream and was sent again."""
        self.streamed_bytes = 0
        """UTF-8 bytes of text so far."""
        self._limits = limits
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
        self.watchdog.heard(substantive=isinstance(event, SUBSTANTIVE), now=now)
        if isinstance(event, TextDelta):
            self._texts.append(event.text)
            self.streamed_bytes += len(event.text.encode())
        elif isinstance(event, ReasoningDelta):
            self._thoughts.append(event.text)

    def sent_again(self, now: float) -> None:
        """The request goes out once more: the silence begins anew."""
        self.watchdog = self._guard(now, streamed=self.watchdog.streamed)

    def _guard(self, now: float, *, streamed: bool) -> Watchdog:
        is_last = resume.is_last_attempt(self._limits.resume_budget, self.resumes_spent)
        return Watchdog(self._limits.watchdog, now, streamed=streamed, detects_stalls=not is_last)
