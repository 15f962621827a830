"""What readers of a turn get: a snapshot, and everything after it once."""

import json

import pytest

from tests.store.turns import (
    Redis,
    commit,
    completed,
    discard,
    driven,
    new_turn,
    outputs_of,
    outputs_of_commit,
    record_of,
    seal,
    snapshot_of,
)
from worker import ids
from worker.errors import NewerRecord
from worker.output.buffer import CommitBuffer
from worker.output.events import CallCompletedOutput, ErrorOutput, TextOutput, TurnCompletedOutput, UsageOutput
from worker.store import keys
from worker.store.inbox import submit
from worker.store.outputs import attach, outputs_after, watch
from worker.store.readers import read_on
from worker.store.records import RECORD_VERSION, read_text, read_turn
from worker.store.tick import StagingTick
from worker.turn.commands import Failure
from worker.turn.usage import NO_USAGE, UsageTotals


@pytest.mark.requirement("store:attach:one-moment")
async def test_a_snapshot_and_what_follows_give_the_text_of_a_reader_from_the_start(
    any_redis: Redis,
) -> None:
    accumulator = await driven(any_redis, watch_s=60)
    tick = StagingTick(any_redis)
    tick.add(accumulator)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "first. ")
    await accumulator.open_call(2, 1, 0, True)
    accumulator.stage_text("sec")
    await tick.flush()
    snapshot = await snapshot_of(any_redis, accumulator.turn, 60)
    assert (snapshot.text, snapshot.marker, snapshot.open_text) == ("first. ", 7, "sec")
    assert (snapshot.call, snapshot.attempt, snapshot.state, snapshot.outcome) == (2, 1, "running", None)
    accumulator.stage_text("ond")
    await tick.flush()
    await discard(accumulator, 2, 1)
    await accumulator.open_call(2, 2, 1, False)
    await commit(accumulator, 2, 2, "second.")
    await seal(accumulator)
    buffer = CommitBuffer()
    buffer.commit(snapshot.text)
    buffer.stage(snapshot.open_text)
    for _, output in await outputs_after(any_redis, accumulator.turn, snapshot.last_id, 0):
        buffer.apply(output)
    assert (buffer.committed, buffer.outcome) == ("first. second.", "completed")
    ended = await snapshot_of(any_redis, accumulator.turn, 60)
    assert (ended.text, ended.state, ended.outcome, ended.call) == ("first. second.", "sealed", "completed", 0)
    assert await outputs_after(any_redis, accumulator.turn, ended.last_id, 0) == []


@pytest.mark.requirement("store:attach:unknown")
async def test_nobody_attaches_to_a_turn_that_is_not_there(any_redis: Redis) -> None:
    turn = ids.new_turn(0)
    assert await attach(any_redis, turn, 10) is None
    assert not await watch(any_redis, turn, 10)
    assert await read_turn(any_redis, turn) is None
    assert await read_text(any_redis, turn) == ""
    assert await outputs_of(any_redis, turn) == []
    assert await any_redis.keys("*") == []


