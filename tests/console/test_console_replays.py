"""`lastword deliveries replay` of a range, and `lastword deliveries replays`."""

import asyncio
import getpass
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import redis.asyncio

from channels.console import exits
from channels.outbox import oldest, replaying
from channels.replays.taking import Replays
from tests.console.conftest import Lastword
from tests.delivery.outboxes import insert, known, made
from worker.store import clock

Do = Callable[[Callable[[Any], Any]], Any]


@pytest.fixture
def store(real_url: str, monkeypatch: pytest.MonkeyPatch) -> Do:
    """Does something to the store that `lastword` sees: five deliveries died there a minute ago."""
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)

    def do(step: Callable[[Any], Any]) -> Any:
        async def done() -> Any:
            client = redis.asyncio.Redis.from_url(real_url)
            try:
                return await step(client)
            finally:
                await client.aclose()

        return asyncio.run(done())

    do(died)
    return do


async def died(client: Any) -> None:
    at_ms = await clock.now_ms(client) - 60_000
    end: dict[str, Any] = {"due_ms": 0, "state": "dead", "ended_ms": at_ms + 10}
    there = [made(f"evt_{number}", "crm", created_ms=at_ms + number, **end) for number in range(5)]
    await known(client, there[0])
    await insert(client, there)


async def nobody() -> None:
    """Nobody is woken."""


async def taken_on(client: Any) -> None:
    """A delivery process takes each replay on by one page."""

    async def replay_some(ids: Sequence[str]) -> int:
        return len(await replaying.replay_some(client, ids))

    process = Replays(client, partial(oldest.page_of, client), replay_some, nobody)
    await process.step()


def started(lastword: Lastword, *options: str) -> dict[str, Any]:
    ran = lastword("deliveries", "replay", *options, "--json")
    assert ran.code == exits.OK, ran.err
    told: dict[str, Any] = json.loads(ran.out)
    return told


@pytest.mark.requirement("operating:console:replays")
def test_a_range_is_replayed_by_the_delivery_processes_and_its_progress_seen(lastword: Lastword, store: Do) -> None:
    told = started(lastword, "--endpoint", "crm", "--since", "2h", "--type", "turn.completed", "--rate", "3")
    assert (told["state"], told["rate_per_s"], told["most"], told["by"]) == ("running", 3, 100_000, getpass.getuser())
    assert told["filters"] | {"since_ms": 0, "until_ms": 0} == {
        "states": ["dead"],
        "since_ms": 0,
        "until_ms": 0,
        "destination": "crm",
        "event_types": ["turn.completed"],
        "turn": "",
    }
    store(taken_on)
    shown = json.loads(lastword("deliveries", "replays", "show", told["id"], "--json").out)
    assert (shown["state"], shown["found"], shown["replayed"], shown["skipped"]) == ("running", 3, 3, 0)
    listed = lastword("deliveries", "replays", "list").out
    assert told["id"] in listed
    [row] = lastword("deliveries", "replays", "list", "--json").out.splitlines()
    assert json.loads(row)["replayed"] == 3
    assert len(lastword("deliveries", "list", "--state", "queued", "--json").out.splitlines()) == 3


@pytest.mark.requirement("operating:console:replays")
def test_where_nothing_is_said_all_that_died_is_replayed(lastword: Lastword, store: Do) -> None:
    told = started(lastword)
    assert (told["rate_per_s"], told["filters"]["states"]) == (20, ["dead"])
    store(taken_on)
    shown = json.loads(lastword("deliveries", "replays", "show", told["id"], "--json").out)
    assert (shown["state"], shown["replayed"]) == ("done", 5)


@pytest.mark.requirement("operating:console:replays")
def test_a_replay_waits_goes_on_and_ends_as_it_is_told(lastword: Lastword, store: Do) -> None:
    replay = started(lastword, "--rate", "2")["id"]

    def step(name: str) -> str:
        ran = lastword("deliveries", "replays", name, replay, "--json")
        assert ran.code == exits.OK
        state: str = json.loads(ran.out)["state"]
        return state

    assert step("pause") == "paused"
    store(taken_on)
    assert json.loads(lastword("deliveries", "replays", "show", replay, "--json").out)["found"] == 0
    assert step("resume") == "running"
    assert step("cancel") == "cancelled"
    assert step("resume") == "cancelled"
    store(taken_on)
    assert len(lastword("deliveries", "list", "--state", "dead", "--json").out.splitlines()) == 5
    told = lastword("deliveries", "replays", "show", replay).out
    assert f"asked for    by {getpass.getuser()} at 20" in told
    assert f"cancelled: cancelled by {getpass.getuser()}" in told
    assert "found        0, of which 0 are replayed and 0 skipped" in told


@pytest.mark.requirement("operating:console:replays")
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--state", "queued"), "states queued: only what is dead or held can be replayed"),
        (("--rate", "0"), "rate 0 per second"),
        (("--since", "15d"), "since lies 15.0 days back: one replay reaches back 14 days at most"),
        (("--since", "400d"), "give a later time, or raise delivery.replay_days"),
        (("--endpoint", ""), "--endpoint '' is empty: give what it is to choose, or leave --endpoint out"),
        (("--turn", ""), "--turn '' is empty"),
        (("--type", "turn.completed", "--type", ""), "--type '' is empty"),
        (("--since", "1h", "--until", "2h"), "since is not before until"),
        (("dlv_00" + "b" * 20, "--since", "2h"), "is one delivery: leave the options that choose many out"),
    ],
)
def test_a_range_that_is_none_is_refused_with_the_fix(lastword: Lastword, options: tuple[str, ...], fault: str) -> None:
    ran = lastword("deliveries", "replay", *options)
    assert ran.code == exits.USAGE
    assert fault in ran.err
    assert "no bulk replays" in lastword("deliveries", "replays", "list").out


@pytest.mark.requirement("tuning:delivery:replay-days")
@pytest.mark.requirement("tuning:delivery:replay-most")
@pytest.mark.usefixtures("store")
def test_one_reaches_as_far_and_takes_as_many_as_the_settings_say(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASTWORD_DELIVERY__REPLAY_DAYS", "0.5")
    monkeypatch.setenv("LASTWORD_DELIVERY__REPLAY_MOST", "3")
    told = started(lastword)
    assert told["most"] == 3
    assert told["created_ms"] - told["filters"]["since_ms"] == 12 * 3_600_000
    ran = lastword("deliveries", "replay", "--since", "13h")
    assert (ran.code, "reaches back 0.5 days at most" in ran.err) == (exits.USAGE, True)


@pytest.mark.requirement("operating:console:replays")
@pytest.mark.usefixtures("store")
def test_a_replay_of_a_url_shows_nothing_of_its_path(lastword: Lastword) -> None:
    ran = lastword("deliveries", "replay", "--endpoint", "https://hooks.example/hush?token=hush")
    listed = lastword("deliveries", "replays", "list")
    assert ran.code == exits.OK
    assert "https://hooks.example/..." in listed.out
    assert "hush" not in ran.out + ran.err + listed.out + lastword("deliveries", "replays", "list", "--json").out


@pytest.mark.requirement("operating:console:replays")
@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("step", ["show", "pause", "resume", "cancel"])
def test_a_replay_that_nobody_knows_is_named(lastword: Lastword, step: str) -> None:
    ran = lastword("deliveries", "replays", step, "rpl_none")
    assert ran.code == exits.USAGE
    assert "replay rpl_none is not known" in ran.err
