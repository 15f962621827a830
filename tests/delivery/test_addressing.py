"""From an entry of the log to its deliveries: which event it is, and who gets it."""

from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import redis

from channels.addressing import MOST_BYTES
from channels.delivery.model import lane_of
from channels.endpoints.model import Endpoint, Match
from channels.events import notices
from channels.made import Made
from tests.delivery.subscribers import SOON, Counted, addressing_of, endpoint, made_of
from tests.store.turns import Redis, ask, commit, driven, driver_of, granted, log_of, seal, taken, with_tools
from tests.webhook.bodies import notice
from worker import ids
from worker.store import approvals, keys
from worker.store.log import LogEntry, event_words, read_log


@pytest.fixture
def blocking(request: pytest.FixtureRequest, any_redis: Redis) -> Iterator[redis.Redis]:
    """A blocking client of the same server as `any_redis`."""
    if isinstance(any_redis, fakeredis.FakeAsyncRedis):
        client: redis.Redis = fakeredis.FakeRedis(server=any_redis.connection_pool.connection_kwargs["server"])
    else:
        client = redis.Redis.from_url(request.getfixturevalue("real_url"))
    yield client
    client.close()


async def told(client: Redis, *endpoints: Endpoint) -> list[tuple[str, str]]:
    """Type and destination of every delivery that the log has."""
    made = await addressing_of(client, *endpoints).made_of(await log_of(client), SOON)
    return [(one.event_type, one.destination) for each in made if each for one in each.deliveries]


def entry_of(kind: Any = "event", **more: Any) -> LogEntry:
    values = {"call": 0, "outcome": None, "event_id": "evt_1", "turn": "", **more}
    return LogEntry(id="1790000000000-0", kind=kind, at_ms=1_790_000_000_000, **values)


async def lasting(client: Redis, *tools: str) -> Any:
    """A turn whose first call asked for tools, and which a person was asked about."""
    accumulator = driver_of(client, await granted(client))
    await with_tools(accumulator, *tools)
    return accumulator


@pytest.mark.requirement("events:relay:subscribed")
async def test_an_endpoint_gets_the_events_that_it_subscribes_to_and_a_destination_only_the_end(
    any_redis: Redis,
) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    await seal(accumulator)
    crm, audit, all_of_them = endpoint("crm"), endpoint("audit", "call.completed"), endpoint("archive", "*")
    assert await told(any_redis, crm, audit, all_of_them) == [
        ("call.completed", "audit"),
        ("call.completed", "archive"),
        ("turn.completed", "there"),
        ("turn.completed", "archive"),
    ]


@pytest.mark.requirement("events:relay:subscribed")
@pytest.mark.parametrize(
    ("wanted", "gets"),
    [
        ({"labels": [("team", Match("a"))]}, True),
        ({"labels": [("team", Match("b"))]}, False),
        ({"labels": [("team", Match("a")), ("job", Match("", prefix=True))]}, False),
        ({"sources": (Match("te", prefix=True),)}, True),
        ({"sources": (Match("te"), Match("http"))}, False),
    ],
)
async def test_source_and_labels_of_the_turn_decide_too(fake_redis: Redis, wanted: dict[str, Any], gets: bool) -> None:
    await seal(await driven(fake_redis))
    subscriber = endpoint("crm", "turn.*", **wanted)
    assert ("turn.completed", "crm") in await told(fake_redis, subscriber) or not gets
    assert len(await told(fake_redis, subscriber)) == 1 + gets


@pytest.mark.requirement("events:relay:one-delivery")
async def test_an_endpoint_that_is_named_and_subscribed_gets_one_delivery_with_the_id_of_old(fake_redis: Redis) -> None:
    accumulator = await driven(fake_redis)
    await seal(accumulator)
    (entry,) = await log_of(fake_redis)
    made = await made_of(fake_redis, entry, endpoint("there", "turn.*"))
    (delivery,) = made.deliveries
    assert delivery.id == ids.delivery_of(0, ids.end_of(accumulator.turn), "there")
    assert (made.event_id, made.content) == ("", b"")


