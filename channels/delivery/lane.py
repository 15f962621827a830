"""What a lane lets through: the limits of one endpoint, shared by all of its deliveries.

What belongs here: rate, breaker, pause and disabling, as functions from a lane and what happened to the lane that
follows. What must not be known here: single deliveries, Redis, the clock.

Rate: a limited delivery waits for exactly the free slot (`channels.delivery.rate`).

Breaker: opens after `OPEN_AFTER` transient failures in a row, or when at least `OPEN_SHARE` of at least `OPEN_LEAST`
attempts within `WINDOW_S` failed so. For `OPEN_S` nothing is sent; what ends in that time began before, and neither
prolongs nor closes it. Then it is half open: one attempt at a time, and its success closes it, while a transient
failure opens it again for twice as long, up to `OPEN_LONGEST_S`. No attempt is marked as the probe, so one that
vanishes blocks nothing: when it is no longer in flight there is room for the next.

Disabling: an endpoint is disabled at a failure (transient or permanent) when it has not taken anything since its first
failure, that is at least `disable_after_s` ago, and at least `DISABLE_LEAST` attempts have failed since; and at once
when it answers 410. Disabled, it keeps its new deliveries as held until somebody enables it.

An attempt whose lease ended tells nothing of its endpoint, as a fault of Lastword's own: more likely its sender died.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from channels.delivery import rate
from channels.delivery.backoff import SKEW_S, THROTTLE_LEAST_S, THROTTLE_S, Backoff, asked_s
from channels.delivery.machine import LEASE_EXPIRED
from channels.delivery.model import Delivered, Failed, Outcome

OPEN_AFTER = 5
OPEN_SHARE = 0.7
OPEN_LEAST = 10
WINDOW_S = 300.0
OPEN_S = 30.0
OPEN_LONGEST_S = 600.0
_MOST_DOUBLINGS = 10
DISABLE_LEAST = 10
DISABLE_AFTER_S = 432000.0

# The 4th failure in a row is worth telling an operator, and so is a breaker that opens; told at most once in this time,
# however many there are.
FAILING_AFTER = 4
NOTICE_S = 3600.0

# A receiver that asks for a pause by one answer stops its whole lane, for no longer than this.
PAUSE_LONGEST_S = 3600.0

Standing = Literal["active", "paused", "disabled"]
Notice = Literal["failing", "recovered", "disabled", "dead"]
"""What an operator is told of an endpoint: that it keeps failing, that it takes again, that it was disabled, that
deliveries to it have died. `recovered` follows a `failing` that was told, and no other."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an endpoint lets through. `rate_per_s` None: no limit. `may_disable`: a plain URL is never disabled."""

    concurrency: int = 10
    rate_per_s: float | None = None
    burst: int = 1
    disable_after_s: float = DISABLE_AFTER_S
    may_disable: bool = True


def lease_for(timeout_s: float) -> float:
    """The lease of a claim, in seconds, for an attempt that lasts `timeout_s` at most.

    It holds the attempt, before it the reading of what is told, and after it the settling. Twice the attempt and 10 s
    leave room for a store that goes away for the length of an attempt.
    """
    return 2 * timeout_s + 10.0


@dataclass(frozen=True, slots=True)
class Rules:
    """What an endpoint says of its deliveries: how many, when they are tried again, and how long an attempt may last.

    `timeout_s` None: as long as is usual.
    """

    limits: Limits = field(default_factory=Limits)
    backoff: Backoff = field(default_factory=Backoff)
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lane:
    """A lane. Times are UTC milliseconds of the store's clock, 0: never.

    `version` grows with each change. `not_before_ms`: nothing begins before. `failures`: transient ones in a row;
    `failed`: all since the last success, the first of them at `failing_since_ms`. `window_*`: the attempts counted
    since `window_ms`. `openings`: times the breaker opened in a row; `open_until_ms`: it is open, or if that has passed
    half open: one attempt at a time. `told_ms`, `told_dead_ms`: when `failing` and `dead` were last told; `alarmed`:
    `failing` was told and `recovered` not yet. `why`: of a pause or of disabling, `since_ms`. `shut_since_ms`: from
    then on the breaker was never closed, and what probed it failed.
    """

    version: int = 0
    standing: Standing = "active"
    why: str = ""
    since_ms: int = 0
    rate_ms: float = 0.0
    not_before_ms: int = 0
    failures: int = 0
    failed: int = 0
    failing_since_ms: int = 0
    window_ms: int = 0
    window_failed: int = 0
    window_all: int = 0
    openings: int = 0
    open_until_ms: int = 0
    told_ms: int = 0
    told_dead_ms: int = 0
    alarmed: bool = False
    shut_since_ms: int = 0


