import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from channels.console import exits
from channels.console.terminal import time_of
from channels.delivery.lane import OPEN_AFTER
from channels.delivery.model import Delivered, Delivery, Evidence, Failed
from channels.outbox import lanes, replaying
from tests.console.conftest import Lastword
from tests.delivery.outboxes import BUSY, ONE_TRY, box, insert, known, limited, made, tried

DESTINATION = "https://example.com/very-secret-path"
SHOWN = Evidence(
    410, 31, lookup_ms=2, connect_ms=3, tls_ms=12, head_ms=9, address="192.0.2.7", content_type="text/plain", body=b"no"
)
PLAIN = replace(limited(may_disable=False), backoff=ONE_TRY.backoff)
GONE = Failed("permanent", "http_410", "the receiver is gone", "yes", gone=True, evidence=SHOWN)


def delivery(number: int, destination: str = DESTINATION, **fields: Any) -> Delivery:
    return made(f"evt_{number:024}", destination, created_ms=1000 + number, due_ms=1000 + number, **fields)


async def _prepare(url: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    outgoing = box(client, {delivery(1).lane: PLAIN})
    await insert(client, [delivery(1)])
    await known(client, delivery(1))  # only a turn that is stored has a text
    batch = await outgoing.claim("token", 1)
    await outgoing.settle([(batch[0], GONE)])
    await insert(client, [delivery(2), delivery(3, "crm", event_type="call.completed", state="held")])
    await client.aclose()


@pytest.fixture
def dead(real_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a dead delivery; another one is queued, and a third is held."""
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    asyncio.run(_prepare(real_url))
    return delivery(1).id


@pytest.fixture
def store(real_url: str) -> Callable[..., Any]:
    """Does something to the store that `lastword` sees."""

    def do(step: Callable[[Any], Any]) -> Any:
        async def done() -> Any:
            client = redis.asyncio.Redis.from_url(real_url)
            try:
                return await step(client)
            finally:
                await client.aclose()

        return asyncio.run(done())

    return do


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.requirement("console:deliveries:list-show-replay")
def test_deliveries_are_listed_newest_first_and_by_state(lastword: Lastword, dead: str) -> None:
    found = rows(lastword("deliveries", "list", "--json").out)
    assert [(row["id"], row["state"]) for row in found] == [
        (delivery(3, "crm").id, "held"),
        (delivery(2).id, "queued"),
        (dead, "dead"),
    ]
    assert found[1] == asdict(delivery(2)) | {"log": []}
    assert [row["id"] for row in rows(lastword("deliveries", "list", "--state", "dead", "--json").out)] == [dead]


@pytest.mark.requirement("operating:console:list")
@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--state", "held"), [3]),
        (("--endpoint", "crm"), [3]),
        (("--endpoint", DESTINATION), [2, 1]),
        (("--type", "call.completed"), [3]),
        (("--turn", delivery(1).turn), [3, 2, 1]),
        (("--turn", "turn_00" + "0" * 20), []),
        (("--since", "1970-01-01T00:00:01.002"), [3, 2]),
        (("--until", "1970-01-01T00:00:01.002"), [1]),
        (("--since", "1970-01-01T00:00:01.002", "--until", "1970-01-01T00:00:01.003"), [2]),
    ],
)
@pytest.mark.usefixtures("dead")
def test_each_filter_leaves_those_that_it_names(
    lastword: Lastword, options: tuple[str, ...], numbers: list[int]
) -> None:
    found = rows(lastword("deliveries", "list", "--json", *options).out)
    assert [row["created_ms"] - 1000 for row in found] == numbers


@pytest.mark.requirement("operating:console:list")
@pytest.mark.usefixtures("dead")
def test_a_list_tells_where_the_next_begins(lastword: Lastword) -> None:
    first = lastword("deliveries", "list", "--limit", "2", "--json")
    place = first.err.rpartition("--after ")[2].strip()
    rest = lastword("deliveries", "list", "--limit", "2", "--json", "--after", place)
    assert [row["created_ms"] for row in rows(first.out) + rows(rest.out)] == [1003, 1002, 1001]
    assert "there are more" not in rest.err


@pytest.mark.requirement("operating:console:list")
@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is no time"),
        (("--until", "x"), "--until 'x' is no time"),
        (("--after", "somewhere"), "'somewhere' is no place in the list"),
        (("--state", "lost"), "'lost'"),
    ],
)
def test_a_filter_that_says_nothing_is_named(lastword: Lastword, options: tuple[str, ...], fault: str) -> None:
    ran = lastword("deliveries", "list", *options)
    assert ran.code == exits.USAGE
    assert fault in ran.err


@pytest.mark.requirement("operating:console:list")
@pytest.mark.usefixtures("dead")
@pytest.mark.parametrize("option", ["--endpoint", "--type", "--turn"])
@pytest.mark.parametrize("command", ["list", "export"])
def test_a_filter_that_is_left_empty_does_not_choose_everything(lastword: Lastword, command: str, option: str) -> None:
    ran = lastword("deliveries", command, option, "")
    assert (ran.code, ran.out) == (exits.USAGE, "")
    assert f"{option} '' is empty: give what it is to choose, or leave {option} out" in ran.err


@pytest.mark.requirement("console:deliveries:list-show-replay")
def test_a_dead_delivery_is_shown_with_its_reason_and_ends_with_1(lastword: Lastword, dead: str) -> None:
    ran = lastword("deliveries", "show", dead)
    assert ran.code == exits.FAILED
    assert "the receiver is gone [http_410]" in ran.out
    assert "attempt 1" in ran.out
    assert "https://example.com/..." in ran.out
    assert "secret" not in ran.out + lastword("deliveries", "list").out


@pytest.mark.requirement("operating:console:evidence")
def test_a_delivery_is_shown_with_what_its_attempts_showed(lastword: Lastword, dead: str) -> None:
    told = lastword("deliveries", "show", dead).out
    assert "to 192.0.2.7 lookup 2 ms, connect 3 ms, tls 12 ms, head 9 ms, total 31 ms" in told
    assert "answered text/plain:" in told
    [shown] = json.loads(lastword("deliveries", "show", dead, "--json").out)["evidence"].values()
    assert (shown["status"], shown["body"], shown["body_base64"]) == (410, "no", None)


@pytest.mark.requirement("operating:console:evidence")
def test_an_answer_of_a_receiver_moves_no_cursor_and_breaks_no_json(
    lastword: Lastword, dead: str, store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = Evidence(200, 1, content_type="\x1b[31mred", body=b"\x1b[2J\x00[bold]\xff")

    async def answered(client: Any) -> None:
        outgoing = box(client, {"crm": ONE_TRY})
        await replaying.replay(client, delivery(3, "crm").id)
        [one] = [each for each in await outgoing.claim("late", 10) if each.destination == "crm"]
        await outgoing.settle([(one, Delivered(200, hostile))])

    store(answered)
    with monkeypatch.context() as terminal:
        terminal.setenv("TTY_COMPATIBLE", "1")
        told = lastword("deliveries", "show", delivery(3, "crm").id)
    assert told.code == exits.OK
    assert not [each for each in ("\x1b[31m", "\x1b[2J", "\x00") if each in told.out]
    assert "[bold]" in told.out
    [shown] = json.loads(lastword("deliveries", "show", delivery(3, "crm").id, "--json").out)["evidence"].values()
    assert (shown["body"], shown["body_base64"]) == (None, "G1sySgBbYm9sZF3/")
    assert dead


@pytest.mark.requirement("console:deliveries:list-show-replay")
def test_a_replayed_delivery_is_due_and_wakes_a_process(lastword: Lastword, dead: str, real_url: str) -> None:
    ran = lastword("deliveries", "replay", dead, "--json")
    assert ran.code == exits.OK
    assert json.loads(ran.out)["state"] == "queued"
    assert lastword("deliveries", "show", dead).code == exits.OK
    with redis.Redis.from_url(real_url) as client:
        assert client.llen("delivery") == 1
    again = lastword("deliveries", "replay", dead)
    assert again.code == exits.USAGE
    assert "only a dead or held one can be replayed" in again.err


@pytest.mark.requirement("operating:case:outpost-670:replayed-again")
def test_each_replay_by_hand_is_an_attempt_and_a_wake_up_that_comes_twice_is_none(
    lastword: Lastword, dead: str, store: Callable[..., Any]
) -> None:
    ids: list[str] = []

    async def attempted(client: Any) -> int:
        outgoing = box(client, {delivery(1).lane: PLAIN})
        batch = [each for each in await outgoing.claim(f"again-{len(ids)}", 10) if each.id == dead]
        ids.extend(each.id for each in batch)
        await outgoing.settle([(each, GONE) for each in batch])
        return len(batch)

    for _ in range(2):
        assert lastword("deliveries", "replay", dead).code == exits.OK
        assert store(attempted) == 1
        assert store(attempted) == 0  # a wake-up that the broker gives out again
    assert ids == [dead, dead]
    shown = json.loads(lastword("deliveries", "show", dead, "--json").out)
    assert [attempt["code"] for attempt in shown["log"]] == ["http_410"] * 3


@pytest.mark.requirement("operating:case:outpost-611:held-replayed")
def test_what_is_held_is_listed_and_can_be_replayed_once_its_endpoint_takes_again(
    lastword: Lastword, dead: str, store: Callable[..., Any]
) -> None:
    held = delivery(3, "crm").id
    store(lambda client: lanes.disable(client, "crm", "http_410"))
    assert [row["id"] for row in rows(lastword("deliveries", "list", "--state", "held", "--json").out)] == [held]
    refused = lastword("deliveries", "replay", held)
    assert refused.code == exits.USAGE
    assert "crm is disabled" in refused.err
    store(lambda client: lanes.resume(client, "crm"))
    assert json.loads(lastword("deliveries", "replay", held, "--json").out)["state"] == "queued"
    assert dead


@pytest.mark.requirement("operating:console:cancel")
def test_a_delivery_is_cancelled_by_the_name_of_who_did(lastword: Lastword, dead: str) -> None:
    queued = delivery(2).id
    told = json.loads(lastword("deliveries", "cancel", queued, "--json").out)
    assert (told["state"], told["code"]) == ("cancelled", "cancelled")
    assert told["message"].startswith("cancelled by ")
    for other, state in ((queued, "cancelled"), (dead, "dead")):
        ran = lastword("deliveries", "cancel", other)
        assert ran.code == exits.USAGE
        assert f"{other} is {state}" in ran.err


@pytest.mark.requirement("operating:console:export")
def test_an_export_is_all_of_a_range_with_what_attempts_showed(lastword: Lastword, dead: str, tmp_path: Path) -> None:
    ran = lastword("deliveries", "export", "--out", "all.jsonl")
    assert ran.code == exits.OK
    assert "3 deliveries" in ran.err
    found = rows((tmp_path / "all.jsonl").read_text())
    assert [row["created_ms"] for row in found] == [1003, 1002, 1001]
    assert found[2]["evidence"]["1"]["body"] == "no"
    only = lastword("deliveries", "export", "--state", "dead")
    assert [row["id"] for row in rows(only.out)] == [dead]


@pytest.mark.requirement("operating:console:export")
@pytest.mark.usefixtures("dead")
def test_a_file_that_cannot_be_written_is_named_and_no_half_of_it_is_left(lastword: Lastword, tmp_path: Path) -> None:
    ran = lastword("deliveries", "export", "--out", "nowhere/all.jsonl")
    assert ran.code == exits.USAGE
    assert "--out 'nowhere/all.jsonl' cannot be written" in ran.err
    assert list(tmp_path.glob("**/*.part")) == []


@pytest.mark.usefixtures("dead")
def test_a_delivery_that_nobody_knows_is_named(lastword: Lastword) -> None:
    for wrong in ("dlv_00" + "f" * 20, "42"):
        for step in ("show", "replay", "cancel"):
            ran = lastword("deliveries", step, wrong)
            assert ran.code == exits.USAGE
            assert wrong in ran.err


def test_an_empty_outbox_says_so(lastword: Lastword, real_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    assert "no deliveries" in lastword("deliveries", "list").out


@pytest.mark.requirement("console:deliveries:whole-ids")
@pytest.mark.parametrize("terminal", [False, True])
def test_ids_and_states_are_whole_in_eighty_columns(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, dead: str, terminal: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    if terminal:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
    listed = lastword("deliveries", "list").out
    for id_, state in ((dead, "dead"), (delivery(2).id, "queued")):
        [line] = [line for line in listed.splitlines() if id_ in line]
        assert state in line
    shown = lastword("deliveries", "show", dead).out
    assert dead in shown
    assert delivery(1).event_id in shown


@pytest.mark.requirement("console:deliveries:replay-without-broker")
@pytest.mark.parametrize("scheme", ["redis://127.0.0.1:{}/0", "amqp://guest:guest@127.0.0.1:{}//"])
def test_a_replay_stands_though_the_broker_is_away(
    lastword: Lastword, monkeypatch: pytest.MonkeyPatch, dead: str, unused_port: int, scheme: str
) -> None:
    monkeypatch.setenv("LASTWORD_BROKER_URL", scheme.format(unused_port))
    ran = lastword("deliveries", "replay", dead, "--json")
    assert ran.code == exits.OK
    assert json.loads(ran.out)["state"] == "queued"
    assert "stored; the delivery processes will find it" in ran.err


@pytest.mark.requirement("operating:failing")
@pytest.mark.parametrize("destination", ["crm", DESTINATION])
def test_a_delivery_that_waits_for_an_endpoint_that_fails_says_so(
    lastword: Lastword, store: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, real_url: str, destination: str
) -> None:
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    waits, _ = store(lambda client: tried(client, *[BUSY] * OPEN_AFTER, destination=destination))
    seen = json.loads(lastword("deliveries", "show", waits.id, "--json").out)
    assert (seen["state"], seen["attempts"], seen["standing"]["failed"]) == ("queued", 0, OPEN_AFTER)
    due = time_of(seen["standing"]["open_until_ms"])
    assert f"({OPEN_AFTER} attempts); next attempt due at {due}" in lastword("deliveries", "show", waits.id).out


@pytest.mark.requirement("operating:failing")
def test_of_a_delivery_that_has_ended_the_endpoint_does_not_matter(lastword: Lastword, dead: str) -> None:
    assert "standing" not in json.loads(lastword("deliveries", "show", dead, "--json").out)
    assert "endpoint  " not in lastword("deliveries", "show", dead).out
