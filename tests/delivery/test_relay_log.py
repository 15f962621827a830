"""From the log to deliveries: once each, in order, whatever crashes, and past what cannot be read."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import fakeredis
import pytest
import redis.asyncio

from channels.addressing import Addressing
from channels.delivery.model import Delivery
from channels.endpoints.audience import Audience
from channels.endpoints.model import Endpoint
from channels.outbox import reading, replaying
from channels.outbox.log import RelayLog
from channels.relay import ASIDE_S, Relay
from tests.delivery.outboxes import box
from tests.delivery.passing_time import let_pass
from tests.store.lossy import Fault, Lossy
from worker import ids
from worker.output.events import Outcome, TurnCompletedOutput
from worker.store import keys, log, records
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import NewTurn, submit
from worker.store.lease import claim
from worker.store.log import event_words, read_aside, read_log, waits_aside
from worker.store.reads import read_all
from worker.turn.usage import NO_USAGE

POINTS = ["read", "turns", "request lost", "reply lost", "wake"]


class Crash(BaseException):
    """The process is gone: nothing after this point runs, no handler either."""


class Noted(RelayLog):
    """A log whose relay notes beside the deliveries in which order it made them."""

    async def insert(self, nonce: str, start: str, end: str, deliveries: Any, *args: Any, **more: Any) -> int:
        await note(self._redis, deliveries)
        return await super().insert(nonce, start, end, deliveries, *args, **more)

    async def readmit(self, aside: str, deliveries: Any, **more: Any) -> int:
        await note(self._redis, deliveries)
        return await super().readmit(aside, deliveries, **more)


async def note(client: Any, deliveries: Sequence[Delivery]) -> None:
    for delivery in deliveries:
        await client.zadd("test:made", {delivery.id: await client.zcard("test:made")}, nx=True)


class House:
    """A relay's surroundings, and a place at which its process crashes."""

    def __init__(self, client: redis.asyncio.Redis, *endpoints: Endpoint) -> None:
        self.client = client
        self.crash_at: str | None = None
        self.woken = asyncio.Event()
        self.lost = asyncio.Event()
        self.meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.known = Audience(endpoints)

    def relay(self) -> Relay:
        return Relay(
            Noted(self.client, 0),
            read=self.read,
            read_aside=partial(read_aside, self.client, 0),
            addressing=Addressing(0, self.turns, self.audience),
            wake=self.wake,
        )

    def reach(self, point: str) -> None:
        if point == self.crash_at:
            raise Crash

    async def read(self, after: str, count: int, block_ms: int) -> Any:
        self.reach("read")
        return await read_log(self.client, 0, after, count, min(block_ms, 50))

    async def audience(self) -> Audience:
        return self.known

    async def turns(self, reads: Any) -> list[Any]:
        self.reach("turns")
        if self.meanwhile is not None:
            todo, self.meanwhile = self.meanwhile, None
            await todo()
        try:
            return await read_all(self.client, reads)
        except redis.ConnectionError:
            self.lost.set()
            raise

    async def wake(self) -> None:
        self.reach("wake")
        self.woken.set()


async def sealed(
    client: redis.asyncio.Redis, *destinations: str, outcome: Outcome = "completed", session: str = "room/1"
) -> str:
    """A turn that has ended."""
    turn = ids.new_turn(0)
    new = NewTurn(turn, session, "hello", "default", "test", {}, destinations, None, deadline_s=7200)
    await submit(client, new, 1)
    grant = await claim(client, session, ids.new_nonce(), 8.0, 1)
    assert grant is not None
    accumulator = ExecutionOutputAccumulator(client, grant, lambda: True)
    await accumulator.seal(outcome, None, None, "", NO_USAGE, [TurnCompletedOutput(outcome=outcome)])
    return turn


async def made(client: Any) -> list[Delivery]:
    """Every delivery, in the order in which a relay made them."""
    there = (await reading.listed(client, 1000)).deliveries
    noted = [name.decode() for name in await client.zrange("test:made", 0, -1)]
    return sorted(there, key=lambda delivery: noted.index(delivery.id))


async def told(client: redis.asyncio.Redis) -> list[tuple[str, str]]:
    return [(delivery.turn, delivery.destination) for delivery in await made(client)]


async def cursor(client: Any) -> bytes | None:
    place: bytes | None = await client.hget("lw:{p00}:relay", "cursor")
    return place


