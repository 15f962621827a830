"""What this release cannot read of lanes and deliveries: left alone in its place, told, and in nobody's way."""

import logging
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.delivery import model
from channels.delivery.lane import Lane
from channels.delivery.model import Delivered, Delivery
from channels.outbox import lanes, left_alone, reading, replaying, reviewing, upkeep
from channels.outbox.outbox import Outbox
from channels.outbox.stored import LANE_VERSION, UNREADABLE, decode_lane, encode_lane
from tests.delivery.outboxes import BUSY, KnownRules, box, insert, inserted, known, limited, made
from tests.delivery.passing_time import let_pass
from worker import ids
from worker.errors import ConfigurationError, NewerRecord

LANE = "lw:{dlv}:lane:bad"
RULES = {"bad": limited(rate_per_s=5.0)}

PAUSED = orjson.loads(encode_lane(Lane(3, "paused", "an operator said so")))


def lane_with(place: int, value: object) -> bytes:
    return orjson.dumps([*PAUSED[:place], value, *PAUSED[place + 1 :]])


UNREADABLE_LANES = [
    lane_with(0, LANE_VERSION + 1),
    lane_with(0, "1"),
    lane_with(1, None),
    lane_with(2, "archived"),
    lane_with(3, 7),
    lane_with(5, "now"),
    lane_with(5, None),
    lane_with(6, 1.5),
    lane_with(17, 1),
    orjson.dumps([*PAUSED, "a field of tomorrow"]),
    orjson.dumps(PAUSED[:17]),
    b'{"v":2,"lane":{}}',
    b"[2]",
    b"[]",
    b"5",
    b"null",
    b'"paused"',
    b"\xff",
]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logger = logging.getLogger("lastword")
    logger.addHandler(caplog.handler)
    yield caplog
    logger.removeHandler(caplog.handler)


def lines(told: pytest.LogCaptureFixture) -> list[tuple[str, Any]]:
    return [(record.message, vars(record)["lastword"]) for record in told.records if "lastword" in vars(record)]


async def look_on(outbox: Outbox) -> list[Delivery]:
    """What a process gets that claims until there is nothing to do at once."""
    got: list[Delivery] = []
    for _ in range(10):
        got += await outbox.claim(ids.new_nonce(), 4)
        if await outbox.due_in() != 0:
            return got
    raise AssertionError("it never comes to rest")


async def store_bad(client: Any, one: Delivery, **values: object) -> bytes:
    """Let a record have other values, in its place; gives what is stored."""
    names = [each.name for each in fields(Delivery)]
    key = f"lw:{{p00}}:dlv:{one.id}"
    line, _, record = (await client.get(key)).partition(b"\n")
    stored = orjson.loads(record)
    for name, value in values.items():
        stored[1 + names.index(name)] = value
    await client.set(key, line + b"\n" + orjson.dumps(stored))
    return await client.get(key)  # type: ignore[no-any-return]


@pytest.mark.requirement("outbox:left-alone")
@pytest.mark.parametrize("record", UNREADABLE_LANES)
def test_a_lane_that_is_not_as_this_release_knows_it_is_none_of_which_nothing_is_known(record: bytes) -> None:
    assert decode_lane(record) is UNREADABLE


