"""A message is a turn, on disk, before anyone is told that it was taken."""

from dataclasses import replace
from typing import Any

import pytest

from tests.store.lossy import Lossy, dump
from tests.store.turns import SESSION, Redis, commit, driven, new_turn, record_of
from worker import ids
from worker.errors import ConfigurationError, LocalProtocolError, StoreFull, StoreUnavailable
from worker.store import keys
from worker.store.inbox import IdempotencyConflict, ensure_meta, submit
from worker.store.records import RECORD_VERSION, read_turn


@pytest.mark.requirement("store:submit:record")
async def test_a_submitted_message_is_a_queued_turn(any_redis: Redis) -> None:
    new = new_turn("hello", watch_s=10)
    answer = await submit(any_redis, new, 1)
    assert (answer.turn, answer.session, answer.duplicate) == (new.turn, SESSION, False)
    record = await record_of(any_redis, new.turn)
    assert (record.state, record.message, record.agent, record.source) == ("queued", "hello", "default", "test")
    assert (record.labels, record.destinations) == ({"team": "a"}, ("there",))
    assert (record.outcome, record.sealed_ms, record.failure, record.marker) == (None, None, None, 0)
    assert await any_redis.zscore(keys.live(0), new.turn) == record.created_ms
    assert await any_redis.zscore(keys.watch(0), new.turn) == record.created_ms + 10_000


@pytest.mark.requirement("store:privacy:repr")
async def test_a_message_is_in_no_repr(any_redis: Redis) -> None:
    new = new_turn("my secret")
    await submit(any_redis, new, 1)
    assert "secret" not in repr(new)
    assert "secret" not in repr(await record_of(any_redis, new.turn))


@pytest.mark.requirement("store:submit:idempotent")
async def test_the_same_message_under_the_same_key_is_the_same_turn(any_redis: Redis) -> None:
    first = await submit(any_redis, new_turn(key="K"), 1)
    before = await dump(any_redis)
    again = await submit(any_redis, new_turn(key="K"), 1)
    assert (again.turn, again.duplicate) == (first.turn, True)
    assert await dump(any_redis) == before
    assert 86_000 < await any_redis.ttl(keys.idempotency("K", 1)) <= 86_400


@pytest.mark.requirement("store:submit:idempotent")
async def test_a_key_is_found_again_although_each_submit_made_up_a_session(any_redis: Redis) -> None:
    answers = []
    for _ in range(4):
        session = ids.new_session()
        turn = ids.new_turn(ids.partition_of_session(session, 16))
        answers.append(await submit(any_redis, replace(new_turn(session=session, key="K"), turn=turn), 16))
    assert len({(answer.turn, answer.session) for answer in answers}) == 1
    assert [answer.duplicate for answer in answers] == [False, True, True, True]


@pytest.mark.requirement("store:submit:conflict")
@pytest.mark.parametrize(
    "other",
    [
        {"message": "another"},
        {"agent": "other"},
        {"labels": {}},
        {"destinations": ("elsewhere",)},
        {"session": "chat/2"},
    ],
    ids=str,
)
async def test_another_message_under_the_same_key_is_refused_by_name(any_redis: Redis, other: dict[str, Any]) -> None:
    first = await submit(any_redis, new_turn(key="K"), 1)
    before = await dump(any_redis)
    with pytest.raises(IdempotencyConflict, match=f"'K'.*{first.turn}"):
        await submit(any_redis, replace(new_turn(key="K"), **other), 1)
    assert await dump(any_redis) == before


@pytest.mark.requirement("store:submit:log-cap")
async def test_no_turn_is_taken_while_the_relay_is_too_far_behind(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "text")
    before = await dump(any_redis)
    with pytest.raises(StoreFull, match="start the delivery processes"):
        await submit(any_redis, new_turn(), 1, log_cap=1)
    assert await dump(any_redis) == before