@pytest.mark.requirement("delivery:relay:one-per-destination")
async def test_the_end_of_a_turn_becomes_one_delivery_for_each_destination(any_redis: redis.asyncio.Redis) -> None:
    turn = await sealed(any_redis, "crm", "https://hooks.example/", "crm")
    house = House(any_redis)
    assert await house.relay().step() == 0
    crm, hook = await made(any_redis)
    assert (crm.turn, crm.destination, crm.event_type, crm.state) == (turn, "crm", "turn.completed", "queued")
    assert (hook.turn, hook.destination, hook.event_id) == (turn, "https://hooks.example/", crm.event_id)
    assert crm.id == ids.delivery_of(0, ids.end_of(turn), "crm")
    assert house.woken.is_set()


@contextlib.contextmanager
def newer_release() -> Iterator[None]:
    """What runs here meanwhile is of the next release, which reads what it writes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log, "LOG_VERSION", log.LOG_VERSION + 1)
        patch.setattr(records, "RECORD_VERSION", records.RECORD_VERSION + 1)
        yield


async def sealed_by_newer(client: Any, what: str, session: str) -> str:
    """A turn that a newer release has ended, in its own form of the log's entry, or of the turn's record."""
    turn = await sealed(client, "crm", session=session)
    if what == "turn":
        await client.hset(keys.turn_record(turn), "v", records.RECORD_VERSION + 1)
        return turn
    ((place, words),) = await client.xrevrange(keys.log(0), count=1)
    await client.xdel(keys.log(0), place)
    await client.xadd(keys.log(0), {**words, b"v": log.LOG_VERSION + 1, b"of tomorrow": b"\xff"})
    return turn


@pytest.mark.requirement("delivery:relay:newer")
@pytest.mark.parametrize("what", ["entry", "turn"])
async def test_what_a_newer_release_wrote_is_put_aside_for_it_and_what_comes_behind_is_delivered(
    any_redis: Any, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The older relay keeps the log all the time, and holds up neither the others' deliveries nor the newer release."""
    logging.getLogger("lastword").addHandler(caplog.handler)
    first = await sealed(any_redis, "crm")
    theirs = [await sealed_by_newer(any_redis, what, f"room/{number}") for number in (2, 3)]
    last = await sealed(any_redis, "crm", session="room/4")
    older = House(any_redis).relay()
    assert await older.step() == 0
    assert [delivery.turn for delivery in await made(any_redis)] == [first, last]
    assert await cursor(any_redis) == (await any_redis.xrevrange(keys.log(0), count=1))[0][0]
    assert (await waits_aside(any_redis, 0))[0] == 2
    await House(any_redis).relay().step()  # another old one looks at what lies aside
    assert (await waits_aside(any_redis, 0))[0] == 2
    await any_redis.xtrim(keys.log(0), maxlen=0)  # long ago
    house = House(any_redis)
    with newer_release():
        assert await house.relay().step() > 0  # the log is another's
    assert house.woken.is_set()
    there = await made(any_redis)
    assert [(one.turn, one.state) for one in there] == [(turn, "queued") for turn in (first, last, *theirs)]
    assert there[2].created_ms <= there[1].created_ms
    assert await waits_aside(any_redis, 0) == (0, None)
    with newer_release():
        await House(any_redis).relay().step()
    assert await made(any_redis) == there
    logging.getLogger("lastword").removeHandler(caplog.handler)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("log_entry_left_to_newer_release") == 2


@pytest.mark.requirement("delivery:relay:newer")
async def test_a_relay_looks_again_and_again_at_what_lies_aside(any_redis: Any) -> None:
    """It is another's release that has come; of a hundred that it cannot read either, none holds up the one behind."""
    relay = House(any_redis).relay()
    newest = {"v": log.LOG_VERSION + 9, "kind": "seal"}
    for _ in range(120):
        await any_redis.xadd(keys.log(0), newest)
    turn = await sealed_by_newer(any_redis, "turn", "room/2")
    await relay.step()
    await relay.step()
    assert (await waits_aside(any_redis, 0))[0] == 121
    await any_redis.hset(keys.turn_record(turn), "v", records.RECORD_VERSION)
    relay._look_aside_at -= ASIDE_S
    await relay.step()
    assert await told(any_redis) == [(turn, "crm")]
    assert (await waits_aside(any_redis, 0))[0] == 120