@pytest.mark.requirement("outbox:left-alone")
@pytest.mark.parametrize("record", [lane_with(0, LANE_VERSION + 1), lane_with(6, None), b"\xff"])
async def test_a_lane_that_cannot_be_read_keeps_no_other_waiting_and_stays_as_it_is(
    any_redis: Any, record: bytes
) -> None:
    await inserted(any_redis, "evt_1", "evt_2", "evt_3", destination="bad")
    first, second, dead = await box(any_redis).claim("before", 3)
    await inserted(any_redis, "evt_4", destination="bad")
    await inserted(any_redis, "evt_5", destination="good")
    before = {"mark": b"3:abcd", "record": record, "cap": b"1000000000"}
    await any_redis.hset(LANE, mapping=before)
    outbox = box(any_redis, RULES)
    [good] = await look_on(outbox)
    assert (good.lane, good.event_id) == ("good", "evt_5")
    await outbox.settle([(good, Delivered(200))])
    # What this release had on its way to it is settled all the same.
    [after] = await outbox.settle([(first, BUSY)])
    assert after is not None
    assert after.state == "waiting"
    [given_back] = await outbox.release([(second, 0)])
    assert given_back is not None
    assert given_back.state == "queued"
    await let_pass(any_redis, 60)
    assert await look_on(outbox) == [], "its lease has ended, and a newer release may have it"
    assert (await reading.show(any_redis, dead.id)).state == "in_flight"
    assert await reviewing.review(any_redis, KnownRules(RULES)) == 0
    for step in (lanes.resume, lanes.look_again):
        with pytest.raises(NewerRecord, match=r"endpoint bad .* newer version"):
            await step(any_redis, "bad")
    with pytest.raises(NewerRecord):
        await lanes.pause(any_redis, "bad", "for now")
    assert {name: (await any_redis.hget(LANE, name)) for name in before} == before
    assert (await lanes.standings(any_redis, ["bad"]))["bad"].standing == "paused"
    # Who can read it goes on with it at once.
    await any_redis.hset(LANE, "record", encode_lane(Lane(3)))
    await let_pass(any_redis, 10)
    got = await look_on(box(any_redis))
    assert {one.event_id for one in got} == {"evt_4", first.event_id, second.event_id}


@pytest.mark.requirement("outbox:left-alone")
async def test_what_a_lane_holds_that_cannot_be_read_is_not_replayed_to_be_held_again(any_redis: Any) -> None:
    await lanes.pause(any_redis, "bad", "for now")
    [held] = await inserted(any_redis, "evt_1", destination="bad")
    await known(any_redis, held)
    assert await look_on(box(any_redis)) == []
    await any_redis.hset(LANE, "record", b"[2]")
    with pytest.raises(ConfigurationError, match="bad is paused"):
        await replaying.replay(any_redis, held.id)
    assert await replaying.replay_some(any_redis, [held.id]) == []


@pytest.mark.requirement("outbox:left-alone")
@given(
    st.lists(
        st.integers(0, 2**60) | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(max_size=3),
        min_size=15,
        max_size=15,
    ),
    st.sampled_from(["active", "paused", "disabled", "archived"]),
)
def test_whatever_a_lane_holds_it_is_read_whole_or_not_at_all(values: list[Any], standing: str) -> None:
    lane = decode_lane(orjson.dumps([LANE_VERSION, 3, standing, *values]))
    assert lane is UNREADABLE or decode_lane(encode_lane(lane)) == lane


def test_a_lane_that_is_stored_reads_back_whole_and_one_that_is_not_is_new() -> None:
    lane = Lane(3, "paused", "why", 1, 2.5, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, alarmed=True)
    assert decode_lane(encode_lane(lane)) == lane
    assert decode_lane(encode_lane(replace(lane, rate_ms=2))) == replace(lane, rate_ms=2.0)
    assert decode_lane(b"") == Lane()


@pytest.mark.requirement("outbox:left-alone")
@pytest.mark.parametrize("mailbox", ["", "box"])
@pytest.mark.parametrize(
    "values",
    [
        {"state": "of tomorrow"},
        {"state": "delivered"},
        {"due_ms": None},
        {"attempts": "1"},
        {"first_ms": 1.5},
        {"lane": "good"},
        {"id": "dlv_00" + "0" * 20},
        {"version": 9},
        {"token": "another"},
        {"log": [[1, None, "x", "y", "no"]]},
        {"log": [["1", 1, "x", "y", "no", 0]]},
    ],
)
async def test_a_delivery_that_cannot_be_read_keeps_no_other_waiting_and_stays_as_it_is(
    any_redis: Any, values: dict[str, Any], mailbox: str
) -> None:
    bad, behind = await insert(any_redis, [made(f"evt_{each}", "bad", mailbox=mailbox) for each in range(2)])
    [other] = await insert(any_redis, [made("evt_other", "bad")])
    [good] = await inserted(any_redis, "evt_good", destination="good")
    record = await store_bad(any_redis, bad, **values)
    expected = {other.id, good.id} | (set() if mailbox else {behind.id})
    batch = await look_on(box(any_redis))
    assert {one.id for one in batch} == expected
    assert None not in await box(any_redis).settle([(one, Delivered(200)) for one in batch])
    await upkeep.mend(any_redis)
    assert await any_redis.get(f"lw:{{p00}}:dlv:{bad.id}") == record


