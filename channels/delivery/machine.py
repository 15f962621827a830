"""What a delivery does next.

What belongs here: the transitions, as functions from a delivery and what happened to the delivery that follows.
What must not be known here: where deliveries are stored, who sends them, the clock.

    from                  event                         to
    queued, waiting       claim, its time has come      in_flight     the attempt counts before it is made
    in_flight             Delivered                     delivered
    in_flight             Deferred, attempts left       waiting       due after the backoff
    in_flight             Deferred, none left           dead          attempts_spent
    in_flight             Rejected                      dead          the outcome's own code
    in_flight             expire, its lease has ended   as Deferred   the attempt's outcome is unknown
    in_flight             release                       queued        nothing was sent: the attempt does not count
    queued, waiting       put_right                     the same      due now: its time was of another clock
    in_flight             put_right                     the same      for one lease more: its sender may live
    dead                  replay                        queued        a new series of attempts, the same id
    dead, a log entry     put_back                      cancelled     the entry is in the log again

Every other pair is a bug of ours: it raises `LocalProtocolError` and changes nothing.
"""

from dataclasses import replace

from channels.delivery.backoff import Backoff
from channels.delivery.model import LIVE, Attempt, Deferred, Delivered, Delivery, Outcome, Rejected, Sent
from worker.errors import LocalProtocolError

LOG_LENGTH = 10

LEASE_EXPIRED = Deferred(
    None, "lease_expired", "the sender vanished during the attempt; whether it was received is unknown", "perhaps"
)


def claim(delivery: Delivery, token: str, now_ms: int, lease_ms: int) -> Delivery:
    """The delivery as the claim `token` holds it: one more attempt has begun, for `lease_ms` at most."""
    if delivery.state not in {"queued", "waiting"} or delivery.due_ms > now_ms:
        raise _unexpected(delivery, "claimed")
    return replace(
        delivery,
        state="in_flight",
        attempts=delivery.attempts + 1,
        token=token,
        version=delivery.version + 1,
        due_ms=now_ms + lease_ms,
    )


def settle(delivery: Delivery, outcome: Outcome, now_ms: int, jitter: float, backoff: Backoff) -> Delivery:
    """The delivery after its attempt ended in `outcome`. `jitter`: chance, from 0 to 1."""
    if delivery.state != "in_flight":
        raise _unexpected(delivery, f"settled as {type(outcome).__name__}")
    if isinstance(outcome, Delivered):
        logged = _logged(delivery, now_ms, f"http_{outcome.status}", "", "yes")
        return replace(logged, state="delivered", due_ms=0, ended_ms=now_ms, code="", message="")
    logged = _logged(delivery, now_ms, outcome.code, outcome.message, outcome.sent)
    if isinstance(outcome, Rejected):
        return replace(logged, state="dead", due_ms=0, ended_ms=now_ms, code=outcome.code, message=outcome.message)
    if delivery.attempts >= backoff.attempts:
        reason = f"all {delivery.attempts} attempts failed, the last with {outcome.code}: {outcome.message}"
        return replace(logged, state="dead", due_ms=0, ended_ms=now_ms, code="attempts_spent", message=reason)
    due_ms = now_ms + backoff.wait_ms(delivery.attempts, jitter, outcome.retry_after)
    return replace(logged, state="waiting", due_ms=due_ms, code=outcome.code, message=outcome.message)


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


def release(delivery: Delivery, now_ms: int, after_ms: int = 0) -> Delivery:
    """The delivery given back unsent: due then, the attempt does not count."""
    if delivery.state != "in_flight":
        raise _unexpected(delivery, "released")
    return replace(
        delivery,
        state="queued",
        attempts=delivery.attempts - 1,
        token="",
        version=delivery.version + 1,
        due_ms=now_ms + after_ms,
    )


def replay(delivery: Delivery, now_ms: int) -> Delivery:
    """A dead delivery made due again, with all its attempts before it."""
    if delivery.state != "dead" or not delivery.destination:
        raise _unexpected(delivery, "replayed")
    return replace(
        delivery,
        state="queued",
        attempts=0,
        version=delivery.version + 1,
        due_ms=now_ms,
        ended_ms=0,
        code="",
        message="",
    )


def put_back(delivery: Delivery, now_ms: int) -> Delivery:
    """A dead log entry as it is left when the log has the entry again: whoever reads that may make deliveries of it."""
    if delivery.state != "dead" or delivery.destination:
        raise _unexpected(delivery, "put back")
    return replace(delivery, state="cancelled", version=delivery.version + 1, ended_ms=now_ms)


def _logged(delivery: Delivery, now_ms: int, code: str, message: str, sent: Sent) -> Delivery:
    number = delivery.log[-1].number + 1 if delivery.log else 1
    log = (*delivery.log, Attempt(number, now_ms, code, message, sent))
    if len(log) > LOG_LENGTH:
        log = (log[0], *log[-(LOG_LENGTH - 1) :])
    return replace(delivery, log=log, token="", version=delivery.version + 1)


def _unexpected(delivery: Delivery, event: str) -> LocalProtocolError:
    return LocalProtocolError(f"delivery {delivery.id} is {delivery.state} (due {delivery.due_ms}) and was {event}")
