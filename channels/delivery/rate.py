"""The arithmetic of a rate: the generic cell rate algorithm, for who comes a little late to its slots.

What belongs here: slots and times. What must not be known here: lanes, deliveries, the clock.

`rate_ms` is the theoretical arrival time of the next attempt; one may begin when that is at most `burst - 1` intervals
ahead. Nobody comes at the very moment of a slot: what was waiting all the while has the slots that were passed over, of
the last `CATCH_UP_S`. Times are in UTC milliseconds.
"""

import math

# Whoever claims comes some milliseconds after a slot; without its slots a rate of 100 a second would never be reached.
# What is longer ago is a pause, after which there is the burst and no more.
CATCH_UP_S = 0.1

# A double holds the milliseconds of today to a quarter of a microsecond: sums of a few may be off by this.
_TINY_MS = 1e-3


def arrival_ms(rate_ms: float, now_ms: int, waiting_ms: int | None) -> float:
    """From when on the next attempts count: now, or a slot that lies ahead; or earlier, to catch up.

    `waiting_ms`: since when the first of them has been waiting; None: only just.
    """
    if waiting_ms is None or rate_ms < now_ms - CATCH_UP_S * 1000:
        return max(rate_ms, now_ms)
    return max(rate_ms, min(waiting_ms, now_ms))


def slots(arrival: float, burst: int, interval_ms: float, now_ms: int) -> int:
    """How many attempts may begin now, that count from `arrival` on."""
    ahead_ms = arrival - now_ms
    return math.floor(burst - (max(0, ahead_ms - _TINY_MS) + min(0, ahead_ms)) / interval_ms)


def free_ms(rate_ms: float, burst: int, interval_ms: float) -> int:
    """The first millisecond at which one may begin; it may be past."""
    slot = math.floor(rate_ms - (burst - 1) * interval_ms)
    return slot + (slots(max(rate_ms, slot), burst, interval_ms, slot) < 1)
