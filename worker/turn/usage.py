"""The sums of a turn's tokens.

What belongs here: adding what was reported. What must not be known here: messages; nothing is ever worked out from
their length.
"""

from dataclasses import dataclass, replace

from worker.codecs.events import Usage


@dataclass(frozen=True, slots=True)
class UsageTotals:
    """Tokens of a turn's completed calls, and what its resumes cost. None: a call did not report it."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    discarded_resume_attempts: int | None = None
    discarded_resume_estimated_input_tokens: int | None = None


NO_USAGE = UsageTotals()


class Tally:
    """What a turn's calls and discards have cost so far.

    A total is None until a call completed, and for good once a completed call did not report its part: a sum of some
    calls must not pass for the cost of all. `completed_calls`: calls that `totals` already hold. `last_input_tokens`:
    what the session's last completed call reported. It is all that is known of the price of a discarded attempt, which
    is counted beside the totals and never in them.
    """

    def __init__(
        self,
        totals: UsageTotals,
        last_input_tokens: int | None,
        completed_calls: int = 0,
        *,
        has_untold_discards: bool = False,
    ) -> None:
        self.totals = totals
        self.has_untold_discards = has_untold_discards
        """Attempts were discarded since a call completed, in this process or before."""
        self._completed_calls = completed_calls
        self.last_input_tokens = last_input_tokens

    def completed(self, usage: Usage | None) -> None:
        """A call completed."""
        totals, usage = self.totals, usage or Usage()
        self.totals = replace(
            totals,
            input_tokens=self._all(totals.input_tokens, usage.input_tokens),
            output_tokens=self._all(totals.output_tokens, usage.output_tokens),
            total_tokens=self._all(totals.total_tokens, usage.total_tokens),
            cached_input_tokens=self._all(totals.cached_input_tokens, usage.cached_input_tokens),
            reasoning_tokens=self._all(totals.reasoning_tokens, usage.reasoning_tokens),
            cache_write_input_tokens=self._all(totals.cache_write_input_tokens, usage.cache_write_input_tokens),
        )
        self._completed_calls += 1
        self.has_untold_discards = False
        if usage.input_tokens is not None:
            self.last_input_tokens = usage.input_tokens

    def discarded(self) -> None:
        """An attempt was discarded, and another one will follow, here or elsewhere."""
        self.has_untold_discards = True
        totals = self.totals
        self.totals = replace(
            totals,
            discarded_resume_attempts=_sum(totals.discarded_resume_attempts, 1),
            discarded_resume_estimated_input_tokens=_sum(
                totals.discarded_resume_estimated_input_tokens, self.last_input_tokens
            ),
        )

    def _all(self, total: int | None, more: int | None) -> int | None:
        if not self._completed_calls:
            return more
        return None if total is None or more is None else total + more


def _sum(total: int | None, more: int | None) -> int | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more