@pytest.mark.requirement("delivery:relay:newer")
async def test_what_lay_aside_and_cannot_be_read_after_all_is_a_dead_letter_as_it_was(any_redis: Any) -> None:
    version = str(log.LOG_VERSION + 1).encode()
    entry = {b"v": version, b"kind": b"of tomorrow", b"place": b"theirs"}
    place = await any_redis.xadd(keys.log(0), entry)
    await House(any_redis).relay().step()
    assert await made(any_redis) == []
    await any_redis.xtrim(keys.log(0), maxlen=0)
    with newer_release():
        await House(any_redis).relay().step()
    [letter] = await made(any_redis)
    assert (letter.state, letter.code, letter.event_id) == ("dead", "unreadable_entry", place.decode())
    await replaying.replay(any_redis, letter.id)
    ((_, again),) = await any_redis.xrange(keys.log(0))
    assert again == entry


@pytest.mark.requirement("delivery:relay:newer")
async def test_a_step_that_was_not_answered_puts_nothing_aside_twice_and_loses_nothing(any_redis: Any) -> None:
    turn = await sealed_by_newer(any_redis, "entry", "room/2")
    line, older = Lossy(any_redis), House(any_redis).relay()
    line.faults.extend(["none", "reply lost"])  # of the scripts take and insert
    with pytest.raises(redis.ConnectionError):
        await older.step()
    await older.step()
    assert (await waits_aside(any_redis, 0))[0] == 1
    with newer_release():
        line.faults.append("reply lost")  # of readmit
        with pytest.raises(redis.ConnectionError):
            await House(any_redis).relay().step()
        await House(any_redis).relay().step()
    assert await told(any_redis) == [(turn, "crm")]
    assert (await waits_aside(any_redis, 0))[0] == 0


@pytest.mark.requirement("delivery:relay:every-outcome-but-merged")
@pytest.mark.parametrize("outcome", ["completed", "incomplete", "failed", "cancelled", "skipped", "merged", "dead"])
async def test_every_outcome_but_merged_is_delivered_under_its_name(
    fake_redis: redis.asyncio.Redis, outcome: Outcome
) -> None:
    await sealed(fake_redis, "crm", outcome=outcome)
    await House(fake_redis).relay().step()
    types = [delivery.event_type for delivery in await made(fake_redis)]
    assert types == ([] if outcome == "merged" else [f"turn.{outcome}"])
    assert await cursor(fake_redis) is not None


async def test_entries_that_are_not_ends_of_turns_only_move_the_cursor(fake_redis: Any) -> None:
    entry = {"v": 1, "kind": "commit", "event": "evt_1", "turn": "turn_00" + "b" * 20, "call": 1}
    place = await fake_redis.xadd(keys.log(0), entry)
    house = House(fake_redis)
    await house.relay().step()
    assert await cursor(fake_redis) == place
    assert await made(fake_redis) == []
    assert not house.woken.is_set()


@pytest.mark.requirement("delivery:relay:crash")
@pytest.mark.parametrize("point", POINTS)
async def test_a_relay_that_crashes_anywhere_leaves_each_delivery_made_once_and_in_order(
    any_redis: redis.asyncio.Redis, point: str
) -> None:
    house, line = House(any_redis), Lossy(any_redis)
    relay = house.relay()
    turns = [await sealed(any_redis, "crm", "audit", session=f"room/{number}") for number in range(3)]
    await relay.step()
    turns += [await sealed(any_redis, "crm", "audit", session=f"room/{number}") for number in range(3, 6)]
    if point in {"request lost", "reply lost"}:
        fault: Fault = "request lost" if point == "request lost" else "reply lost"
        line.faults.extend(["none", fault])  # of the scripts take and insert
        with pytest.raises(redis.ConnectionError):
            await relay.step()
    else:
        house.crash_at = point
        with pytest.raises(Crash):
            await relay.step()
    house.crash_at = None
    await let_pass(any_redis, 9)
    await house.relay().step()
    await house.relay().step()
    assert await told(any_redis) == [(turn, destination) for turn in turns for destination in ("crm", "audit")]


@pytest.mark.requirement("delivery:relay:same-relay-repeats")
async def test_a_relay_whose_insert_was_not_answered_goes_on_where_it_stands(any_redis: redis.asyncio.Redis) -> None:
    house, line = House(any_redis), Lossy(any_redis)
    relay = house.relay()
    first = await sealed(any_redis, "crm")
    await relay.step()
    second = await sealed(any_redis, "crm")
    line.faults.extend(["none", "reply lost"])
    with pytest.raises(redis.ConnectionError):
        await relay.step()
    third = await sealed(any_redis, "crm")
    await relay.step()
    assert await told(any_redis) == [(turn, "crm") for turn in (first, second, third)]


