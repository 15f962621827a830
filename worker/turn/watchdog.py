"""Which silence of a stream is too long.

What belongs here: the deadlines that guard one attempt. What must not be known here: clocks, what a death leads to.

    liveness   since any event            prefill_s until the first substantive event, then inter_delta_s
    progress   since a substantive event  the larger of prefill_s and progress_s until the first one, then progress_s
    stall      since a substantive event  stall_s, once this attempt has sent one; 0: off
    reasoning  since it began to think    reasoning_s, until text or a tool call comes; 0: off

A provider that is silent altogether meets liveness first; one that only sends keepalives meets progress; one that
stops in mid-sentence meets stall. With the defaults (1800, 600, 1200 and 45 s) that is after 1800 s, 1800 s and 45 s.
"""

from dataclasses import dataclass
from typing import Literal

Budget = Literal["stall", "inter_delta", "prefill", "progress", "reasoning"]
"""The budget that was in force when the silence grew too long."""


@dataclass(frozen=True, slots=True)
class WatchdogLimits:
    """How long a provider may be silent, in seconds. `stall_s` 0: no stall detector."""

    prefill_s: float
    inter_delta_s: float
    progress_s: float
    stall_s: float
    reasoning_s: float = 0

    def seconds(self, budget: Budget) -> float:
        """The length of a budget."""
        lengths: dict[Budget, float] = {
            "stall": self.stall_s,
            "inter_delta": self.inter_delta_s,
            "prefill": self.prefill_s,
            "progress": self.progress_s,
            "reasoning": self.reasoning_s,
        }
        return lengths[budget]


class Watchdog:
    """Guards one attempt from `now` on. Times are seconds of one monotonic clock.

    `streamed`: an earlier attempt of the call had sent substantive events, so the tight budgets hold from the start.
    `detects_stalls`: false for the last attempt that is permitted, so that a slow model is not killed over and over.
    """

    def __init__(self, limits: WatchdogLimits, now: float, *, streamed: bool, detects_stalls: bool) -> None:
        self.streamed = streamed
        """Whether substantive events have come, in this attempt or in the one that it resumes."""
        self._limits = limits
        self._detects_stalls = detects_stalls and limits.stall_s > 0
        self._heard_at = now
        self._progress_at = now
        self._flows = False
        self._thinks_since: float | None = None

    def lives(self, now: float) -> None:
        """The stream said something without content. It re-arms liveness alone and never promotes."""
        self._heard_at = now

    def progressed(self, now: float, *, thinks: bool | None) -> None:
        """Content came. `thinks`: it was reasoning, which is progress but no answer; None: it was neither of both."""
        self._heard_at = self._progress_at = now
        self.streamed = self._flows = True
        if thinks is False:
            self._thinks_since = None
        elif thinks and self._thinks_since is None:
            self._thinks_since = now

    def deadline(self) -> float:
        """When the attempt is dead unless something is heard."""
        return min(at for at, _ in self._deadlines())

    def expired(self, now: float) -> Budget | None:
        """The budget whose end has passed, the first one if there are several, or None."""
        at, budget = min(self._deadlines(), key=lambda deadline: deadline[0])
        return budget if at <= now else None

    def _deadlines(self) -> list[tuple[float, Budget]]:
        deadlines = [self._liveness(), self._progress()]
        if self._flows and self._detects_stalls:
            deadlines.append((self._progress_at + self._limits.stall_s, "stall"))
        if self._thinks_since is not None and self._limits.reasoning_s > 0:
            deadlines.append((self._thinks_since + self._limits.reasoning_s, "reasoning"))
        return deadlines

    def _liveness(self) -> tuple[float, Budget]:
        budget: Budget = "inter_delta" if self.streamed else "prefill"
        return self._heard_at + self._limits.seconds(budget), budget

    def _progress(self) -> tuple[float, Budget]:
        prefills = not self.streamed and self._limits.prefill_s > self._limits.progress_s
        budget: Budget = "prefill" if prefills else "progress"
        return self._progress_at + self._limits.seconds(budget), budget
