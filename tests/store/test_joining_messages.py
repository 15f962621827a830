"""Messages that join a running turn: carried by a call, answered once, and never lost."""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.store.lossy import Fault, Lossy, dump
from tests.store.turns import (
    SESSION,
    Redis,
    commit,
    completed,
    discard,
    driver_of,
    log_of,
    new_turn,
    outputs_of,
    outputs_of_commit,
    record_of,
    seal,
    taken,
    with_tools,
)
from worker.codecs.messages import AssistantMessage, UserMessage
from worker.errors import InboxChanged, LocalProtocolError
from worker.store import keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.cancels import cancel
from worker.store.inbox import submit
from worker.store.joining import MOST_JOINED, MOST_JOINED_BYTES
from worker.store.journal import history
from worker.turn.events import InboxMessage
from worker.turn.facts import Committed, Joined
from worker.turn.usage import NO_USAGE


async def said(client: Redis, message: str, **more: Any) -> str:
    """A message that may join."""
    return (await submit(client, new_turn(message, **{"joins": True, **more}), 1)).turn


async def after_tools(client: Redis, **more: Any) -> ExecutionOutputAccumulator:
    """The driver of a turn that takes messages, after its first call asked for a tool."""
    await said(client, "What is due?", **more)
    accumulator = driver_of(client, await taken(client))
    await with_tools(accumulator, "mail")
    return accumulator


async def commit_carrying(accumulator: ExecutionOutputAccumulator, text: str, *joined: Joined) -> None:
    fact = completed(2, 1, text)
    await accumulator.commit(fact, NO_USAGE, outputs_of_commit(fact), joined)


async def carrying(accumulator: ExecutionOutputAccumulator, messages: Sequence[InboxMessage]) -> tuple[Joined, ...]:
    """Open the second call with these messages; the facts that its commit tells of them."""
    await accumulator.open_call(2, 1, 0, True, carries=[message.turn for message in messages])
    return tuple(Joined(2, message.turn, message.text) for message in messages)


@pytest.mark.requirement("sessions:join:one-answer")
async def test_messages_that_joined_are_answered_by_the_call_that_carried_them_and_end_with_it(
    any_redis: Redis,
) -> None:
    accumulator = await after_tools(any_redis)
    turns = [await said(any_redis, text) for text in ("And Bob?", "And Eve, née Ö?", "Thanks.")]
    messages = await accumulator.waiting_messages()
    assert messages == tuple(
        InboxMessage(turn, text) for turn, text in zip(turns, ("And Bob?", "And Eve, née Ö?", "Thanks."), strict=True)
    )
    joined = await carrying(accumulator, messages)
    for turn in turns:
        assert (await record_of(any_redis, turn)).state == "queued"
    due = await any_redis.zscore(keys.due(0), keys.DUE_LEASE + SESSION)
    await commit_carrying(accumulator, "All of you.", *joined)
    for turn in turns:
        record = await record_of(any_redis, turn)
        assert (record.state, record.outcome, record.reason, record.merged_into) == (
            *("sealed", "merged", None),
            accumulator.turn,
        )
        (end,) = await outputs_of(any_redis, turn)
        assert (end.outcome, end.merged_into, end.seq) == ("merged", accumulator.turn, 1)
        assert await any_redis.zscore(keys.live(0), turn) is None
        assert await any_redis.ttl(keys.turn_record(turn)) > 0
    seals = [(entry.turn, entry.outcome) for entry in await log_of(any_redis) if entry.kind == "seal"]
    assert seals == [(turn, "merged") for turn in turns]
    assert await any_redis.lrange(keys.queue(0, SESSION), 0, -1) == [accumulator.turn.encode()]
    assert await any_redis.zscore(keys.due(0), keys.DUE_LEASE + SESSION) == due
    await seal(accumulator)
    assert await any_redis.lrange(keys.history(0, SESSION), 0, -1) == [accumulator.turn.encode()]
    assert not await any_redis.exists(keys.queue(0, SESSION), keys.due(0))