@pytest.mark.requirement("delivery:relay:fenced")
async def test_a_relay_that_slept_through_its_lease_changes_nothing(any_redis: redis.asyncio.Redis) -> None:
    house = House(any_redis)
    sleeper, successor = house.relay(), house.relay()
    turns = [await sealed(any_redis, "crm")]

    async def the_lease_ends_and_the_successor_goes_on() -> None:
        await let_pass(any_redis, 9)
        turns.append(await sealed(any_redis, "crm"))
        await successor.step()

    house.meanwhile = the_lease_ends_and_the_successor_goes_on
    assert await sleeper.step() > 0
    assert await told(any_redis) == [(turn, "crm") for turn in turns]


async def test_while_one_relay_holds_the_log_another_waits(any_redis: redis.asyncio.Redis) -> None:
    house = House(any_redis)
    await sealed(any_redis, "crm")
    first, second = house.relay(), house.relay()
    await first.step()
    await sealed(any_redis, "crm")
    assert await second.step() > 0
    assert len(await made(any_redis)) == 1


@pytest.mark.requirement("events:relay:moment")
async def test_what_comes_while_the_relay_waits_for_it_has_the_time_at_which_it_came(any_redis: Any) -> None:
    house = House(any_redis)
    told_ms = 0

    async def read(after: str, count: int, block_ms: int) -> Any:
        """Nothing is there for 50 ms; then an event comes."""
        nonlocal told_ms
        assert await read_log(any_redis, 0, after, count, min(block_ms, 50)) == []
        words = event_words("evt_1", "endpoint.test", b'{"endpoint": "crm"}', to="crm")
        place = await any_redis.execute_command("XADD", keys.log(0), "*", *words)
        told_ms = int(place.partition(b"-")[0])
        return await read_log(any_redis, 0, after, count, 0)

    relay = Relay(
        Noted(any_redis, 0),
        read=read,
        read_aside=partial(read_aside, any_redis, 0),
        addressing=Addressing(0, house.turns, house.audience),
        wake=house.wake,
    )
    await relay.step()
    [one] = await made(any_redis)
    assert one.created_ms == one.due_ms == told_ms > 0


async def ahead(client: Any, *, days: float = 1) -> None:
    """Let all that is stored have been written by a clock that was so far ahead, and was put back since."""
    by_ms = round(days * 86_400_000)
    await client.hincrby("lw:{p00}:relay", "exp", by_ms)
    now_ms = (await client.time())[0] * 1000
    await client.xadd(keys.log(0), {"v": 1, "kind": "commit", "event": "e", "turn": "t", "call": 1}, id=now_ms + by_ms)


@pytest.mark.requirement("delivery:clock:relay")
async def test_a_turn_that_ends_after_the_clock_was_put_back_is_due_now_and_not_when_the_old_time_is_reached(
    any_redis: Any,
) -> None:
    relay = House(any_redis).relay()
    await sealed(any_redis, "crm")
    await relay.step()
    await ahead(any_redis)
    turn = await sealed(any_redis, "crm", session="room/2")
    await relay.step()
    now_ms = (await any_redis.time())[0] * 1000
    assert [one.turn for one in await made(any_redis)][1] == turn
    assert all(one.due_ms <= now_ms + 1000 and one.created_ms <= now_ms + 1000 for one in await made(any_redis))
    claimed = await box(any_redis).claim("claim", 10)
    assert len(claimed) == 2


@pytest.mark.requirement("delivery:clock:relay")
async def test_a_relay_that_died_before_the_clock_was_put_back_does_not_keep_the_log(any_redis: Any) -> None:
    await House(any_redis).relay().step()
    assert await House(any_redis).relay().step() > 0
    await ahead(any_redis)
    turn = await sealed(any_redis, "crm")
    assert await House(any_redis).relay().step() == 0
    assert await told(any_redis) == [(turn, "crm")]


UNREADABLE = [
    {"v": 1, "kind": "applause", "event": "e", "turn": "t", "call": 1},
    {"v": 1, "kind": "seal", "event": "e", "turn": "t", "call": 1, "outcome": "victory"},
    {"v": 1, "kind": "seal"},
    {"v": "x"},
    {"nonsense": b"\xff\x00"},
]