@pytest.mark.requirement("store:submit:unavailable")
async def test_a_redis_that_does_not_answer_ends_in_an_error_that_says_what_to_do(
    fake_redis: Redis,
) -> None:
    lossy = Lossy(fake_redis)
    lossy.faults.extend(["request lost"] * 100)
    with pytest.raises(StoreUnavailable, match="idempotency key"):
        await submit(fake_redis, new_turn(), 1, patience_s=0.05)


async def test_a_turn_of_another_partition_than_its_session_is_our_own_mistake(fake_redis: Redis) -> None:
    with pytest.raises(LocalProtocolError, match="is not of partition"):
        await submit(fake_redis, replace(new_turn(), turn=ids.new_turn(7)), 1)


@pytest.mark.requirement("store:durable:submit")
async def test_a_submit_waits_for_the_disk_and_so_does_its_repeat(real_redis: Redis) -> None:
    new = new_turn(key="K")
    await submit(real_redis, new, 1)
    for again in (new, new_turn(key="K")):
        before = await real_redis.info("all")
        await submit(real_redis, again, 1)
        after = await real_redis.info("all")
        # WAITAOF waits for what its own connection has written: a repeat that wrote nothing would wait for nothing.
        assert after["cmdstat_waitaof"]["calls"] == before["cmdstat_waitaof"]["calls"] + 1
        assert after["rdb_changes_since_last_save"] > before["rdb_changes_since_last_save"]


@pytest.mark.requirement("store:durable:submit")
async def test_a_conflict_waits_for_the_disk_too_since_the_first_may_not_be_there_yet(real_redis: Redis) -> None:
    await submit(real_redis, new_turn(key="K"), 1)
    before = await real_redis.info("all")
    with pytest.raises(IdempotencyConflict):
        await submit(real_redis, new_turn("another message", key="K"), 1)
    after = await real_redis.info("all")
    assert after["cmdstat_waitaof"]["calls"] == before["cmdstat_waitaof"]["calls"] + 1
    assert after["rdb_changes_since_last_save"] > before["rdb_changes_since_last_save"]


@pytest.mark.requirement("store:durable:tool-start")
async def test_a_tool_starts_only_after_its_record_is_on_disk(real_redis: Redis) -> None:
    accumulator = await driven(real_redis)
    await accumulator.tool_start(1, 0, [])
    lossy = Lossy(real_redis)
    before = (await real_redis.info("commandstats"))["cmdstat_waitaof"]["calls"]
    lossy.faults.append("reply lost")
    await accumulator.tool_start(1, 1, [])
    assert (await real_redis.info("commandstats"))["cmdstat_waitaof"]["calls"] == before + 2
    changes = (await real_redis.info("persistence"))["rdb_changes_since_last_save"]
    await lossy.execute(*lossy.sent[-1])
    assert (await real_redis.info("persistence"))["rdb_changes_since_last_save"] > changes


@pytest.mark.requirement("store:durable:no-file")
async def test_a_server_without_a_file_takes_turns_all_the_same(real_redis: Redis) -> None:
    await real_redis.config_set("appendonly", "no")
    try:
        assert not (await submit(real_redis, new_turn(), 1)).duplicate
    finally:
        await real_redis.config_set("appendonly", "yes")


@pytest.mark.requirement("store:meta:partitions")
async def test_the_number_of_partitions_is_fixed_at_the_first_start(any_redis: Redis) -> None:
    await ensure_meta(any_redis, 4)
    await ensure_meta(any_redis, 4)
    with pytest.raises(ConfigurationError, match=r"partitions is 8, .* with 4"):
        await ensure_meta(any_redis, 8)
    assert await any_redis.hgetall(keys.META) == {b"v": b"%d" % RECORD_VERSION, b"partitions": b"4"}


async def test_what_is_no_turn_id_is_refused_with_its_value(fake_redis: Redis) -> None:
    with pytest.raises(ConfigurationError, match="'turn_x' is no turn id"):
        await read_turn(fake_redis, "turn_x")