@pytest.mark.requirement("events:relay:id")
async def test_two_endpoints_get_the_same_event_under_ids_of_their_own_each_time_alike(fake_redis: Redis) -> None:
    """hookdeck/outpost 609: an id without the destination let one endpoint's retry take the other's place."""
    accumulator = await driven(fake_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "Hello.")
    (entry,) = await log_of(fake_redis)
    subscribers = endpoint("crm", "call.*"), endpoint("audit", "call.*")
    one, other = (await made_of(fake_redis, entry, *subscribers)).deliveries
    assert one.event_id == other.event_id == entry.event_id
    assert one.id != other.id
    assert (await made_of(fake_redis, entry, *subscribers)).deliveries == (one, other)


@pytest.mark.requirement("events:relay:cheap")
async def test_of_what_nobody_subscribes_to_nothing_is_read(fake_redis: Redis) -> None:
    turn = "turn_00" + "b" * 20
    entries = [
        entry_of("commit", turn=turn, call=1, out="1-1"),
        entry_of("approval", turn=turn, out="1-1", approval="appr_1"),
        entry_of("decision", turn=turn, approval="appr_1"),
        entry_of("discard", turn=turn),
        entry_of("seal", turn=turn, outcome="merged"),
        entry_of(event_type="delivery.dead", data=b"{}"),
    ]
    counted = Counted(fake_redis)
    addressing = addressing_of(fake_redis, endpoint("crm", "turn.*"), read=counted)
    assert await addressing.made_of(entries, SOON) == [Made()] * 6
    assert counted.round_trips == []


@pytest.mark.requirement("events:relay:cheap")
async def test_many_entries_take_one_round_trip_and_each_turn_is_read_once(fake_redis: Redis) -> None:
    for session in ("a", "b", "c"):
        accumulator = driver_of(fake_redis, await granted(fake_redis, session=session))
        await with_tools(accumulator, "mail")
        await ask(accumulator)
        await seal(accumulator)
    counted = Counted(fake_redis)
    addressing = addressing_of(fake_redis, endpoint("all", "*"), read=counted)
    made = await addressing.made_of(await log_of(fake_redis), SOON)
    assert sum(len(each.deliveries) for each in made if each) == 3 * 4
    assert counted.round_trips == [["head"] * 3]


@pytest.mark.requirement("events:relay:approvals")
@pytest.mark.parametrize("answer", ["approve_once", "deny", None])
async def test_an_answer_is_told_as_decided_and_the_end_of_the_time_as_expired(
    any_redis: Redis, blocking: Any, answer: str | None
) -> None:
    accumulator = await lasting(any_redis, "mail")
    approval = await ask(accumulator, expire_s=3600 if answer else 0)
    await accumulator.park()
    if answer:
        await approvals.resolve(any_redis, approval, answer, "ana")
    else:
        approvals.expire_due(blocking, 0)
    last = "approval.decided" if answer else "approval.expired"
    assert await told(any_redis, endpoint("desk", "approval.*")) == [("approval.requested", "desk"), (last, "desk")]
    assert await told(any_redis, endpoint("desk", last)) == [(last, "desk")]
    other = {"approval.decided", "approval.expired"} - {last}
    assert await told(any_redis, endpoint("desk", *other)) == []


@pytest.mark.requirement("events:relay:unusable")
async def test_an_answer_whose_request_is_not_stored_any_more_is_a_dead_letter(fake_redis: Redis) -> None:
    accumulator = await lasting(fake_redis, "mail")
    approval = await ask(accumulator)
    await accumulator.park()
    await approvals.resolve(fake_redis, approval, "deny", "ana")
    await fake_redis.delete(keys.approvals(accumulator.turn))
    entry = (await log_of(fake_redis))[-1]
    (letter,) = (await made_of(fake_redis, entry, endpoint("desk", "approval.*"))).deliveries
    assert (letter.state, letter.code, letter.destination) == ("dead", "unusable_turn", "")


@pytest.mark.requirement("events:relay:own-content")
async def test_an_event_that_brings_its_content_goes_to_its_subscribers_and_its_content_is_kept_as_it_came(
    any_redis: Redis,
) -> None:
    data = b'{"endpoint":"crm","n":1.7976931348623157e+308,"m":18446744073709551616}'
    await any_redis.execute_command("XADD", keys.log(0), "*", *event_words("evt_9", "delivery.failing", data))
    (entry,) = await read_log(any_redis, 0, "0-0", 10, 0)
    made = await made_of(any_redis, entry, endpoint("ops", "delivery.*"), endpoint("crm", "turn.*"))
    (delivery,) = made.deliveries
    assert (delivery.event_type, delivery.destination, delivery.event_id) == ("delivery.failing", "ops", "evt_9")
    assert (made.event_id, made.content) == ("evt_9", data)