@pytest.mark.requirement("delivery:relay:unreadable-entry")
@pytest.mark.parametrize("entry", UNREADABLE)
async def test_an_entry_that_cannot_be_read_is_a_dead_letter_with_its_reason_and_the_next_goes_on(
    any_redis: Any, entry: dict[Any, Any]
) -> None:
    before = await sealed(any_redis, "crm")
    place = (await any_redis.xadd(keys.log(0), entry)).decode()
    after = await sealed(any_redis, "crm")
    await House(any_redis).relay().step()
    first, letter, last = await made(any_redis)
    assert (first.turn, last.turn) == (before, after)
    assert (letter.state, letter.code, letter.event_id) == ("dead", "unreadable_entry", place)
    assert letter.message.startswith(f"log entry {place}: ")
    assert (await reading.listed(any_redis, 10, state="dead")).deliveries == [letter]


@pytest.mark.requirement("delivery:relay:unusable-turn")
async def test_an_entry_whose_turn_cannot_be_read_is_a_dead_letter_too(any_redis: redis.asyncio.Redis) -> None:
    turns = [await sealed(any_redis, "crm", session=f"room/{number}") for number in range(4)]
    await any_redis.hset(keys.turn_record(turns[0]), "destinations", "{")
    await any_redis.delete(keys.turn_record(turns[1]))
    await any_redis.delete(keys.turn_record(turns[2]))
    await any_redis.set(keys.turn_record(turns[2]), "of another type")
    await House(any_redis).relay().step()
    broken, gone, strange, whole = await made(any_redis)
    assert [(one.turn, one.state, one.code) for one in (broken, gone, strange)] == [
        (turn, "dead", "unusable_turn") for turn in turns[:3]
    ]
    assert "JSONDecodeError" in broken.message
    assert "not stored any more" in gone.message
    assert (whole.turn, whole.state) == (turns[3], "queued")


@pytest.mark.requirement("delivery:relay:dead-letter-replayed")
async def test_a_dead_log_entry_is_replayed_into_the_log_and_delivered_from_there(
    any_redis: redis.asyncio.Redis,
) -> None:
    house = House(any_redis)
    relay = house.relay()
    turn = await sealed(any_redis, "crm")
    whole = await any_redis.hget(keys.turn_record(turn), "destinations")
    await any_redis.hset(keys.turn_record(turn), "destinations", "{")
    await relay.step()
    [letter] = await made(any_redis)
    await any_redis.xtrim(keys.log(0), maxlen=0)
    await any_redis.hset(keys.turn_record(turn), "destinations", whole)

    line = Lossy(any_redis)
    line.faults.append("reply lost")
    with pytest.raises(redis.ConnectionError):
        await replaying.replay(any_redis, letter.id)
    assert await any_redis.xlen(keys.log(0)) == 1
    await relay.step()
    back, delivery = await made(any_redis)
    assert (back.id, back.state) == (letter.id, "cancelled")
    assert (delivery.turn, delivery.destination, delivery.state) == (turn, "crm", "queued")


@pytest.mark.requirement("delivery:relay:dead-letter-replayed")
async def test_a_dead_log_entry_that_names_no_turn_is_replayed_all_the_same(any_redis: Any) -> None:
    await any_redis.xadd(keys.log(0), {"v": 1, "kind": "applause"})
    await House(any_redis).relay().step()
    [letter] = await made(any_redis)
    assert (await replaying.replay(any_redis, letter.id)).state == "cancelled"
    assert await any_redis.xlen(keys.log(0)) == 2


@pytest.mark.requirement("delivery:relay:trim")
async def test_the_log_is_trimmed_up_to_the_cursor_and_never_beyond(any_redis: Any) -> None:
    relay = House(any_redis).relay()
    for number in range(300):
        fields = {"v": 1, "kind": "commit", "event": f"evt_{number}", "turn": "turn_00" + "b" * 20, "call": 1}
        await any_redis.xadd(keys.log(0), fields)
    places = [place for place, _ in await any_redis.xrange(keys.log(0))]
    await relay.step()
    assert await cursor(any_redis) == places[99]
    left = [place for place, _ in await any_redis.xrange(keys.log(0))]
    assert len(left) < 300
    assert left[-200:] == places[100:]


