"""How long a failed delivery waits for its next attempt, and when it is given up.

What belongs here: the schedule and its arithmetic. What must not be known here: states, receivers, the clock.
"""

from dataclasses import dataclass

# The schedule that the Standard Webhooks specification gives as an example: 5 s + 5 min + 30 min + 2 h + 5 h + 10 h +
# 14 h + 20 h + 24 h = 75 h 35 min 5 s, ten attempts. With every wait drawn long (+20 %): 90 h 42 min 6 s.
SCHEDULE_S = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 50400.0, 72000.0, 86400.0)

# The receivers of one outage must not come back in one moment, and a fifth is enough to spread them.
JITTER = 0.2

# A receiver may ask for a longer wait, but for no longer than the longest of the schedule.
RETRY_AFTER_CAP_S = 86400.0

# No schedule may name a longer wait than this, a week: what is planned further ahead was planned by another clock.
LONGEST_WAIT_S = 604800

# A receiver that asks to wait and names no time; and the shortest wait there is for one that does, since it spends no
# attempt.
THROTTLE_S = 30.0
THROTTLE_LEAST_S = 1.0

# After so many attempts that failed for good (404, a redirect, a certificate) it is dead: 5 s + 5 min + 30 min bridge
# the deploy that caused them.
HARD_ATTEMPTS = 4

# No attempt is planned for later than this after the first, whatever the waits in between were for: 5 days.
GIVE_UP_S = 432000.0

# Faults of our own: 1 s, 2 s, 4 s ... 5 min, and after the last it is dead: nobody's bug may run for ever.
OURS_ATTEMPTS = 12
_OURS_LONGEST_S = 300.0


# The longest wait of any schedule there may be, drawn long; at least as long as all other waits.
LONGEST_MS = round(LONGEST_WAIT_S * (1 + JITTER) * 1000)

# Further ahead nothing is planned, whatever the rules are, or were: an hour for what a clock may be off. lua/put.lua
# knows it.
FURTHEST_MS = LONGEST_MS + 3_600_000

# A time that lies further ahead than any limit puts it, by more than this, is of a clock that was put back since. By
# less it is waited for.
SKEW_S = 60.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """The waits between attempts, in seconds.

    `schedule_s`: one wait after each failed attempt but the last, none over `LONGEST_WAIT_S`. `retry_after_cap_s`: the
    longest wait a receiver may ask for. `hard_attempts`: most attempts that failed for good. `give_up_s`: how long
    after the first attempt another may be planned, and how long one waits for a receiver that takes nothing; less than
    `span_s` cuts the schedule short. `head_wait_s`: how long after its first attempt, or claim, the head of a mailbox
    may keep those behind it waiting; None: until it is given up.
    """

    schedule_s: tuple[float, ...] = SCHEDULE_S
    retry_after_cap_s: float = RETRY_AFTER_CAP_S
    hard_attempts: int = HARD_ATTEMPTS
    give_up_s: float = GIVE_UP_S
    head_wait_s: float | None = None

    @property
    def attempts(self) -> int:
        """How many attempts a delivery has in all."""
        return len(self.schedule_s) + 1

    @property
    def span_s(self) -> float:
        """How long the schedule takes at most by itself: every wait drawn long."""
        return sum(self.schedule_s) * (1 + JITTER)

    def wait_ms(self, failed: int, jitter: float, retry_after: float | None = None) -> int:
        """Milliseconds to wait after the `failed`-th attempt (from 1).

        `jitter`: chance, from 0 to 1, which spreads the scheduled wait evenly over +-20 %. `retry_after`: seconds that
        the receiver asked for; it lengthens the wait up to the cap and never shortens it.
        """
        spread = self.schedule_s[failed - 1] * (1 - JITTER + 2 * JITTER * jitter)
        return round(max(spread, asked_s(retry_after, self.retry_after_cap_s)) * 1000)

    def throttled_ms(self, jitter: float, retry_after: float | None) -> int:
        """Milliseconds to wait for a receiver that asked to: as long as it asked, and up to a fifth more.

        Within the cap, and a second at least.
        """
        asked = asked_s(retry_after, self.retry_after_cap_s) or THROTTLE_S
        wait = min(asked * (1 + JITTER * jitter), self.retry_after_cap_s)
        return round(max(wait, THROTTLE_LEAST_S) * 1000)

    def ours_ms(self, failed: int, jitter: float) -> int:
        """Milliseconds to wait after the `failed`-th fault of our own in a row."""
        wait = min(2.0 ** (failed - 1), _OURS_LONGEST_S)
        return round(wait * (1 - JITTER + 2 * JITTER * jitter) * 1000)


def asked_s(retry_after: float | None, longest_s: float) -> float:
    """The seconds that a receiver asked to wait, at most `longest_s`. Nothing, less than nothing and NaN ask for 0."""
    return min(retry_after, longest_s) if retry_after is not None and retry_after > 0 else 0.0
