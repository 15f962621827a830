import asyncio
import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
import redis.asyncio

from channels.console import exits
from channels.delivery.backoff import Backoff
from channels.delivery.model import Delivery, Rejected
from channels.outbox import Outbox
from worker import ids

Lastword = Callable[..., Any]
DESTINATION = "https://example.com/very-secret-path"


def delivery(number: int) -> Delivery:
    event = ids.event_of("turn_00" + "0" * 20, "nonce", number)
    return Delivery(
        id=ids.delivery_of(0, event, DESTINATION),
        event_id=event,
        turn="turn_00" + "0" * 20,
        event_type="turn.completed",
        destination=DESTINATION,
        created_ms=1000 + number,
        due_ms=1000 + number,
    )


async def _prepare(url: str) -> None:
    client = redis.asyncio.Redis.from_url(url)
    outbox = Outbox(client, 0, lease_s=30, backoff=Backoff(), chance=lambda: 0.5)
    await outbox.take_log("relay", 60)
    await outbox.insert("relay", "0-0", "1-1", [delivery(1), delivery(2)])
    [held] = await outbox.claim("token", 1)
    await outbox.settle(held, Rejected("http_410", "the receiver is gone"))
    await client.hset(f"lw:{{p00}}:turn:{delivery(1).turn}", "state", "sealed")  # only a turn that is stored has a text
    await client.aclose()


@pytest.fixture
def dead(real_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The id of a dead delivery; another one is queued."""
    monkeypatch.setenv("LASTWORD_REDIS_URL", real_url)
    asyncio.run(_prepare(real_url))
    return delivery(1).id


@pytest.mark.requirement("console:deliveries:list-show-replay")
def test_deliveries_are_listed_newest_first_and_by_state(lastword: Lastword, dead: str) -> None:
    rows = [json.loads(line) for line in lastword("deliveries", "list", "--json").out.splitlines()]
    assert [(row["id"], row["state"]) for row in rows] == [(delivery(2).id, "queued"), (dead, "dead")]
    assert rows[0] == asdict(delivery(2)) | {"log": []}
    only = lastword("deliveries", "list", "--state", "dead", "--json").out.splitlines()
    assert [json.loads(line)["id"] for line in only] == [dead]


@pytest.mark.requirement("console:deliveries:list-show-replay")
def test_a_dead_delivery_is_shown_with_its_reason_and_ends_with_1(lastword: Lastword, dead: str) -> None:
    ran = lastword("deliveries", "show", dead)
    assert ran.code == exits.FAILED
    assert "the receiver is gone [http_410]" in ran.out
    assert "attempt 1" in ran.out
    assert "https://example.com/..." in ran.out
    assert "secret" not in ran.out + lastword("deliveries", "list").out


@pytest.mark.requirement("console:deliveries:list-show-replay")
def test_a_replayed_delivery_is_due_and_wakes_a_process(lastword: Lastword, dead: str, real_url: str) -> None:
    ran = lastword("deliveries", "replay", dead, "--json")
    assert ran.code == exits.OK
    assert json.loads(ran.out)["state"] != "dead"
    assert lastword("deliveries", "show", dead).code == exits.OK
    with redis.Redis.from_url(real_url) as client:
        assert client.llen("delivery") == 1
    again = lastword("deliveries", "replay", dead)
    assert again.code == exits.USAGE
    assert "only a dead delivery can be replayed" in again.err


@pytest.mark.usefixtures("dead")
def test_a_delivery_that_nobody_knows_is_named(lastword: Lastword) -> None:
    for wrong in ("dlv_00" + "f" * 20, "42"):
        ran = lastword("deliveries", "show", wrong)
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
    assert json.loads(ran.out)["state"] != "dead"
    assert "stored; the delivery processes will find it" in ran.err
