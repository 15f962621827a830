"""A bulk replay as a value: what it may be, what it wants, how fast it goes, and that it replays each delivery once."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery import machine
from channels.delivery import replay as replaying
from channels.delivery.backoff import Backoff
from channels.delivery.model import Delivery, Failed, State
from channels.delivery.replay import DAY_MS, PAGE, Bounds, Filters, From, Job, Page
from worker.errors import ConfigurationError

T0_MS = 1_800_000_000_000
DEAD_SINCE = Filters(("dead",), T0_MS - DAY_MS, 0)


def job(filters: Filters = DEAD_SINCE, *, rate_per_s: float = 10, most: int = 1_000) -> Job:
    return replaying.new("rpl_1", filters, rate_per_s, T0_MS, by="ops", bounds=Bounds(14, most))


def delivery(number: int, state: State = "dead", **values: object) -> Delivery:
    made = Delivery(
        id=f"dlv_{number:03}",
        event_id=f"evt_{number}",
        turn="turn_1",
        event_type="turn.completed",
        destination="crm",
        created_ms=T0_MS - 1_000 + number,
        due_ms=0,
        state=state,
        ended_ms=T0_MS - 1 if state == "dead" else 0,
    )
    return replace(made, **values)  # type: ignore[arg-type]


@pytest.mark.requirement("replays:bounds")
def test_a_replay_is_of_what_was_made_until_now() -> None:
    made = job(replace(DEAD_SINCE, states=("held", "dead", "held")))
    assert (made.filters.states, made.filters.until_ms, made.state) == (("held", "dead"), T0_MS, "running")
    assert (made.most, made.created_ms, made.by, made.version) == (1_000, T0_MS, "ops", 1)
    assert job(replace(DEAD_SINCE, until_ms=T0_MS - 5)).filters.until_ms == T0_MS - 5
    assert job(replace(DEAD_SINCE, until_ms=T0_MS + 5)).filters.until_ms == T0_MS


@pytest.mark.requirement("replays:bounds")
@pytest.mark.parametrize(
    ("filters", "rate_per_s", "told"),
    [
        (replace(DEAD_SINCE, states=()), 10, "states are empty.*give dead, held or both"),
        (replace(DEAD_SINCE, states=("dead", "delivered")), 10, "states dead, delivered: only what is dead or held"),  # type: ignore[arg-type]
        (DEAD_SINCE, 0, "rate 0 per second: give more than 0 and at most 1000"),
        (DEAD_SINCE, -1, "rate -1 per second"),
        (DEAD_SINCE, 1_001, "rate 1001 per second"),
        (DEAD_SINCE, float("nan"), "rate nan per second"),
        (replace(DEAD_SINCE, since_ms=T0_MS), 10, "since is not before until"),
        (replace(DEAD_SINCE, until_ms=DEAD_SINCE.since_ms), 10, "since is not before until"),
        (replace(DEAD_SINCE, since_ms=T0_MS - 14 * DAY_MS - 1), 10, "since lies 14.0 days back: .* 14 days at most"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_the_fix(filters: Filters, rate_per_s: float, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        job(filters, rate_per_s=rate_per_s)


@pytest.mark.requirement("replays:bounds")
def test_what_is_just_within_bounds_is_taken() -> None:
    assert job(replace(DEAD_SINCE, since_ms=T0_MS - 14 * DAY_MS)).state == "running"
    assert job(replace(DEAD_SINCE, since_ms=T0_MS - 1), rate_per_s=1_000).state == "running"


EVERYTHING = Filters(
    ("dead",), T0_MS - 900, T0_MS - 500, destination="crm", event_types=("turn.completed", "x"), turn="turn_1"
)


@pytest.mark.requirement("replays:admits")
@pytest.mark.parametrize(
    ("values", "admitted"),
    [
        ({}, True),
        ({"state": "held"}, False),
        ({"state": "queued"}, False),
        ({"state": "delivered"}, False),
        ({"destination": "audit"}, False),
        ({"event_type": "x"}, True),
        ({"event_type": "turn.failed"}, False),
        ({"turn": "turn_2"}, False),
        ({"created_ms": T0_MS - 900}, True),
        ({"created_ms": T0_MS - 901}, False),
        ({"created_ms": T0_MS - 501}, True),
        ({"created_ms": T0_MS - 500}, False),
        ({"replayed_ms": T0_MS - 1}, True),
        ({"replayed_ms": T0_MS}, False),
    ],
)
def test_a_replay_wants_what_meets_all_its_filters_and_was_not_replayed_since(
    values: dict[str, object], admitted: bool
) -> None:
    assert replaying.admits(job(EVERYTHING), delivery(300, **values)) == admitted  # type: ignore[arg-type]


@pytest.mark.requirement("replays:admits")
def test_without_filters_it_wants_all_but_dead_log_entries() -> None:
    both = job(replace(DEAD_SINCE, states=("dead", "held")))
    assert replaying.admits(both, delivery(1))
    assert replaying.admits(both, delivery(1, "held"))
    assert not replaying.admits(both, delivery(1, destination=""))


@pytest.mark.requirement("replays:rate")
def test_it_replays_a_seconds_worth_at_once_and_then_as_fast_as_its_rate() -> None:
    going = job(rate_per_s=10)
    assert replaying.allowed(going, T0_MS) == 10
    page = Page([delivery(number) for number in range(10)], "next")
    going = replaying.advanced(replaying.begun(going, page, T0_MS), page, 10, T0_MS)
    assert (replaying.allowed(going, T0_MS), replaying.free_ms(going, T0_MS)) == (0, T0_MS + 100)
    assert [replaying.allowed(going, T0_MS + ms) for ms in (99, 100, 500, 1_000, 9_000)] == [0, 1, 5, 10, 10]
    assert replaying.allowed(job(rate_per_s=0.1), T0_MS) == 1
    assert replaying.allowed(job(rate_per_s=1_000), T0_MS) == PAGE
    assert replaying.allowed(job(rate_per_s=1_000, most=7), T0_MS) == 7


@pytest.mark.requirement("replays:rate")
def test_a_clock_that_was_put_back_holds_up_no_replay() -> None:
    page = Page([delivery(number) for number in range(10)], "next")
    going = replaying.begun(job(rate_per_s=10), page, T0_MS + 365 * DAY_MS)
    going = replaying.advanced(going, page, 10, T0_MS)
    assert (replaying.free_ms(going, T0_MS), replaying.allowed(going, T0_MS)) == (T0_MS, 1)


@pytest.mark.requirement("replays:progress")
def test_what_changed_meanwhile_is_skipped_and_what_it_does_not_want_is_not_found() -> None:
    page = Page([delivery(1), delivery(2), delivery(3, "queued")], "next")
    going = replaying.begun(job(), page, T0_MS)
    assert (going.begun, going.found, going.version) == (("dlv_001", "dlv_002"), 2, 2)
    going = replaying.advanced(going, page, 1, T0_MS)
    assert (going.begun, going.found, going.replayed, going.skipped) == ((), 2, 1, 1)
    assert (going.cursor, going.at, going.state, going.version) == ("next", 0, "running", 3)


@pytest.mark.requirement("replays:progress")
def test_what_one_who_vanished_has_replayed_counts_as_replayed() -> None:
    going = replaying.begun(job(rate_per_s=3), Page([delivery(1), delivery(2), delivery(3)], None), T0_MS)
    assert replaying.allowed(going, T0_MS) == 3  # what was begun has spent the rate
    left = Page([delivery(3), delivery(1, replayed_ms=T0_MS + 1)], None)
    again = replaying.begun(going, left, T0_MS)
    assert (again.begun, again.found, again.replayed, again.rate_ms) == (("dlv_003",), 3, 2, going.rate_ms)
    done = replaying.advanced(again, left, 1, T0_MS + 5)
    assert (done.found, done.replayed, done.skipped, done.state, done.ended_ms) == (3, 3, 0, "done", T0_MS + 5)


@pytest.mark.requirement("replays:ends")
def test_it_looks_through_one_state_after_the_other_and_is_done() -> None:
    going = job(replace(DEAD_SINCE, states=("dead", "held")))
    assert going.reading == "dead"
    going = replaying.advanced(going, Page([], "next"), 0, T0_MS)
    assert (going.reading, going.cursor) == ("dead", "next")
    going = replaying.advanced(going, Page([], None), 0, T0_MS)
    assert (going.reading, going.cursor, going.state) == ("held", "", "running")
    going = replaying.advanced(going, Page([], None), 0, T0_MS)
    assert (going.state, going.why, going.ended_ms) == ("done", "", T0_MS)
    assert replaying.allowed(going, T0_MS) == 0
    assert going.reading == "held"


@pytest.mark.requirement("replays:ends")
def test_it_is_done_when_it_has_found_the_most_that_one_may_replay() -> None:
    page = Page([delivery(1), delivery(2)], "next")
    going = replaying.advanced(replaying.begun(job(most=3), page, T0_MS), page, 2, T0_MS)
    assert (going.state, replaying.allowed(going, T0_MS + 1_000)) == ("running", 1)
    page = Page([delivery(3)], "later")
    done = replaying.advanced(replaying.begun(going, page, T0_MS), page, 1, T0_MS)
    assert (done.state, done.why) == ("done", "it has found 3, the most that one may replay")


@pytest.mark.requirement("replays:held-up")
def test_it_is_paused_when_eight_steps_in_a_row_failed_and_goes_on_where_it_was() -> None:
    going = replace(job(), cursor="here", begun=("dlv_001",))
    for _ in range(7):
        going = replaying.failed(going, "StoreFull")
    assert replaying.advanced(going, Page([], "x"), 1, T0_MS).failed == 0
    paused = replaying.failed(going, "StoreFull")
    assert (going.state, paused.state) == ("running", "paused")
    assert paused.why == "8 steps in a row failed, the last with StoreFull"
    assert replaying.allowed(paused, T0_MS) == 0
    resumed = replaying.resume(paused)
    assert (resumed.state, resumed.why, resumed.failed, resumed.cursor) == ("running", "", 0, "here")
    assert resumed.begun == ("dlv_001",)


@pytest.mark.requirement("replays:ends")
def test_a_page_that_leads_back_to_where_it_began_pauses_it_with_the_reason() -> None:
    page = Page([delivery(1)], "here")
    going = replaying.begun(replace(job(), cursor="here"), page, T0_MS)
    paused = replaying.advanced(going, page, 1, T0_MS)
    assert (paused.state, paused.why, paused.replayed) == ("paused", replaying.STANDS_STILL, 1)
    left = replaying.begun(replace(job(), cursor="here", begun=("dlv_001",)), page, T0_MS)
    more = Page([delivery(1), delivery(2)], "here")
    assert replaying.advanced(left, more, 1, T0_MS).state == "running"  # it is read again for the second


@pytest.mark.requirement("replays:held-up")
def test_it_can_be_paused_resumed_and_cancelled_and_what_has_ended_stays_so() -> None:
    paused = replaying.pause(job(), "by ops")
    assert (paused.state, paused.why, paused.version) == ("paused", "by ops", 2)
    assert replaying.pause(paused, "again") == paused
    assert replaying.resume(job()) == job()
    cancelled = replaying.cancel(paused, T0_MS + 1, "wrong endpoint")
    assert (cancelled.state, cancelled.why, cancelled.ended_ms) == ("cancelled", "wrong endpoint", T0_MS + 1)
    for ended in (cancelled, replaying.advanced(job(), Page([], None), 0, T0_MS)):
        assert replaying.pause(ended, "") == replaying.resume(ended) == replaying.cancel(ended, 9, "") == ended


@pytest.mark.requirement("replays:held-up")
def test_a_page_that_was_under_way_still_counts_in_what_was_paused_or_cancelled_meanwhile() -> None:
    page = Page([delivery(1)], None)
    going = replaying.begun(job(), page, T0_MS)
    for stopped in (replaying.pause(going, "x"), replaying.cancel(going, T0_MS, "x")):
        after = replaying.advanced(stopped, page, 1, T0_MS)
        assert (after.state, after.why, after.replayed, after.begun) == (stopped.state, "x", 1, ())


@pytest.mark.requirement("replays:ends")
def test_a_replay_that_was_paused_at_its_last_page_is_done_when_it_is_resumed() -> None:
    paused = replaying.advanced(replaying.pause(job(), "x"), Page([], None), 0, T0_MS)
    resumed = replaying.resume(paused)
    assert replaying.allowed(resumed, T0_MS) > 0
    assert replaying.advanced(resumed, Page([], None), 0, T0_MS).state == "done"


texts = st.text(max_size=10)
counts = st.integers(0, 2**50)
jobs = st.builds(
    Job,
    texts,
    st.builds(
        Filters,
        st.lists(st.sampled_from(["dead", "held"]), min_size=1, max_size=2).map(tuple),
        counts,
        counts,
        texts,
        st.lists(texts, max_size=3).map(tuple),
        texts,
    ),
    st.floats(0.01, 1000),
    counts,
    counts,
    state=st.sampled_from(["running", "paused", "done", "cancelled"]),
    cursor=texts,
    begun=st.lists(texts, max_size=3).map(tuple),
    found=counts,
    rate_ms=st.floats(0, 1e13),
)


@pytest.mark.requirement("replays:record")
@given(jobs)
def test_any_stored_replay_reads_back_whole(job: Job) -> None:
    assert replaying.decode(replaying.encode(job)) == job


@pytest.mark.requirement("replays:record")
@pytest.mark.parametrize(
    "stored", [b'{"v":2,"job":{}}', b'{"v":1,"job":{}}', b'{"v":1,"job":[]}', b'{"v":1}', b"{}", b"[]", b"7", b"{", b""]
)
def test_a_replay_that_cannot_be_read_is_left_alone(stored: bytes) -> None:
    assert replaying.decode(stored) is None


@dataclass
class World:
    """Deliveries that die or are held again at once, a replay of them, and a clock."""

    job: Job
    deliveries: dict[str, Delivery]
    now_ms: int = T0_MS
    replays: list[tuple[str, int]] = field(default_factory=list)

    def page(self, limit: int) -> Page:
        found = [one for one in self.deliveries.values() if one.state == self.job.reading and one.id > self.job.cursor]
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    def replay(self, ids: tuple[str, ...], *, relapse: bool) -> int:
        for each in ids:
            self.replays.append((each, self.now_ms))
            was = self.deliveries[each]
            now = machine.replay(was, self.now_ms)
            if relapse:
                now = again(now, was.state, self.now_ms)
            self.deliveries[each] = now
        return len(ids)


def again(one: Delivery, state: State, now_ms: int) -> Delivery:
    if state == "held":
        return machine.hold(one, "disabled", "")
    gone = Failed("permanent", "http_410", "gone", "yes", gone=True)
    return machine.settle(machine.claim(one, "claim", now_ms, 1), gone, now_ms, 0.5, Backoff())


@pytest.mark.requirement("replays:each-once")
@given(
    st.lists(st.sampled_from(["dead", "held", "queued"]), max_size=30),
    st.sampled_from([("dead",), ("held",), ("dead", "held"), ("held", "dead")]),
    st.sampled_from([0.5, 3.0, 8.0]),
    st.booleans(),
    st.data(),
)
def test_each_is_replayed_once_whatever_dies_between_the_steps(
    states: list[State], wanted: tuple[From, ...], rate: float, relapse: bool, data: st.DataObject
) -> None:
    made = {one.id: one for one in (delivery(number, state) for number, state in enumerate(states))}
    world = World(job(replace(DEAD_SINCE, states=wanted), rate_per_s=rate), made)
    dies = st.sampled_from(["", "", "", "before", "after"])
    to_replay = sorted(one.id for one in made.values() if one.state in wanted)
    while world.job.state == "running":
        world.now_ms = max(world.now_ms, replaying.free_ms(world.job, world.now_ms))
        count = replaying.allowed(world.job, world.now_ms)
        assert count > 0
        page = world.page(count)
        world.job = replaying.begun(world.job, page, world.now_ms)
        if (death := data.draw(dies)) == "before":
            continue
        replayed = world.replay(world.job.begun, relapse=relapse)
        if death != "after":
            world.job = replaying.advanced(world.job, page, replayed, world.now_ms)
    assert sorted(each for each, _ in world.replays) == to_replay
    assert (world.job.found, world.job.replayed, world.job.skipped) == (len(to_replay), len(to_replay), 0)
    seconds = (world.now_ms - T0_MS) / 1000
    assert len(to_replay) <= max(1, rate) + rate * seconds + 1e-3
