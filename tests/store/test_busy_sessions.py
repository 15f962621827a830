"""A message for a busy session: it waits, is refused, or interrupts, and nothing else of the session changes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.store.lossy import Fault, Lossy, dump
from tests.store.turns import (
    SESSION,
    Redis,
    ask,
    commit,
    discard,
    driven,
    driver_of,
    log_of,
    new_turn,
    outputs_of,
    record_of,
    seal,
    taken,
    with_tools,
)
from worker.errors import TurnCancelled
from worker.store import keys
from worker.store.inbox import SessionBusy, submit

Prepare = Callable[[Redis], Awaitable[str]]


async def queued(client: Redis) -> str:
    return (await submit(client, new_turn("first"), 1)).turn


async def running(client: Redis) -> str:
    accumulator = await driven(client)
    await accumulator.open_call(1, 1, 0, True)
    return accumulator.turn


async def parked(client: Redis) -> str:
    accumulator = await driven(client)
    await with_tools(accumulator, "mail")
    await ask(accumulator)
    await accumulator.park()
    return accumulator.turn


async def handed_over(client: Redis) -> str:
    accumulator = await driven(client)
    await accumulator.open_call(1, 1, 0, True)
    await accumulator.release()
    return accumulator.turn


BUSY = [queued, running, parked, handed_over]


@pytest.mark.requirement("sessions:on-busy:reject")
@pytest.mark.parametrize("prepare", BUSY)
async def test_a_message_that_will_not_wait_is_refused_and_nothing_is_stored(
    any_redis: Redis, prepare: Prepare
) -> None:
    turn = await prepare(any_redis)
    before = await dump(any_redis)
    with pytest.raises(SessionBusy, match=f"{SESSION} is busy with {turn}") as busy:
        await submit(any_redis, new_turn("no", on_busy="reject", key="k"), 1)
    assert (busy.value.session, busy.value.turn) == (SESSION, turn)
    assert await dump(any_redis) == before
    free = new_turn("yes", on_busy="reject", session="chat/2")
    assert (await submit(any_redis, free, 1)).turn == free.turn


@pytest.mark.requirement("sessions:on-busy:queue")
@pytest.mark.parametrize("prepare", BUSY)
async def test_a_message_that_waits_changes_nothing_of_the_turn_before_it(any_redis: Redis, prepare: Prepare) -> None:
    turn = await prepare(any_redis)
    before = await record_of(any_redis, turn)
    new = new_turn("next")
    assert (await submit(any_redis, new, 1)).interrupted is None
    assert await record_of(any_redis, turn) == before
    assert await any_redis.lrange(keys.queue(0, SESSION), 0, -1) == [turn.encode(), new.turn.encode()]


@pytest.mark.requirement("sessions:on-busy:interrupt")
@pytest.mark.parametrize("prepare", [queued, parked, handed_over])
async def test_an_interruption_ends_a_turn_that_nobody_drives_in_the_step_that_stores_the_message(
    any_redis: Redis, prepare: Prepare
) -> None:
    turn = await prepare(any_redis)
    between = (await submit(any_redis, new_turn("between"), 1)).turn
    new = new_turn("now", on_busy="interrupt")
    assert (await submit(any_redis, new, 1)).interrupted == turn
    record = await record_of(any_redis, turn)
    assert (record.state, record.outcome, record.reason) == ("sealed", "cancelled", "interrupted")
    assert record.cancelled_by == new.turn
    assert (await outputs_of(any_redis, turn))[-1].outcome == "cancelled"
    assert [(each.turn, each.outcome) for each in await log_of(any_redis) if each.kind == "seal"] == [
        (turn, "cancelled")
    ]
    assert await any_redis.lrange(keys.queue(0, SESSION), 0, -1) == [between.encode(), new.turn.encode()]
    assert await any_redis.zrange(keys.due(0), 0, -1) == [(keys.DUE_LEASE + SESSION).encode()]
    assert (await taken(any_redis)).turn == between


@pytest.mark.requirement("sessions:on-busy:interrupt")
async def test_an_interruption_flags_a_driven_turn_and_waits_behind_the_others(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    between = (await submit(any_redis, new_turn("between"), 1)).turn
    new = new_turn("now", on_busy="interrupt")
    assert (await submit(any_redis, new, 1)).interrupted == accumulator.turn
    with pytest.raises(TurnCancelled):
        await commit(accumulator, 1, 1, "hi")
    assert await any_redis.zscore(keys.cancels(0), accumulator.turn)
    again = driver_of(any_redis, await taken(any_redis, nonce=accumulator._ops._nonce))
    await discard(again, 1, 1)
    await seal(again)
    assert [(await taken(any_redis)).turn, new.turn] == [between, new.turn]


@pytest.mark.requirement("sessions:on-busy:interrupt")
async def test_an_interruption_of_a_session_that_is_free_interrupts_nothing(any_redis: Redis) -> None:
    new = new_turn("now", on_busy="interrupt")
    assert (await submit(any_redis, new, 1)).interrupted is None
    assert (await taken(any_redis)).turn == new.turn


@pytest.mark.requirement("sessions:on-busy:interrupt")
async def test_what_a_newer_version_has_written_is_not_interrupted(any_redis: Redis) -> None:
    turn = await queued(any_redis)
    await any_redis.hset(keys.turn_record(turn), "v", 99)
    new = new_turn("now", on_busy="interrupt")
    assert (await submit(any_redis, new, 1)).interrupted is None
    assert await any_redis.hget(keys.turn_record(turn), "state") == b"queued"


@pytest.mark.requirement("sessions:on-busy:repeat")
@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
@pytest.mark.parametrize("prepare", BUSY)
async def test_an_interruption_whose_reply_was_lost_interrupts_once(
    any_redis: Redis, prepare: Prepare, fault: Fault
) -> None:
    turn = await prepare(any_redis)
    lossy = Lossy(any_redis)
    lossy.faults.extend([fault, fault])
    new = new_turn("now", on_busy="interrupt", key="k")
    assert (await submit(any_redis, new, 1)).interrupted == turn
    after, command = await dump(any_redis), lossy.sent[-1]
    assert await lossy.execute(*command) == [b"NEW", new.turn.encode(), SESSION.encode(), turn.encode()]
    assert await dump(any_redis) == after


@pytest.mark.requirement("sessions:on-busy:repeat")
async def test_the_same_message_again_by_its_key_interrupts_nothing_and_is_never_refused(any_redis: Redis) -> None:
    await queued(any_redis)
    new = new_turn("now", on_busy="interrupt", key="k")
    await submit(any_redis, new, 1)
    before = await record_of(any_redis, new.turn)
    for on_busy in ("interrupt", "reject", "queue"):
        again = await submit(any_redis, replace(new, turn=new_turn().turn, on_busy=on_busy), 1)
        assert (again.turn, again.duplicate, again.interrupted) == (new.turn, True, None)
    assert await record_of(any_redis, new.turn) == before


@pytest.mark.requirement("sessions:on-busy:remembers")
@pytest.mark.parametrize("on_busy", ["interrupt", "queue"])
async def test_what_a_session_remembers_does_not_expire_while_a_message_waits(any_redis: Redis, on_busy: Any) -> None:
    if on_busy == "queue":
        await seal(await driven(any_redis))  # the session's last turn
    else:
        await parked(any_redis)
    await submit(any_redis, new_turn("now", on_busy=on_busy), 1, retention_s=60)
    for name in (keys.session_record(0, SESSION), keys.history(0, SESSION)):
        assert await any_redis.ttl(name) == -1
