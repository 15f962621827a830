"""A turn that somebody wants to end: one end wherever it stands, told everywhere, and whoever was first has won."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.store.lossy import Fault, Lossy, dump
from tests.store.turns import (
    SESSION,
    Redis,
    ask,
    commit,
    completed,
    discard,
    driven,
    driver_of,
    log_of,
    new_turn,
    outputs_of,
    outputs_of_commit,
    outputs_of_discard,
    record_of,
    refused,
    seal,
    taken,
    with_tools,
)
from worker import ids
from worker.errors import LocalProtocolError, StoreFull, TurnCancelled, TurnSealed
from worker.output.events import Output, TextStreamDiscardedOutput, TurnCompletedOutput, UsageOutput
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.approvals import resolve
from worker.store.cancels import Cancellation, cancel
from worker.store.inbox import submit
from worker.store.pending import find_all
from worker.store.records import TurnRecord, read_text
from worker.turn.facts import ToolEnded
from worker.turn.usage import NO_USAGE, UsageTotals

KEEP_S = 3600


async def cancelled(client: Redis, turn: str, by: str = "jo") -> Cancellation:
    answer = await cancel(client, turn, by, KEEP_S)
    assert answer is not None
    return answer


async def waiting(client: Redis, message: str = "hello", **more: Any) -> str:
    """A turn that was submitted and that nobody has taken up."""
    return (await submit(client, new_turn(message, **more), 1)).turn


def ends_of(outputs: list[Output]) -> list[str]:
    return [output.outcome for output in outputs if isinstance(output, TurnCompletedOutput)]


async def check_is_cancelled(client: Redis, turn: str, reason: str = "requested") -> TurnRecord:
    """One end, and the same one in the record, the outputs, the log and the sets."""
    record = await record_of(client, turn)
    assert (record.state, record.outcome, record.reason, record.failure) == ("sealed", "cancelled", reason, None)
    emitted = await outputs_of(client, turn)
    assert ends_of(emitted) == ["cancelled"]
    assert (emitted[-1].outcome, emitted[-1].reason) == ("cancelled", reason)
    assert [output.seq for output in emitted] == list(range(1, len(emitted) + 1))
    seals = [entry.outcome for entry in await log_of(client) if entry.turn == turn and entry.kind == "seal"]
    assert seals == ["cancelled"]
    assert await client.zscore(keys.live(0), turn) is None
    assert await client.zscore(keys.cancels(0), turn) is None
    assert turn.encode() in await client.lrange(keys.history(0, SESSION), 0, -1)
    assert 0 < await client.ttl(keys.turn_record(turn)) <= max(KEEP_S, 7 * 24 * 3600)
    return record


@pytest.mark.requirement("cancel:waits:ends-there")
@pytest.mark.requirement("streams:k:cancel-of-a-queued-turn")
@pytest.mark.requirement("cases:t19:queued")
async def test_a_turn_that_waits_ends_in_the_step_that_asks_and_never_runs(any_redis: Redis) -> None:
    turn = await waiting(any_redis)
    answer = await cancelled(any_redis, turn)
    assert answer == Cancellation(turn, SESSION, "cancelled", "cancelled")
    record = await check_is_cancelled(any_redis, turn)
    assert record.cancelled_by == "jo"
    assert await refused(any_redis)
    assert not await any_redis.exists(keys.due(0))


@pytest.mark.requirement("cancel:waits:ends-there")
async def test_a_turn_that_waits_behind_another_leaves_the_queue_and_nothing_else_changes(any_redis: Redis) -> None:
    head = await driven(any_redis)
    second, third = await waiting(any_redis), await waiting(any_redis)
    due = await any_redis.zscore(keys.due(0), keys.DUE_LEASE + SESSION)
    await cancelled(any_redis, second)
    await check_is_cancelled(any_redis, second)
    assert await any_redis.lrange(keys.queue(0, SESSION), 0, -1) == [head.turn.encode(), third.encode()]
    assert await any_redis.zscore(keys.due(0), keys.DUE_LEASE + SESSION) == due
    await head.open_call(1, 1, 0, True)
    await commit(head, 1, 1, "hi")
    await seal(head)
    assert (await taken(any_redis)).turn == third


@pytest.mark.requirement("cancel:parked:ends-there")
@pytest.mark.requirement("cases:t19:parked")
async def test_a_turn_that_waits_for_a_person_ends_there_and_the_session_goes_on(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail")
    approval = await ask(accumulator)
    assert await accumulator.park() == ()
    following = await waiting(any_redis)
    assert (await cancelled(any_redis, accumulator.turn)).state == "cancelled"
    await check_is_cancelled(any_redis, accumulator.turn)
    assert await find_all(any_redis, 1) == []
    assert await resolve(any_redis, approval, "approve_once", "jo") == "prompt_expired"
    assert await any_redis.zrange(keys.due(0), 0, -1) == [(keys.DUE_LEASE + SESSION).encode()]
    assert await read_text(any_redis, accumulator.turn) == "One moment. "
    assert (await taken(any_redis)).turn == following


@pytest.mark.requirement("cancel:handed-off:ends-there")
@pytest.mark.requirement("cases:t19:handed-off")
async def test_a_turn_that_was_handed_over_ends_there_and_tells_what_its_dead_attempts_cost(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    totals = UsageTotals(discarded_resume_attempts=1, discarded_resume_estimated_input_tokens=70)
    await accumulator.discard(1, 1, totals, outputs_of_discard(1, 1))
    await accumulator.release()
    assert (await cancelled(any_redis, accumulator.turn)).state == "cancelled"
    await check_is_cancelled(any_redis, accumulator.turn)
    (usage,) = [output for output in await outputs_of(any_redis, accumulator.turn) if isinstance(output, UsageOutput)]
    assert (usage.discarded_resume_attempts, usage.discarded_resume_estimated_input_tokens) == (1, 70)
    assert usage.input_tokens is None


@pytest.mark.requirement("cancel:handed-off:ends-there")
async def test_what_a_completed_call_has_told_is_not_told_again(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    totals = UsageTotals(discarded_resume_attempts=1)
    fact = completed(1, 1, "hi")
    await accumulator.commit(fact, totals, outputs_of_commit(fact))
    await accumulator.release()
    await cancelled(any_redis, accumulator.turn)
    assert not [output for output in await outputs_of(any_redis, accumulator.turn) if isinstance(output, UsageOutput)]


VERBS: dict[str, Callable[[ExecutionOutputAccumulator], Awaitable[Any]]] = {
    "open_call": lambda accumulator: accumulator.open_call(2, 1, 0, True),
    "tool_start": lambda accumulator: accumulator.tool_start(1, 0, []),
    "ask_approval": lambda accumulator: ask(accumulator, 1),
    "park": lambda accumulator: accumulator.park(),
}


@pytest.mark.requirement("cancel:driven:nothing-starts")
@pytest.mark.requirement("streams:k:intent-is-written-first")
@pytest.mark.parametrize("verb", VERBS)
async def test_once_the_end_is_wanted_no_call_and_no_tool_of_a_driven_turn_begins(any_redis: Redis, verb: str) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail", "mail")
    await ask(accumulator)
    assert await cancelled(any_redis, accumulator.turn) == Cancellation(accumulator.turn, SESSION, "cancelling")
    before = await dump(any_redis)
    with pytest.raises(TurnCancelled):
        await VERBS[verb](accumulator)
    assert await dump(any_redis) == before
    with pytest.raises(TurnCancelled):
        await accumulator.check_wanted()
    await accumulator.record(ToolEnded(1, 0, "what it did before", None), [])
    await seal_cancelled(accumulator)
    await check_is_cancelled(any_redis, accumulator.turn)


async def seal_cancelled(accumulator: ExecutionOutputAccumulator) -> None:
    end = TurnCompletedOutput(outcome="cancelled", reason="requested")
    await accumulator.seal("cancelled", "requested", None, "", NO_USAGE, [end])


@pytest.mark.requirement("cancel:first-writer-wins")
@pytest.mark.requirement("cases:t19:before-the-commit")
async def test_an_answer_that_was_whole_but_not_committed_loses_against_the_cancel(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail")
    await accumulator.open_call(2, 1, 0, True)
    await cancelled(any_redis, accumulator.turn)
    before = await dump(any_redis)
    with pytest.raises(TurnCancelled):
        await commit(accumulator, 2, 1, "All done.")
    assert await dump(any_redis) == before
    again = driver_of(any_redis, await taken(any_redis, nonce=accumulator._ops._nonce))
    await discard(again, 2, 1)
    await seal_cancelled(again)
    await check_is_cancelled(any_redis, accumulator.turn)
    assert await read_text(any_redis, accumulator.turn) == "One moment. "


@pytest.mark.requirement("cancel:first-writer-wins")
@pytest.mark.requirement("streams:k:cancelled-is-not-overwritten")
@pytest.mark.requirement("cases:t19:after-the-commit")
async def test_an_answer_that_was_committed_before_the_cancel_stands(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "All done.")
    assert (await cancelled(any_redis, accumulator.turn)).state == "cancelling"
    await seal(accumulator)
    record = await record_of(any_redis, accumulator.turn)
    assert (record.outcome, record.cancelled_by) == ("completed", "jo")
    assert ends_of(await outputs_of(any_redis, accumulator.turn)) == ["completed"]
    before = await dump(any_redis)
    assert await cancelled(any_redis, accumulator.turn) == Cancellation(accumulator.turn, SESSION, "ended", "completed")
    assert await dump(any_redis) == before


@pytest.mark.requirement("cancel:first-writer-wins")
async def test_an_owner_cannot_end_again_what_a_cancel_has_ended(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail")
    await ask(accumulator)
    await accumulator.park()
    await cancelled(any_redis, accumulator.turn)
    before = await dump(any_redis)
    with pytest.raises(TurnSealed):
        await seal(accumulator)
    assert await dump(any_redis) == before


@pytest.mark.requirement("cancel:driver-dead:next-seals")
@pytest.mark.requirement("cases:t19:unowned")
async def test_whoever_takes_over_learns_that_the_turn_is_to_end(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await cancelled(any_redis, accumulator.turn)
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    grant = await taken(any_redis)
    assert (grant.turn, grant.cancelled, grant.progress.is_open) == (accumulator.turn, "requested", True)
    following = driver_of(any_redis, grant)
    with pytest.raises(TurnCancelled):
        await following.open_call(1, 2, 0, False)
    await discard(following, 1, 1)
    await seal_cancelled(following)
    await check_is_cancelled(any_redis, accumulator.turn)
    discards = [each for each in await outputs_of(any_redis, grant.turn) if isinstance(each, TextStreamDiscardedOutput)]
    assert len(discards) == 1


@pytest.mark.requirement("cancel:who:first-stands")
async def test_who_asked_first_stands_and_asking_again_does_no_harm(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await cancelled(any_redis, accumulator.turn, "jo")
    assert (await cancelled(any_redis, accumulator.turn, "al")).state == "cancelling"
    await seal_cancelled(accumulator)
    assert (await check_is_cancelled(any_redis, accumulator.turn)).cancelled_by == "jo"
    assert (await cancelled(any_redis, accumulator.turn)).outcome == "cancelled"


@pytest.mark.requirement("cancel:unknown")
async def test_what_is_not_there_or_is_of_a_newer_version_is_left_alone(any_redis: Redis) -> None:
    assert await cancel(any_redis, ids.new_turn(0), "jo", KEEP_S) is None
    turn = await waiting(any_redis)
    await any_redis.hset(keys.turn_record(turn), "v", 99)
    before = await dump(any_redis)
    assert (await cancelled(any_redis, turn)).state == "newer"
    assert await dump(any_redis) == before


async def is_driven(client: Redis) -> str:
    return (await driven(client)).turn


@pytest.mark.requirement("cancel:repeat")
@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
@pytest.mark.parametrize("prepare", [waiting, is_driven])
async def test_a_cancel_whose_reply_was_lost_happens_once(
    any_redis: Redis, fault: Fault, prepare: Callable[[Redis], Awaitable[str]]
) -> None:
    turn = await prepare(any_redis)
    lossy = Lossy(any_redis)
    lossy.faults.extend([fault, fault])
    answer = await cancelled(any_redis, turn)
    assert not lossy.faults
    after, command = await dump(any_redis), lossy.sent[-1]
    first, second = [await lossy.execute(*command) for _ in range(2)]
    assert first == second
    assert first[0] == (b"SEALED" if answer.state == "cancelled" else b"FLAGGED")
    assert await dump(any_redis) == after


@pytest.mark.requirement("cancel:repeat")
async def test_a_cancel_that_is_sent_again_after_the_end_has_its_first_answer(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    lossy = Lossy(any_redis)
    await cancelled(any_redis, accumulator.turn)
    command = lossy.sent[-1]
    await seal_cancelled(accumulator)
    assert await lossy.execute(*command) == [b"FLAGGED", SESSION.encode()]


@pytest.mark.requirement("cancel:full")
async def test_a_full_redis_takes_a_cancel(real_redis: Redis) -> None:
    accumulator = await driven(real_redis)
    await accumulator.open_call(1, 1, 0, True)
    following = await waiting(real_redis)
    await real_redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull):
            await waiting(real_redis)
        assert (await cancelled(real_redis, following)).state == "cancelled"
        assert (await cancelled(real_redis, accumulator.turn)).state == "cancelling"
        await discard(accumulator, 1, 1)
        await seal_cancelled(accumulator)
    finally:
        await real_redis.config_set("maxmemory", 0)
    await check_is_cancelled(real_redis, accumulator.turn)


@pytest.mark.requirement("cancel:older-record")
async def test_a_record_of_version_2_can_be_cancelled(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    record = keys.turn_record(accumulator.turn)
    await any_redis.hset(record, "v", 2)
    await any_redis.hdel(record, "committed", "joins", "interrupted", "carried")
    assert (await cancelled(any_redis, accumulator.turn)).state == "cancelling"
    assert await any_redis.hget(record, "v") == b"3"
    with pytest.raises((TurnCancelled, LocalProtocolError)):
        await accumulator.open_call(1, 1, 0, True)
    await seal_cancelled(accumulator)
    await check_is_cancelled(any_redis, accumulator.turn)
