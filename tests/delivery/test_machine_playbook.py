"""What a delivery does next, told as playbooks: what happened, and what must follow."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from channels.delivery import machine, model
from channels.delivery.backoff import Backoff
from channels.delivery.model import Deferred, Delivered, Delivery, Outcome, Rejected, State
from worker.errors import LocalProtocolError

LEASE_MS = 40_000
BACKOFF = Backoff(schedule_s=(5.0, 30.0))
REFUSED = Deferred(None, "connection_refused", "nobody listens at hooks.example", "no")


def made(state: State = "queued") -> Delivery:
    return Delivery(
        id="dlv_00" + "a" * 20,
        event_id="evt_1",
        turn="turn_00" + "b" * 20,
        event_type="turn.completed",
        destination="crm",
        created_ms=1_000,
        due_ms=1_000,
        state=state,
    )


class Play:
    """A delivery and the clock it lives by."""

    def __init__(self) -> None:
        self.delivery = made()
        self.now_ms = 1_000
        self._claims = 0

    def claimed(self) -> "Play":
        self._claims += 1
        self.now_ms = max(self.now_ms, self.delivery.due_ms)
        self.delivery = machine.claim(self.delivery, f"claim-{self._claims}", self.now_ms, LEASE_MS)
        return self

    def settled(self, outcome: Outcome) -> "Play":
        self.now_ms += 100
        self.delivery = machine.settle(self.delivery, outcome, self.now_ms, 0.5, BACKOFF)
        return self

    def expired(self) -> "Play":
        self.now_ms = self.delivery.due_ms
        self.delivery = machine.expire(self.delivery, self.now_ms, 0.5, BACKOFF)
        return self

    def expect(self, state: State, *, attempts: int, due_in_ms: int | None = None, code: str = "") -> "Play":
        assert (self.delivery.state, self.delivery.attempts, self.delivery.code) == (state, attempts, code)
        assert self.delivery.due_ms == (0 if due_in_ms is None else self.now_ms + due_in_ms)
        return self


@pytest.mark.requirement("delivery:machine:delivered")
def test_a_taken_delivery_is_delivered_and_done() -> None:
    play = Play()
    play.claimed().expect("in_flight", attempts=1, due_in_ms=LEASE_MS)
    play.settled(Delivered(204)).expect("delivered", attempts=1)
    assert play.delivery.ended_ms == play.now_ms
    assert [(attempt.code, attempt.sent) for attempt in play.delivery.log] == [("http_204", "yes")]


@pytest.mark.requirement("delivery:machine:retried-then-dead")
def test_a_deferred_delivery_waits_longer_each_time_and_is_dead_when_its_attempts_are_spent() -> None:
    play = Play()
    play.claimed().settled(REFUSED).expect("waiting", attempts=1, due_in_ms=5_000, code="connection_refused")
    play.claimed().settled(REFUSED).expect("waiting", attempts=2, due_in_ms=30_000, code="connection_refused")
    play.claimed().settled(REFUSED).expect("dead", attempts=3, code="attempts_spent")
    assert play.delivery.message == (
        "all 3 attempts failed, the last with connection_refused: nobody listens at hooks.example"
    )


def test_a_wait_that_the_receiver_asked_for_is_kept() -> None:
    play = Play()
    play.claimed().settled(Deferred(120.0, "http_429", "too many requests", "yes"))
    play.expect("waiting", attempts=1, due_in_ms=120_000, code="http_429")


@pytest.mark.requirement("delivery:machine:rejected")
def test_a_rejected_delivery_is_dead_at_once_with_the_receivers_reason() -> None:
    play = Play()
    play.claimed().settled(Rejected("http_404", "hooks.example answered 404")).expect(
        "dead", attempts=1, code="http_404"
    )
    assert play.delivery.message == "hooks.example answered 404"


@pytest.mark.requirement("delivery:machine:lease-expired")
def test_an_attempt_whose_sender_vanished_counts_as_unknown_and_is_made_again_under_the_same_id() -> None:
    play = Play()
    first = play.delivery.id
    play.claimed().expired().expect("waiting", attempts=1, due_in_ms=5_000, code="lease_expired")
    assert play.delivery.log[-1].sent == "perhaps"
    play.claimed().expect("in_flight", attempts=2, due_in_ms=LEASE_MS, code="lease_expired")
    assert play.delivery.id == first


def test_senders_that_always_vanish_do_not_retry_for_ever() -> None:
    play = Play()
    play.claimed().expired().claimed().expired().claimed().expired().expect("dead", attempts=3, code="attempts_spent")


def test_a_lease_that_still_runs_does_not_expire() -> None:
    play = Play().claimed()
    with pytest.raises(LocalProtocolError, match="expired before its lease"):
        machine.expire(play.delivery, play.delivery.due_ms - 1, 0.5, BACKOFF)


@pytest.mark.requirement("delivery:machine:released")
def test_a_delivery_given_back_unsent_is_due_now_and_its_attempt_does_not_count() -> None:
    play = Play().claimed()
    play.delivery = machine.release(play.delivery, play.now_ms)
    play.expect("queued", attempts=0, due_in_ms=0)
    assert play.delivery.log == ()


@pytest.mark.requirement("delivery:machine:replayed")
def test_a_replayed_delivery_starts_a_new_series_and_remembers_the_old_one() -> None:
    play = Play()
    play.claimed().settled(REFUSED).claimed().settled(Rejected("http_410", "gone"))
    play.delivery = machine.replay(play.delivery, play.now_ms)
    play.expect("queued", attempts=0, due_in_ms=0)
    play.claimed().settled(Delivered(200)).expect("delivered", attempts=1)
    assert [(attempt.number, attempt.code) for attempt in play.delivery.log] == [
        (1, "connection_refused"),
        (2, "http_410"),
        (3, "http_200"),
    ]


def test_a_long_log_keeps_its_first_attempt_and_the_latest_ones() -> None:
    delivery = made()
    endless = Backoff(schedule_s=(1.0,) * 40)
    for number in range(1, 31):
        claimed = machine.claim(delivery, f"claim-{number}", delivery.due_ms, LEASE_MS)
        delivery = machine.settle(claimed, REFUSED, claimed.due_ms, 0.5, endless)
    assert [attempt.number for attempt in delivery.log] == [1, *range(22, 31)]


def test_every_stored_change_raises_the_version() -> None:
    seen = [made().version]
    play = Play()
    for step in (
        play.claimed,
        lambda: play.settled(REFUSED),
        play.claimed,
        lambda: play.settled(Rejected("400", "no")),
    ):
        step()
        seen.append(play.delivery.version)
    play.delivery = machine.replay(play.delivery, play.now_ms)
    assert seen == [1, 2, 3, 4, 5]
    assert play.delivery.version == 6


STATES: tuple[State, ...] = ("queued", "in_flight", "waiting", "delivered", "dead", "held", "cancelled")


@pytest.mark.requirement("delivery:clock:due")
def test_a_time_of_another_clock_is_put_right_and_nothing_else() -> None:
    play = Play().claimed()
    assert machine.put_right(play.delivery, 5, LEASE_MS) == replace(play.delivery, due_ms=5 + LEASE_MS)
    play.settled(REFUSED)
    assert machine.put_right(play.delivery, 5, LEASE_MS) == replace(play.delivery, due_ms=5)


@pytest.mark.requirement("delivery:machine:illegal-pairs")
@pytest.mark.parametrize("state", STATES)
def test_a_step_that_the_state_does_not_allow_raises_and_names_both(state: State) -> None:
    delivery = replace(made(), state=state)
    steps: dict[str, tuple[set[str], Callable[[], Delivery]]] = {
        "claimed": ({"queued", "waiting"}, lambda: machine.claim(delivery, "claim", 1_000, LEASE_MS)),
        "settled": ({"in_flight"}, lambda: machine.settle(delivery, REFUSED, 1_000, 0.5, BACKOFF)),
        "put right": ({"queued", "waiting", "in_flight"}, lambda: machine.put_right(delivery, 1_000, LEASE_MS)),
        "released": ({"in_flight"}, lambda: machine.release(delivery, 1_000)),
        "replayed": ({"dead"}, lambda: machine.replay(delivery, 1_000)),
        "put back": ({"dead"}, lambda: machine.put_back(replace(delivery, destination=""), 1_000)),
    }
    for name, (allowed, step) in steps.items():
        if state in allowed:
            step()
        else:
            with pytest.raises(LocalProtocolError, match=f"is {state} .* was {name}"):
                step()


def test_a_dead_log_entry_is_put_back_and_never_sent_itself() -> None:
    entry = replace(made("dead"), destination="", ended_ms=1_000)
    with pytest.raises(LocalProtocolError, match="replayed"):
        machine.replay(entry, 2_000)
    with pytest.raises(LocalProtocolError, match="put back"):
        machine.put_back(made("dead"), 2_000)
    back = machine.put_back(entry, 2_000)
    assert (back.state, back.ended_ms, back.version) == ("cancelled", 2_000, entry.version + 1)


def test_a_claim_before_the_delivery_is_due_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="claimed"):
        machine.claim(made(), "claim", 999, LEASE_MS)


@pytest.mark.requirement("delivery:record:round-trip")
def test_a_stored_delivery_reads_back_whole() -> None:
    delivery = Play().claimed().settled(REFUSED).delivery
    assert model.decode(model.encode(delivery)) == delivery


@pytest.mark.requirement("delivery:record:newer-version")
@pytest.mark.parametrize(
    "stored",
    [
        b'{"v":2,"delivery":{}}',
        b'{"v":1,"delivery":{"id":"dlv_00"}}',
        b'{"v":1,"delivery":[]}',
        b'{"v":"x"}',
        b"[]",
        b"{",
        b"",
    ],
)
def test_a_record_that_cannot_be_read_is_left_alone(stored: bytes) -> None:
    assert model.decode(stored) is None


@pytest.mark.requirement("delivery:record:round-trip")
def test_a_reason_that_no_utf_8_holds_is_stored_with_a_mark_in_its_place() -> None:
    delivery = Delivery("dlv_1", "evt_1", "turn_1", "turn.failed", "crm", 1, 0, message="cannot read /data/\udcff")
    assert model.decode(model.encode(delivery)) == replace(delivery, message="cannot read /data/\ufffd")
