"""The sums of a turn's tokens.

What belongs here: adding what was reported. What must not be known here: messages; nothing is ever worked out from
their length.
"""

from dataclasses import replace

from worker.codecs.events import Usage
from worker.turn.commands import UsageTotals


class Tally:
    """What a turn's calls and discards have cost so far. None means that nobody said.

    `last_input_tokens`: what the session's last completed call reported. It is all that is known of the price of a
    discarded attempt, which is counted beside the totals and never in them.
    """

    def __init__(self, totals: UsageTotals, last_input_tokens: int | None) -> None:
        self.totals = totals
        self._last_input_tokens = last_input_tokens

    def completed(self, usage: Usage | None) -> None:
        """A call completed."""
        if usage is None:
            return
        totals = self.totals
        self.totals = replace(
            totals,
            input_tokens=_sum(totals.input_tokens, usage.input_tokens),
            output_tokens=_sum(totals.output_tokens, usage.output_tokens),
            total_tokens=_sum(totals.total_tokens, usage.total_tokens),
            cached_input_tokens=_sum(totals.cached_input_tokens, usage.cached_input_tokens),
            reasoning_tokens=_sum(totals.reasoning_tokens, usage.reasoning_tokens),
        )
        if usage.input_tokens is not None:
            self._last_input_tokens = usage.input_tokens

    def discarded(self) -> None:
        """An attempt was discarded, and another one will follow, here or elsewhere."""
        totals = self.totals
        self.totals = replace(
            totals,
            discarded_resume_attempts=_sum(totals.discarded_resume_attempts, 1),
            discarded_resume_estimated_input_tokens=_sum(
                totals.discarded_resume_estimated_input_tokens, self._last_input_tokens
            ),
        )


def _sum(total: int | None, more: int | None) -> int | None:
    if total is None or more is None:
        return more if total is None else total
    return total + more