@pytest.mark.requirement("readers:other-versions:record")
async def test_nobody_attaches_to_a_turn_that_a_newer_release_has_written(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    assert await attach(any_redis, accumulator.turn, 0) is not None
    await any_redis.hset(keys.turn_record(accumulator.turn), "v", RECORD_VERSION + 1)
    with pytest.raises(NewerRecord, match="newer release"):
        await attach(any_redis, accumulator.turn, 0)


@pytest.mark.requirement("store:attach:watch")
async def test_watching_lasts_as_long_as_the_most_patient_reader_asked(any_redis: Redis) -> None:
    new = new_turn()
    await submit(any_redis, new, 1)
    assert await any_redis.zscore(keys.watch(0), new.turn) is None
    await attach(any_redis, new.turn, 0)
    assert await any_redis.zscore(keys.watch(0), new.turn) is None
    await attach(any_redis, new.turn, 100)
    until = await any_redis.zscore(keys.watch(0), new.turn)
    assert await watch(any_redis, new.turn, 10)
    assert await any_redis.zscore(keys.watch(0), new.turn) == until
    assert await watch(any_redis, new.turn, 200)
    assert await any_redis.zscore(keys.watch(0), new.turn) > until


@pytest.mark.requirement("store:attach:watch")
async def test_a_turn_that_has_ended_is_watched_no_more(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await seal(accumulator)
    await attach(any_redis, accumulator.turn, 100)
    assert not await watch(any_redis, accumulator.turn, 100)
    assert await any_redis.zscore(keys.watch(0), accumulator.turn) is None


@pytest.mark.requirement("store:outputs:waits")
async def test_a_reader_waits_for_the_next_output(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    assert await outputs_after(any_redis, accumulator.turn, "0-0", 20) == []
    await seal(accumulator)
    ((_, output),) = await outputs_after(any_redis, accumulator.turn, "0-0", 20)
    assert isinstance(output, TurnCompletedOutput)
    assert (output.turn, output.seq, output.at_ms > 0) == (accumulator.turn, 1, True)


@pytest.mark.requirement("store:outputs:unknown")
async def test_outputs_that_this_version_does_not_know_are_passed_over(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    unknown = json.dumps({"v": 9, "type": "hologram", "call": 1})
    await any_redis.xadd(keys.out(accumulator.turn), {"o": unknown}, id="1-1")
    assert await outputs_after(any_redis, accumulator.turn, "0-0", 10) == []
    await any_redis.hset(keys.turn_record(accumulator.turn), "seq", 1)
    await seal(accumulator)
    ((place, output),) = await outputs_after(any_redis, accumulator.turn, "0-0", 10)
    assert isinstance(output, TurnCompletedOutput)
    assert place.endswith("-2")


@pytest.mark.requirement("store:outputs:text-once")
async def test_the_text_of_a_call_is_stored_once_and_read_whole(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    for call, text in enumerate(["naïve ", "日本", ""], 1):
        await accumulator.open_call(call, 1, 0, True)
        fact = completed(call, 1, text)
        boundary = TextOutput(call=call, attempt=1, text=text)
        await accumulator.commit(fact, NO_USAGE, [boundary, CallCompletedOutput(call=call, attempt=1)])
    stored = b"".join(
        value for _, fields in await any_redis.xrange(keys.out(accumulator.turn)) for value in fields.values()
    )
    assert b"na" not in stored
    texts = [output.text for output in await outputs_of(any_redis, accumulator.turn) if isinstance(output, TextOutput)]
    assert texts == ["naïve ", "日本", ""]
    assert await read_text(any_redis, accumulator.turn) == "naïve 日本"


@pytest.mark.requirement("store:outputs:notice")
async def test_a_notice_keeps_its_own_text_and_moves_no_marker(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    fact = completed(1, 1, "answer")
    notice = TextOutput(text="the prompt has expired", is_call_boundary=False)
    await accumulator.commit(fact, NO_USAGE, [*outputs_of_commit(fact), notice])
    assert accumulator.marker == 6
    *_, told = await outputs_of(any_redis, accumulator.turn)
    assert (told.text, told.is_call_boundary) == ("the prompt has expired", False)


@pytest.mark.requirement("store:outputs:order")
async def test_the_boundary_follows_the_text_and_usage_follows_both(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    fact = completed(1, 1, "answer")
    usage = UsageOutput(call=1, attempt=1, input_tokens=3)
    await accumulator.commit(fact, UsageTotals(3), [*outputs_of_commit(fact), usage])
    outputs = await outputs_of(any_redis, accumulator.turn)
    assert [output.type for output in outputs] == ["text", "call_completed", "usage"]
    assert [output.seq for output in outputs] == [1, 2, 3]
    assert outputs[-1].input_tokens == 3
    assert outputs[-1].discarded_resume_attempts is None


@pytest.mark.requirement("store:seal:record")
async def test_the_record_of_a_sealed_turn_says_how_it_ended(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    failure = Failure("timeout", "stall", "The provider stopped in mid-answer.")
    error = ErrorOutput(message=failure.message, category="timeout", code="stall", correlation_id="c0ffee")
    await accumulator.seal("failed", "stall", failure, "c0ffee", UsageTotals(discarded_resume_attempts=2), [error])
    record = await record_of(any_redis, accumulator.turn)
    assert (record.state, record.outcome, record.reason, record.failure) == ("sealed", "failed", "stall", failure)
    assert (record.correlation_id, record.totals.discarded_resume_attempts) == ("c0ffee", 2)
    assert record.sealed_ms is not None
    assert record.sealed_ms >= record.created_ms
    assert (await outputs_of(any_redis, accumulator.turn))[0].correlation_id == "c0ffee"


@pytest.mark.requirement("store:release:discards")
async def test_a_hand_over_discards_what_is_open_and_says_how_much(any_redis: Redis) -> None:
    accumulator = await driven(any_redis, watch_s=60)
    tick = StagingTick(any_redis)
    tick.add(accumulator)
    await accumulator.open_call(1, 1, 0, True)
    accumulator.stage_text("naïve")
    await tick.flush()
    accumulator.stage_text("!")
    await accumulator.release()
    told = (await outputs_of(any_redis, accumulator.turn))[-1]
    assert (told.type, told.call, told.attempt, told.discarded_bytes) == ("text_stream_discarded", 1, 1, 7)
    assert (await snapshot_of(any_redis, accumulator.turn)).open_text == ""
    assert (await record_of(any_redis, accumulator.turn)).state == "queued"


@pytest.mark.requirement("readers:other-versions")
async def test_an_output_of_another_version_costs_none_of_those_around_it(any_redis: Redis) -> None:
    turn = ids.new_turn(0)
    for number, stored in enumerate(({"d1.1": "a"}, {"z1.1": "?"}, {"d": "?"}, {"o": "{"}, {"d1.1": "b"}), start=1):
        await any_redis.xadd(keys.out(turn), stored, id=f"5-{number}")
    entries = (await read_on(any_redis, {turn: (0, 0)}, 0))[turn]
    assert [place for place, _ in entries] == [(5, number) for number in range(1, 6)]
    assert [output and output.text for _, output in entries] == ["a", None, None, None, "b"]  # type: ignore[attr-defined]
