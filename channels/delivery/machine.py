"""What a delivery does next.

What belongs here: the transitions, as functions from a delivery and what happened to the delivery that follows.
What must not be known here: where deliveries are stored, who sends them, the clock.

    from                  event                         to
    queued, waiting       claim, its time has come      in_flight     the attempt counts before it is made
    in_flight             Delivered                     delivered
    in_flight             Failed, transient             waiting       due after the backoff
                          none left                     dead          attempts_spent
    in_flight             Failed, permanent             waiting       the same, with fewer attempts
                          none left, or gone            dead          the failure's own code
    in_flight             Failed, throttled             waiting       the attempt does not count
    in_flight             Failed, ours                  waiting       the attempt does not count
                          too many in a row             dead          the failure's own code
    in_flight             any Failed, too old then      dead          gave_up, or head_wait in a mailbox
    in_flight             Hopeless                      dead          the outcome's own code
    in_flight             Withdrawn                     cancelled
    in_flight             expire, its lease has ended   as transient  the attempt's outcome is unknown
    in_flight             release                       queued        nothing was sent: the attempt does not count
                          too long the first of a mailbox  dead       head_wait
    queued, waiting       give_up                       dead          gave_up: all the time it waited nothing was taken
    queued, waiting       hold                          held          its endpoint is paused or disabled
    queued, waiting, held cancel                        cancelled
    held                  lapse                         dead          turn_expired or event_expired
    queued, waiting       put_right                     the same      due now: its time was of another clock
    in_flight             put_right                     the same      for one lease more: its sender may live
    dead, held            replay                        queued        a new series of attempts, the same id
    dead, a log entry     put_back                      cancelled     the entry is in the log again

Every other pair is a bug of ours: it raises `LocalProtocolError` and changes nothing.
"""

from dataclasses import replace

from channels.delivery.backoff import FURTHEST_MS, OURS_ATTEMPTS, SKEW_S, Backoff
from channels.delivery.model import (
    LIVE,
    Attempt,
    Delivered,
    Delivery,
    Evidence,
    Failed,
    Hopeless,
    Outcome,
    Sent,
    State,
    Withdrawn,
)
from worker.errors import LocalProtocolError

LOG_LENGTH = 10

LEASE_EXPIRED = Failed(
    "transient",
    "lease_expired",
    "the sender vanished during the attempt; whether it was received is unknown",
    "perhaps",
)


def claim(delivery: Delivery, token: str, now_ms: int, lease_ms: int) -> Delivery:
    """The delivery as the claim `token` holds it: one more attempt has begun, for `lease_ms` at most."""
    if delivery.state not in {"queued", "waiting"} or delivery.due_ms > now_ms:
        raise _unexpected(delivery, "claimed")
    return replace(
        delivery,
        state="in_flight",
        attempts=delivery.attempts + 1,
        first_ms=min(_first_ms(delivery, now_ms) or now_ms, now_ms),  # one of a clock ahead would never grow old
        token=token,
        version=delivery.version + 1,
        due_ms=now_ms + lease_ms,
        lease_ms=lease_ms,
    )


def settle(delivery: Delivery, outcome: Outcome, now_ms: int, jitter: float, backoff: Backoff) -> Delivery:
    """The delivery after its attempt ended in `outcome`. `jitter`: chance, from 0 to 1."""
    if delivery.state != "in_flight":
        raise _unexpected(delivery, f"settled as {type(outcome).__name__}")
    match outcome:
        case Delivered():
            logged = _logged(delivery, now_ms, f"http_{outcome.status}", "", "yes", outcome.evidence)
            return replace(logged, state="delivered", due_ms=0, ended_ms=now_ms, ours=0, code="", message="")
        case Withdrawn() | Hopeless():
            unsent = replace(_freed(delivery), attempts=delivery.attempts - 1)
            state: State = "dead" if isinstance(outcome, Hopeless) else "cancelled"
            return replace(unsent, state=state, due_ms=0, ended_ms=now_ms, code=outcome.code, message=outcome.message)
        case Failed():
            return _failed(delivery, outcome, now_ms, jitter, backoff)


def _failed(delivery: Delivery, failure: Failed, now_ms: int, jitter: float, backoff: Backoff) -> Delivery:
    logged = _logged(delivery, now_ms, failure.code, failure.message, failure.sent, failure.evidence)
    counted = _counted(logged, failure)
    reason = _why_dead(counted, failure, backoff)
    if reason is None:
        due_ms = now_ms + _wait_ms(counted, failure, jitter, backoff)
        reason = _why_too_late(counted, failure, due_ms, backoff)
        if reason is None:
            return replace(counted, state="waiting", due_ms=due_ms, code=failure.code, message=failure.message)
    code, message = reason
    return replace(counted, state="dead", due_ms=0, ended_ms=now_ms, code=code, message=message)


