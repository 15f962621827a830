"""Every script, once with its reply dropped: repeated, it changes nothing and gives its first answer (I13, I9)."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio

from tests.store.lossy import Fault, Lossy, dump
from tests.store.turns import (
    SESSION,
    TTL_S,
    Redis,
    ask,
    commit,
    completed,
    discard,
    driven,
    granted,
    new_turn,
    seal,
    snapshot_of,
    taken,
)
from worker import ids
from worker.errors import Fenced, LocalProtocolError, Rewound, TurnSealed
from worker.output.events import TextOutput, TurnCompletedOutput
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.approvals import Resolution, resolve
from worker.store.inbox import submit
from worker.store.lease import claim
from worker.store.outputs import attach, watch
from worker.store.tick import StagingTick
from worker.turn.facts import ApprovalDecided, Compacted, ToolEnded
from worker.turn.usage import NO_USAGE

Step = Callable[[ExecutionOutputAccumulator], Awaitable[None]]


@pytest.fixture
def lossy(any_redis: Redis) -> Lossy:
    return Lossy(any_redis)


async def opened(accumulator: ExecutionOutputAccumulator) -> None:
    await accumulator.open_call(1, 1, 0, True)


async def streamed(accumulator: ExecutionOutputAccumulator) -> None:
    await opened(accumulator)
    accumulator.watched = True
    accumulator.stage_text("half a sen")


async def with_a_commit(accumulator: ExecutionOutputAccumulator) -> None:
    await opened(accumulator)
    await commit(accumulator, 1, 1, "whole")


async def asked(accumulator: ExecutionOutputAccumulator) -> None:
    await with_a_commit(accumulator)
    await ask(accumulator)


async def asks(accumulator: ExecutionOutputAccumulator) -> None:
    await ask(accumulator)


async def asked_and_answered(accumulator: ExecutionOutputAccumulator) -> None:
    await asked(accumulator)
    client = accumulator._ops._redis
    assert isinstance(await resolve(client, ids.approval_of(accumulator.turn, 1, 0), "deny", "Jo Doe"), Resolution)


async def parked(accumulator: ExecutionOutputAccumulator) -> None:
    assert await accumulator.park() == ()


async def parked_not(accumulator: ExecutionOutputAccumulator) -> None:
    assert await accumulator.park() == (ApprovalDecided(1, 0, "deny", "Jo Doe"),)


async def nothing(_: ExecutionOutputAccumulator) -> None:
    """The turn was claimed, and no more."""


VERBS: dict[str, tuple[Step, Step]] = {
    "open_call": (nothing, opened),
    "commit": (streamed, lambda accumulator: commit(accumulator, 1, 1, "half a sentence")),
    "commit of an empty text": (opened, lambda accumulator: commit(accumulator, 1, 1, "")),
    "discard": (streamed, lambda accumulator: discard(accumulator, 1, 1)),
    "discard of nothing": (with_a_commit, lambda accumulator: discard(accumulator, 1, 1)),
    "tool_start": (with_a_commit, lambda accumulator: accumulator.tool_start(1, 0, [])),
    "record": (with_a_commit, lambda accumulator: accumulator.record(ToolEnded(1, 0, "r", None), [])),
    "record of a compaction": (with_a_commit, lambda accumulator: accumulator.record(Compacted(2, False, 3), [])),
    "ask_approval": (with_a_commit, asks),
    "park": (asked, parked),
    "park after a decision": (asked_and_answered, parked_not),
    "seal": (with_a_commit, seal),
    "seal while a person is asked": (asked, seal),
    "release": (streamed, lambda accumulator: accumulator.release()),
}


@pytest.mark.requirement("store:repeat:every-verb")
@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_whose_reply_was_lost_happens_once(
    any_redis: Redis, lossy: Lossy, verb: str, fault: Fault
) -> None:
    before, step = VERBS[verb]
    accumulator = await driven(any_redis)
    await before(accumulator)
    lossy.faults.extend([fault, fault])
    await step(accumulator)
    assert not lossy.faults
    command = lossy.sent[-1]
    after = await dump(any_redis)
    first, second = [await lossy.execute(*command) for _ in range(2)]
    assert first == second
    assert first[0] == b"OK"
    assert await dump(any_redis) == after
    expected = await once(any_redis, verb)
    assert comparable(after) == comparable(expected)


async def once(client: Redis, verb: str) -> dict[str, Any]:
    """The same on a line without faults."""
    await client.flushall()
    before, step = VERBS[verb]
    accumulator = await driven(client)
    await before(accumulator)
    await step(accumulator)
    return await dump(client)


def comparable(dumped: dict[str, Any]) -> list[tuple[str, str, int]]:
    """A dump without what differs from turn to turn: kinds of keys and how much each holds."""
    return sorted(
        (name.partition("}:")[2].partition(":")[0], kind, len(content)) for name, (kind, content, _) in dumped.items()
    )


@pytest.mark.requirement("store:repeat:stage")
async def test_a_flush_whose_reply_was_lost_is_repeated_before_anything_else(any_redis: Redis, lossy: Lossy) -> None:
    accumulator = await driven(any_redis)
    await streamed(accumulator)
    tick = StagingTick(any_redis)
    tick.add(accumulator)
    lossy.faults.append("reply lost")
    await tick.flush()
    accumulator.stage_text("tence")
    after = await dump(any_redis)
    await tick.flush()
    first, second = lossy.sent[-2:]
    assert second == first
    assert await dump(any_redis) == after
    await tick.flush()
    snapshot = await snapshot_of(any_redis, accumulator.turn)
    assert snapshot.open_text == "half a sentence"


@pytest.mark.requirement("store:repeat:stage")
async def test_a_verb_first_repeats_the_flush_that_was_not_answered(any_redis: Redis, lossy: Lossy) -> None:
    accumulator = await driven(any_redis)
    await streamed(accumulator)
    tick = StagingTick(any_redis)
    tick.add(accumulator)
    lossy.faults.append("request lost")
    await tick.flush()
    await discard(accumulator, 1, 1)
    flush, again, verb = lossy.sent[-3:]
    assert again == flush
    assert verb[1] != flush[1]


@pytest.mark.requirement("store:repeat:submit")
async def test_a_submit_whose_reply_was_lost_stores_one_turn(any_redis: Redis, lossy: Lossy) -> None:
    new = new_turn(key="K")
    lossy.faults.extend(["reply lost", "request lost"])
    answer = await submit(any_redis, new, 1)
    after = await dump(any_redis)
    assert await submit(any_redis, new, 1) == answer
    assert await dump(any_redis) == after
    assert not answer.duplicate
    assert await any_redis.llen(keys.queue(0, SESSION)) == 1


@pytest.mark.requirement("store:repeat:claim")
async def test_a_claim_whose_reply_was_lost_gives_the_same_grant_again(any_redis: Redis, lossy: Lossy) -> None:
    await submit(any_redis, new_turn(), 1)
    nonce = ids.new_nonce()
    lossy.faults.append("reply lost")
    with pytest.raises(redis.ConnectionError):
        await claim(any_redis, SESSION, nonce, TTL_S, 1)
    after = await dump(any_redis, leave_out=["lease_ms", "due", "driven"])
    first = await taken(any_redis, SESSION, nonce)
    second = await taken(any_redis, SESSION, nonce)
    assert (first.epoch, first.op, first.progress) == (1, 0, second.progress)
    assert first.progress.crashes == 0
    assert await dump(any_redis, leave_out=["lease_ms", "due", "driven"]) == after


@pytest.mark.requirement("store:repeat:readers")
async def test_attach_and_watch_may_be_repeated(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_a_commit(accumulator)
    first = await attach(any_redis, accumulator.turn, 30)
    assert await watch(any_redis, accumulator.turn, 10)
    assert await attach(any_redis, accumulator.turn, 30) == first


@pytest.mark.requirement("store:fence:old-nonce")
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_of_an_old_driver_changes_nothing_and_says_so(any_redis: Redis, verb: str) -> None:
    before, step = VERBS[verb]
    old = await driven(any_redis)
    await before(old)
    await any_redis.hset(keys.turn_record(old.turn), "lease_ms", 1)
    await taken(any_redis)
    after = await dump(any_redis)
    with pytest.raises(Fenced):
        await step(old)
    assert await dump(any_redis) == after


@pytest.mark.requirement("store:fence:old-nonce")
async def test_a_flush_of_an_old_driver_changes_nothing(any_redis: Redis) -> None:
    old = await driven(any_redis)
    await streamed(old)
    await any_redis.hset(keys.turn_record(old.turn), "lease_ms", 1)
    await taken(any_redis)
    after = await dump(any_redis)
    tick = StagingTick(any_redis)
    tick.add(old)
    await tick.flush()
    assert await dump(any_redis) == after


@pytest.mark.requirement("store:fence:older-op")
async def test_an_op_that_arrives_after_later_ones_is_ignored(any_redis: Redis, lossy: Lossy) -> None:
    accumulator = await driven(any_redis)
    await with_a_commit(accumulator)
    await accumulator.tool_start(1, 0, [])
    late = lossy.sent[-1]
    await accumulator.record(ToolEnded(1, 0, "result", None), [])
    after = await dump(any_redis)
    assert await lossy.execute(*late) == [b"IGNORED"]
    assert await dump(any_redis) == after


@pytest.mark.requirement("store:fence:sealed")
@pytest.mark.parametrize("verb", VERBS)
async def test_after_the_seal_nothing_changes(any_redis: Redis, verb: str) -> None:
    accumulator = await driven(any_redis)
    await seal(accumulator)
    after = await dump(any_redis)
    with pytest.raises(TurnSealed):
        await VERBS[verb][1](accumulator)
    assert await dump(any_redis) == after


@pytest.mark.requirement("store:fence:rewound")
async def test_a_store_that_lost_acknowledged_steps_says_rewound(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await opened(accumulator)
    earlier = await any_redis.hgetall(keys.turn_record(accumulator.turn))
    await discard(accumulator, 1, 1)
    await any_redis.hset(keys.turn_record(accumulator.turn), mapping=earlier)
    after = await dump(any_redis)
    with pytest.raises(Rewound):
        await accumulator.open_call(1, 2, 1, False)
    assert await dump(any_redis) == after


@pytest.mark.requirement("store:fence:rewound")
async def test_after_a_rewind_the_same_nonce_claims_anew_and_goes_on(any_redis: Redis) -> None:
    grant = await granted(any_redis)
    accumulator = ExecutionOutputAccumulator(any_redis, grant, lambda: True)
    await opened(accumulator)
    earlier = await any_redis.hgetall(keys.turn_record(accumulator.turn))
    assert not await any_redis.exists(keys.out(accumulator.turn))
    await discard(accumulator, 1, 1)
    await any_redis.hset(keys.turn_record(accumulator.turn), mapping=earlier)
    await any_redis.delete(keys.out(accumulator.turn))
    again = await taken(any_redis, SESSION, grant.nonce)
    assert (again.op, again.progress.is_open, again.progress.crashes) == (1, True, 0)
    await discard(ExecutionOutputAccumulator(any_redis, again, lambda: True), 1, 1)


@pytest.mark.requirement("store:discard:resumes")
async def test_a_resume_that_a_discard_announced_is_known_to_whoever_goes_on(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await opened(accumulator)
    await accumulator.discard(1, 1, NO_USAGE, [], resumes_spent=1)
    await accumulator.release()
    grant = await taken(any_redis)
    assert (grant.progress.attempt, grant.progress.is_open, grant.progress.resumes_spent) == (1, False, 1)
    going_on = ExecutionOutputAccumulator(any_redis, grant, lambda: True)
    await going_on.open_call(1, 2, 1, False)
    await discard(going_on, 1, 2)
    await going_on.release()
    assert (await taken(any_redis)).progress.resumes_spent == 1


@pytest.mark.requirement("store:fence:lease-over")
async def test_an_op_is_repeated_until_the_lease_is_no_longer_ours(any_redis: Redis, lossy: Lossy) -> None:
    mine = True
    grant = await granted(any_redis)
    accumulator = ExecutionOutputAccumulator(any_redis, grant, lambda: mine)
    lossy.faults.extend(["request lost"] * 3)
    await opened(accumulator)
    assert not lossy.faults
    mine = False
    lossy.faults.append("reply lost")
    with pytest.raises(Fenced, match="did not answer"):
        await commit(accumulator, 1, 1, "text")


@pytest.mark.requirement("store:state:refused")
async def test_what_the_state_does_not_allow_changes_nothing(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_a_commit(accumulator)
    await accumulator.open_call(2, 1, 0, True)
    after = await dump(any_redis)
    with pytest.raises(LocalProtocolError, match="seal is not allowed now"):
        await seal(accumulator)
    with pytest.raises(LocalProtocolError, match="open_call is not allowed now"):
        await accumulator.open_call(2, 2, 1, False)
    with pytest.raises(LocalProtocolError, match="tool_start is not allowed now"):
        await accumulator.tool_start(1, 0, [])
    with pytest.raises(LocalProtocolError, match="commit is not allowed now"):
        await commit(accumulator, 2, 2, "of another attempt")
    with pytest.raises(LocalProtocolError, match="discard is not allowed now"):
        await discard(accumulator, 2, 2)
    assert await dump(any_redis) == after
    await commit(accumulator, 2, 1, " and more")
    with pytest.raises(LocalProtocolError, match="open_call is not allowed now"):
        await accumulator.open_call(2, 1, 0, True)
    with pytest.raises(LocalProtocolError, match="no attempt is open"):
        accumulator.stage_text("late")


@pytest.mark.requirement("store:state:refused")
async def test_a_boundary_with_another_text_than_the_call_is_refused(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await opened(accumulator)
    fact = completed(1, 1, "one text")
    with pytest.raises(LocalProtocolError, match="another text"):
        await accumulator.commit(fact, NO_USAGE, [TextOutput(call=1, attempt=1, text="another")])


@pytest.mark.requirement("store:repeat:given-up")
async def test_a_verb_that_was_given_up_unanswered_does_not_swallow_the_next_one(
    any_redis: Redis, lossy: Lossy
) -> None:
    mine = False
    grant = await granted(any_redis)
    accumulator = ExecutionOutputAccumulator(any_redis, grant, lambda: mine)
    lossy.faults.append("reply lost")
    with pytest.raises(Fenced):
        await opened(accumulator)
    mine = True
    await accumulator.release()
    assert (await any_redis.hmget(keys.turn_record(grant.turn), "state", "open", "op")) == [b"queued", b"", b"2"]


async def test_a_seal_by_the_owner_after_a_lapse_of_its_lease_still_counts(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    await accumulator.seal("failed", None, None, "", NO_USAGE, [TurnCompletedOutput(outcome="failed")])
    assert await any_redis.hget(keys.turn_record(accumulator.turn), "outcome") == b"failed"
