"""What a delivery does next, told as playbooks: what happened, and what must follow."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from channels.delivery import machine
from channels.delivery.backoff import OURS_ATTEMPTS, SCHEDULE_S, Backoff
from channels.delivery.model import Delivered, Delivery, Evidence, Failed, Hopeless, Outcome, State, Withdrawn
from worker.errors import LocalProtocolError

LEASE_MS = 40_000
DAY_MS = 86_400_000
BACKOFF = Backoff(schedule_s=(5.0, 30.0))

REFUSED = Failed("transient", "connection_refused", "nobody listens at hooks.example", "no")
NOT_FOUND = Failed("permanent", "http_404", "hooks.example answered 404", "yes")
GONE = Failed("permanent", "http_410", "hooks.example answered 410", "yes", gone=True)
BUSY = Failed("throttled", "http_429", "hooks.example answered 429", "yes", retry_after=60.0)
OURS = Failed("ours", "cannot_sign", "the key of crm cannot be read", "no")


def made(state: State = "queued", mailbox: str = "") -> Delivery:
    return Delivery(
        id="dlv_00" + "a" * 20,
        event_id="evt_1",
        turn="turn_00" + "b" * 20,
        event_type="turn.completed",
        destination="crm",
        created_ms=1_000,
        due_ms=1_000,
        lane="crm",
        mailbox=mailbox,
        state=state,
    )


class Play:
    """A delivery and the clock it lives by."""

    def __init__(self, backoff: Backoff = BACKOFF, *, mailbox: str = "") -> None:
        self.delivery = made(mailbox=mailbox)
        self.now_ms = 1_000
        self._backoff = backoff
        self._claims = 0

    def claimed(self) -> "Play":
        self._claims += 1
        self.now_ms = max(self.now_ms, self.delivery.due_ms)
        self.delivery = machine.claim(self.delivery, f"claim-{self._claims}", self.now_ms, LEASE_MS)
        return self

    def settled(self, outcome: Outcome) -> "Play":
        self.now_ms += 100
        self.delivery = machine.settle(self.delivery, outcome, self.now_ms, 0.5, self._backoff)
        return self

    def tried(self, *outcomes: Outcome) -> "Play":
        for outcome in outcomes:
            self.claimed().settled(outcome)
        return self

    def expired(self) -> "Play":
        self.now_ms = self.delivery.due_ms
        self.delivery = machine.expire(self.delivery, self.now_ms, 0.5, self._backoff)
        return self

    def released(self, after_ms: int = 0) -> "Play":
        self.delivery = machine.release(self.delivery, self.now_ms, after_ms, self._backoff)
        return self

    def expect(self, state: State, *, attempts: int, due_in_ms: int | None = None, code: str = "") -> "Play":
        assert (self.delivery.state, self.delivery.attempts, self.delivery.code) == (state, attempts, code)
        assert self.delivery.due_ms == (0 if due_in_ms is None else self.now_ms + due_in_ms)
        assert self.delivery.ended_ms == (self.now_ms if state in {"delivered", "dead", "cancelled"} else 0)
        assert bool(self.delivery.token) == (state == "in_flight")
        return self


@pytest.mark.requirement("delivery:machine:delivered")
def test_a_taken_delivery_is_delivered_and_done() -> None:
    play = Play().claimed().expect("in_flight", attempts=1, due_in_ms=LEASE_MS)
    play.settled(Delivered(204, Evidence(204, 83))).expect("delivered", attempts=1)
    assert [(one.code, one.sent, one.took_ms) for one in play.delivery.log] == [("http_204", "yes", 83)]


@pytest.mark.requirement("delivery:machine:delivered")
def test_what_is_taken_at_last_has_no_reason_any_more() -> None:
    play = Play().tried(REFUSED, OURS, Delivered(200)).expect("delivered", attempts=2)
    assert (play.delivery.message, play.delivery.ours) == ("", 0)


@pytest.mark.requirement("delivery:machine:retried-then-dead")
def test_a_delivery_whose_receiver_fails_for_now_waits_longer_each_time_and_is_dead_when_its_attempts_are_spent() -> (
    None
):
    play = Play()
    play.tried(REFUSED).expect("waiting", attempts=1, due_in_ms=5_000, code="connection_refused")
    assert (play.delivery.message, play.delivery.log[-1].took_ms) == (REFUSED.message, 0)
    play.tried(REFUSED).expect("waiting", attempts=2, due_in_ms=30_000, code="connection_refused")
    play.tried(REFUSED).expect("dead", attempts=3, code="attempts_spent")
    assert play.delivery.message == (
        "all 3 attempts failed, the last with connection_refused: nobody listens at hooks.example"
    )


@pytest.mark.requirement("delivery:machine:retried-then-dead")
def test_a_wait_that_a_failing_receiver_asked_for_is_kept() -> None:
    play = Play().tried(replace(REFUSED, retry_after=120.0))
    play.expect("waiting", attempts=1, due_in_ms=120_000, code="connection_refused")


@pytest.mark.requirement("delivery:machine:forty")
def test_a_limit_of_forty_attempts_is_honoured_whatever_else_happens_in_between() -> None:
    play = Play(Backoff(schedule_s=(60.0,) * 39))
    for number in range(1, 40):
        play.tried(OURS, BUSY, REFUSED).expect("waiting", attempts=number, due_in_ms=60_000, code="connection_refused")
        play.claimed().released()
    play.tried(REFUSED).expect("dead", attempts=40, code="attempts_spent")
    assert play.delivery.log[-1].number == 39 * 3 + 1


@pytest.mark.requirement("delivery:machine:permanent")
def test_a_receiver_that_fails_for_good_is_asked_four_times_in_half_an_hour() -> None:
    play = Play(Backoff())
    for attempt, wait_s in enumerate(SCHEDULE_S[:3], 1):
        play.tried(NOT_FOUND).expect("waiting", attempts=attempt, due_in_ms=round(wait_s * 1000), code="http_404")
    play.tried(NOT_FOUND).expect("dead", attempts=4, code="http_404")
    assert play.delivery.message == "hooks.example answered 404"


@pytest.mark.requirement("delivery:machine:permanent")
def test_only_the_attempts_that_failed_for_good_count_against_the_shorter_budget() -> None:
    play = Play(Backoff(hard_attempts=2)).tried(REFUSED, NOT_FOUND, REFUSED, REFUSED, BUSY, OURS)
    assert play.delivery.hard == 1
    play.tried(NOT_FOUND).expect("dead", attempts=5, code="http_404")


@pytest.mark.requirement("delivery:machine:permanent")
def test_the_shorter_budget_is_never_the_longer_one() -> None:
    Play(Backoff((5.0,), hard_attempts=4)).tried(NOT_FOUND, NOT_FOUND).expect("dead", attempts=2, code="http_404")
    Play(Backoff((5.0,), hard_attempts=2)).tried(REFUSED, NOT_FOUND).expect("dead", attempts=2, code="attempts_spent")


@pytest.mark.requirement("delivery:machine:gone")
def test_a_receiver_that_wants_nothing_any_more_is_not_asked_again() -> None:
    play = Play().tried(GONE).expect("dead", attempts=1, code="http_410")
    assert play.delivery.message == "hooks.example answered 410"


@pytest.mark.requirement("delivery:machine:throttled")
def test_five_times_throttled_a_delivery_has_its_whole_budget_left() -> None:
    play = Play()
    for _ in range(5):
        play.tried(BUSY).expect("waiting", attempts=0, due_in_ms=66_000, code="http_429")
    play.tried(REFUSED).expect("waiting", attempts=1, due_in_ms=5_000, code="connection_refused")
    play.tried(REFUSED, REFUSED).expect("dead", attempts=3, code="attempts_spent")


@pytest.mark.requirement("delivery:machine:ours")
def test_a_fault_of_our_own_spends_no_attempt_and_ends_after_twelve_in_a_row_with_its_own_code() -> None:
    play = Play()
    for number in range(1, OURS_ATTEMPTS):
        wait_ms = min(1_000 * 2 ** (number - 1), 300_000)
        play.tried(OURS).expect("waiting", attempts=0, due_in_ms=wait_ms, code="cannot_sign")
    play.tried(OURS).expect("dead", attempts=0, code="cannot_sign")
    assert OURS_ATTEMPTS == 12


@pytest.mark.requirement("delivery:machine:ours")
@pytest.mark.parametrize("answer", [REFUSED, NOT_FOUND, BUSY])
def test_only_faults_of_our_own_in_a_row_add_up(answer: Failed) -> None:
    play = Play(Backoff()).tried(*(OURS,) * 11, answer)
    assert play.delivery.ours == 0
    play.tried(*(OURS,) * 11)
    assert play.delivery.state == "waiting"


@pytest.mark.requirement("delivery:machine:gives-up")
@pytest.mark.parametrize("failure", [REFUSED, NOT_FOUND, BUSY, OURS])
def test_no_attempt_is_planned_for_later_than_the_give_up_age(failure: Failed) -> None:
    waited = Play(Backoff((60.0,) * 9, give_up_s=1e9)).tried(failure)
    age_s = (waited.delivery.due_ms - waited.delivery.first_ms) / 1000
    Play(Backoff((60.0,) * 9, give_up_s=age_s)).tried(failure).expect(
        "waiting", attempts=waited.delivery.attempts, due_in_ms=round(age_s * 1000) - 100, code=failure.code
    )
    play = Play(Backoff((60.0,) * 9, give_up_s=age_s - 0.001)).tried(failure)
    play.expect("dead", attempts=waited.delivery.attempts, code="gave_up")
    assert f"the last attempt failed with {failure.code}: {failure.message}" in play.delivery.message


@pytest.mark.requirement("delivery:machine:gives-up")
def test_a_receiver_that_only_ever_asks_to_wait_is_given_up_after_five_days() -> None:
    play = Play(Backoff())
    while play.delivery.state != "dead":
        play.tried(replace(BUSY, retry_after=36_000.0))
    play.expect("dead", attempts=0, code="gave_up")
    assert 4 * DAY_MS < play.now_ms - play.delivery.first_ms <= 5 * DAY_MS


@pytest.mark.requirement("delivery:machine:gives-up")
def test_to_be_given_back_does_not_make_a_delivery_younger() -> None:
    play = Play(Backoff(give_up_s=600)).tried(BUSY).claimed().released()
    assert (play.delivery.first_ms, play.delivery.attempts) == (1_000, 0)
    play.tried(replace(BUSY, retry_after=700.0)).expect("dead", attempts=0, code="gave_up")
    at_once = machine.settle(machine.claim(made(), "claim", 1_000, LEASE_MS), BUSY, 1_000, 0.5, BACKOFF)
    again = machine.release(machine.claim(at_once, "claim", at_once.due_ms, LEASE_MS), at_once.due_ms)
    assert again.first_ms == 1_000


@pytest.mark.requirement("delivery:machine:gives-up")
def test_a_first_attempt_written_by_a_clock_ahead_is_as_old_as_the_next() -> None:
    delivery = replace(made(), first_ms=1_000 + 30 * DAY_MS)
    assert machine.claim(delivery, "claim", 1_000, LEASE_MS).first_ms == 1_000


@pytest.mark.requirement("delivery:machine:head-wait")
def test_the_head_of_a_mailbox_is_dead_when_those_behind_it_would_wait_too_long() -> None:
    patient = Backoff((5.0, 30.0, 300.0), head_wait_s=36)
    play = Play(patient, mailbox="room/1").tried(REFUSED, REFUSED)
    assert (play.delivery.state, play.delivery.due_ms - play.delivery.first_ms) == ("waiting", 35_200)
    play.tried(REFUSED).expect("dead", attempts=3, code="head_wait")
    assert play.delivery.message.startswith("those behind it in order would wait for more than 36 s; ")
    Play(patient).tried(REFUSED, REFUSED, REFUSED).expect(
        "waiting", attempts=3, due_in_ms=300_000, code="connection_refused"
    )
    exact = replace(patient, head_wait_s=35.2)
    assert Play(exact, mailbox="room/1").tried(REFUSED, REFUSED).delivery.state == "waiting"
    late = replace(patient, head_wait_s=35.199)
    assert Play(late, mailbox="room/1").tried(REFUSED, REFUSED).delivery.code == "head_wait"


@pytest.mark.requirement("delivery:machine:head-wait")
def test_a_head_that_is_given_back_again_and_again_is_dead_when_those_behind_it_would_wait_too_long() -> None:
    patient = Backoff(head_wait_s=60)
    play = Play(patient, mailbox="room/1").claimed().released(30_000).claimed().released(30_000)
    play.expect("queued", attempts=0, due_in_ms=30_000)
    play.claimed().released(1).expect("dead", attempts=0, code="head_wait")
    assert (play.delivery.token, play.delivery.ended_ms) == ("", play.now_ms)
    assert play.delivery.message.startswith("those behind it in order would wait for more than 60 s; ")
    for in_none in (Play(patient), Play(Backoff(), mailbox="room/1")):
        in_none.claimed().released(90_000).claimed().released(90_000).expect("queued", attempts=0, due_in_ms=90_000)
        assert in_none.delivery.first_ms == 0


@pytest.mark.requirement("delivery:machine:head-wait")
def test_the_time_in_which_nobody_came_for_a_head_is_not_its_own() -> None:
    play = Play(Backoff(head_wait_s=60), mailbox="room/1").claimed().released(30_000)
    play.now_ms += 30_000 + DAY_MS  # nothing ran
    play.claimed()
    play.now_ms += LEASE_MS + DAY_MS  # the store was away
    play.released()
    assert play.now_ms - play.delivery.first_ms == 30_000 + LEASE_MS
    play.expect("dead", attempts=0, code="head_wait")


@pytest.mark.requirement("delivery:machine:gives-up-unattempted")
@pytest.mark.parametrize("tried", [(), (REFUSED,)])
def test_what_waits_for_too_long_for_a_receiver_that_takes_nothing_is_given_up(tried: tuple[Outcome, ...]) -> None:
    backoff = Backoff(give_up_s=600)
    one = Play(backoff).tried(*tried).delivery
    now_ms = 10 * DAY_MS
    assert machine.give_up(one, 1, 601_000, now_ms, backoff) is None  # made at 1,000
    assert machine.give_up(one, 5_000, 605_000, now_ms, backoff) is None
    assert machine.give_up(replace(one, replayed_ms=9_000), 5_000, 609_000, now_ms, backoff) is None
    dead = machine.give_up(one, 5_000, 605_001, now_ms, backoff)
    assert dead is not None
    assert (dead.state, dead.code, dead.ended_ms, dead.due_ms) == ("dead", "gave_up", now_ms, 0)
    assert (dead.attempts, dead.version) == (len(tried), one.version + 1)
    assert ("its last attempt failed with connection_refused" in dead.message) == bool(tried)


@pytest.mark.requirement("delivery:clock:due")
def test_what_is_rightly_due_later_is_told_from_what_a_clock_ahead_has_written() -> None:
    now_ms = 100 * DAY_MS
    queued = made()
    assert not machine.is_early(replace(queued, due_ms=now_ms), now_ms)
    assert machine.is_early(replace(queued, due_ms=now_ms + 60_000), now_ms)
    assert not machine.is_early(replace(queued, due_ms=now_ms + 60_001), now_ms)
    waits = Play().tried(REFUSED).delivery
    rightly = replace(waits, due_ms=now_ms + 8 * DAY_MS)
    assert machine.is_early(rightly, now_ms)
    assert not machine.is_early(replace(rightly, due_ms=now_ms + 9 * DAY_MS), now_ms)
    of_ahead = replace(waits.log[-1], at_ms=now_ms + 60_001)
    assert not machine.is_early(replace(rightly, log=(of_ahead,)), now_ms)


@pytest.mark.requirement("delivery:machine:unsendable")
def test_what_has_nothing_to_tell_is_dead_and_what_has_nobody_to_tell_it_to_is_cancelled() -> None:
    for outcome, state in ((Hopeless("turn_gone", "not stored"), "dead"), (Withdrawn("no_endpoint", "x"), "cancelled")):
        play = Play().tried(REFUSED, outcome)
        play.expect(state, attempts=1, code=outcome.code)  # type: ignore[arg-type]
        assert play.delivery.message == outcome.message
        assert len(play.delivery.log) == 1


@pytest.mark.requirement("delivery:machine:lease-expired")
def test_an_attempt_whose_sender_vanished_counts_as_unknown_and_is_made_again_under_the_same_id() -> None:
    play = Play()
    first = play.delivery.id
    play.claimed().expired().expect("waiting", attempts=1, due_in_ms=5_000, code="lease_expired")
    assert play.delivery.log[-1].sent == "perhaps"
    play.claimed().expect("in_flight", attempts=2, due_in_ms=LEASE_MS, code="lease_expired")
    assert play.delivery.id == first


@pytest.mark.requirement("delivery:machine:lease-expired")
def test_senders_that_always_vanish_do_not_retry_for_ever() -> None:
    play = Play()
    play.claimed().expired().claimed().expired().claimed().expired().expect("dead", attempts=3, code="attempts_spent")


@pytest.mark.requirement("delivery:machine:lease-expired")
def test_a_lease_that_still_runs_does_not_expire() -> None:
    play = Play().claimed()
    with pytest.raises(LocalProtocolError, match="expired before its lease"):
        machine.expire(play.delivery, play.delivery.due_ms - 1, 0.5, BACKOFF)


@pytest.mark.requirement("delivery:machine:released")
def test_a_delivery_given_back_unsent_is_as_if_it_had_never_been_claimed() -> None:
    play = Play().claimed().released().expect("queued", attempts=0, due_in_ms=0)
    assert (play.delivery.log, play.delivery.first_ms) == ((), 0)
    play.claimed().released(700).expect("queued", attempts=0, due_in_ms=700)


@pytest.mark.requirement("delivery:machine:held")
@pytest.mark.parametrize("tried", [(), (REFUSED,)])
def test_a_held_delivery_waits_for_nobody_and_is_replayed_or_cancelled(tried: tuple[Outcome, ...]) -> None:
    play = Play().tried(*tried)
    play.delivery = machine.hold(play.delivery, "disabled", "crm is disabled")
    play.expect("held", attempts=len(tried), code="disabled")
    assert play.delivery.message == "crm is disabled"
    again = machine.replay(play.delivery, play.now_ms)
    assert (again.state, again.due_ms, again.attempts, again.code) == ("queued", play.now_ms, 0, "")
    play.delivery = machine.cancel(play.delivery, play.now_ms, "cancelled", "by an operator")
    play.expect("cancelled", attempts=len(tried), code="cancelled")


@pytest.mark.requirement("delivery:machine:lapsed")
@pytest.mark.parametrize(("turn", "code"), [("turn_00", "turn_expired"), ("", "event_expired")])
def test_a_held_delivery_with_nothing_left_to_tell_is_dead_and_says_why_it_was_held(turn: str, code: str) -> None:
    play = Play()
    play.delivery = machine.hold(replace(play.delivery, turn=turn), "disabled", "crm is disabled")
    play.delivery = machine.lapse(play.delivery, play.now_ms)
    play.expect("dead", attempts=0, code=code)
    assert play.delivery.ended_ms == play.now_ms
    assert (turn or play.delivery.event_id) in play.delivery.message
    assert play.delivery.message.endswith("crm is disabled")


@pytest.mark.requirement("delivery:machine:cancelled")
@pytest.mark.parametrize("tried", [(), (REFUSED,)])
def test_a_delivery_that_is_not_to_be_sent_any_more_is_cancelled_with_the_reason(tried: tuple[Outcome, ...]) -> None:
    play = Play().tried(*tried)
    play.delivery = machine.cancel(play.delivery, play.now_ms, "endpoint_removed", "crm was removed")
    play.expect("cancelled", attempts=len(tried), code="endpoint_removed")
    assert play.delivery.message == "crm was removed"


@pytest.mark.requirement("delivery:machine:replayed")
def test_a_replayed_delivery_starts_a_new_series_and_remembers_the_old_one() -> None:
    play = Play(replace(BACKOFF, hard_attempts=2)).tried(*(OURS,) * 3, NOT_FOUND, NOT_FOUND)
    id_, old = play.delivery.id, len(play.delivery.log)
    play.now_ms += 10 * DAY_MS
    play.delivery = machine.replay(play.delivery, play.now_ms)
    play.expect("queued", attempts=0, due_in_ms=0)
    assert play.delivery.replayed_ms == play.now_ms
    assert (play.delivery.hard, play.delivery.ours, play.delivery.first_ms, play.delivery.message) == (0, 0, 0, "")
    play.tried(NOT_FOUND).expect("waiting", attempts=1, due_in_ms=5_000, code="http_404")
    play.tried(Delivered(200)).expect("delivered", attempts=2)
    assert [one.number for one in play.delivery.log] == list(range(1, old + 3))
    assert play.delivery.id == id_


@pytest.mark.requirement("delivery:machine:replayed-twice")
def test_each_replay_of_what_died_again_is_an_attempt_of_its_own_under_the_same_id() -> None:
    play = Play().tried(GONE)
    for number in (2, 3, 4):
        play.delivery = machine.replay(play.delivery, play.now_ms)
        play.tried(GONE).expect("dead", attempts=1, code="http_410")
        assert (play.delivery.log[-1].number, play.delivery.id) == (number, made().id)


@pytest.mark.requirement("delivery:machine:replayed")
def test_a_delivery_that_died_of_our_own_faults_is_replayed_with_all_of_their_budget() -> None:
    play = Play().tried(*(OURS,) * OURS_ATTEMPTS)
    assert machine.replay(play.delivery, play.now_ms).ours == 0


@pytest.mark.requirement("delivery:machine:replayed")
def test_a_replayed_delivery_that_is_given_back_before_its_first_attempt_has_not_begun() -> None:
    play = Play().tried(GONE)
    play.now_ms += 1
    play.delivery = machine.replay(play.delivery, play.now_ms)
    assert play.claimed().released().delivery.first_ms == 0


STATES: tuple[State, ...] = ("queued", "in_flight", "waiting", "delivered", "dead", "held", "cancelled")


@pytest.mark.requirement("delivery:machine:illegal-pairs")
@pytest.mark.parametrize("state", STATES)
def test_a_step_that_the_state_does_not_allow_raises_and_names_both(state: State) -> None:
    delivery = replace(made(), state=state)
    steps: dict[str, tuple[set[str], Callable[[], Delivery]]] = {
        "claimed": ({"queued", "waiting"}, lambda: machine.claim(delivery, "claim", 1_000, LEASE_MS)),
        "settled": ({"in_flight"}, lambda: machine.settle(delivery, REFUSED, 1_000, 0.5, BACKOFF)),
        "put right": ({"queued", "waiting", "in_flight"}, lambda: machine.put_right(delivery, 1_000, LEASE_MS)),
        "released": ({"in_flight"}, lambda: machine.release(delivery, 1_000)),
        "given up": ({"queued", "waiting"}, lambda: machine.give_up(delivery, 1, 2, 1_000, BACKOFF) or delivery),
        "held": ({"queued", "waiting"}, lambda: machine.hold(delivery, "paused", "")),
        "cancelled": ({"queued", "waiting", "held"}, lambda: machine.cancel(delivery, 1_000, "cancelled", "")),
        "replayed": ({"dead", "held"}, lambda: machine.replay(delivery, 1_000)),
        "ended while it was held": ({"held"}, lambda: machine.lapse(delivery, 1_000)),
        "put back": ({"dead"}, lambda: machine.put_back(replace(delivery, destination=""), 1_000)),
    }
    for name, (allowed, step) in steps.items():
        if state in allowed:
            step()
        else:
            with pytest.raises(LocalProtocolError, match=f"is {state} .* was {name}"):
                step()


@pytest.mark.requirement("delivery:machine:illegal-pairs")
def test_a_claim_before_the_delivery_is_due_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="claimed"):
        machine.claim(made(), "claim", 999, LEASE_MS)


@pytest.mark.requirement("delivery:clock:due")
def test_a_time_of_another_clock_is_put_right_and_nothing_else() -> None:
    play = Play().claimed()
    assert machine.put_right(play.delivery, 5, LEASE_MS) == replace(play.delivery, due_ms=5 + LEASE_MS)
    play.settled(REFUSED)
    assert machine.put_right(play.delivery, 5, LEASE_MS) == replace(play.delivery, due_ms=5)


@pytest.mark.requirement("delivery:machine:illegal-pairs")
def test_a_dead_log_entry_is_put_back_and_never_sent_itself() -> None:
    entry = replace(made("dead"), destination="", ended_ms=1_000)
    with pytest.raises(LocalProtocolError, match="replayed"):
        machine.replay(entry, 2_000)
    with pytest.raises(LocalProtocolError, match="put back"):
        machine.put_back(made("dead"), 2_000)
    back = machine.put_back(entry, 2_000)
    assert (back.state, back.ended_ms, back.version) == ("cancelled", 2_000, entry.version + 1)
