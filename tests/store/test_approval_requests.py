"""A tool call that waits for a person: asked on disk, decided once, parked meanwhile, and expired in the end."""

import asyncio
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.store.lossy import Lossy, dump
from tests.store.turns import (
    ARGUMENTS,
    SESSION,
    TTL_S,
    Redis,
    ask,
    commit,
    driven,
    driver_of,
    granted,
    log_of,
    new_turn,
    outputs_of,
    record_of,
    refused,
    seal,
    snapshot_of,
    taken,
    with_tools,
)
from worker import ids
from worker.errors import Fenced, LocalProtocolError, StoreFull
from worker.output.approvals import OPTIONS, REFUSALS
from worker.output.buffer import CommitBuffer
from worker.output.events import ApprovalDecidedOutput, ApprovalRequestOutput, CompactionOutput, TextOutput
from worker.sections import ApprovalSettings
from worker.store import approvals, keys
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.approvals import MOST_REFUSALS, Resolution, expire_due, resolve
from worker.store.inbox import submit
from worker.store.lease import renew, sweep
from worker.store.pending import BEGINNING, PendingApproval, Place, find, find_all, parse_place, shown_place
from worker.store.records import read_text
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Compacted
from worker.turn.usage import NO_USAGE


async def asking(
    client: Redis, *tools: str, requester: str | None = None, expire_s: float = 3600
) -> tuple[ExecutionOutputAccumulator, list[str]]:
    """A turn whose first call asked for these tools, and a person asked about each."""
    accumulator = await driven(client, requester=requester)
    await with_tools(accumulator, *(tools or ("mail",)))
    asked = [
        await ask(accumulator, index, tool=tool, requester=requester, expire_s=expire_s)
        for index, tool in enumerate(tools or ("mail",))
    ]
    return accumulator, asked


async def parked(client: Redis, *tools: str, **more: Any) -> tuple[str, list[str]]:
    """The same, parked."""
    accumulator, asked = await asking(client, *tools, **more)
    assert await accumulator.park() == ()
    return accumulator.turn, asked


async def decided(client: Redis, approval: str, option: str = "approve_once", by: str = "Jo") -> Resolution:
    """The answer that a person gives, and that must count."""
    answer = await resolve(client, approval, option, by)
    assert isinstance(answer, Resolution), answer
    return answer


async def overdue(client: Redis, turn: str, name: str = "1_0") -> None:
    """Let the time to answer be over."""
    await client.hset(keys.approvals(turn), f"{name}:expires", 1)
    await client.zadd(keys.due(0), {keys.DUE_APPROVAL + turn: 1})


async def notices(client: Redis, turn: str) -> list[str | None]:
    return [output.notice for output in await outputs_of(client, turn) if isinstance(output, TextOutput)]


async def due(client: Redis) -> dict[str, float]:
    return {member.decode(): score for member, score in await client.zrange(keys.due(0), 0, -1, withscores=True)}


# Asking.


@pytest.mark.requirement("approvals:ask:stored")
async def test_a_request_is_a_fact_an_output_a_log_entry_and_a_due_time_of_one_step(any_redis: Redis) -> None:
    accumulator, [approval] = await asking(any_redis, requester="U1", expire_s=60)
    request = (await outputs_of(any_redis, accumulator.turn))[-1]
    assert isinstance(request, ApprovalRequestOutput)
    assert (request.approval, request.name, request.arguments, request.requester) == (approval, "mail", ARGUMENTS, "U1")
    assert (request.call, request.attempt, request.options) == (1, 1, OPTIONS)
    assert request.expires_at_ms == request.at_ms + 60_000
    assert (await due(any_redis))[f"approval:{accumulator.turn}"] == request.expires_at_ms
    entry = (await log_of(any_redis))[-1]
    assert (entry.kind, entry.turn, entry.call, entry.approval) == ("approval", accumulator.turn, 1, approval)
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    assert (await taken(any_redis)).facts[-1] == ApprovalAsked(1, 0, "digest")


