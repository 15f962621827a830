"""What keeps the outbox whole: taking over what an earlier release stored, and putting back what stands nowhere."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from channels.deliverer import Deliverer
from channels.delivery.backoff import Backoff
from channels.delivery.lane import Rules
from channels.delivery.model import Attempt, Delivered, Delivery
from channels.loops import keep_going
from channels.outbox import lanes, reading, replaying, upkeep
from channels.outbox.upkeep import keep_up
from channels.sweeper import Sweeper
from tests.delivery.outboxes import BUSY, box, insert, inserted, known, made, store_as_before_lanes
from tests.support.valkey import Valkey

OF = "lw:{dlv}:"
LOG = (Attempt(1, 5, "http_503", "busy", "yes"),)


async def now_ms(client: Any) -> int:
    seconds, _ = await client.time()
    return int(seconds) * 1000


async def mended(client: Any) -> int:
    """A walk over all deliveries."""
    there = int(await client.zcard(OF + "index"))
    return sum([await upkeep.mend(client) for _ in range(there // 200 + 2)])


@pytest.mark.requirement("outbox:adopted")
async def test_what_a_release_before_lanes_has_stored_is_taken_over_whole(any_redis: Any) -> None:
    now = await now_ms(any_redis)
    old = [
        made("evt_1", due_ms=now - 5, created_ms=now - 9),
        made("evt_2", state="waiting", due_ms=now + 60_000, attempts=1, log=LOG, version=3, code="http_503"),
        made("evt_3", state="dead", due_ms=0, ended_ms=now, attempts=8, log=LOG, version=17, code="attempts_spent"),
        made("evt_4", state="delivered", due_ms=0, ended_ms=now, attempts=1, version=3),
    ]
    for one in old:
        await store_as_before_lanes(any_redis, one)
    assert await upkeep.adopt(any_redis, 0) == 4
    assert await upkeep.adopt(any_redis, 0) == 0
    there = {one.id: one for one in (await reading.listed(any_redis, 10)).deliveries}
    for one in old:
        kept = replace(there[one.id], version=one.version, first_ms=one.first_ms)
        assert kept == replace(one, lane="crm")
    assert not [key async for key in any_redis.scan_iter("lw:{p00}:dlv-*")]
    assert (await reading.counts(any_redis))["crm"] == {"queued": 1, "waiting": 1}
    assert [one.id for one in (await reading.listed(any_redis, 9, state="dead")).deliveries] == [old[2].id]
    assert [one.id for one in await box(any_redis).claim("claim", 10)] == [old[0].id]
    await known(any_redis, old[2])
    assert (await replaying.replay(any_redis, old[2].id)).state == "queued"


@pytest.mark.requirement("outbox:adopted")
async def test_what_a_living_process_of_that_release_has_in_flight_is_its_own_until_the_lease_ends(
    any_redis: Any,
) -> None:
    now = await now_ms(any_redis)
    flying: dict[str, Any] = {"state": "in_flight", "attempts": 1, "version": 2, "token": "theirs"}
    await store_as_before_lanes(any_redis, made("evt_1", due_ms=now + 30_000, **flying))
    await store_as_before_lanes(any_redis, made("evt_2", due_ms=now - 30_000, **flying))
    assert await upkeep.adopt(any_redis, 0) == 1
    assert await upkeep.adopt(any_redis, 0) == 0
    assert (await any_redis.hget(f"lw:{{p00}}:dlv:{made('evt_1').id}", "token")) == b"theirs"
    assert await box(any_redis).claim("counts-it-as-unknown", 10) == []
    [one] = (await reading.listed(any_redis, 10)).deliveries
    assert (one.event_id, one.state, one.code) == ("evt_2", "waiting", "lease_expired")


@pytest.mark.requirement("outbox:adopted")
async def test_a_dead_letter_of_that_release_keeps_its_entry_and_what_it_replays_later_is_taken_over_too(
    any_redis: Any,
) -> None:
    now = await now_ms(any_redis)
    letter = made("1-0", "", state="dead", due_ms=0, ended_ms=now, lane="", turn="")
    await store_as_before_lanes(any_redis, letter)
    await any_redis.hset(f"lw:{{p00}}:dlv:{letter.id}", mapping={"entry:1": "v", "entry:2": "1"})
    assert await upkeep.adopt(any_redis, 0) == 1
    assert (await replaying.replay(any_redis, letter.id)).state == "cancelled"
    assert (await any_redis.xrange("lw:{p00}:log"))[0][1] == {b"v": b"1"}
    again = made("evt_9", due_ms=now, version=4)
    await store_as_before_lanes(any_redis, again)
    await any_redis.zrem("lw:{p00}:dlv-index", again.id)
    assert await keep_up(any_redis, 1) == 0
    assert await keep_up(any_redis, 1) > 0
    assert [one.id for one in await box(any_redis).claim("claim", 10)] == [again.id]


@pytest.mark.requirement("outbox:adopted")
async def test_what_that_release_has_forgotten_or_a_newer_one_has_written_stops_nothing(any_redis: Any) -> None:
    newer = made("evt_newer")
    await any_redis.zadd("lw:{p00}:dlv-index", {"dlv_00" + "0" * 20: 1, newer.id: 2})
    await any_redis.hset(f"lw:{{p00}}:dlv:{newer.id}", mapping={"version": 1, "token": "", "record": "[99]"})
    await store_as_before_lanes(any_redis, made("evt_1"))
    while await upkeep.adopt(any_redis, 0):
        pass
    assert [one.event_id for one in (await reading.listed(any_redis, 10)).deliveries] == ["evt_1"]
    assert await any_redis.zrange("lw:{p00}:dlv-index", 0, -1) == [newer.id.encode()]


@pytest.mark.requirement("outbox:no-entry")
async def test_deliveries_whose_lanes_nobody_looks_at_any_more_are_found(any_redis: Any) -> None:
    await inserted(any_redis, "evt_1", "evt_2")
    await inserted(any_redis, "evt_3", destination="audit")
    await any_redis.delete(OF + "lanes")
    assert await box(any_redis).claim("nothing", 10) == []
    assert await mended(any_redis) == 0  # each stands in its lane
    assert len(await box(any_redis).claim("claim", 10)) == 3


@pytest.mark.requirement("outbox:stuck")
async def test_a_delivery_that_stands_nowhere_is_put_back_into_its_place_whatever_its_state(any_redis: Any) -> None:
    rows = [made(f"evt_{number}", "rows", mailbox="room/1") for number in range(3)]
    await insert(any_redis, [*(made(f"evt_{number}") for number in range(300)), *rows])
    await lanes.pause(any_redis, "held", "for now")
    await known(any_redis, *await inserted(any_redis, "evt_held", destination="held"))
    [held, *_] = batch = await box(any_redis).claim("claim", 4)
    [waits] = [one for one in batch if one.lane == "crm"][:1]
    await box(any_redis).settle([(waits, BUSY)])
    before = await places(any_redis)
    for name in ("due:crm", "flight:crm", "flight:rows", "held:held", "box:rows:room/1", "lanes"):
        await any_redis.delete(OF + name)
    assert await mended(any_redis) == 304
    assert await places(any_redis) == before
    assert await mended(any_redis) == 0
    assert held.token == "claim"


async def places(client: Any) -> dict[bytes, Any]:
    found = {}
    for name in ("due", "flight", "held", "box"):
        async for key in client.scan_iter(f"{OF}{name}:*"):
            found[key] = await client.zrange(key, 0, -1, withscores=True)
    found[b"counts"] = {
        name: count for name, count in (await client.hgetall(OF + "counts")).items() if name[:1] != b"#"
    }
    return found


async def test_an_entry_of_a_delivery_that_is_gone_leaves_the_lists(any_redis: Any) -> None:
    first, _ = await inserted(any_redis, "evt_1", "evt_2")
    await any_redis.delete(f"lw:{{p00}}:dlv:{first.id}")
    await mended(any_redis)
    assert await any_redis.zcard(OF + "index") == 1
    assert [one.event_id for one in await box(any_redis).claim("claim", 10)] == ["evt_2"]


@pytest.mark.requirement("outbox:stuck")
async def test_those_behind_a_mailboxs_first_go_on_when_its_record_is_gone(any_redis: Any) -> None:
    first, second, third = await insert(
        any_redis, [made(f"evt_{number}", "rows", mailbox="room/1") for number in range(3)]
    )
    assert [one.id for one in await box(any_redis).claim("claim", 10)] == [first.id]
    for gone in (first, second):
        await any_redis.delete(f"lw:{{p00}}:dlv:{gone.id}")
    assert await box(any_redis).claim("nothing", 10) == []
    await mended(any_redis)
    assert [one.id for one in await box(any_redis).claim("goes on", 10)] == [third.id]


@pytest.mark.requirement("outbox:stuck")
async def test_the_search_passes_over_none_where_others_are_gone(any_redis: Any) -> None:
    there = await insert(any_redis, [made(f"evt_{number}", created_ms=number) for number in range(450)])
    for gone in there[:100]:
        await any_redis.delete(f"lw:{{p00}}:dlv:{gone.id}")
    await any_redis.delete(OF + "due:crm")
    steps = [await upkeep.mend(any_redis) for _ in range(3)]
    assert steps == [100, 200, 50]  # of the first 200, then of those that have moved up


@pytest.mark.requirement("outbox:adopted")
@pytest.mark.parametrize("words", [{"version": 1, "token": ""}, {"token": "", "record": "[1]"}, {"record": "[1]"}])
async def test_what_is_no_whole_record_of_that_release_is_not_looked_at_again_and_again(
    any_redis: Any, words: dict[str, Any]
) -> None:
    one = made("evt_1")
    await any_redis.zadd("lw:{p00}:dlv-index", {one.id: 1})
    await any_redis.hset(f"lw:{{p00}}:dlv:{one.id}", mapping=words)
    assert [await keep_up(any_redis, 1) > 0 for _ in range(2)] == [False, True]
    assert not await any_redis.exists("lw:{p00}:dlv-index")


@pytest.mark.requirement("outbox:stuck")
async def test_what_cannot_be_adopted_keeps_nothing_from_being_put_back(any_redis: Any) -> None:
    await any_redis.set("lw:{p00}:dlv-index", "no set")
    await inserted(any_redis, "evt_1")
    await store_as_before_lanes(any_redis, made("evt_2", partition=1))
    await any_redis.delete(OF + "due:crm")
    for _ in range(2):
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            await keep_up(any_redis, 2)
    assert {one.event_id for one in await box(any_redis).claim("claim", 10)} == {"evt_1", "evt_2"}


class Taker:
    """A receiver that takes everything."""

    def __init__(self) -> None:
        self.got: list[str] = []
        self.came = asyncio.Event()

    async def prepare(self, batch: Any) -> Any:
        return [None] * len(batch)

    async def send(self, delivery: Delivery, prepared: None, lease_ends: float) -> Delivered:
        del prepared, lease_ends
        self.got.append(delivery.event_id)
        self.came.set()
        return Delivered(200)


@pytest.mark.requirement("outbox:outage")
async def test_deliveries_go_on_by_themselves_after_an_absence_of_redis_and_after_its_connections_were_cut(
    tmp_path: Path,
) -> None:
    with Valkey(tmp_path / "valkey", "appendfsync always") as server:
        client = redis.asyncio.Redis.from_url(server.url, socket_timeout=2)
        taker, stop = Taker(), asyncio.Event()
        # Short ones: what is claimed when the server stops is due again when its lease and its wait are over.
        outbox = box(client, {"crm": Rules(backoff=Backoff((0.5,) * 9))}, lease_s=3)
        deliverer = Deliverer(outbox, taker, lease_s=3, concurrency=4)
        drains: set[asyncio.Task[None]] = set()

        async def wake() -> None:
            drains.add(asyncio.ensure_future(deliverer.drain()))

        sweeper = Sweeper(outbox, wake)
        missed = asyncio.Event()

        async def look() -> float:
            try:
                return await sweeper.step()
            except redis.RedisError:
                missed.set()
                raise

        loop = asyncio.ensure_future(keep_going("sweeper", look, stop))

        async def arrives(event: str) -> None:
            async with asyncio.timeout(30):
                while event not in taker.got:
                    await taker.came.wait()
                    taker.came.clear()

        await inserted(client, "evt_1")
        await arrives("evt_1")
        await inserted(client, "evt_2")
        server.stop()
        await missed.wait()
        server.start()
        await arrives("evt_2")
        with redis.Redis.from_url(server.url) as other:
            other.client_kill_filter(_type="normal", skipme=True)
        await insert_over_cut_line(client, "evt_3")
        await arrives("evt_3")
        stop.set()
        deliverer.stop()
        await asyncio.gather(loop, *drains)
        await client.aclose()
        assert sorted(taker.got) == ["evt_1", "evt_2", "evt_3"]


async def insert_over_cut_line(client: redis.asyncio.Redis, event: str) -> None:
    while True:
        try:
            await inserted(client, event)
        except (redis.ConnectionError, redis.TimeoutError):
            continue
        return
