"""One driver at a time for a session."""

import pytest
import redis
import redis.asyncio

from tests.store.lossy import dump
from tests.store.turns import SESSION, TTL_S, Redis, commit, completed, driven, granted, new_turn, refused, seal, taken
from worker.errors import Fenced
from worker.store import keys, lease
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import submit
from worker.store.lease import renew, sweep
from worker.store.records import RECORD_VERSION
from worker.turn.facts import ToolEnded, ToolStarted
from worker.turn.usage import NO_USAGE, UsageTotals


async def lapse(client: Redis, turn: str) -> None:
    await client.hset(keys.turn_record(turn), "lease_ms", 1)


async def nonce_of(client: Redis, turn: str) -> str:
    nonce: bytes = await client.hget(keys.turn_record(turn), "nonce")
    return nonce.decode()


@pytest.mark.requirement("store:lease:one-driver")
async def test_a_turn_that_a_living_driver_holds_is_not_granted(any_redis: Redis) -> None:
    await granted(any_redis)
    before = await dump(any_redis)
    assert await refused(any_redis)
    assert await dump(any_redis) == before


@pytest.mark.requirement("store:lease:one-driver")
async def test_the_oldest_turn_of_a_session_is_driven_first(any_redis: Redis) -> None:
    first, second = new_turn("one"), new_turn("two")
    await submit(any_redis, first, 1)
    await submit(any_redis, second, 1)
    grant = await taken(any_redis)
    assert (grant.turn, grant.message) == (first.turn, "one")
    await seal(ExecutionOutputAccumulator(any_redis, grant, lambda: True))
    grant = await taken(any_redis)
    assert (grant.turn, grant.message, grant.epoch) == (second.turn, "two", 2)


@pytest.mark.requirement("store:lease:crashes")
async def test_a_driver_that_vanished_counts_as_one_crash(any_redis: Redis) -> None:
    turn = (await granted(any_redis)).turn
    await lapse(any_redis, turn)
    grant = await taken(any_redis)
    assert (grant.progress.crashes, grant.epoch, grant.op) == (1, 2, 0)


@pytest.mark.requirement("store:lease:crashes")
async def test_a_driver_that_handed_over_counts_as_none(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await accumulator.release()
    grant = await taken(any_redis)
    assert (grant.progress.crashes, grant.progress.is_open, grant.progress.calls) == (0, False, 1)


@pytest.mark.requirement("store:lease:handed-over")
async def test_who_handed_over_drives_no_more(any_redis: Redis, blocking: redis.Redis) -> None:
    grant = await granted(any_redis)
    accumulator = ExecutionOutputAccumulator(any_redis, grant, lambda: True)
    await accumulator.release()
    assert not renew(blocking, 0, [(grant.turn, grant.nonce)], TTL_S)[0].held
    with pytest.raises(Fenced):
        await accumulator.open_call(1, 1, 0, True)
    assert sweep(blocking, 0) == [SESSION]


@pytest.mark.requirement("store:lease:takeover")
async def test_a_takeover_gets_all_that_was_committed(any_redis: Redis) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True)
    await commit(accumulator, 1, 1, "naïve ")
    await accumulator.tool_start(1, 0, [])
    await accumulator.record(ToolEnded(1, 0, "result", None), [])
    await accumulator.open_call(2, 1, 0, True)
    await lapse(any_redis, accumulator.turn)
    grant = await taken(any_redis)
    committed, started, ended = grant.facts
    assert (committed, grant.marker) == (completed(1, 1, "naïve "), 7)
    assert (started, ended) == (ToolStarted(1, 0), ToolEnded(1, 0, "result", None))
    progress = grant.progress
    assert (progress.call, progress.attempt, progress.is_open) == (2, 1, True)
    assert progress.totals == UsageTotals()


@pytest.mark.requirement("store:lease:deadline")
async def test_the_deadline_counts_from_the_first_claim_and_never_restarts(any_redis: Redis) -> None:
    first = await granted(any_redis)
    assert 7199 < first.remaining_s <= 7200
    await any_redis.hincrby(keys.turn_record(first.turn), "deadline_ms", -7_300_000)
    await lapse(any_redis, first.turn)
    second = await taken(any_redis)
    assert -101 < second.remaining_s <= -100