@pytest.mark.requirement("approvals:ask:stored")
async def test_of_several_requests_the_first_expiry_is_due(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail", "mail", "mail")
    for index, expire_s in enumerate((60, 30, 90)):
        await ask(accumulator, index, expire_s=expire_s)
    first = min(output.expires_at_ms for output in (await outputs_of(any_redis, accumulator.turn))[-3:])
    assert (await due(any_redis))[f"approval:{accumulator.turn}"] == first


@pytest.mark.requirement("approvals:ask:once")
async def test_nothing_is_asked_twice_or_under_another_id(any_redis: Redis) -> None:
    accumulator, [approval] = await asking(any_redis)
    before = await dump(any_redis)
    with pytest.raises(LocalProtocolError, match="asked"):
        await ask(accumulator)
    wrong = ApprovalRequestOutput(approval=approval, tool_call_id="t", name="mail", arguments="{}")
    with pytest.raises(LocalProtocolError, match="no approval of this tool call"):
        await accumulator.ask_approval(ApprovalAsked(1, 1, "digest"), wrong, 60)
    assert await dump(any_redis) == before


@pytest.mark.requirement("approvals:ask:once")
async def test_nobody_is_asked_while_an_attempt_is_open(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail")
    await accumulator.open_call(2, 1, 0, True)
    before = await dump(any_redis)
    with pytest.raises(LocalProtocolError, match="ask_approval is not allowed now"):
        await ask(accumulator)
    with pytest.raises(LocalProtocolError, match="park is not allowed now"):
        await accumulator.park()
    assert await dump(any_redis) == before


@pytest.mark.requirement("approvals:ask:durable")
async def test_a_request_is_shown_only_once_it_is_on_disk(real_redis: Redis) -> None:
    accumulator = await driven(real_redis)
    await with_tools(accumulator, "mail", "mail")
    await ask(accumulator)
    lossy = Lossy(real_redis)
    before = (await real_redis.info("commandstats"))["cmdstat_waitaof"]["calls"]
    lossy.faults.append("reply lost")
    await ask(accumulator, 1)
    assert (await real_redis.info("commandstats"))["cmdstat_waitaof"]["calls"] == before + 2


@pytest.mark.requirement("approvals:ask:full")
async def test_a_full_redis_asks_nobody_but_takes_answers(real_redis: Redis) -> None:
    accumulator, [first, second] = await asking(real_redis, "mail", "mail")
    await overdue(real_redis, accumulator.turn, "1_1")
    await real_redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull, match="raise maxmemory"):
            await ask(accumulator, 2)
        await decided(real_redis, first)
        assert len(await accumulator.park()) == 1
        assert await accumulator.park() == ()
        assert await resolve(real_redis, second, "deny", "Jo") == "prompt_expired"
        assert [fact.option for fact in (await taken(real_redis)).facts if isinstance(fact, ApprovalDecided)] == [
            "approve_once",
            "expired",
        ]
    finally:
        await real_redis.config_set("maxmemory", 0)


# Parking.


@pytest.mark.requirement("approvals:park:gives-back")
async def test_a_parked_turn_has_no_driver_is_not_due_and_costs_no_crash(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    accumulator, [approval] = await asking(any_redis)
    nonce = (await any_redis.hget(keys.turn_record(accumulator.turn), "nonce")).decode()
    assert await accumulator.park() == ()
    assert (await record_of(any_redis, accumulator.turn)).state == "parked"
    assert list(await due(any_redis)) == [f"approval:{accumulator.turn}"]
    assert sweep(blocking, 0) == []
    assert not renew(blocking, 0, [(accumulator.turn, nonce)], TTL_S)[0].held
    with pytest.raises(Fenced):
        await seal(accumulator)
    await decided(any_redis, approval)
    assert sweep(blocking, 0) == [SESSION]
    grant = await taken(any_redis)
    assert (grant.turn, grant.progress.crashes) == (accumulator.turn, 0)


@pytest.mark.requirement("approvals:park:session-waits")
async def test_a_session_takes_no_other_message_while_its_turn_is_parked(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    accumulator, [approval] = await asking(any_redis)
    behind = new_turn("behind")
    await submit(any_redis, behind, 1)
    assert await accumulator.park() == ()
    await submit(any_redis, new_turn("further behind"), 1)
    assert sweep(blocking, 0) == [SESSION]  # the new message woke it
    assert await refused(any_redis)
    assert list(await due(any_redis)) == [f"approval:{accumulator.turn}"]
    assert await refused(any_redis)
    await decided(any_redis, approval)
    grant = await taken(any_redis)
    assert grant.turn == accumulator.turn
    await seal(driver_of(any_redis, grant))
    assert (await taken(any_redis)).turn == behind.turn


@pytest.mark.requirement("approvals:park:news-first")
async def test_what_was_decided_meanwhile_is_told_once_and_in_order_instead_of_parking(any_redis: Redis) -> None:
    accumulator, [first, second, third] = await asking(any_redis, "mail", "clock", "mail")
    await decided(any_redis, second, "deny", "Jo Doe")
    await decided(any_redis, first, "approve_once", 'a "quoted" name\\')
    assert await accumulator.park() == (
        ApprovalDecided(1, 1, "deny", "Jo Doe"),
        ApprovalDecided(1, 0, "approve_once", 'a "quoted" name\\'),
    )
    assert (await record_of(any_redis, accumulator.turn)).state == "running"
    await decided(any_redis, third, "deny", "日本")
    assert await accumulator.park() == (ApprovalDecided(1, 2, "deny", "日本"),)
    with pytest.raises(LocalProtocolError, match=r"park is not allowed now \(nothing\)"):
        await accumulator.park()


@pytest.mark.requirement("approvals:park:news-first")
async def test_a_driver_is_not_told_again_what_its_journal_says(any_redis: Redis) -> None:
    accumulator, [first, second] = await asking(any_redis, "mail", "mail")
    await decided(any_redis, first)
    await accumulator.release()
    taking_over = driver_of(any_redis, await taken(any_redis))
    await decided(any_redis, second, "deny")
    assert await taking_over.park() == (ApprovalDecided(1, 1, "deny", "Jo"),)


@pytest.mark.requirement("approvals:park:deadline")
async def test_the_deadline_of_a_turn_stands_still_while_it_is_parked(any_redis: Redis, blocking: redis.Redis) -> None:
    turn, [first, _] = await parked(any_redis, "mail", "mail")
    await any_redis.hincrby(keys.turn_record(turn), "parked_ms", -5_000_000)
    await any_redis.hincrby(keys.turn_record(turn), "deadline_ms", -5_000_000)
    await decided(any_redis, first)
    grant = await taken(any_redis)
    assert 7190 < grant.remaining_s <= 7200
    going_on = driver_of(any_redis, grant)
    assert await going_on.park() == ()
    await any_redis.hincrby(keys.turn_record(turn), "parked_ms", -5_000_000)
    await any_redis.hincrby(keys.turn_record(turn), "deadline_ms", -5_000_000)
    await overdue(any_redis, turn, "1_1")
    expire_due(blocking, 0)
    assert 7190 < (await taken(any_redis)).remaining_s <= 7200


# Answering.


@pytest.mark.requirement("approvals:resolve:one-step")
async def test_an_answer_is_a_fact_an_output_and_a_log_entry_and_the_turn_goes_on(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn, [approval] = await parked(any_redis)
    answer = await decided(any_redis, approval, "deny", "Jo Doe")
    assert answer == Resolution(approval, turn, SESSION, "deny", "Jo Doe")
    told = (await outputs_of(any_redis, turn))[-1]
    assert isinstance(told, ApprovalDecidedOutput)
    assert (told.approval, told.option, told.by, told.call, told.attempt) == (approval, "deny", "Jo Doe", 1, 1)
    entry = (await log_of(any_redis))[-1]
    assert (entry.kind, entry.turn, entry.call, entry.approval) == ("decision", turn, 1, approval)
    assert list(await due(any_redis)) == [keys.DUE_LEASE + SESSION]
    assert sweep(blocking, 0) == [SESSION]
    grant = await taken(any_redis)
    assert grant.facts[-1] == ApprovalDecided(1, 0, "deny", "Jo Doe")
    assert (grant.progress.granted, await find_all(any_redis, 1)) == (frozenset(), [])


@pytest.mark.requirement("approvals:resolve:running")
async def test_an_answer_leaves_a_turn_that_runs_to_its_driver(any_redis: Redis) -> None:
    accumulator, [approval] = await asking(any_redis)
    before = await due(any_redis)
    await decided(any_redis, approval)
    assert (await record_of(any_redis, accumulator.turn)).state == "running"
    assert (await due(any_redis))[keys.DUE_LEASE + SESSION] == before[keys.DUE_LEASE + SESSION]
    await accumulator.tool_start(1, 0, [])
    outputs = await outputs_of(any_redis, accumulator.turn)
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))


@pytest.mark.requirement("approvals:resolve:session")
async def test_a_tool_that_is_approved_for_the_session_is_known_to_all_its_later_drivers(any_redis: Redis) -> None:
    _, [approval, _] = await parked(any_redis, "mail", "clock")
    await decided(any_redis, approval, "approve_session")
    grant = await taken(any_redis)
    assert grant.progress.granted == {"mail"}
    accumulator = driver_of(any_redis, grant)
    await seal(accumulator)
    assert (await granted(any_redis)).progress.granted == {"mail"}
    assert (await granted(any_redis, session="chat/2")).progress.granted == frozenset()


@pytest.mark.requirement("approvals:resolve:requester")
async def test_only_the_requester_of_a_turn_may_answer(any_redis: Redis) -> None:
    turn, [approval] = await parked(any_redis, requester="U1")
    assert await resolve(any_redis, approval, "approve_once", "U2") == "wrong_requester"
    assert (await record_of(any_redis, turn)).state == "parked"
    assert (await decided(any_redis, approval, "approve_once", "U1")).by == "U1"
    assert (await taken(any_redis)).requester == "U1"


@pytest.mark.requirement("approvals:resolve:requester")
async def test_anybody_may_answer_what_a_turn_without_requester_asks(any_redis: Redis) -> None:
    turn, [first, second] = await parked(any_redis, "mail", "mail")
    await decided(any_redis, first, by="U1")
    await decided(any_redis, second, by="U2")
    assert (await record_of(any_redis, turn)).requester is None


@pytest.mark.requirement("approvals:resolve:refusals")
async def test_the_checks_of_an_answer_come_in_their_order(any_redis: Redis) -> None:
    turn, [approval] = await parked(any_redis, requester="U1")
    unknown = [
        "",
        "appr_x",
        approval + "0",
        approval.upper(),
        approval.replace("_1_0", "_01_0"),
        ids.approval_of(turn, 2, 0),
        ids.approval_of(ids.new_turn(0), 1, 0),
    ]
    before = await dump(any_redis)
    for approval_id in unknown:
        assert await resolve(any_redis, approval_id, "deny", "U1") == "no_history", approval_id
    assert await dump(any_redis) == before
    assert await resolve(any_redis, approval, "approve_everything", "U2") == "wrong_requester"
    assert await resolve(any_redis, approval, "approve_everything", "U1") == "option_unavailable"
    assert await resolve(any_redis, approval, "approve_once approve_session", "U1") == "option_unavailable"
    assert await notices(any_redis, turn) == ["wrong_requester", "option_unavailable", "option_unavailable"]
    await decided(any_redis, approval, "approve_once", "U1")
    assert await resolve(any_redis, approval, "deny", "U2") == "prompt_expired"
    assert await resolve(any_redis, approval, "deny", "U1") == "prompt_expired"
    facts = [fact for fact in (await taken(any_redis)).facts if isinstance(fact, ApprovalDecided)]
    assert facts == [ApprovalDecided(1, 0, "approve_once", "U1")]


@pytest.mark.requirement("approvals:notices")
async def test_a_notice_during_another_calls_stream_moves_nothing(any_redis: Redis) -> None:
    accumulator, [approval] = await asking(any_redis)
    await decided(any_redis, approval)
    await accumulator.park()
    await accumulator.open_call(2, 1, 0, True)
    before = await snapshot_of(any_redis, accumulator.turn)
    assert await resolve(any_redis, approval, "deny", "Jo") == "prompt_expired"
    notice = (await outputs_of(any_redis, accumulator.turn))[-1]
    assert (notice.notice, notice.is_call_boundary, notice.call) == ("prompt_expired", False, 0)
    assert notice.text == REFUSALS["prompt_expired"]
    after = await snapshot_of(any_redis, accumulator.turn)
    assert (after.text, after.marker, after.call, after.attempt) == (before.text, before.marker, 2, 1)
    await commit(accumulator, 2, 1, "Done.")
    await seal(accumulator)
    buffer = CommitBuffer()
    for output in await outputs_of(any_redis, accumulator.turn):
        buffer.apply(output)
    assert await read_text(any_redis, accumulator.turn) == "One moment. Done."
    assert (buffer.committed, buffer.notices) == ("Done.", 1)  # the first call was committed without its outputs


@pytest.mark.requirement("approvals:resolve:repeated")
async def test_the_same_answer_gets_the_same_reply_whatever_has_happened_since(any_redis: Redis) -> None:
    _, [approval] = await parked(any_redis, requester="U1")
    assert await resolve(any_redis, approval, "approve_once", "U2") == "wrong_requester"
    assert await resolve(any_redis, approval, "nonsense", "U1") == "option_unavailable"
    first = await decided(any_redis, approval, "approve_once", "U1")
    assert await resolve(any_redis, approval, "deny", "U1") == "prompt_expired"
    before = await dump(any_redis)
    assert await decided(any_redis, approval, "approve_once", "U1") == first
    assert await resolve(any_redis, approval, "approve_once", "U2") == "wrong_requester"
    assert await resolve(any_redis, approval, "nonsense", "U1") == "option_unavailable"
    assert await resolve(any_redis, approval, "deny", "U1") == "prompt_expired"
    assert await dump(any_redis) == before
    await seal(driver_of(any_redis, await taken(any_redis)))
    before = await dump(any_redis)
    assert await decided(any_redis, approval, "approve_once", "U1") == first
    assert await resolve(any_redis, approval, "deny", "U1") == "prompt_expired"
    assert await dump(any_redis) == before


@pytest.mark.requirement("approvals:resolve:repeated")
@pytest.mark.parametrize("fault", ["reply lost", "request lost"])
async def test_an_answer_whose_reply_was_lost_counts_once(any_redis: Redis, fault: Any) -> None:
    turn, [approval] = await parked(any_redis)
    lossy = Lossy(any_redis)
    lossy.faults.extend([fault, fault])
    await decided(any_redis, approval)
    assert not lossy.faults
    after = await dump(any_redis)
    assert await lossy.execute(*lossy.sent[-1]) == [b"OK", SESSION.encode()]
    assert await dump(any_redis) == after
    assert len([output for output in await outputs_of(any_redis, turn) if output.type == "approval_decided"]) == 1


@pytest.mark.requirement("approvals:resolve:durable")
async def test_an_answer_is_told_only_once_it_is_on_disk_and_so_is_its_repeat(real_redis: Redis) -> None:
    _, [first, second] = await parked(real_redis, "mail", "mail")
    await decided(real_redis, first)
    for _ in range(2):
        before = await real_redis.info("all")
        await decided(real_redis, second)
        after = await real_redis.info("all")
        assert after["cmdstat_waitaof"]["calls"] == before["cmdstat_waitaof"]["calls"] + 1
        assert after["rdb_changes_since_last_save"] > before["rdb_changes_since_last_save"]


@pytest.mark.requirement("approvals:resolve:not-stored")
async def test_an_answer_that_redis_did_not_take_is_refused_as_that(any_redis: Redis) -> None:
    turn, [approval] = await parked(any_redis)
    lossy = Lossy(any_redis)
    lossy.faults.extend(["request lost"] * 100)
    assert await resolve(any_redis, approval, "deny", "Jo", patience_s=0.05) == "persist_failed"
    lossy.faults.clear()
    assert (await record_of(any_redis, turn)).state == "parked"
    await decided(any_redis, approval, "deny")


@pytest.mark.requirement("approvals:resolve:flood")
async def test_a_flood_of_wrong_answers_fills_neither_the_outputs_nor_the_store(fake_redis: Redis) -> None:
    turn, [approval] = await parked(fake_redis, requester="U1")
    for number in range(MOST_REFUSALS + 20):
        assert await resolve(fake_redis, approval, "deny", f"someone {number}") == "wrong_requester"
    assert len(await notices(fake_redis, turn)) == MOST_REFUSALS
    assert await fake_redis.hlen(keys.approvals(turn)) < MOST_REFUSALS + 20
    await decided(fake_redis, approval, by="U1")


# The end of the time, and of the turn.


@pytest.mark.requirement("approvals:expire:decides")
async def test_a_request_that_nobody_answers_is_decided_when_its_time_is_over(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn, [first, second] = await parked(any_redis, "mail", "clock")
    expire_due(blocking, 0)
    assert (await record_of(any_redis, turn)).state == "parked"
    await overdue(any_redis, turn)
    expire_due(blocking, 0)
    await_second = (await due(any_redis))[f"approval:{turn}"]
    (left,) = await find_all(any_redis, 1)
    assert (left.approval, left.expires_ms) == (second, await_second)
    assert [output.type for output in (await outputs_of(any_redis, turn))[-2:]] == ["approval_decided", "text"]
    *_, told, notice = await outputs_of(any_redis, turn)
    assert (told.approval, told.option, told.by, told.attempt) == (first, "expired", None, 1)
    assert (notice.notice, notice.is_call_boundary) == ("prompt_expired", False)
    assert sweep(blocking, 0) == [SESSION]
    assert (await taken(any_redis)).facts[-1] == ApprovalDecided(1, 0, "expired", None)
    after = await dump(any_redis)
    expire_due(blocking, 0)
    assert await dump(any_redis) == after
    assert await resolve(any_redis, first, "approve_once", "Jo") == "prompt_expired"


@pytest.mark.requirement("approvals:expire:decides")
async def test_every_overdue_request_is_decided_by_one_sweep(any_redis: Redis, blocking: redis.Redis) -> None:
    turns = []
    for number in range(3):
        accumulator = await driven(any_redis, session=f"chat/{number}")
        await with_tools(accumulator, "mail", "mail")
        for index in range(2):
            await ask(accumulator, index)
            await overdue(any_redis, accumulator.turn, f"1_{index}")
        assert await accumulator.park() == ()
        turns.append(accumulator.turn)
    expire_due(blocking, 0)
    assert [(await record_of(any_redis, turn)).state for turn in turns] == ["queued"] * 3
    assert await find_all(any_redis, 1) == []
    assert sorted(sweep(blocking, 0)) == ["chat/0", "chat/1", "chat/2"]


@pytest.mark.requirement("approvals:expire:behind-sessions")
async def test_a_request_expires_though_many_sessions_have_waited_for_longer(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn, _ = await parked(any_redis)
    await any_redis.zadd(keys.due(0), {f"{keys.DUE_LEASE}chat/{number}": 1 for number in range(2_500)})
    await overdue(any_redis, turn)
    await any_redis.zadd(keys.due(0), {keys.DUE_APPROVAL + turn: 2})
    expire_due(blocking, 0)
    assert (await record_of(any_redis, turn)).state == "queued"


@pytest.mark.requirement("approvals:expire:bounded")
async def test_so_many_requests_expire_in_one_go_and_the_rest_in_the_next_ones(
    real_redis: Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "MOST_EXPIRED", 3)
    for number in range(5):
        accumulator = await driven(real_redis, session=f"chat/{number}")
        await with_tools(accumulator, "mail")
        await ask(accumulator)
        await overdue(real_redis, accumulator.turn)
        assert await accumulator.park() == ()
    with redis.Redis.from_url(real_url) as client:
        left = []
        for _ in range(3):
            expire_due(client, 0)
            left.append(len(await find_all(real_redis, 1)))
        assert left == [2, 0, 0]


@pytest.mark.requirement("approvals:expire:bounded")
async def test_however_many_requests_expire_it_takes_two_round_trips(
    real_redis: Redis, real_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    send: Any = redis.Connection.send_packed_command

    def count(connection: redis.Connection, command: Any, **options: Any) -> None:
        sent.append(command)
        send(connection, command, **options)

    monkeypatch.setattr(redis.Connection, "send_packed_command", count)
    with redis.Redis.from_url(real_url) as client:
        for number in range(5):
            accumulator = await driven(real_redis, session=f"chat/{number}")
            await with_tools(accumulator, "mail")
            await ask(accumulator)
            await overdue(real_redis, accumulator.turn)
            assert await accumulator.park() == ()
            if number in {0, 4}:  # by the first, the server learns the scripts
                sent.clear()
                expire_due(client, 0)
                assert await find_all(real_redis, 1) == []
    assert len(sent) == 2


YEARS_MS = 30 * 365 * 86_400_000


@pytest.mark.requirement("approvals:expire:clock-put-back")
@pytest.mark.parametrize("release", ["this", "previous"])
async def test_a_request_that_was_asked_by_a_clock_that_was_put_back_waits_as_long_as_one_that_is_asked_now(
    any_redis: Redis, blocking: redis.Redis, monkeypatch: pytest.MonkeyPatch, release: str
) -> None:
    monkeypatch.setattr(approvals, "_MOST_FAR_LOOKS", 2)
    turn, [first, second] = await parked(any_redis, "mail", "clock", expire_s=600)
    for name in ("1_0", "1_1"):
        await any_redis.hincrby(keys.approvals(turn), f"{name}:expires", YEARS_MS)
        if release == "previous":
            await any_redis.hdel(keys.approvals(turn), f"{name}:lasts")
    await any_redis.zadd(keys.due(0), {keys.DUE_APPROVAL + turn: YEARS_MS * 3})
    await any_redis.zadd(keys.waiting(0), {first: YEARS_MS * 3, second: YEARS_MS * 3})
    await any_redis.zadd(keys.due(0), {f"{keys.DUE_LEASE}{number}": YEARS_MS * 3 - 1 for number in range(5)})
    now_ms = (await any_redis.time())[0] * 1000
    for _ in range(4):
        expire_due(blocking, 0)
    lasts_ms = 600_000 if release == "this" else approvals.FURTHEST_MS
    expires_ms = (await due(any_redis))[f"approval:{turn}"]
    assert now_ms + lasts_ms <= expires_ms < now_ms + lasts_ms + 60_000
    assert {score for _, score in await any_redis.zrange(keys.waiting(0), 0, -1, withscores=True)} == {expires_ms}
    before = await dump(any_redis)
    expire_due(blocking, 0)
    assert (await record_of(any_redis, turn)).state == "parked"
    assert {name: was for name, was in (await dump(any_redis)).items() if "far-look" not in name} == {
        name: was for name, was in before.items() if "far-look" not in name
    }
    await overdue(any_redis, turn)
    await overdue(any_redis, turn, "1_1")
    expire_due(blocking, 0)
    assert (await record_of(any_redis, turn)).state == "queued"


@pytest.mark.requirement("approvals:expire:clock-put-back")
def test_no_time_to_answer_that_can_be_set_is_taken_for_one_of_another_clock() -> None:
    longest = next(each.le for each in ApprovalSettings.model_fields["expire_s"].metadata if hasattr(each, "le"))
    assert longest * 1000 < approvals.FURTHEST_MS


@pytest.mark.requirement("approvals:expire:decides")
async def test_an_expiry_whose_reply_was_lost_is_repeated_without_effect(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn, _ = await parked(any_redis, "mail", "clock")
    await overdue(any_redis, turn)
    names, args = approvals._names(turn), [*approvals._common(turn), approvals.FURTHEST_MS]
    assert approvals._expire.run(blocking, names, args) == [1, 0]
    after = await dump(any_redis)
    assert approvals._expire.run(blocking, names, args) == [1, 0]
    assert await dump(any_redis) == after


@pytest.mark.requirement("approvals:expire:broken")
async def test_a_decision_beside_what_cannot_be_read_leaves_that_as_it_is(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn, [first, second] = await parked(any_redis, "mail", "clock")
    await overdue(any_redis, turn)
    await any_redis.hset(keys.approvals(turn), mapping={"pending": "garbage 1_0 1_1 1_7", "1_1:expires": "soon"})
    expire_due(blocking, 0)
    assert (await record_of(any_redis, turn)).state == "queued"
    left = (await any_redis.hget(keys.approvals(turn), "pending")).split()
    assert left == [b"garbage", b"1_1", b"1_7"]
    assert (await taken(any_redis)).facts[-1] == ApprovalDecided(1, 0, "expired", None)
    assert await resolve(any_redis, first, "deny", "Jo") == "prompt_expired"
    await decided(any_redis, second)
    assert (await any_redis.hget(keys.approvals(turn), "pending")).split() == [b"garbage", b"1_7"]


@pytest.mark.requirement("approvals:newer-version")
@pytest.mark.parametrize("where", ["record", "approvals"])
async def test_a_turn_in_which_a_newer_version_wrote_is_left_alone(
    any_redis: Redis, blocking: redis.Redis, where: str
) -> None:
    turn, [first, second] = await parked(any_redis, "mail", "clock")
    await overdue(any_redis, turn)
    name = keys.turn_record(turn) if where == "record" else keys.approvals(turn)
    version = int(await any_redis.hget(name, "v"))
    await any_redis.hset(name, "v", version + 1)
    before = await dump(any_redis)
    for approval in (first, second):
        assert await resolve(any_redis, approval, "approve_once", "Jo") == "persist_failed"
    assert await dump(any_redis) == before
    expire_due(blocking, 0)
    assert (await due(any_redis)).pop(keys.DUE_APPROVAL + turn) > 1  # to be looked at again
    await any_redis.zadd(keys.due(0), {keys.DUE_APPROVAL + turn: 1})
    assert await dump(any_redis) == before
    await any_redis.hset(name, "v", version)
    await decided(any_redis, second)


@pytest.mark.requirement("approvals:expire:late-click")
async def test_an_answer_after_its_time_does_not_count_though_no_sweep_has_come(any_redis: Redis) -> None:
    turn, [approval] = await parked(any_redis, requester="U1")
    await overdue(any_redis, turn)
    assert await resolve(any_redis, approval, "approve_once", "U1") == "prompt_expired"
    assert (await record_of(any_redis, turn)).state == "queued"
    assert await notices(any_redis, turn) == ["prompt_expired"]
    assert (await taken(any_redis)).facts[-1] == ApprovalDecided(1, 0, "expired", None)
    assert await resolve(any_redis, approval, "approve_once", "U1") == "prompt_expired"


@pytest.mark.requirement("approvals:race:one-winner")
async def test_of_many_answers_and_the_end_of_the_time_at_once_one_counts(real_redis: Redis, real_url: str) -> None:
    for _ in range(10):
        await real_redis.flushall()
        turn, [approval] = await parked(real_redis)
        at_ms = (await outputs_of(real_redis, turn))[-1].at_ms
        await real_redis.hset(keys.approvals(turn), "1_0:expires", at_ms + 25)
        await real_redis.zadd(keys.due(0), {keys.DUE_APPROVAL + turn: at_ms + 25})

        def expire() -> None:
            with redis.Redis.from_url(real_url) as client:
                for _ in range(20):
                    expire_due(client, 0)

        people = [f"person {number}" for number in range(6)]
        *answers, _ = await asyncio.gather(
            *(resolve(real_redis, approval, "approve_once", person) for person in people), asyncio.to_thread(expire)
        )
        counted = [answer for answer in answers if isinstance(answer, Resolution)]
        assert all(isinstance(answer, Resolution) or answer == "prompt_expired" for answer in answers)
        decisions = [fact for fact in (await taken(real_redis)).facts if isinstance(fact, ApprovalDecided)]
        outputs = [output for output in await outputs_of(real_redis, turn) if output.type == "approval_decided"]
        assert len(decisions) == len(outputs) == 1
        assert [answer.by for answer in counted] == ([] if decisions[0].option == "expired" else [decisions[0].by])


@pytest.mark.requirement("approvals:seal:gone")
async def test_with_its_turn_a_request_ends_without_a_word(any_redis: Redis, blocking: redis.Redis) -> None:
    accumulator, [approval] = await asking(any_redis)
    await seal(accumulator)
    assert await find_all(any_redis, 1) == []
    assert await due(any_redis) == {}
    assert await any_redis.zcard(keys.waiting(0)) == 0
    assert await any_redis.ttl(keys.approvals(accumulator.turn)) > 0
    before = await dump(any_redis)
    assert await resolve(any_redis, approval, "approve_once", "Jo") == "prompt_expired"
    await any_redis.zadd(keys.due(0), {keys.DUE_APPROVAL + accumulator.turn: 1})
    expire_due(blocking, 0)
    assert await dump(any_redis) == before


# Listing.


@pytest.mark.requirement("approvals:list")
async def test_what_waits_is_listed_with_what_a_person_needs_to_decide(any_redis: Redis) -> None:
    turn, [first, second] = await parked(any_redis, "mail", "clock", requester="U1", expire_s=90)
    accumulator = await driven(any_redis, session="chat/2")
    await with_tools(accumulator, "mail")
    third = await ask(accumulator, expire_s=30)
    listed = await find_all(any_redis, 1)
    assert [one.approval for one in listed] == [third, first, second]
    one = listed[1]
    assert one == PendingApproval(
        approval=first,
        turn=turn,
        session=SESSION,
        agent="default",
        tool="mail",
        arguments=ARGUMENTS,
        requester="U1",
        options=OPTIONS,
        asked_ms=one.asked_ms,
        expires_ms=one.asked_ms + 90_000,
    )
    assert "bob" not in repr(one)
    await decided(any_redis, first, by="U1")
    await any_redis.delete(keys.out(accumulator.turn))
    assert [one.approval for one in await find_all(any_redis, 1)] == [second]
    assert await find_all(any_redis, 0) == []


async def asked_at(client: Redis, accumulator: ExecutionOutputAccumulator, index: int, expires_ms: int) -> str:
    if not index:
        await with_tools(accumulator, "mail")
    approval = await ask(accumulator, index)
    await client.zadd(keys.waiting(keys.partition_of_turn(accumulator.turn)), {approval: expires_ms})
    return approval


async def pages_of(client: Redis, partitions: int, limit: int, **more: Any) -> list[list[str]]:
    """The ids of page after page."""
    pages: list[list[str]] = []
    after: Place | None = BEGINNING
    while after is not None:
        found = await find(client, partitions, limit, after=after, **more)
        pages.append([one.approval for one in found.approvals])
        after = found.end
        assert len(pages) < 100, "it goes on for ever"
    return pages


@pytest.mark.requirement("approvals:list:pages")
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
async def test_page_by_page_every_request_of_all_partitions_comes_once_and_in_order(
    any_redis: Redis, limit: int
) -> None:
    accumulator = await driven(any_redis, session="many")
    alike = [await asked_at(any_redis, accumulator, index, 5_000) for index in range(5)]
    others = [
        await asked_at(any_redis, await driven(any_redis, session=f"chat/{number}"), 0, 1_000 * number)
        for number in (2, 9)
    ]
    everything = [others[0], *alike, others[1]]
    pages = await pages_of(any_redis, 1, limit)
    assert [one for page in pages for one in page] == everything
    assert all(len(page) == limit for page in pages[:-1])
    assert len(pages) == -(-len(everything) // limit)
    # However few are looked at for one answer.
    assert [one for page in await pages_of(any_redis, 1, limit, most=2) for one in page] == everything


@pytest.mark.requirement("approvals:list:pages")
async def test_a_place_stays_one_when_its_request_is_decided(any_redis: Redis) -> None:
    _, asked = await parked(any_redis, "mail", "clock", "mail")
    page = await find(any_redis, 1, 1)
    assert page.end is not None
    await decided(any_redis, asked[0])
    following = await find(any_redis, 1, 1, after=page.end)
    assert [one.approval for one in following.approvals] == [asked[1]]
    assert (parse_place(shown_place(page.end)), parse_place("1"), parse_place("x-appr_00")) == (page.end, None, None)


@pytest.mark.requirement("approvals:list:pages")
async def test_a_page_ends_where_it_holds_enough_and_holds_one_request_at_least(any_redis: Redis) -> None:
    _, asked = await parked(any_redis, *["mail"] * 9)  # in the order of their names, also within one millisecond
    (stored,) = [one for one in await find_all(any_redis, 1) if one.approval == asked[0]]
    assert stored.arguments == ARGUMENTS
    assert await pages_of(any_redis, 1, 100, most_bytes=1) == [[one] for one in asked]
    two_each = await pages_of(any_redis, 1, 100, most_bytes=1_300)
    assert [one for page in two_each for one in page] == asked
    assert 1 < len(two_each) < len(asked)


@pytest.mark.requirement("approvals:list:pages")
async def test_requests_of_other_agents_and_sessions_take_no_place(any_redis: Redis) -> None:
    mine = []
    for number in range(12):
        accumulator = await driven(any_redis, session=f"{'team' if number % 4 == 3 else 'other'}/{number}")
        approval = await asked_at(any_redis, accumulator, 0, 1_000 + number)
        mine += [approval] if number % 4 == 3 else []
    assert await pages_of(any_redis, 1, 2, sessions="team/") == [mine[:2], mine[2:]]
    assert await pages_of(any_redis, 1, 2, agent="nobody") == [[]]
    # Not many are looked at for one answer: it is empty, and says that there are more.
    assert await pages_of(any_redis, 1, 2, sessions="team/", most=3) == [[], [mine[0]], [mine[1]], [mine[2]]]


@pytest.mark.requirement("approvals:ids")
def test_the_id_of_an_approval_says_whose_it_is_and_nothing_else_is_one() -> None:
    turn = ids.new_turn(3)
    approval = ids.approval_of(turn, 12, 0)
    assert ids.parse_approval(approval) == (turn, 12, 0)
    assert approval == f"appr_{turn[5:]}_12_0"
    for wrong in (approval[:-1], approval + "x", approval + "\n", f"appr_{turn}_1_0", f"appr_{turn[5:]}_0_0", turn):
        assert ids.parse_approval(wrong) is None


# What else a turn's owner records.


@pytest.mark.requirement("store:record:compaction")
async def test_a_compaction_is_a_fact_with_its_outputs(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await with_tools(accumulator, "mail")
    fact = Compacted(2, True, 3, 1, "What was said.", 4, 12, 5)
    await accumulator.record(fact, [CompactionOutput(call=2, messages_before=12, messages_after=5)])
    assert (await outputs_of(any_redis, accumulator.turn))[-1].messages_after == 5
    await accumulator.release()
    assert (await taken(any_redis)).facts[-1] == fact


@pytest.mark.requirement("store:discard:streamed")
async def test_whether_a_dead_attempt_had_streamed_is_known_until_a_new_call_is_opened(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    for attempt, streamed in ((1, True), (2, False), (3, True)):
        await accumulator.open_call(1, attempt, attempt - 1, attempt == 1)
        await accumulator.discard(1, attempt, NO_USAGE, [], streamed=streamed)
        await accumulator.release()
        grant = await taken(any_redis)
        assert grant.progress.streamed == streamed
        accumulator = driver_of(any_redis, grant)
    await accumulator.open_call(1, 4, 3, False)
    await commit(accumulator, 1, 4, "whole")
    await accumulator.open_call(2, 1, 0, True)
    await any_redis.hset(keys.turn_record(accumulator.turn), "lease_ms", 1)
    grant = await taken(any_redis)
    assert (grant.progress.is_open, grant.progress.streamed) == (True, False)
    accumulator = driver_of(any_redis, grant)
    accumulator.watched = True
    accumulator.stage_text("half")
    await accumulator.release()
    assert (await taken(any_redis)).progress.streamed