@pytest.mark.requirement("events:relay:one-destination")
async def test_an_event_for_one_destination_goes_there_alone_and_waits_behind_nothing(fake_redis: Redis) -> None:
    entry = entry_of(event_type="endpoint.test", data=notices.trial_of("crm", 1), to="crm")
    subscribers = [endpoint("ops", "*"), endpoint("crm", "*", order="endpoint")]
    (delivery,) = (await made_of(fake_redis, entry, *subscribers)).deliveries
    assert (delivery.destination, delivery.mailbox, delivery.turn) == ("crm", "", "")


@pytest.mark.requirement("events:notices:not-to-itself")
@pytest.mark.parametrize("of", notices.TYPES)
async def test_how_an_endpoint_fares_is_told_to_others_and_never_to_itself(fake_redis: Redis, of: Any) -> None:
    event_type, data = notice(of)
    entry = entry_of(event_type=event_type, data=data)
    subscribers = [endpoint("ops", "delivery.*"), endpoint("crm", "delivery.*")]
    made = await made_of(fake_redis, entry, *subscribers)
    assert [one.destination for one in made.deliveries] == ["ops"]
    assert await made_of(fake_redis, entry, subscribers[1]) == Made()


@pytest.mark.requirement("events:notices:no-loop")
async def test_of_deliveries_that_tell_of_deliveries_nothing_is_told(fake_redis: Redis) -> None:
    event_type, data = notice("dead", event_type="delivery.failing")
    entry = entry_of(event_type=event_type, data=data)
    assert await made_of(fake_redis, entry, endpoint("other", "delivery.*")) == Made()


@pytest.mark.requirement("events:notices:disabled")
async def test_that_an_endpoint_was_disabled_is_told_to_others_whatever_it_was_sent(fake_redis: Redis) -> None:
    event_type, data = notice("disabled", event_type="delivery.failing")
    entry = entry_of(event_type=event_type, data=data)
    found = await made_of(fake_redis, entry, endpoint("other", "delivery.*"), endpoint("crm", "delivery.*"))
    assert [one.destination for one in found.deliveries] == ["other"]


@pytest.mark.requirement("events:relay:unusable")
@pytest.mark.parametrize(
    ("event_type", "data"),
    [
        ("delivery.dead", b"no JSON"),
        ("delivery.dead", b"[1]"),
        ("delivery.dead", b'{"a":NaN}'),
        ("delivery.dead", b'{"a":"\xff"}'),
        ("", b"{}"),
        ("delivery.dead", b'{"a":"' + b"x" * MOST_BYTES + b'"}'),
    ],
    ids=["no JSON", "no object", "NaN", "no UTF-8", "no type", "too long"],
)
async def test_an_event_of_which_no_body_can_be_made_is_a_dead_letter_with_its_reason(
    fake_redis: Redis, event_type: str, data: bytes
) -> None:
    entry = entry_of(event_type=event_type, data=data, to="crm")
    (letter,) = (await made_of(fake_redis, entry)).deliveries
    assert (letter.state, letter.code, letter.event_id) == ("dead", "unusable_event", entry.id)
    assert letter.message.startswith(f"log entry {entry.id}: ")
    assert len(letter.message) < 200


@pytest.mark.requirement("events:relay:own-content")
async def test_an_event_may_bring_as_much_as_the_bound_says(fake_redis: Redis) -> None:
    data = b'{"a":"' + b"x" * (MOST_BYTES - 8) + b'"}'
    assert len(data) == MOST_BYTES
    made = await made_of(fake_redis, entry_of(event_type="delivery.dead", data=data, to="crm"))
    assert [one.state for one in made.deliveries] == ["queued"]
    assert made.content == data