def _counted(delivery: Delivery, failure: Failed) -> Delivery:
    match failure.kind:
        case "transient":
            return replace(delivery, ours=0)
        case "permanent":
            return replace(delivery, ours=0, hard=delivery.hard + 1)
        case "throttled":
            return replace(delivery, ours=0, attempts=delivery.attempts - 1)
        case "ours":
            return replace(delivery, ours=delivery.ours + 1, attempts=delivery.attempts - 1)


def _wait_ms(delivery: Delivery, failure: Failed, jitter: float, backoff: Backoff) -> int:
    if failure.kind == "throttled":
        return backoff.throttled_ms(jitter, failure.retry_after)
    if failure.kind == "ours":
        return backoff.ours_ms(delivery.ours, jitter)
    return backoff.wait_ms(delivery.attempts, jitter, failure.retry_after)


def _why_dead(delivery: Delivery, failure: Failed, backoff: Backoff) -> tuple[str, str] | None:
    """Code and message of its end, where no attempt is left."""
    if failure.gone:
        return failure.code, failure.message
    if failure.kind == "permanent" and delivery.hard >= min(backoff.hard_attempts, backoff.attempts):
        return failure.code, failure.message
    if failure.kind == "ours" and delivery.ours >= OURS_ATTEMPTS:
        return failure.code, failure.message
    if failure.kind in {"transient", "permanent"} and delivery.attempts >= backoff.attempts:
        last = f"all {delivery.attempts} attempts failed, the last with {failure.code}: {failure.message}"
        return "attempts_spent", last
    return None


def _why_too_late(delivery: Delivery, failure: Failed, due_ms: int, backoff: Backoff) -> tuple[str, str] | None:
    """Code and message of its end, where its next attempt would come too late."""
    last = f"; the last attempt failed with {failure.code}: {failure.message}"
    if due_ms > delivery.first_ms + backoff.give_up_s * 1000:
        return "gave_up", f"its next attempt would begin more than {backoff.give_up_s:g} s after the first{last}"
    wait_s = backoff.head_wait_s
    if delivery.mailbox and wait_s is not None and due_ms > delivery.first_ms + wait_s * 1000:
        return "head_wait", f"those behind it in order would wait for more than {wait_s:g} s{last}"
    return None


def expire(delivery: Delivery, now_ms: int, jitter: float, backoff: Backoff) -> Delivery:
    """The delivery after its lease ended unsettled: the attempt counts, as one of unknown outcome."""
    if delivery.due_ms > now_ms:
        raise _unexpected(delivery, "expired before its lease has ended")
    return settle(delivery, LEASE_EXPIRED, now_ms, jitter, backoff)


def put_right(delivery: Delivery, now_ms: int, lease_ms: int) -> Delivery:
    """The delivery whose time was written by a clock that was put back since.

    Its version stays: whoever holds it may still settle it.
    """
    if delivery.state not in LIVE:
        raise _unexpected(delivery, "put right")
    return replace(delivery, due_ms=now_ms + lease_ms if delivery.state == "in_flight" else now_ms)


def is_early(delivery: Delivery, now_ms: int) -> bool:
    """Whether it is rightly due only later: a time that a clock wrote which was put back since is due now.

    What is queued waits for half a minute at most, and what waits, from its last attempt on.
    """
    ahead_ms, skew_ms = delivery.due_ms - now_ms, round(SKEW_S * 1000)
    if ahead_ms <= skew_ms:
        return ahead_ms > 0
    is_of_now = delivery.state == "waiting" and all(each.at_ms <= now_ms + skew_ms for each in delivery.log[-1:])
    return is_of_now and ahead_ms <= FURTHEST_MS


def release(delivery: Delivery, now_ms: int, after_ms: int = 0, backoff: Backoff | None = None) -> Delivery:
    """The delivery given back unsent: due then, the attempt does not count.

    Its age stays where an attempt was made before, also one that did not count; and in a mailbox whose head may keep
    those behind it waiting for so long only: there it is dead when its time is over.
    """
    if delivery.state != "in_flight":
        raise _unexpected(delivery, "released")
    due_ms, wait_s = now_ms + after_ms, backoff.head_wait_s if backoff and delivery.mailbox else None
    first_ms = _first_ms(delivery, now_ms) if _has_begun(delivery) or wait_s is not None else 0
    freed = replace(_freed(delivery), state="queued", attempts=delivery.attempts - 1, first_ms=first_ms, due_ms=due_ms)
    if wait_s is None:
        return freed
    ends_ms = first_ms + round(wait_s * 1000)
    if now_ms < ends_ms:
        return replace(freed, due_ms=min(due_ms, ends_ms))
    message = f"those behind it in order would wait for more than {wait_s:g} s; its last attempt could not be made"
    return replace(freed, state="dead", due_ms=0, ended_ms=now_ms, code="head_wait", message=message)


