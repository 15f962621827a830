"""How long a failed delivery waits for its next attempt.

What belongs here: the schedule and its arithmetic. What must not be known here: states, receivers, the clock.
"""

from dataclasses import dataclass

# 5 s + 30 s + 5 min + 30 min + 2 h + 5 h + 10 h = 17 h 35 min 35 s: eight attempts, spread over a working day and the
# night after it. With every wait drawn long (+20 %) the last attempt comes after 21 h 6 min 42 s.
SCHEDULE_S = (5.0, 30.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0)

# The receivers of one outage must not come back in one moment, and a fifth is enough to spread them.
JITTER = 0.2

# A receiver may ask for a longer wait, but not park a delivery beyond the life of the text that it refers to: with an
# hour asked for each time, 4 x 1 h + (2 h + 5 h + 10 h) x 1.2 = 24 h 24 min.
RETRY_AFTER_CAP_S = 3600.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits between attempts, in seconds.

    `schedule_s`: one wait after each failed attempt but the last. `retry_after_cap_s`: the longest wait a receiver may
    ask for.
    """

    schedule_s: tuple[float, ...] = SCHEDULE_S
    retry_after_cap_s: float = RETRY_AFTER_CAP_S

    @property
    def attempts(self) -> int:
        """How many attempts a delivery has in all."""
        return len(self.schedule_s) + 1

    @property
    def longest_ms(self) -> int:
        """The longest wait that there is, in milliseconds."""
        return round(max(self.retry_after_cap_s, *(wait * (1 + JITTER) for wait in self.schedule_s), 0) * 1000)

    def wait_ms(self, failed: int, jitter: float, retry_after: float | None = None) -> int:
        """Milliseconds to wait after the `failed`-th attempt (from 1).

        `jitter`: chance, from 0 to 1, which spreads the scheduled wait evenly over +-20 %. `retry_after`: seconds that
        the receiver asked for; it lengthens the wait up to the cap and never shortens it.
        """
        spread = self.schedule_s[failed - 1] * (1 - JITTER + 2 * JITTER * jitter)
        asked = min(retry_after or 0.0, self.retry_after_cap_s)
        return round(max(spread, asked) * 1000)
