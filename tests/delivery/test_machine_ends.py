"""Whatever a delivery fails with, it ends, and what is stored of it is told by versions and a log of bounded length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery import machine
from channels.delivery.backoff import OURS_ATTEMPTS, THROTTLE_LEAST_S, Backoff
from channels.delivery.model import Delivery, Failed, Kind

LEASE_MS = 40_000

kinds: st.SearchStrategy[Kind] = st.sampled_from(["ours", "transient", "permanent", "throttled"])
backoffs = st.builds(
    Backoff,
    schedule_s=st.lists(st.floats(0, 50), max_size=40).map(tuple),
    retry_after_cap_s=st.floats(0, 100),
    hard_attempts=st.integers(1, 5),
    give_up_s=st.floats(0, 120),
    head_wait_s=st.none() | st.floats(0, 120),
)


def made(mailbox: str) -> Delivery:
    return Delivery("dlv_1", "evt_1", "turn_1", "turn.completed", "crm", 1, 1, mailbox=mailbox)


@pytest.mark.requirement("delivery:machine:ends")
@given(backoffs, st.sampled_from(["", "room/1"]), st.data())
def test_whatever_it_fails_with_a_delivery_is_dead_after_bounded_attempts_and_time(
    backoff: Backoff, mailbox: str, data: st.DataObject
) -> None:
    delivery, made_attempts, counted, hard = made(mailbox), 0, 0, 0
    # One kind and one wish all along is the longest life; a mixture is drawn too.
    always = data.draw(st.none() | st.builds(Failed, kinds, st.just("c"), st.just("m"), st.just("no"), st.floats()))
    most = round(backoff.give_up_s / min(THROTTLE_LEAST_S, 0.8)) + backoff.attempts + OURS_ATTEMPTS
    while delivery.state != "dead":
        now_ms = max(1, delivery.due_ms)
        delivery = machine.claim(delivery, "claim", now_ms, LEASE_MS)
        failure = always or Failed(data.draw(kinds), "c", "m", "no", data.draw(st.none() | st.floats()))
        counted += failure.kind in {"transient", "permanent"}
        hard += failure.kind == "permanent"
        delivery = machine.settle(delivery, failure, now_ms, data.draw(st.floats(0, 1)), backoff)
        made_attempts += 1
        assert delivery.attempts == counted <= backoff.attempts
        assert delivery.hard == hard <= backoff.hard_attempts
        assert made_attempts <= most
    assert delivery.ended_ms <= delivery.first_ms + backoff.give_up_s * 1000
    assert delivery.code
    assert len(delivery.log) == min(made_attempts, machine.LOG_LENGTH)


@pytest.mark.requirement("delivery:machine:retried-then-dead")
def test_a_long_log_keeps_its_first_attempt_and_the_latest_ones() -> None:
    delivery, refused = made(""), Failed("transient", "connection_refused", "nobody listens", "no")
    endless = Backoff(schedule_s=(1.0,) * 40)
    for number in range(1, 31):
        claimed = machine.claim(delivery, f"claim-{number}", delivery.due_ms, LEASE_MS)
        delivery = machine.settle(claimed, refused, claimed.due_ms, 0.5, endless)
    assert [attempt.number for attempt in delivery.log] == [1, *range(22, 31)]


@pytest.mark.requirement("delivery:machine:illegal-pairs")
def test_every_stored_change_raises_the_version_but_a_time_put_right() -> None:
    refused, backoff = Failed("transient", "connection_refused", "nobody listens", "no"), Backoff((5.0, 30.0))
    steps = [made("")]
    steps.append(machine.claim(steps[-1], "claim", 1, LEASE_MS))
    steps.append(machine.release(steps[-1], 1))
    steps.append(machine.claim(steps[-1], "claim", 1, LEASE_MS))
    steps.append(machine.settle(steps[-1], refused, 1, 0.5, backoff))
    steps.append(machine.hold(steps[-1], "paused", ""))
    steps.append(machine.replay(steps[-1], 1))
    steps.append(machine.claim(steps[-1], "claim", 1, LEASE_MS))
    steps.append(machine.expire(steps[-1], 1 + LEASE_MS, 0.5, backoff))
    assert machine.put_right(steps[-1], 1, LEASE_MS).version == steps[-1].version
    steps.append(machine.cancel(steps[-1], 1, "cancelled", ""))
    assert [step.version for step in steps] == list(range(1, 11))