def room(  # noqa: PLR0913, PLR0917 - what it depends on
    lane: Lane, limits: Limits, in_flight: int, wanted: int, now_ms: int, waiting_ms: int | None = None
) -> int:
    """How many of `wanted` attempts may begin now, beside those in flight.

    `waiting_ms`: since when the first of them has been waiting; None: only just.
    """
    lane = put_right(lane, limits, now_ms)
    if now_ms < max(lane.not_before_ms, lane.open_until_ms):
        return 0
    free = most_in_flight(lane, limits) - in_flight
    if limits.rate_per_s is not None:
        arrival_ms = rate.arrival_ms(lane.rate_ms, now_ms, waiting_ms)
        free = min(free, rate.slots(arrival_ms, limits.burst, 1000 / limits.rate_per_s, now_ms))
    return max(0, min(free, wanted))


def taken(lane: Lane, limits: Limits, count: int, now_ms: int, waiting_ms: int | None = None) -> Lane:
    """The lane after so many attempts began. `waiting_ms`: as it was told to `room`."""
    if limits.rate_per_s is None or not count:
        return lane
    lane = put_right(lane, limits, now_ms)
    interval = 1000 / limits.rate_per_s
    return replace(
        lane, version=lane.version + 1, rate_ms=rate.arrival_ms(lane.rate_ms, now_ms, waiting_ms) + count * interval
    )


def given_back(lane: Lane, limits: Limits, count: int) -> Lane:
    """The lane after so many attempts that began were not made: their slots are free again."""
    if limits.rate_per_s is None or not count or not lane.rate_ms:
        return lane
    return replace(lane, version=lane.version + 1, rate_ms=max(0.0, lane.rate_ms - count * 1000 / limits.rate_per_s))


def free_ms(lane: Lane, limits: Limits) -> int:
    """The first moment at which an active lane has room, if nothing is in flight; past or 0 when that is at once.

    Ask of a lane that was `put_right`: of another it may lie months ahead.
    """
    slot = 0
    if limits.rate_per_s is not None:
        slot = rate.free_ms(lane.rate_ms, limits.burst, 1000 / limits.rate_per_s)
    return max(slot, lane.not_before_ms, lane.open_until_ms)


def put_right(lane: Lane, limits: Limits, now_ms: int) -> Lane:
    """The lane without the times that no limit puts so far ahead: they are of a clock that was put back since.

    Mostly that is the same lane. It need not be stored: what follows from it is. Such a pause is over, such a breaker
    half open, and such a rate has one slot free.
    """
    before, far_ms = lane, now_ms + round(SKEW_S * 1000)
    if lane.not_before_ms > far_ms + PAUSE_LONGEST_S * 1000:
        lane = replace(lane, not_before_ms=0)
    if lane.open_until_ms > far_ms + OPEN_LONGEST_S * 1000:
        lane = replace(lane, open_until_ms=0)
    # Of other limits too: what was slow is waited for no longer than it is slow now.
    if limits.rate_per_s is not None and lane.rate_ms > far_ms + limits.burst * 1000 / limits.rate_per_s:
        lane = replace(lane, rate_ms=now_ms + (limits.burst - 1) * 1000 / limits.rate_per_s)
    return lane if lane is before else replace(lane, version=before.version + 1)


def most_in_flight(lane: Lane, limits: Limits) -> int:
    """How many may be in flight at all: one while the breaker is not closed."""
    return 0 if lane.standing != "active" else 1 if lane.openings else limits.concurrency


def after(
    lane: Lane, limits: Limits, outcomes: Sequence[Outcome], now_ms: int, *, died: bool = False
) -> tuple[Lane, tuple[Notice, ...]]:
    """The lane after these attempts ended, in this order, and what an operator is told.

    `died`: a delivery is dead now. `version` is the same where nothing changed.
    """
    before, notices = lane, list[Notice]()
    lane = put_right(lane, limits, now_ms)
    for outcome in outcomes:
        if isinstance(outcome, Delivered):
            if lane.alarmed and lane.standing != "disabled" and not _is_open(lane, now_ms):
                lane = replace(lane, alarmed=False)
                notices.append("recovered")
            lane = _succeeded(lane, now_ms)
        elif not isinstance(outcome, Failed) or outcome.kind == "ours" or outcome.code == LEASE_EXPIRED.code:
            continue
        elif outcome.kind == "throttled":
            asked = max(asked_s(outcome.retry_after, PAUSE_LONGEST_S) or THROTTLE_S, THROTTLE_LEAST_S)
            lane = replace(lane, not_before_ms=max(lane.not_before_ms, now_ms + round(asked * 1000)))
        else:
            lane, told = _failed(lane, limits, outcome, now_ms)
            notices += told
    if died and _may_tell(lane.told_dead_ms, now_ms):
        lane = replace(lane, told_dead_ms=now_ms)
        notices.append("dead")
    if lane != before:
        lane = replace(lane, version=before.version + 1)
    return lane, tuple(notices)


