"""How often a call is asked again, and after which wait.

What belongs here: the arithmetic of both budgets. What must not be known here: clocks, chance (both are arguments).

Two budgets, because two things are retried:

    resume     an attempt that had begun to stream died     1 + budget attempts of a call; with 2: at most 3
    transport  a request got no stream at all               1 + retries requests of an attempt

Waits of the transport with the defaults (1 s doubling, at most 30 s, 3 retries): 1 + 2 + 4 = 7 s, each spread by a
quarter both ways, so that turns that failed together do not come back together. A provider's `Retry-After` counts when
it is longer.
"""

_SPREAD = 0.25
_THE_PROVIDERS = frozenset(
    {
        "stall",
        "inter_delta",
        "prefill",
        "progress",
        "reasoning",
        "timeout",
        "reset",
        "end_of_stream",
        "provider_error",
        "protocol",
        "not_answered",
    }
)


def is_the_providers(reason: str) -> bool:
    """Whether a discard for this reason is a death of the provider, not something that we did or that it refused."""
    return reason in _THE_PROVIDERS


def is_last_attempt(budget: int, spent: int) -> bool:
    """Whether no resume is left."""
    return spent >= budget


def resume_wait(base_s: float, chance: float, retry_after: float | None = None) -> float:
    """Seconds from a death to the next attempt. `chance`: a number from 0 to 1."""
    return max(_spread(base_s, chance), retry_after or 0)


def transport_wait(
    retries_made: int, base_s: float, max_s: float, chance: float, retry_after: float | None = None
) -> float:
    """Seconds from a request without an answer to the next try. `retries_made`: 0 before the first retry."""
    doubled = base_s * 2.0 ** min(retries_made, 60)  # beyond that the result leaves the range of a float
    return max(_spread(min(doubled, max_s), chance), retry_after or 0)


def _spread(wait_s: float, chance: float) -> float:
    return wait_s * (1 - _SPREAD + 2 * _SPREAD * chance)