@pytest.mark.requirement("lease:clock:deadline")
@pytest.mark.parametrize("as_who", ["another", "the same"])
async def test_no_deadline_lies_further_ahead_than_at_the_first_claim(any_redis: Redis, as_who: str) -> None:
    """The clock was thirty years ahead when the turn was submitted and claimed, and was put back since."""
    first = await granted(any_redis)
    assert 0 <= first.age_s < 60
    record, years_ms = keys.turn_record(first.turn), 30 * 365 * 86_400_000
    for name in ("created_ms", "deadline_ms", "lease_ms"):
        await any_redis.hincrby(record, name, years_ms)
    for _ in range(2):
        grant = await taken(any_redis, nonce=first.nonce if as_who == "the same" else "another's")
        assert 7190 < grant.remaining_s <= 7200
        assert grant.age_s == 0
    await any_redis.hincrby(record, "deadline_ms", -1_000_000)
    await lapse(any_redis, first.turn)
    assert 6190 < (await taken(any_redis)).remaining_s <= 6200


@pytest.mark.requirement("store:lease:renew")
async def test_an_expired_lease_is_renewed_by_its_nonce_unless_another_claimed(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    grant = await granted(any_redis)
    await lapse(any_redis, grant.turn)
    assert renew(blocking, 0, [(grant.turn, grant.nonce)], TTL_S)[0].held
    assert await refused(any_redis)
    await lapse(any_redis, grant.turn)
    await taken(any_redis)
    before = await dump(any_redis)
    assert not renew(blocking, 0, [(grant.turn, grant.nonce)], TTL_S)[0].held
    assert await dump(any_redis) == before


@pytest.mark.requirement("store:lease:renew")
async def test_one_renewal_serves_all_turns_of_a_process(any_redis: Redis, blocking: redis.Redis) -> None:
    mine = [await granted(any_redis, session=f"chat/{number}", watch_s=number * 60) for number in range(3)]
    await lapse(any_redis, mine[2].turn)
    await taken(any_redis, "chat/2")
    holders = [(grant.turn, grant.nonce) for grant in mine]
    renewals = renew(blocking, 0, holders, TTL_S)
    assert [(renewal.turn, renewal.held, renewal.watched) for renewal in renewals] == [
        (mine[0].turn, True, False),
        (mine[1].turn, True, True),
        (mine[2].turn, False, False),
    ]


@pytest.mark.requirement("store:lease:renew")
async def test_a_renewal_forgets_readers_whose_time_is_over(any_redis: Redis, blocking: redis.Redis) -> None:
    grant = await granted(any_redis, watch_s=60)
    assert grant.watched
    await any_redis.zadd(keys.watch(0), {grant.turn: 1})
    assert not renew(blocking, 0, [(grant.turn, grant.nonce)], TTL_S)[0].watched
    assert await any_redis.zcard(keys.watch(0)) == 0


@pytest.mark.requirement("store:lease:newer-version")
@pytest.mark.parametrize("where", ["turn", "session"])
async def test_what_a_newer_version_wrote_is_left_alone(any_redis: Redis, where: str) -> None:
    new = new_turn()
    await submit(any_redis, new, 1)
    name = keys.turn_record(new.turn) if where == "turn" else keys.session_record(0, SESSION)
    await any_redis.hset(name, "v", RECORD_VERSION + 1)
    before = await dump(any_redis)
    assert await refused(any_redis)
    assert await dump(any_redis) == before


@pytest.mark.requirement("store:sweep:wakes")
async def test_a_turn_that_nobody_took_is_swept_again_after_ten_seconds(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    await submit(any_redis, new_turn(), 1)
    assert sweep(blocking, 0) == [SESSION]
    assert sweep(blocking, 0) == []
    await any_redis.zincrby(keys.due(0), -10_000, keys.DUE_LEASE + SESSION)
    assert sweep(blocking, 0) == [SESSION]


@pytest.mark.requirement("store:sweep:wakes")
async def test_a_sweep_gives_no_more_than_asked_and_only_sessions(any_redis: Redis, blocking: redis.Redis) -> None:
    for number in range(3):
        await submit(any_redis, new_turn(session=f"chat/{number}"), 1)
    await any_redis.zadd(keys.due(0), {"another:kind": 1})
    swept = sweep(blocking, 0, limit=2)
    assert len(swept) == 2
    assert sorted([*swept, *sweep(blocking, 0)]) == ["chat/0", "chat/1", "chat/2"]
    assert await any_redis.zscore(keys.due(0), "another:kind") == 1


@pytest.mark.requirement("store:sweep:vanished-first")
async def test_a_turn_whose_driver_vanished_is_swept_before_all_that_only_wait(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn = (await granted(any_redis, session="begun")).turn
    for number in range(4):
        await submit(any_redis, new_turn(session=f"chat/{number}"), 1)
    await lapse(any_redis, turn)
    at_ms = round((await any_redis.time())[0] * 1000)
    await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + f"chat/{number}": 1 + number for number in range(4)})
    assert sweep(blocking, 0, limit=1) == ["chat/0"]  # its lease is not over
    for name, member in ((keys.due(0), keys.DUE_LEASE + "begun"), (keys.driven(0), "begun")):
        await any_redis.zadd(name, {member: at_ms - 1000})
    assert sweep(blocking, 0, limit=2) == ["begun", "chat/1"]
    assert sweep(blocking, 0, limit=2) == ["chat/2", "chat/3"]
    assert sweep(blocking, 0) == []


@pytest.mark.requirement("store:sweep:vanished-first")
async def test_a_session_is_known_as_driven_no_longer_than_its_turn_lives(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    accumulator = await driven(any_redis)
    assert renew(blocking, 0, [(accumulator.turn, (await nonce_of(any_redis, accumulator.turn)))], TTL_S)[0].held
    lease_ms = int(await any_redis.hget(keys.turn_record(accumulator.turn), "lease_ms"))
    assert await any_redis.zscore(keys.driven(0), SESSION) == lease_ms
    await submit(any_redis, new_turn("next"), 1)
    await seal(accumulator)
    assert await any_redis.zcard(keys.driven(0)) == 0
    await any_redis.zadd(keys.driven(0), {"gone": 1})  # as a release that does not know the set leaves it behind
    assert sweep(blocking, 0) == [SESSION]
    assert await any_redis.zcard(keys.driven(0)) == 0


@pytest.mark.requirement("lease:clock:put-back")
@pytest.mark.parametrize("waits", ["driven", "queued"])
async def test_a_time_that_another_clock_wrote_keeps_no_turn_from_being_driven(
    any_redis: Redis, blocking: redis.Redis, waits: str
) -> None:
    """The server's clock was an hour ahead, or the server that took over is an hour behind."""
    turn = (await granted(any_redis)).turn if waits == "driven" else (await submit(any_redis, new_turn(), 1)).turn
    ahead_ms = (await any_redis.time())[0] * 1000 + 3_600_000
    await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + SESSION: ahead_ms})
    if waits == "driven":
        await any_redis.zadd(keys.driven(0), {SESSION: ahead_ms})
        await any_redis.hset(keys.turn_record(turn), "lease_ms", ahead_ms)
    assert sweep(blocking, 0) == [SESSION]
    assert sweep(blocking, 0) == []
    assert (await taken(any_redis)).turn == turn


