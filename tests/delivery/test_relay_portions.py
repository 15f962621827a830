"""However many get an event, a step of the relay stores few deliveries at once, and each is made once."""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.addressing import ENOUGH_MADE
from channels.delivery.model import Delivery
from channels.made import Made
from channels.outbox import keys as outbox_keys
from channels.outbox import reading
from channels.outbox.log import RelayFenced, RelayLog
from channels.portions import MOST_INSERTED, portions
from channels.relay import LEASE_S, Relay
from tests.delivery.outboxes import NONCE, made
from tests.delivery.subscribers import SOON, addressing_of, endpoint
from tests.store.turns import Redis
from worker.store import keys
from worker.store.log import LogEntry, event_words, read_aside, read_log, waits_aside

TRIAL = b'{"endpoint":"x","event_type":"turn.completed"}'
MANY = [endpoint(f"e{number}", "delivery.*") for number in range(2 * MOST_INSERTED + 500)]


class Steps(RelayLog):
    """A log that notes what each step stores, and does something before one of them."""

    def __init__(self, client: Redis) -> None:
        super().__init__(client, 0)
        self.inserts: list[tuple[str, str, int, bool]] = []
        self.leases = 0
        self.before: dict[int, Any] = {}

    async def take_log(self, nonce: str, ttl_s: float) -> Any:
        self.leases += 1
        return await super().take_log(nonce, ttl_s)

    async def insert(self, nonce: str, start: str, end: str, deliveries: Any, *args: Any, **more: Any) -> int:
        if todo := self.before.pop(len(self.inserts), None):
            await todo()
        self.inserts.append((start, end, len(deliveries), bool(more["contents"])))
        return await super().insert(nonce, start, end, deliveries, *args, **more)


def relay_of(client: Redis, outbox: RelayLog, *endpoints: Any) -> Relay:
    return Relay(
        outbox,
        read=lambda after, count, block_ms: read_log(client, 0, after, count, min(block_ms, 50)),
        read_aside=lambda after, count: read_aside(client, 0, after, count),
        addressing=addressing_of(client, *endpoints),
        wake=lambda: asyncio.sleep(0),
    )


async def told(client: Redis, number: int) -> str:
    words = event_words(f"evt_{number}", "delivery.failing", TRIAL)
    return str((await client.execute_command("XADD", keys.log(0), "*", *words)).decode())


async def made_for(client: Redis) -> set[tuple[str, str]]:
    """Event and destination of every delivery; each is there once."""
    page = await reading.listed(client, 1000)
    found = [*page.deliveries]
    while page.after:
        page = await reading.listed(client, 1000, after=page.after)
        found += page.deliveries
    pairs = [(one.event_id, one.destination) for one in found]
    assert len(set(pairs)) == len(pairs)
    return set(pairs)


def all_of(*numbers: int, endpoints: Sequence[Any] = MANY) -> set[tuple[str, str]]:
    return {(f"evt_{number}", one.name) for number in numbers for one in endpoints}


def entry_at(place: int) -> LogEntry:
    return LogEntry(f"{place}-0", "event", f"evt_{place}", "", 0, 1, None, None, "", (0, 0), "delivery.failing", TRIAL)


@pytest.mark.requirement("events:relay:portions")
@given(st.lists(st.none() | st.integers(0, 12), min_size=1, max_size=8), st.integers(1, 5))
def test_portions_hold_everything_once_in_order_and_no_end_passes_what_is_not_stored(
    sizes: list[int | None], most: int
) -> None:
    entries = [entry_at(place) for place in range(1, len(sizes) + 1)]
    each_made = [
        None if size is None else Made(tuple(made(f"evt_{e.id}_{n}") for n in range(size)), f"evt_{e.id}", b"{}")
        for e, size in zip(entries, sizes, strict=True)
    ]
    stored: list[Delivery] = []
    contents: set[str] = set()
    dealt_with: list[str] = []
    aside: list[str] = []
    end = "0-0"
    for portion in portions(entries, each_made, end, most):
        assert len(portion.deliveries) <= most
        assert portion.entries or portion.deliveries
        contents |= portion.contents.keys()
        stored += portion.deliveries
        dealt_with += [entry.id for entry in portion.entries]
        aside += portion.aside
        assert portion.end == (portion.entries[-1].id if portion.entries else end)
        end = portion.end
        whole = [
            one for e, m in zip(entries, each_made, strict=True) if e.id in dealt_with and m for one in m.deliveries
        ]
        assert stored[: len(whole)] == whole
        assert {one.event_id.rpartition("_")[0] for one in stored} <= contents
    assert dealt_with == [entry.id for entry in entries]
    assert aside == [entry.id for entry, size in zip(entries, sizes, strict=True) if size is None]
    assert stored == [one for m in each_made if m for one in m.deliveries]


@pytest.mark.requirement("events:relay:portions")
async def test_an_event_for_very_many_is_stored_in_parts_and_the_cursor_moves_with_the_last(any_redis: Redis) -> None:
    outbox = Steps(any_redis)
    first, second = await told(any_redis, 1), await told(any_redis, 2)
    relay = relay_of(any_redis, outbox, *MANY)
    await relay.step()
    assert [each[:3] for each in outbox.inserts] == [
        ("0-0", "0-0", MOST_INSERTED),
        ("0-0", "0-0", MOST_INSERTED),
        ("0-0", first, 500),
    ]
    assert outbox.leases == 3, "the lease is renewed between parts"
    assert await made_for(any_redis) == all_of(1)
    await relay.step()
    assert outbox.inserts[-1][1] == second
    assert await made_for(any_redis) == all_of(1, 2)


