"""`lastword status` and the filters of `lastword turns list`, on a real server."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
import redis.asyncio

from channels.console import exits
from channels.console.asked_turns import Asked, wanted_of
from channels.console.terminal import time_of
from channels.delivery.lane import OPEN_AFTER
from channels.delivery.model import Failed, lane_of
from channels.delivery.replay import Bounds, Filters
from channels.outbox import lanes, reading, replaying
from channels.replays import starting
from tests.console.conftest import Lastword
from tests.delivery.outboxes import BUSY, insert, made, tried
from tests.store.test_turn_listing import ended, of_a_newer_release, submitted
from tests.store.turns import ask, driven, with_tools
from worker import ids
from worker.errors import ConfigurationError
from worker.store import clock, keys, listing, processes
from worker.store.listing import LIVE, OUTCOMES
from worker.store.processes import Told

TURNS = Told("turns", "turns@here:1:aa", "here", 1, "0.1.0", 1, draining=False, stopped=False, loop_lag_s=0.002)
DELIVERS = Told("delivery", "delivery@here:2:bb", "here", 2, "0.1.0", 0, draining=False, stopped=False, loop_lag_s=0.0)
NOW_MS = 1_800_000_000_000

Step = Callable[[Any], Awaitable[Any]]


@pytest.fixture
def store(real_url: str, provider: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Step], Any]:
    """Does something to the store that `lastword` sees."""
    del provider
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)

    def do(step: Step) -> Any:
        async def done() -> Any:
            client = redis.asyncio.Redis.from_url(real_url)
            try:
                return await step(client)
            finally:
                await client.aclose()

        return asyncio.run(done())

    return do


def lives(url: str, *told: Told) -> None:
    with redis.Redis.from_url(url) as client:
        for each in told:
            processes.report(client, each.name, each, b"", 60)


async def one_of_each(client: Any) -> dict[str, str]:
    """One turn that runs, one that waits, one that is parked, one that is dead."""
    running = (await driven(client, session="runs")).turn
    await client.hset(keys.turn_record(running), "lease_ms", 9_000_000_000_000)
    parked = await driven(client, session="parks")
    await with_tools(parked, "mail")
    await ask(parked)
    await parked.park()
    waits = await submitted(client, "waits", labels={"team": "ops"})
    dead = await ended(client, "died", "dead", labels={"team": "ops"})
    return {"running": running, "parked": parked.turn, "queued": waits, "dead": dead}


@pytest.mark.requirement("status:shows:all")
def test_status_shows_what_runs_waits_is_parked_and_is_dead(
    store: Callable[[Step], Any], lastword: Lastword, real_url: str
) -> None:
    store(one_of_each)
    store(lambda client: client.xadd(keys.log_aside(0), {"aside:place": "1-0", "v": "99"}))
    lives(real_url, TURNS, DELIVERS)
    ran = lastword("status")
    words = " ".join(ran.out.split())
    for told in (
        "needs a person: 1 turns took down their processes",
        "turns 1 running, 1 queued, 1 parked",
        "waiting 1 for a process, the first for",
        "approvals 1 for a person, one expires in",
        "last day 1 dead",
        "deliveries 0 open, 0 of them in flight, 0 dead; the relay is",
        "1 log entries wait for a newer release",
        "broker 0 wake-ups for turns, 0 wake-ups for delivery",
        "MB, writes its append-only file",
        "skipped no provider",
        "turns@here:1:aa 1 turns takes work 0.002 s",
        "delivery@here:2:bb 0 attempts takes work",
    ):
        assert told in words, told
    assert ran.code == exits.FAILED
    told = json.loads(lastword("status", "--json").out)
    assert told["turns"] == {"queued": 1, "running": 1, "parked": 1}
    assert told["ended_within_a_day"]["dead"] == 1
    assert [fault["code"] for fault in told["needs_a_person"]] == ["dead_turns"]
    assert [one["role"] for one in told["processes"]] == ["delivery", "turns"]
    [partition] = told["partitions"]
    assert partition["turns"]["waiting"] == 1
    assert partition["log"]["relay_lag_s"] >= 0
    assert partition["log"]["aside"] == 1


@pytest.mark.requirement("status:exits:needs-a-person")
def test_status_ends_with_0_when_nothing_needs_a_person_and_with_1_when_something_does(
    store: Callable[[Step], Any], lastword: Lastword, real_url: str
) -> None:
    idle = lastword("status")
    assert (idle.code, "nothing needs a person" in idle.out, "no process lives" in idle.out) == (exits.OK, True, True)
    store(lambda client: submitted(client, "waits"))
    waits = lastword("status")
    assert waits.code == exits.FAILED
    assert "1 turns wait and no turns process takes them: start one" in waits.out
    lives(real_url, TURNS)
    assert lastword("status").code == exits.OK


@pytest.mark.requirement("status:shows:all")
def test_status_tells_each_partition_where_there_are_several(
    store: Callable[[Step], Any], lastword: Lastword, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTWORD_PARTITIONS", "2")
    sessions = [f"chat/{number}" for number in range(5)]

    async def some(client: Any) -> None:
        for session in sessions:
            await submitted(client, session, partitions=2)

    store(some)
    told = json.loads(lastword("status", "--json").out)
    places = [ids.partition_of_session(session, 2) for session in sessions]
    assert [one["turns"]["unsealed"] for one in told["partitions"]] == [places.count(0), places.count(1)]
    assert min(places.count(0), places.count(1)) > 0
    assert "relay lag" in lastword("status").out


@pytest.mark.requirement("status:list:filters")
def test_turns_are_listed_by_state_outcome_label_agent_and_time(
    store: Callable[[Step], Any], lastword: Lastword
) -> None:
    turns = store(one_of_each)

    def listed(*options: str) -> set[str]:
        ran = lastword("turns", "list", "--json", *options)
        assert ran.code == exits.OK
        return {json.loads(line)["turn"] for line in ran.out.splitlines()}

    going = {turns["running"], turns["parked"], turns["queued"]}
    assert listed() == going
    assert listed("--state", "parked") == {turns["parked"]}
    assert listed("--state", "dead") == listed("--state", "sealed") == {turns["dead"]}
    assert listed("--state", "all") == {*going, turns["dead"]}
    assert listed("--state", "all", "--label", "team=ops") == {turns["queued"], turns["dead"]}
    assert listed("--state", "all", "--label", "team=ops", "--since", "2h") == {turns["queued"], turns["dead"]}
    assert listed("--state", "dead", "--since", "2099-01-01T00:00:00Z") == set()
    assert listed("--state", "all", "--agent", "default", "--limit", "1") <= going
    assert listed("--agent", "other") == set()
    shown = lastword("turns", "list", "--state", "dead").out.splitlines()
    assert shown[1].split()[:2] == [turns["dead"], "dead"]
    assert lastword("turns", "list", "--state", "failed").out == "no such turns\n"


@pytest.mark.requirement("status:list:bounded")
def test_a_list_that_had_to_stop_says_so_beside_its_answer(
    store: Callable[[Step], Any], lastword: Lastword, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def some(client: Any) -> None:
        for number in range(4):
            await submitted(client, f"chat/{number}", labels={"n": str(number)})

    store(some)
    monkeypatch.setattr(listing.find, "__kwdefaults__", {"most": 2})
    ran = lastword("turns", "list", "--json", "--label", "n=3")
    assert (ran.code, ran.out) == (exits.OK, "")
    assert "stopped after 2 turns, there are more: narrow it with --since or --state" in ran.err
    assert lastword("turns", "list", "--json", "--label", "n=1", "--limit", "1").err == ""


@pytest.mark.requirement("survive:newer:listed")
def test_turns_of_a_newer_release_are_listed_by_id_and_state(store: Callable[[Step], Any], lastword: Lastword) -> None:
    async def two(client: Any) -> tuple[str, str]:
        ours, theirs = [await submitted(client, session) for session in ("a", "b")]
        await of_a_newer_release(client, theirs)
        return ours, theirs

    ours, theirs = store(two)
    told = [json.loads(line) for line in lastword("turns", "list", "--json").out.splitlines()]
    assert told[0]["turn"] == ours
    assert told[1:] == [{"turn": theirs, "state": "queued", "newer": True}]
    shown = lastword("turns", "list").out
    assert ours in shown
    assert f"{theirs} queued (written by a newer release: use that release to see more)\n" in shown
    assert theirs in lastword("turns", "list", "--state", "queued", "--limit", "2").out


@pytest.mark.requirement("status:list:bad-input")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--state", "runing"), "--state 'runing' is neither a state nor an outcome: give one of queued, running"),
        (("--since", "yesterday"), "--since 'yesterday' is no time: give how long ago, as in 90s, 30m, 2h or 7d"),
        (("--since", "0h"), "--since '0h' is no time"),
        (("--since", "2026-13-01"), "--since '2026-13-01' is no time"),
        (("--label", "team"), "--label 'team' is no NAME=VALUE: give NAME=VALUE, each name once"),
        (("--label", "=x"), "--label '=x' is no NAME=VALUE"),
        (("--label", "a=1", "--label", "a=2"), "--label 'a=2' is given twice"),
    ],
)
def test_what_means_nothing_is_refused_with_option_value_and_fix(
    store: Callable[[Step], Any], lastword: Lastword, options: tuple[str, ...], words: str
) -> None:
    del store
    ran = lastword("turns", "list", *options)
    assert ran.code == exits.USAGE
    assert words in ran.err


@pytest.mark.requirement("status:list:filters")
@pytest.mark.parametrize(
    ("since", "ms"),
    [
        ("90s", NOW_MS - 90_000),
        ("30m", NOW_MS - 1_800_000),
        ("2h", NOW_MS - 7_200_000),
        ("7d", NOW_MS - 604_800_000),
        ("99999999d", 0),
        ("2026-03-01T08:00:00+01:00", 1_772_348_400_000),
        ("2026-03-01T07:00:00", 1_772_348_400_000),
        ("2026-03-01T07:00:00Z", 1_772_348_400_000),
        ("2026-03-01", 1_772_323_200_000),
        ("0001-01-01", 0),
    ],
)
def test_a_time_is_how_long_ago_or_a_moment_without_an_offset_in_utc(since: str, ms: int) -> None:
    assert wanted_of(Asked(since=since), now_ms=NOW_MS).since_ms == ms


@pytest.mark.requirement("status:list:filters")
@pytest.mark.parametrize(
    ("state", "states", "outcomes"),
    [
        (None, LIVE, ()),
        ("queued", ("queued",), ()),
        ("sealed", (), OUTCOMES),
        ("all", LIVE, OUTCOMES),
        *((outcome, (), (outcome,)) for outcome in OUTCOMES),
    ],
)
def test_a_state_is_one_of_those_that_go_on_or_an_outcome(
    state: str | None, states: tuple[str, ...], outcomes: tuple[str, ...]
) -> None:
    wanted = wanted_of(Asked(state=state), now_ms=NOW_MS)
    assert (wanted.states, wanted.outcomes) == (states, outcomes)


def test_a_state_that_is_long_is_cut_in_what_is_said_of_it() -> None:
    with pytest.raises(ConfigurationError) as refused:
        wanted_of(Asked(state="x" * 5000), now_ms=NOW_MS)
    assert len(str(refused.value)) < 400


def test_the_indexes_of_outcomes_have_names_of_their_own() -> None:
    assert len({keys.ended(0, outcome) for outcome in OUTCOMES}) == len(OUTCOMES)


@pytest.mark.requirement("operating:status")
def test_held_deliveries_stopped_endpoints_and_replays_are_seen(
    lastword: Lastword, store: Callable[[Step], Any], real_url: str
) -> None:
    lives(real_url, TURNS, DELIVERS)

    async def stopped(client: Any) -> None:
        await insert(client, [made(f"evt_{number}", "crm", state="held", due_ms=0) for number in range(3)])
        await lanes.disable(client, "crm", "http_410")
        await lanes.pause(client, "billing", "maintenance")
        await insert(client, [made("evt_9", "billing", state="held", due_ms=0)])
        now_ms = await clock.now_ms(client)
        await starting.start(client, Filters(("dead",), 0, 0), 1, now_ms, by="anna", bounds=Bounds())

    store(stopped)
    told = lastword("status")
    assert "held: 1 for billing, 3 for crm; billing is paused, crm is disabled; 1 bulk replays run" in told.out
    assert "3 deliveries are held for disabled endpoints (crm)" in told.out
    assert "`lastword endpoints enable crm --replay`" in told.out
    seen = json.loads(lastword("status", "--json").out)
    assert seen["deliveries"]["stopped"] == {"billing": "paused", "crm": "disabled"}
    assert [each["code"] for each in seen["needs_a_person"]] == ["endpoint_disabled"]
    store(lambda client: lanes.resume(client, "crm"))
    assert "disabled" not in lastword("status").out


@pytest.mark.requirement("operating:failing")
@pytest.mark.parametrize("destination", ["crm", "https://hooks.example/hush"])
def test_status_names_who_fails_while_something_waits_and_who_asked_to_be_left_alone(
    lastword: Lastword, store: Callable[[Step], Any], real_url: str, destination: str
) -> None:
    """An endpoint is seen wherever it is defined, also where this process knows none of that name."""
    lives(real_url, TURNS, DELIVERS)
    asked = Failed("throttled", "http_429", "too many", "yes", retry_after=600.0)
    store(lambda client: tried(client, *[BUSY] * OPEN_AFTER, destination=destination))
    store(lambda client: tried(client, asked, destination="shop"))
    seen = json.loads(lastword("status", "--json").out)
    failing, waits = seen["deliveries"]["failing"][lane_of(destination)], seen["deliveries"]["asked_to_wait"]
    since, due = (time_of(failing[name]) for name in ("failing_since_ms", "open_until_ms"))
    ran = lastword("status")
    assert f"; {lane_of(destination)} is failing since {since} (5 attempts); next attempt due at {due}" in ran.out
    assert f"; shop asked to wait until {time_of(waits['shop'])}" in ran.out
    assert (ran.code, "hush" in ran.out) == (exits.OK, False)


@pytest.mark.requirement("operating:failing")
def test_status_tells_no_failures_of_whom_nothing_waits_for(lastword: Lastword, store: Callable[[Step], Any]) -> None:
    async def cancel(client: Any) -> None:
        await tried(client, *[BUSY] * OPEN_AFTER)
        for one in (await reading.listed(client, 100)).deliveries:
            await replaying.cancel(client, one.id, "nobody wants them")

    store(cancel)
    assert json.loads(lastword("status", "--json").out)["deliveries"]["failing"] == {}