@pytest.mark.requirement("events:relay:clock")
async def test_what_was_told_by_a_clock_that_was_put_back_since_is_due_now(fake_redis: Redis) -> None:
    entry = entry_of(event_type="delivery.dead", data=b"{}", to="crm")
    for now_ms in (entry.at_ms - 3_600_000, entry.at_ms, entry.at_ms + 5):
        (made,) = await addressing_of(fake_redis).made_of([entry], now_ms)
        assert made is not None
        (one,) = made.deliveries
        assert (one.created_ms, one.due_ms) == (min(entry.at_ms, now_ms),) * 2


@pytest.mark.requirement("events:relay:well-formed")
async def test_a_destination_that_utf_8_cannot_hold_is_told_as_far_as_it_can_be(fake_redis: Redis) -> None:
    """A record holds what JSON can spell."""
    accumulator = await driven(fake_redis)
    await seal(accumulator)
    await fake_redis.hset(keys.turn_record(accumulator.turn), "destinations", '["a\\ud800", "b"]')
    made = await addressing_of(fake_redis).made_of(await log_of(fake_redis), SOON)
    assert [one.destination for each in made if each for one in each.deliveries] == ["a\ufffd", "b"]


@pytest.mark.requirement("events:relay:order")
@pytest.mark.parametrize(("named", "events"), [(True, ()), (False, ("turn.*",)), (True, ("turn.*",))])
async def test_what_is_in_order_with_what_follows_from_the_endpoint(
    fake_redis: Redis, named: bool, events: tuple[str, ...]
) -> None:
    """Also for one that a turn names. Of one session, all of one endpoint, nothing."""
    turns = [await driven(fake_redis, session=session) for session in ("a", "b")]
    for accumulator in turns:
        await seal(accumulator)
        if named:
            await fake_redis.hset(keys.turn_record(accumulator.turn), "destinations", '["s","e","n","https://u/x"]')
    endpoints = [
        endpoint("s", *events, order="session"),
        endpoint("e", *events, order="endpoint"),
        endpoint("n", *events, order="none"),
    ]
    made = await addressing_of(fake_redis, *endpoints).made_of(await log_of(fake_redis), SOON)
    of_a, of_b = ({one.destination: one for one in each.deliveries} for each in made if each)
    assert of_a["s"].mailbox != of_b["s"].mailbox
    assert len(of_a["s"].mailbox) == 16
    assert of_a["e"].mailbox == of_b["e"].mailbox == "all"
    assert of_a["n"].mailbox == of_b["n"].mailbox == ""
    assert all(one.lane == lane_of(one.destination) for one in (*of_a.values(), *of_b.values()))
    if named:
        assert of_a["https://u/x"].mailbox == ""


@pytest.mark.requirement("events:relay:order")
async def test_an_event_without_a_session_is_in_order_with_none_of_a_session(fake_redis: Redis) -> None:
    event_type, data = notice("dead")
    entry = entry_of(event_type=event_type, data=data)
    ops = [endpoint(order, "delivery.*", order=order) for order in ("none", "session", "endpoint")]
    assert [one.mailbox for one in (await made_of(fake_redis, entry, *ops)).deliveries] == ["", "", "all"]


@pytest.mark.requirement("events:relay:order")
async def test_the_events_of_one_session_are_in_order_whatever_their_type(fake_redis: Redis) -> None:
    accumulator = await lasting(fake_redis, "mail")
    await ask(accumulator)
    await accumulator.park()
    await approvals.resolve(fake_redis, ids.approval_of(accumulator.turn, 1, 0), "deny", "ana")
    await seal(driver_of(fake_redis, await taken(fake_redis)))
    addressing = addressing_of(fake_redis, endpoint("desk", "*", order="session"))
    made = await addressing.made_of(await log_of(fake_redis), SOON)
    desk = [one for each in made if each for one in each.deliveries if one.destination == "desk"]
    boxes = {(one.event_type, one.mailbox) for one in desk}
    assert len(boxes) == 4
    assert len({box for _, box in boxes}) == 1


@pytest.mark.requirement("events:relay:later-release")
async def test_a_call_that_a_release_completed_which_told_nobody_of_calls_is_not_told(fake_redis: Redis) -> None:
    """Nobody could have subscribed when it was written, and it does not say where its text stands."""
    entry = entry_of("commit", turn="turn_00" + "b" * 20, call=1)
    assert await made_of(fake_redis, entry, endpoint("crm", "*")) == Made()