def _has_begun(delivery: Delivery) -> bool:
    """Whether one of its attempts was made, also one that did not count."""
    return bool(delivery.log) and delivery.log[-1].at_ms >= delivery.first_ms


def _first_ms(delivery: Delivery, now_ms: int) -> int:
    """From when on its age counts. Of one that never was attempted what nobody came for is left out: that was ours."""
    if not delivery.first_ms or _has_begun(delivery):
        return delivery.first_ms
    return delivery.first_ms + max(0, now_ms - delivery.due_ms)


def give_up(delivery: Delivery, since_ms: int, until_ms: int, now_ms: int, backoff: Backoff) -> Delivery | None:
    """The delivery dead, where it has waited too long for a receiver that took nothing in that time; else None.

    What waited before and after that time may have waited for us.
    """
    if delivery.state not in {"queued", "waiting"}:
        raise _unexpected(delivery, "given up")
    began_ms = max(since_ms, delivery.created_ms, delivery.replayed_ms)
    if until_ms <= began_ms + backoff.give_up_s * 1000:
        return None
    last = f"; its last attempt failed with {delivery.code}: {delivery.message}" if delivery.code else ""
    message = f"while it waited, nothing was taken for more than {backoff.give_up_s:g} s{last}"
    return replace(_freed(delivery), state="dead", due_ms=0, ended_ms=now_ms, code="gave_up", message=message)


def hold(delivery: Delivery, code: str, message: str) -> Delivery:
    """The delivery of an endpoint that is paused or disabled."""
    if delivery.state not in {"queued", "waiting"}:
        raise _unexpected(delivery, "held")
    return replace(_freed(delivery), state="held", due_ms=0, code=code, message=message)


def cancel(delivery: Delivery, now_ms: int, code: str, message: str) -> Delivery:
    """The delivery that is not to be sent any more."""
    if delivery.state not in {"queued", "waiting", "held"}:
        raise _unexpected(delivery, "cancelled")
    return replace(_freed(delivery), state="cancelled", due_ms=0, ended_ms=now_ms, code=code, message=message)


def replay(delivery: Delivery, now_ms: int) -> Delivery:
    """A dead or held delivery made due again, with all its attempts before it, and all its time."""
    if delivery.state not in {"dead", "held"} or not delivery.destination:
        raise _unexpected(delivery, "replayed")
    return replace(
        _freed(delivery),
        state="queued",
        attempts=0,
        hard=0,
        ours=0,
        first_ms=0,
        due_ms=now_ms,
        ended_ms=0,
        replayed_ms=now_ms,
        code="",
        message="",
    )


def lapse(delivery: Delivery, now_ms: int) -> Delivery:
    """A held delivery whose turn or event is not stored any more: resumed, it could not be sent."""
    if delivery.state != "held":
        raise _unexpected(delivery, "ended while it was held")
    code, what = ("turn_expired", "turn") if delivery.turn else ("event_expired", "event")
    message = (
        f"{what} {delivery.turn or delivery.event_id} is not stored any more; the delivery was held: {delivery.message}"
    )
    return replace(_freed(delivery), state="dead", due_ms=0, ended_ms=now_ms, code=code, message=message)


def put_back(delivery: Delivery, now_ms: int) -> Delivery:
    """A dead log entry as it is left when the log has the entry again: whoever reads that may make deliveries of it."""
    if delivery.state != "dead" or delivery.destination:
        raise _unexpected(delivery, "put back")
    return replace(_freed(delivery), state="cancelled", ended_ms=now_ms)


def _logged(  # noqa: PLR0913, PLR0917 - what an attempt leaves behind
    delivery: Delivery, now_ms: int, code: str, message: str, sent: Sent, evidence: Evidence | None
) -> Delivery:
    number = delivery.log[-1].number + 1 if delivery.log else 1
    took_ms = 0 if evidence is None else evidence.total_ms
    log = (*delivery.log, Attempt(number, now_ms, code, message, sent, took_ms))
    if len(log) > LOG_LENGTH:
        log = (log[0], *log[-(LOG_LENGTH - 1) :])
    return replace(_freed(delivery), log=log)


def _freed(delivery: Delivery) -> Delivery:
    return replace(delivery, token="", lease_ms=0, version=delivery.version + 1)


def _unexpected(delivery: Delivery, event: str) -> LocalProtocolError:
    return LocalProtocolError(f"delivery {delivery.id} is {delivery.state} (due {delivery.due_ms}) and was {event}")