@pytest.mark.requirement("outbox:left-alone")
@pytest.mark.parametrize("mailbox", ["", "box"])
@pytest.mark.parametrize("in_flight", [False, True])
@pytest.mark.parametrize("value", [b"", b"torn", b"1: - - -\n[2]", b"1: - nan 1\n[3]"])
async def test_a_record_without_the_line_before_it_stops_no_claim_no_settle_and_no_new_delivery(
    any_redis: Any, value: bytes, mailbox: str, in_flight: bool
) -> None:
    [bad] = await insert(any_redis, [made("evt_1", "bad", mailbox=mailbox)])
    outbox = box(any_redis)
    held = (await outbox.claim("claim", 1))[0] if in_flight else bad
    await any_redis.set(f"lw:{{p00}}:dlv:{bad.id}", value)
    await insert(any_redis, [made("evt_2", "bad", mailbox=mailbox)])
    await inserted(any_redis, "evt_good", destination="good")
    assert "good" in {one.lane for one in await look_on(outbox)}
    assert await outbox.settle([(held, BUSY)] if in_flight else []) == [None] * in_flight
    await let_pass(any_redis, 60)
    await look_on(outbox)
    await upkeep.mend(any_redis)
    assert await any_redis.get(f"lw:{{p00}}:dlv:{bad.id}") == value


@pytest.mark.requirement("outbox:left-alone")
async def test_what_stands_in_place_of_a_record_and_is_none_stops_no_claim(any_redis: Any) -> None:
    [bad] = await inserted(any_redis, "evt_1", destination="bad")
    await inserted(any_redis, "evt_2", destination="good")
    await any_redis.delete(f"lw:{{p00}}:dlv:{bad.id}")
    await any_redis.hset(f"lw:{{p00}}:dlv:{bad.id}", "version", "1")
    assert [one.lane for one in await look_on(box(any_redis))] == ["good"]


@pytest.mark.requirement("outbox:left-alone")
async def test_a_fault_in_what_is_decided_of_one_lane_is_told_and_keeps_no_other_waiting(
    any_redis: Any, told: pytest.LogCaptureFixture
) -> None:
    for lane in ("bad", "good"):
        await inserted(any_redis, "evt_1", destination=lane)
    outbox = box(any_redis, {"bad": limited(rate_per_s=0.0)})
    assert [one.lane for one in await look_on(outbox)] == ["good"]
    [(name, words)] = lines(told)
    assert (name, words["lane"], words["error"]) == ("lane_undecided", "bad", "ZeroDivisionError")
    await let_pass(any_redis, 10)
    assert [one.lane for one in await look_on(box(any_redis))] == ["bad"]


@pytest.mark.requirement("outbox:left-alone")
async def test_what_is_left_alone_is_told_once_in_ten_minutes(
    fake_redis: Any, told: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(left_alone, "monotonic", lambda: clock[0])
    [delivery] = await inserted(fake_redis, "evt_1", destination="odd")
    await store_bad(fake_redis, delivery, state="of tomorrow")
    await inserted(fake_redis, "evt_2", destination="bad")
    await fake_redis.hset(LANE, mapping={"mark": "3:abcd", "record": b"[2]"})
    outbox = box(fake_redis)
    for seconds in (0.0, 60.0, 539.0, 1.0):
        clock[0] += seconds
        await let_pass(fake_redis, 60)
        await look_on(outbox)
    once = [
        ("lane_left_alone", {"lane": "bad", "count": 1}),
        ("delivery_left_alone", {"delivery": delivery.id, "count": 1}),
    ]
    assert lines(told) == once * 2


def test_every_state_is_known() -> None:
    states = ["queued", "in_flight", "waiting", "delivered", "dead", "held", "cancelled"]
    assert [model.decode(model.encode(replace(made("evt_1"), state=state))) for state in states].count(None) == 0  # type: ignore[arg-type]
