"""Events from the log to the body that an endpoint gets: once each, whatever crashes and whichever release reads."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
import redis

from channels.contents import Contents
from channels.delivery.lane import Lane, Rules
from channels.delivery.model import Delivered, Delivery
from channels.endpoints.model import Endpoint
from channels.events import notices
from channels.events.schema import schema_of
from channels.outbox import keys as outbox_keys
from channels.outbox import reading
from channels.outbox.log import RelayLog
from channels.relay import ASIDE_S, Relay
from channels.webhook.payload import Form
from tests.delivery.outboxes import BUSY, GONE, MISSING, ONE_TRY, box, insert, made
from tests.delivery.subscribers import addressing_of, endpoint
from tests.store.lossy import Fault, Lossy
from tests.store.turns import Redis, commit, driven, seal
from worker import ids
from worker.store import keys, log
from worker.store.log import event_words, read_aside, read_log, waits_aside

OPS = endpoint("ops", "delivery.*")
FAILING = Lane(failed=4, failing_since_ms=1)


def relay_of(client: Redis, *endpoints: Endpoint) -> Relay:
    return Relay(
        RelayLog(client, 0),
        read=lambda after, count, block_ms: read_log(client, 0, after, count, min(block_ms, 50)),
        read_aside=lambda after, count: read_aside(client, 0, after, count),
        addressing=addressing_of(client, *endpoints),
        wake=lambda: asyncio.sleep(0),
    )


async def deliveries_of(client: Redis, destination: str = "ops") -> list[Delivery]:
    return (await reading.listed(client, 1000, destination=destination)).deliveries


async def told(client: Redis, deliveries: Sequence[Delivery]) -> list[Any]:
    """The data of each body, which its schema admits."""
    contents = Contents(client, Form(), lambda one: outbox_keys.content(0, one.event_id))
    read = []
    for delivery, body in zip(deliveries, await contents.bodies([(one, True) for one in deliveries]), strict=True):
        assert isinstance(body, bytes), body
        jsonschema.Draft202012Validator(schema_of(delivery.event_type)).validate(json.loads(body))
        read.append(json.loads(body)["data"])
    return read


async def put(client: Redis, event_id: str, event_type: str, data: bytes, to: str = "") -> None:
    await client.execute_command("XADD", keys.log(0), "*", *event_words(event_id, event_type, data, to))


async def attempted(client: Redis, outcome: Any, *, rules: Rules | None = None, of: str = "crm") -> int:
    """Claim what is due and let each attempt at an endpoint end so, all others well. How many there were of it."""
    outboxes = box(client, {of: rules} if rules else None)
    batch = await outboxes.claim(ids.new_nonce(), 100)
    await outboxes.settle([(each, outcome if each.destination == of else Delivered(204)) for each in batch])
    return sum(each.destination == of for each in batch)


@pytest.mark.requirement("events:notices:one-alert")
async def test_500_deliveries_of_an_endpoint_that_die_within_a_minute_are_one_event(any_redis: Redis) -> None:
    """hookdeck/outpost 967 and 995."""
    await insert(any_redis, [made(f"evt_{number}") for number in range(500)])
    relay = relay_of(any_redis, OPS)
    dead = 0
    while ended := await attempted(any_redis, MISSING, rules=ONE_TRY):
        dead += ended
        await any_redis.delete("lw:{p00}:relay")
        await relay.step()
    assert dead == 500
    found = [one for one in await deliveries_of(any_redis) if one.event_type == "delivery.dead"]
    assert len(found) == 1
    (data,) = await told(any_redis, found)
    assert (data["endpoint"], data["code"], data["event_type"]) == ("crm", "http_404", "turn.completed")
    assert data["delivery"].startswith("dlv_00")


@pytest.mark.requirement("events:notices:told")
async def test_an_operator_is_told_that_an_endpoint_fails_that_it_takes_again_and_that_it_was_disabled(
    any_redis: Redis,
) -> None:
    relay = relay_of(any_redis, OPS)
    for number, outcome in enumerate([BUSY, BUSY, BUSY, BUSY, Delivered(204), GONE]):
        await any_redis.delete("lw:{p00}:relay")
        await insert(any_redis, [made(f"evt_{number}")])
        assert await attempted(any_redis, outcome) == 1
        await any_redis.delete("lw:{p00}:relay")
        await relay.step()
    found = await deliveries_of(any_redis)
    by_type = dict(zip([one.event_type for one in found], await told(any_redis, found), strict=True))
    assert by_type.keys() == {"delivery.failing", "delivery.recovered", "delivery.endpoint_disabled", "delivery.dead"}
    assert (by_type["delivery.failing"]["failed"], by_type["delivery.failing"]["code"]) == (4, "http_503")
    assert by_type["delivery.failing"]["failing_since_ms"] > 0
    assert by_type["delivery.recovered"]["failed"] == 0
    assert by_type["delivery.endpoint_disabled"]["code"] == "gone"


@pytest.mark.requirement("events:notices:no-loop")
async def test_an_operators_endpoint_that_fails_is_told_nothing_of_that_and_others_only_that_it_was_disabled(
    any_redis: Redis,
) -> None:
    second = endpoint("second", "delivery.*")
    relay = relay_of(any_redis, OPS, second)
    await put(any_redis, "evt_1", *notices.notice_of("dead", "crm", made("evt_0"), FAILING, 1))
    await relay.step()
    assert len(await deliveries_of(any_redis)) == 1
    assert await attempted(any_redis, GONE, of="ops") == 1
    for _ in range(2):
        await relay.step()
    assert [(one.event_type, one.destination) for one in (await reading.listed(any_redis, 100)).deliveries] == [
        ("delivery.endpoint_disabled", "second"),
        ("delivery.dead", "second"),
        ("delivery.dead", "ops"),
    ]


@pytest.mark.requirement("events:relay:crash")
@pytest.mark.parametrize("fault", ["request lost", "reply lost"])
async def test_what_a_crash_lets_be_done_again_is_made_once_with_its_content(any_redis: Redis, fault: Fault) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    await put(any_redis, "evt_9", "endpoint.test", notices.trial_of("crm", 1), "crm")
    await seal(accumulator)
    line = Lossy(any_redis)
    subscriber = endpoint("crm", "*")
    relay = relay_of(any_redis, subscriber)
    await relay.step()
    assert len(await deliveries_of(any_redis, "crm")) == 3
    await any_redis.flushall()
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    await put(any_redis, "evt_9", "endpoint.test", notices.trial_of("crm", 1), "crm")
    await seal(accumulator)
    line.faults.extend(["none", fault])
    with pytest.raises(redis.ConnectionError):
        await relay_of(any_redis, subscriber).step()
    await any_redis.hdel("lw:{p00}:relay", "owner", "exp")
    await relay_of(any_redis, subscriber).step()
    found = await deliveries_of(any_redis, "crm")
    assert sorted(one.event_type for one in found) == ["call.completed", "endpoint.test", "turn.completed"]
    data = dict(zip([one.event_type for one in found], await told(any_redis, found), strict=True))
    assert data["call.completed"]["text"] == data["turn.completed"]["text"] == "Hello."
    assert data["endpoint.test"]["endpoint"] == "crm"


@pytest.mark.requirement("events:relay:older-release")
async def test_an_older_release_puts_events_aside_and_this_one_delivers_them_with_their_content(
    any_redis: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(any_redis, "evt_9", "delivery.dead", notices.notice_of("dead", "crm", made("evt_0"), FAILING, 1)[1])
    with monkeypatch.context() as older:
        older.setattr(log, "LOG_VERSION", 1)
        await relay_of(any_redis, OPS).step()
    assert (await waits_aside(any_redis, 0))[0] == 1
    assert await deliveries_of(any_redis) == []
    await any_redis.xtrim(keys.log(0), maxlen=0)
    relay = relay_of(any_redis, OPS)
    relay._look_aside_at -= ASIDE_S
    await relay.step()
    assert (await waits_aside(any_redis, 0))[0] == 0
    (data,) = await told(any_redis, await deliveries_of(any_redis))
    assert data["endpoint"] == "crm"


@pytest.mark.requirement("events:relay:older-release")
async def test_what_older_releases_can_read_is_written_in_the_version_that_they_know(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    await seal(accumulator)
    await put(any_redis, "evt_9", "endpoint.test", b"{}", "crm")
    stored = [words[b"v"] for _, words in await any_redis.xrange(keys.log(0))]
    assert stored == [b"1", b"1", b"2"]