@pytest.mark.requirement("faults:rewind:relay")
async def test_a_log_is_not_trimmed_by_a_relay_whose_step_the_server_has_lost_since(real_redis: Any) -> None:
    """The server is robbed of the step while the relay wakes those who deliver, which may take its time."""
    turn = await sealed(real_redis, "crm")
    for number in range(300):
        fields = {"v": 1, "kind": "commit", "event": f"evt_{number}", "turn": turn, "call": 1}
        await real_redis.xadd(keys.log(0), fields)
    house = House(real_redis)
    kept: dict[bytes, bytes] = {}

    async def keep() -> None:
        kept.update({key: await real_redis.dump(key) for key in await real_redis.keys("*")})

    async def rewind() -> None:
        await real_redis.flushdb()
        for key, value in kept.items():
            await real_redis.restore(key, 0, value)

    house.meanwhile = keep
    relay = house.relay()
    relay._wake = rewind
    await relay.step()
    assert await made(real_redis) == []
    relay._wake = house.wake
    await relay.step()
    assert await told(real_redis) == [(turn, "crm")]


@pytest.mark.requirement("faults:rewind:second-end")
async def test_a_turn_that_ends_again_because_its_end_was_lost_is_not_told_under_another_id(any_redis: Any) -> None:
    turn = await sealed(any_redis, "crm")
    await House(any_redis).relay().step()
    before = await made(any_redis)
    fields = {"v": 1, "kind": "seal", "event": "evt_of_another_driver", "turn": turn, "call": 1, "outcome": "failed"}
    await any_redis.xadd(keys.log(0), fields)
    await any_redis.delete("lw:{p00}:relay")
    await House(any_redis).relay().step()
    assert await made(any_redis) == before


async def bounded(waiting: Coroutine[Any, Any, Any], what: str) -> None:
    try:
        await asyncio.wait_for(waiting, 10)
    except TimeoutError:
        pytest.fail(f"waited 10 s for {what}")


@pytest.mark.requirement("delivery:relay:leaves-at-once")
async def test_a_stopped_relay_gives_the_log_up_at_once(any_redis: redis.asyncio.Redis) -> None:
    house, stop = House(any_redis), asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(house.relay().run(stop))
        await sealed(any_redis, "crm")
        await bounded(house.woken.wait(), "the relay to make a delivery")
        stop.set()
    later = await sealed(any_redis, "crm")
    await house.relay().step()
    assert (await told(any_redis))[-1] == (later, "crm")


@pytest.mark.requirement("delivery:relay:redis-away")
async def test_a_relay_outlives_an_absence_of_redis() -> None:
    server = fakeredis.FakeServer(version=(7,))
    async with contextlib.aclosing(fakeredis.FakeAsyncRedis(server=server)) as client:
        house, stop = House(client), asyncio.Event()

        async def redis_goes_away() -> None:
            server.connected = False

        async with asyncio.TaskGroup() as group:
            group.create_task(house.relay().run(stop))
            first = await sealed(client, "crm")
            await bounded(house.woken.wait(), "the first delivery")
            house.woken.clear()
            house.meanwhile = redis_goes_away
            second = await sealed(client, "crm")
            await bounded(house.lost.wait(), "the relay to meet the absence")
            server.connected = True
            await bounded(house.woken.wait(), "the relay to go on after Redis came back")
            stop.set()
        assert await told(client) == [(first, "crm"), (second, "crm")]


@pytest.mark.requirement("delivery:relay:record-unanswered")
@pytest.mark.parametrize(
    "fault",
    [redis.ConnectionError("the line broke before the reply came"), redis.ResponseError("BUSY a script is running")],
    ids=["lost", "busy"],
)
async def test_a_turn_whose_record_was_not_answered_is_asked_for_again_and_is_no_dead_letter(
    any_redis: Any, fault: redis.RedisError
) -> None:
    turn = await sealed(any_redis, "crm")
    house, lost = House(any_redis), asyncio.Event()

    async def lose_the_first_record(reads: Any) -> list[Any]:
        answers = await read_all(any_redis, reads)
        if not lost.is_set():
            assert [answer.turn for answer in answers] == [turn]
            lost.set()
            raise fault
        return answers

    house.turns = lose_the_first_record  # type: ignore[method-assign]
    relay = house.relay()
    with pytest.raises(type(fault)):
        await relay.step()
    assert lost.is_set()
    assert await made(any_redis) == []
    await relay.step()
    [delivery] = await made(any_redis)
    assert (delivery.turn, delivery.destination, delivery.state) == (turn, "crm", "queued")


async def test_a_destination_that_no_utf_8_holds_costs_the_others_nothing(any_redis: Any) -> None:
    turn = await sealed(any_redis, "crm", "audit")
    await any_redis.hset(keys.turn_record(turn), "destinations", r'["crm", "half \ud83d", "audit"]')
    await House(any_redis).relay().step()
    assert await told(any_redis) == [(turn, "crm"), (turn, "half \ufffd"), (turn, "audit")]
