"""How what is sent to an endpoint fares, for whoever has to look after it.

What belongs here: what a lane shows of failures, and of what nothing is sent before. What must not be known here: who
looks and in which words he is told, Redis, the clock.
"""

from dataclasses import dataclass

from channels.delivery.lane import FAILING_AFTER, Lane, Limits, open_s, put_right


@dataclass(frozen=True, slots=True)
class Faring:
    """Times: UTC milliseconds; None: not so.

    `failed`: attempts since the endpoint last took anything, the first of them at `failing_since_ms`. `open_until_ms`:
    its breaker is open and nothing is sent before; from then on, it may be past, one attempt at a time.
    `not_before_ms`: its receiver asked for a pause until then. Both are None of one that is paused or disabled.
    """

    failed: int
    failing_since_ms: int | None
    open_until_ms: int | None
    not_before_ms: int | None


def asked_ms(lane: Lane) -> int:
    """When the receiver of a lane whose breaker is not closed has refused for the last time (UTC ms)."""
    return lane.open_until_ms - round(open_s(lane.openings - 1) * 1000)


def faring(lane: Lane, now_ms: int) -> Faring:
    """How a lane fares at a time (UTC ms)."""
    right = put_right(lane, Limits(), now_ms)
    is_sent_to = lane.standing == "active"
    return Faring(
        failed=lane.failed,
        failing_since_ms=lane.failing_since_ms or None,
        open_until_ms=(right.open_until_ms or now_ms) if is_sent_to and lane.openings else None,
        not_before_ms=right.not_before_ms if is_sent_to and right.not_before_ms > now_ms else None,
    )


def keeps_failing(lane: Lane) -> bool:
    """Whether an endpoint that is sent to fails so that operators are told: again and again, or its breaker opened."""
    return lane.standing == "active" and lane.failed > 0 and (lane.failed >= FAILING_AFTER or lane.openings > 0)