@pytest.mark.requirement("sessions:join:journal")
async def test_the_journal_tells_what_joined_before_the_answer_to_it(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    joined = await carrying(accumulator, await accumulator.waiting_messages())
    await commit_carrying(accumulator, "Bob too.", *joined)
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    grant = await taken(any_redis)
    assert [type(fact) for fact in grant.facts] == [Committed, Joined, Committed]
    assert grant.facts[1] == Joined(2, turn, "And Bob?")
    assert grant.carried == ()
    await seal(driver_of(any_redis, grant))
    told = await history(any_redis, SESSION, "", 10, 1)
    assert told[0] == UserMessage("What is due?")
    assert told[-2:] == (UserMessage("And Bob?"), AssistantMessage("Bob too."))


@pytest.mark.requirement("sessions:join:contiguous")
@pytest.mark.parametrize(
    "other",
    [
        {"joins": False},
        {"agent": "other"},
        {"destinations": ("elsewhere",)},
        {"message": "x" * MOST_JOINED_BYTES},
    ],
)
async def test_messages_join_up_to_the_first_that_may_not(any_redis: Redis, other: dict[str, Any]) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    await said(any_redis, **{"message": "Alone.", **other})
    await said(any_redis, "Behind it.")
    assert [message.turn for message in await accumulator.waiting_messages()] == [turn]


@pytest.mark.requirement("sessions:join:contiguous")
async def test_no_more_messages_join_at_once_than_a_request_can_bear(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turns = [await said(any_redis, f"{number}") for number in range(MOST_JOINED + 2)]
    assert [message.turn for message in await accumulator.waiting_messages()] == turns[:MOST_JOINED]


@pytest.mark.requirement("sessions:join:contiguous")
async def test_a_message_that_a_newer_version_has_stored_does_not_join(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    await any_redis.hset(keys.turn_record(turn), "v", 99)
    assert await accumulator.waiting_messages() == ()


@pytest.mark.requirement("sessions:join:only-where-wanted")
async def test_a_turn_that_was_not_submitted_to_be_joined_takes_none(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis, joins=False)
    await said(any_redis, "And Bob?")
    assert await accumulator.waiting_messages() == ()


@pytest.mark.requirement("sessions:join:inbox-moved")
async def test_a_call_is_not_opened_with_a_message_that_waits_no_more(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    first, second = await said(any_redis, "And Bob?"), await said(any_redis, "And Eve?")
    messages = await accumulator.waiting_messages()
    await cancel(any_redis, first, "jo", 60)
    before = await dump(any_redis)
    with pytest.raises(InboxChanged):
        await carrying(accumulator, messages)
    assert await dump(any_redis) == before
    messages = await accumulator.waiting_messages()
    assert [message.turn for message in messages] == [second]
    await commit_carrying(accumulator, "Eve too.", *await carrying(accumulator, messages))
    assert (await record_of(any_redis, first)).outcome == "cancelled"
    assert (await record_of(any_redis, second)).outcome == "merged"


@pytest.mark.requirement("sessions:join:cancelled-meanwhile")
async def test_a_message_that_was_cancelled_while_a_call_carried_it_stays_cancelled_and_is_told_once(
    any_redis: Redis,
) -> None:
    accumulator = await after_tools(any_redis)
    first, second = await said(any_redis, "And Bob?"), await said(any_redis, "And Eve?")
    joined = await carrying(accumulator, await accumulator.waiting_messages())
    await cancel(any_redis, first, "jo", 60)
    await commit_carrying(accumulator, "Both.", *joined)
    await seal(accumulator)
    assert (await record_of(any_redis, first)).outcome == "cancelled"
    assert [output.outcome for output in await outputs_of(any_redis, first)] == ["cancelled"]
    assert (await record_of(any_redis, second)).outcome == "merged"
    told = await history(any_redis, SESSION, "", 10, 1)
    assert [message.text for message in told if message == UserMessage("And Bob?")] == ["And Bob?"]
    assert told[-1] == AssistantMessage("Both.")


@pytest.mark.requirement("sessions:join:reissued-unchanged")
async def test_a_takeover_gets_the_messages_that_the_dead_call_carried(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    first, second = await said(any_redis, "And Bob?"), await said(any_redis, "And Eve?")
    await carrying(accumulator, await accumulator.waiting_messages())
    await cancel(any_redis, second, "jo", 60)
    await said(any_redis, "Too late for that call.")
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    grant = await taken(any_redis)
    assert grant.joins
    assert grant.carried == (Joined(2, first, "And Bob?"), Joined(2, second, "And Eve?"))
    following = driver_of(any_redis, grant)
    await discard(following, 2, 1)
    await following.open_call(2, 2, 1, False)
    fact = completed(2, 2, "Both.")
    await following.commit(fact, NO_USAGE, outputs_of_commit(fact), grant.carried)
    assert (await record_of(any_redis, first)).outcome == "merged"


@pytest.mark.requirement("sessions:join:not-lost")
async def test_what_a_call_carried_runs_by_itself_when_the_turn_ends_without_that_call(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    await carrying(accumulator, await accumulator.waiting_messages())
    await discard(accumulator, 2, 1)
    await seal(accumulator)
    grant = await taken(any_redis)
    assert (grant.turn, grant.message, grant.progress.calls) == (turn, "And Bob?", 0)


@pytest.mark.requirement("sessions:join:exactly-these")
async def test_a_commit_must_tell_exactly_what_its_call_carried(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    await said(any_redis, "And Bob?")
    joined = await carrying(accumulator, await accumulator.waiting_messages())
    before = await dump(any_redis)
    for told in ((), (*joined, Joined(2, new_turn().turn, "?"))):
        with pytest.raises(LocalProtocolError, match="carried"):
            await commit_carrying(accumulator, "Bob too.", *told)
    assert await dump(any_redis) == before
    await commit_carrying(accumulator, "Bob too.", *joined)


@pytest.mark.requirement("sessions:join:repeat")
@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
@pytest.mark.parametrize("verb", ["open_call", "commit"])
async def test_a_call_that_carries_messages_is_opened_and_committed_once(
    any_redis: Redis, verb: str, fault: Fault
) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    messages = await accumulator.waiting_messages()
    lossy = Lossy(any_redis)
    if verb == "open_call":
        lossy.faults.extend([fault, fault])
    joined = await carrying(accumulator, messages)
    if verb == "commit":
        lossy.faults.extend([fault, fault])
    await commit_carrying(accumulator, "Bob too.", *joined)
    assert not lossy.faults
    after = await dump(any_redis)
    first, second = [await lossy.execute(*lossy.sent[-1]) for _ in range(2)]
    assert first == second
    assert await dump(any_redis) == after
    assert [output.outcome for output in await outputs_of(any_redis, turn)] == ["merged"]


@pytest.mark.requirement("sessions:join:older-record")
async def test_a_turn_of_version_2_neither_joins_nor_is_joined(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    for each in (turn, accumulator.turn):
        record = keys.turn_record(each)
        await any_redis.hset(record, "v", 2)
        await any_redis.hdel(record, "joins", "carried", "committed", "interrupted")
    assert await accumulator.waiting_messages() == ()
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    grant = await taken(any_redis)
    assert (grant.joins, grant.carried, grant.cancelled) == (False, (), None)
    following = driver_of(any_redis, grant)
    await following.open_call(2, 1, 0, True)
    await commit(following, 2, 1, "Done.")
    await seal(following)
    assert (await taken(any_redis)).turn == turn


@pytest.mark.requirement("sessions:join:requester")
@pytest.mark.parametrize("other", [None, "U2"])
async def test_a_message_of_another_requester_does_not_join(any_redis: Redis, other: str | None) -> None:
    """Its author must not have tools approved by somebody else, nor approve for them."""
    accumulator = await after_tools(any_redis, requester="U1")
    same = await said(any_redis, "Mine.", requester="U1")
    await said(any_redis, "Theirs.", requester=other)
    assert [message.turn for message in await accumulator.waiting_messages()] == [same]


@pytest.mark.requirement("sessions:join:takeover-after-cancel")
async def test_a_call_is_asked_again_with_what_it_carried_though_that_turn_is_gone(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    joined = await carrying(accumulator, await accumulator.waiting_messages())
    await cancel(any_redis, turn, "jo", 60)
    await any_redis.delete(keys.turn_record(turn))  # as its expiry does
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    grant = await taken(any_redis)
    assert grant.carried == joined
    await commit_carrying(driver_of(any_redis, grant), "Bob, too.", *joined)
    left = await any_redis.hkeys(keys.turn_record(accumulator.turn))
    assert not [name for name in left if name.startswith(b"carried:")]


@pytest.mark.requirement("sessions:join:takeover-after-cancel")
async def test_a_call_that_an_earlier_release_opened_carries_what_the_records_say(any_redis: Redis) -> None:
    accumulator = await after_tools(any_redis)
    turn = await said(any_redis, "And Bob?")
    joined = await carrying(accumulator, await accumulator.waiting_messages())
    await any_redis.hdel(keys.turn_record(accumulator.turn), f"carried:{turn}")
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    assert (await taken(any_redis)).carried == joined