@pytest.mark.requirement("lease:clock:put-back")
@pytest.mark.parametrize("approvals", [3, 7, 8])
async def test_a_time_that_another_clock_wrote_is_found_behind_any_number_of_questions(
    any_redis: Redis, blocking: redis.Redis, monkeypatch: pytest.MonkeyPatch, approvals: int
) -> None:
    """Approvals wait for a day: each sweep looks at some of what is due so late, and the next one goes on there."""
    monkeypatch.setattr(lease, "_MOST_FAR_LOOKS", 4)
    ahead_ms = (await any_redis.time())[0] * 1000 + 3_600_000
    for session in ("chat/2", "chat/3", "chat/4"):
        await submit(any_redis, new_turn(session=session), 1)
        await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + session: ahead_ms + 1})
    await any_redis.zadd(keys.due(0), {f"{keys.DUE_APPROVAL}{number}": ahead_ms for number in range(approvals)})
    found = [sweep(blocking, 0, limit=2) for _ in range(6)]
    assert sorted(session for each in found for session in each) == ["chat/2", "chat/3", "chat/4"]
    for session in ("chat/2", "chat/3"):
        await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + session: ahead_ms - 1})
    found = [sweep(blocking, 0, limit=1) for _ in range(6)]  # from the first on, when it has come to the end
    assert sorted(session for each in found for session in each) == ["chat/2", "chat/3"]


@pytest.mark.requirement("lease:clock:put-back")
async def test_a_begun_turn_is_swept_first_though_another_clock_wrote_its_time(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    await granted(any_redis, session="begun")
    await submit(any_redis, new_turn(session="waits"), 1)
    ahead_ms = (await any_redis.time())[0] * 1000 + 3_600_000
    await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + "begun": ahead_ms})
    await any_redis.zadd(keys.driven(0), {"begun": ahead_ms})
    assert sweep(blocking, 0, limit=1) == ["begun"]
    assert sweep(blocking, 0, limit=1) == ["waits"]