@pytest.mark.requirement("events:relay:portions")
@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_a_relay_that_dies_between_two_parts_leaves_the_rest_to_the_next(any_redis: Redis, at: int) -> None:
    async def die() -> None:
        raise ZeroDivisionError

    outbox = Steps(any_redis)
    outbox.before[at] = die
    for number in (1, 2):
        await told(any_redis, number)
    relay = relay_of(any_redis, outbox, *MANY)
    with contextlib.suppress(ZeroDivisionError):
        while True:
            await relay.step()
    await any_redis.hdel(outbox_keys.relay(0), "owner", "exp")
    follower = relay_of(any_redis, RelayLog(any_redis, 0), *MANY)
    for _ in range(2):
        await follower.step()
    assert await made_for(any_redis) == all_of(1, 2)
    assert await any_redis.get(outbox_keys.content(0, "evt_2")) == TRIAL


@pytest.mark.requirement("events:relay:portions")
async def test_a_relay_that_loses_the_log_between_two_parts_stores_no_more(any_redis: Redis) -> None:
    outbox = Steps(any_redis)
    await told(any_redis, 1)

    async def taken_away() -> None:
        await any_redis.hdel(outbox_keys.relay(0), "owner", "exp")
        assert await RelayLog(any_redis, 0).take_log("another", LEASE_S) is not None

    outbox.before[0] = taken_away
    assert await relay_of(any_redis, outbox, *MANY).step() > 0
    assert len(outbox.inserts) == 1
    assert await made_for(any_redis) == set()
    await any_redis.hdel(outbox_keys.relay(0), "owner", "exp")
    outbox.before[2] = taken_away
    assert await relay_of(any_redis, outbox, *MANY).step() > 0
    assert len(await made_for(any_redis)) == MOST_INSERTED


@pytest.mark.requirement("events:relay:portions")
async def test_parts_that_are_stored_again_stay_as_they_are_and_are_no_step_of_the_cursor(any_redis: Redis) -> None:
    log = RelayLog(any_redis, 0)
    await log.take_log(NONCE, LEASE_S)
    one, other = made("evt_1"), made("evt_2")
    assert await log.insert(NONCE, "0-0", "0-0", [one]) == 1
    assert await log.insert(NONCE, "0-0", "0-0", [one, other]) == 1
    assert await log.insert(NONCE, "0-0", "1-0", [one, other, made("evt_3")]) == 1
    assert await log.insert(NONCE, "0-0", "1-0", []) == 1, "the step of the cursor has its first answer"
    with pytest.raises(RelayFenced):
        await log.insert(NONCE, "0-0", "0-0", [made("evt_4")])
    assert len((await reading.listed(any_redis, 10)).deliveries) == 3


@pytest.mark.requirement("events:relay:portions")
async def test_what_lay_aside_for_very_many_stays_there_until_its_last_part_is_stored(any_redis: Redis) -> None:
    place = await told(any_redis, 1)
    log = RelayLog(any_redis, 0)
    await log.take_log(NONCE, LEASE_S)
    await log.insert(NONCE, "0-0", place, [], [place])
    lying: list[bool] = []

    class Noted(RelayLog):
        async def readmit(self, aside: str, deliveries: Any, **more: Any) -> int:
            assert len(deliveries) <= MOST_INSERTED
            answer = await super().readmit(aside, deliveries, **more)
            lying.append((await waits_aside(any_redis, 0))[0] > 0)
            return answer

    await relay_of(any_redis, Noted(any_redis, 0), *MANY).step()
    assert lying == [True, True, False]
    assert await made_for(any_redis) == all_of(1)


@pytest.mark.requirement("events:relay:portions")
async def test_of_many_events_no_more_are_made_at_once_than_a_step_stores(fake_redis: Redis) -> None:
    addressing = addressing_of(fake_redis, *MANY[:400])
    assert len(await addressing.made_of([entry_at(place) for place in range(1, 100)], SOON)) == -(-ENOUGH_MADE // 400)
    few = addressing_of(fake_redis, *MANY[:2])
    assert len(await few.made_of([entry_at(place) for place in range(1, 100)], SOON)) == 99


@pytest.mark.requirement("events:relay:portions")
@pytest.mark.parametrize("wanted", [True, False], ids=["for all", "for none"])
async def test_others_go_on_while_many_endpoints_are_looked_at(fake_redis: Redis, wanted: bool) -> None:
    turns = 0
    over = False

    async def others() -> None:
        nonlocal turns
        while not over:
            turns += 1
            await asyncio.sleep(0)

    endpoints = MANY if wanted else [endpoint(f"e{number}", "turn.*") for number in range(2500)]
    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        await asyncio.sleep(0)
        before = turns
        await addressing_of(fake_redis, *endpoints).made_of([entry_at(place) for place in range(1, 21)], SOON)
        over = True
    assert turns - before >= 2