def _succeeded(lane: Lane, now_ms: int) -> Lane:
    lane = replace(lane, failed=0, failing_since_ms=0, shut_since_ms=0)
    if _is_open(lane, now_ms):
        return lane
    if lane.openings:
        return replace(lane, failures=0, openings=0, open_until_ms=0, window_ms=now_ms, window_failed=0, window_all=0)
    return _counted(replace(lane, failures=0), now_ms, failed=False)


def _failed(lane: Lane, limits: Limits, failure: Failed, now_ms: int) -> tuple[Lane, list[Notice]]:
    since_ms = min(lane.failing_since_ms or now_ms, now_ms)
    lane = replace(lane, failed=lane.failed + 1, failing_since_ms=since_ms)
    if failure.kind == "transient" and not _is_open(lane, now_ms):
        lane = _opened(_counted(replace(lane, failures=lane.failures + 1), now_ms, failed=True), now_ms)
    if lane.standing == "disabled":
        return lane, []
    if limits.may_disable and (why := _why_disabled(lane, limits, failure, now_ms)):
        return replace(lane, standing="disabled", why=why, since_ms=now_ms), ["disabled"]
    if (lane.failed >= FAILING_AFTER or lane.openings) and _may_tell(lane.told_ms, now_ms):
        return replace(lane, told_ms=now_ms, alarmed=True), ["failing"]
    return lane, []


def _why_disabled(lane: Lane, limits: Limits, failure: Failed, now_ms: int) -> str | None:
    if failure.gone:
        return "gone"
    fails_for_ms = now_ms - lane.failing_since_ms
    if lane.failed >= DISABLE_LEAST and fails_for_ms >= limits.disable_after_s * 1000:
        return "failing"
    return None


def _is_open(lane: Lane, now_ms: int) -> bool:
    return now_ms < lane.open_until_ms


def _may_tell(told_ms: int, now_ms: int) -> bool:
    """Whether the last notice is long enough ago, or was told by a clock that was put back since."""
    return not told_ms or not told_ms <= now_ms < told_ms + NOTICE_S * 1000


def _counted(lane: Lane, now_ms: int, *, failed: bool) -> Lane:
    # Of another clock, put back since, the window would never end.
    if not lane.window_ms <= now_ms < lane.window_ms + WINDOW_S * 1000:
        lane = replace(lane, window_ms=now_ms, window_failed=0, window_all=0)
    return replace(lane, window_failed=lane.window_failed + failed, window_all=lane.window_all + 1)


def _opened(lane: Lane, now_ms: int) -> Lane:
    """The lane with its breaker open, where it must be."""
    share = lane.window_failed >= OPEN_SHARE * lane.window_all and lane.window_all >= OPEN_LEAST
    if not (lane.openings or lane.failures >= OPEN_AFTER or share):
        return lane
    # Where nobody asked for longer than it was open, what waits has waited for us, or for a rate.
    was_asked = 0 < lane.shut_since_ms <= now_ms <= lane.open_until_ms + OPEN_LONGEST_S * 1000
    lane = replace(lane, openings=lane.openings + 1, open_until_ms=now_ms + round(open_s(lane.openings) * 1000))
    return lane if was_asked else replace(lane, shut_since_ms=now_ms)


def open_s(openings: int) -> float:
    """For how long a breaker opens that has opened so often in a row before."""
    return min(OPEN_S * 2.0 ** min(openings, _MOST_DOUBLINGS), OPEN_LONGEST_S)


def pause(lane: Lane, now_ms: int, why: str) -> Lane:
    """The lane that lets nothing through until somebody resumes it. A disabled one stays disabled."""
    if lane.standing != "active":
        return lane
    return replace(lane, version=lane.version + 1, standing="paused", why=why, since_ms=now_ms)


def disable(lane: Lane, now_ms: int, why: str) -> Lane:
    """The lane of an endpoint that is to get nothing any more."""
    if lane.standing == "disabled":
        return lane
    return replace(lane, version=lane.version + 1, standing="disabled", why=why, since_ms=now_ms)


def resume(lane: Lane) -> Lane:
    """The lane, paused or disabled before, active again as one of which nothing bad is known.

    Its rate stays, and so does what was told: to resume is no way around one notice per window.
    """
    return Lane(version=lane.version + 1, rate_ms=lane.rate_ms, told_ms=lane.told_ms, told_dead_ms=lane.told_dead_ms)