@pytest.mark.requirement("store:sweep:vanished-first")
async def test_a_sweep_goes_on_behind_the_begun_turns_that_it_gave_before(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    """What only waits is none of them, however often it was swept."""
    for number in range(3):
        turn = (await granted(any_redis, session=f"begun/{number}")).turn  # never renewed
        assert int(await any_redis.hget(keys.turn_record(turn), "lease_ms")) == await any_redis.zscore(
            keys.driven(0), f"begun/{number}"
        )
    await any_redis.zadd(keys.due(0), {f"{keys.DUE_LEASE}begun/{number}": 100 + number for number in range(3)})
    await any_redis.zadd(keys.driven(0), {f"begun/{number}": 100 + number for number in range(3)})
    for number in range(2):
        await submit(any_redis, new_turn(session=f"waits/{number}"), 1)
        await any_redis.zadd(keys.due(0), {f"{keys.DUE_LEASE}waits/{number}": 1 + number})
    found = [sweep(blocking, 0, limit=1) for _ in range(6)]
    assert found == [["begun/0"], ["begun/1"], ["begun/2"], ["waits/0"], ["waits/1"], []]
    assert await any_redis.zcard(keys.driven(0)) == 3


@pytest.mark.requirement("store:sweep:wakes")
async def test_a_driven_turn_is_due_when_its_lease_ends(any_redis: Redis, blocking: redis.Redis) -> None:
    grant = await granted(any_redis)
    assert sweep(blocking, 0) == []
    lease_ms = int(await any_redis.hget(keys.turn_record(grant.turn), "lease_ms"))
    assert await any_redis.zscore(keys.due(0), keys.DUE_LEASE + SESSION) == lease_ms


@pytest.mark.requirement("store:seal:next-turn")
async def test_a_seal_makes_the_session_due_only_if_another_turn_waits(any_redis: Redis, blocking: redis.Redis) -> None:
    accumulator = await driven(any_redis)
    await submit(any_redis, new_turn("next"), 1)
    assert sweep(blocking, 0) == []
    await seal(accumulator)
    assert sweep(blocking, 0) == [SESSION]
    await seal(ExecutionOutputAccumulator(any_redis, await taken(any_redis), lambda: True))
    assert await any_redis.zcard(keys.due(0)) == 0
    assert await any_redis.zcard(keys.live(0)) == 0


@pytest.mark.requirement("store:seal:next-turn")
async def test_a_wake_up_of_a_session_without_turns_is_harmless(any_redis: Redis) -> None:
    await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + SESSION: 1})
    assert await refused(any_redis)
    assert await any_redis.zcard(keys.due(0)) == 0


@pytest.mark.requirement("store:seal:expiry")
async def test_only_what_has_ended_expires(any_redis: Redis) -> None:
    first = await driven(any_redis)
    await first.open_call(1, 1, 0, True)
    await commit(first, 1, 1, "text")
    assert not [name for name, (_, _, expires) in (await dump(any_redis)).items() if expires]
    await seal(first)
    everlasting = {keys.log(0)}
    lasting = {name for name, (_, _, expires) in (await dump(any_redis)).items() if not expires}
    assert lasting == everlasting
    second = await driven(any_redis)
    dumped = await dump(any_redis)
    expiring = {name for name, (_, _, expires) in dumped.items() if expires} - {keys.ended(0, "completed")}
    assert expiring
    assert all(first.turn in name for name in expiring)
    assert not any(second.turn in name for name in expiring)


@pytest.mark.requirement("lease:claim:whom-to-ask")
@pytest.mark.parametrize(
    ("steps", "provider", "died", "streamed", "resumes"),
    [
        ((), "main", "", False, 0),
        (("died",), "main", "main", True, 1),
        (("drained",), "main", "", False, 0),
        (("died", "resumed"), "backup", "", False, 1),
        (("died", "resumed in mid-stream"), "main", "", True, 1),
    ],
)
async def test_a_takeover_learns_who_was_asked_last_and_of_whom_it_died(
    steps: tuple[str, ...], provider: str, died: str, streamed: bool, resumes: int, any_redis: Redis
) -> None:
    accumulator = await driven(any_redis)
    await accumulator.open_call(1, 1, 0, True, "main")
    if "died" in steps:
        await accumulator.discard(1, 1, NO_USAGE, [], resumes_spent=1, streamed=True, died="main")
    if "drained" in steps:
        await accumulator.discard(1, 1, NO_USAGE, [])
    if "resumed" in steps:
        await accumulator.open_call(1, 2, 1, False, "backup")
    if "resumed in mid-stream" in steps:
        await accumulator.open_call(1, 2, 1, False, "main", streamed=True)
    await accumulator.release()
    progress = (await taken(any_redis)).progress
    assert (progress.provider, progress.died, progress.streamed) == (provider, died, streamed)
    assert progress.resumes_spent == resumes
