"""Who may drive a turn that took drivers with it, and when a driver may be taken over at all."""

from typing import Any

import pytest
import redis

from tests.store.lossy import dump
from tests.store.turns import SESSION, TTL_S, Redis, driver_of, granted, new_turn, record_of, refused, seal, taken
from worker import ids
from worker.process_sections import LeaseSettings
from worker.store import keys
from worker.store.cancels import Cancellation, cancel
from worker.store.claims import reserve
from worker.store.inbox import submit
from worker.store.lease import FURTHEST_MS, Grant, Suspected, beat, claim, claim_among_others, pulse, renew, sweep
from worker.store.records import RECORD_VERSION


async def lapse(client: Redis, turn: str) -> None:
    await client.hset(keys.turn_record(turn), "lease_ms", 1)


async def asked(
    client: Redis, nonce: str | None = None, *, room: bool = True, after: int = 2
) -> Grant | Suspected | None:
    """What a process that runs other turns gets."""
    return await claim_among_others(client, SESSION, nonce or ids.new_nonce(), TTL_S, 1, after, may_start_one=room)


async def crashed(client: Redis, times: int) -> str:
    """A turn whose drivers vanished so often, each among others."""
    turn = (await granted(client)).turn
    for _ in range(times - 1):
        await lapse(client, turn)
        assert isinstance(await asked(client, after=20), Grant)
    await lapse(client, turn)
    return turn


@pytest.mark.requirement("lease:suspect:granted-apart")
async def test_one_crash_leaves_a_turn_to_any_process_and_the_second_to_one_of_its_own(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 1)
    grant = await asked(any_redis)
    assert isinstance(grant, Grant)
    assert (grant.came, grant.suspect, grant.progress.crashes) == ("takeover", False, 1)
    await lapse(any_redis, turn)
    assert await asked(any_redis) == Suspected(turn, 2, reserved=True)
    grant = await taken(any_redis)
    assert (grant.came, grant.suspect) == ("takeover", True)
    assert (grant.progress.crashes, grant.progress.suspect_crashes) == (2, 0)
    assert (await record_of(any_redis, turn)).suspect


@pytest.mark.requirement("lease:suspect:granted-apart")
async def test_a_refused_claim_changes_nothing_but_since_when_it_waits_where_there_is_no_room(
    any_redis: Redis,
) -> None:
    turn = await crashed(any_redis, 2)
    assert await asked(any_redis, room=False) == Suspected(turn, 2, reserved=False)
    before = await dump(any_redis)
    assert await asked(any_redis, room=False) == Suspected(turn, 2, reserved=False)
    assert await dump(any_redis) == before


@pytest.mark.requirement("lease:suspect:cancelled")
async def test_a_turn_that_is_to_end_is_no_suspect_so_any_process_may_seal_it(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 2)
    assert await cancel(any_redis, turn, "jo", 3600) == Cancellation(turn, SESSION, "cancelling")
    grant = await asked(any_redis, room=False)
    assert isinstance(grant, Grant)
    assert (grant.cancelled, grant.suspect, grant.progress.crashes) == ("requested", False, 2)


@pytest.mark.requirement("lease:suspect:reserved")
async def test_a_suspect_is_left_to_who_starts_a_process_for_it(any_redis: Redis, blocking: redis.Redis) -> None:
    turn = await crashed(any_redis, 2)
    assert await asked(any_redis, "n1") == Suspected(turn, 2, reserved=True)
    assert await asked(any_redis, "n2") is None
    assert await asked(any_redis, "n2", room=False) is None
    assert await asked(any_redis, "n1") == Suspected(turn, 2, reserved=True)
    assert sweep(blocking, 0) == []
    await any_redis.hset(keys.turn_record(turn), "reserved_ms", 1)  # the process did not come up
    assert await asked(any_redis, "n2") == Suspected(turn, 2, reserved=True)


@pytest.mark.requirement("lease:suspect:reserved")
async def test_a_reservation_ends_with_the_claim(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 2)
    await asked(any_redis)
    await taken(any_redis)
    await lapse(any_redis, turn)
    assert await asked(any_redis) == Suspected(turn, 3, reserved=True)


async def time_passes(client: Redis, seconds: float) -> None:
    for name in (keys.due(0), keys.driven(0)):
        for member, at_ms in await client.zrange(name, 0, -1, withscores=True):
            await client.zadd(name, {member: max(0, at_ms - round(seconds * 1000))})


@pytest.mark.requirement("store:sweep:refused")
@pytest.mark.parametrize("refused_as", ["a suspect", "a suspect that is reserved", "of a newer version"])
async def test_begun_turns_that_are_refused_again_and_again_keep_nobody_else_from_being_found(
    any_redis: Redis, blocking: redis.Redis, refused_as: str
) -> None:
    """There are more of them than are looked at before the first of them is due again."""
    for number in range(6):
        turn = (await granted(any_redis, session=f"begun/{number}")).turn
        await any_redis.hset(keys.turn_record(turn), mapping={"lease_ms": 1, "crashes": 1})
        if refused_as == "of a newer version":
            await any_redis.hset(keys.turn_record(turn), "v", RECORD_VERSION + 1)
        if refused_as == "a suspect that is reserved":
            ends_ms = (await any_redis.time())[0] * 1000 + 300_000
            await any_redis.hset(keys.turn_record(turn), mapping={"reserved": "another", "reserved_ms": ends_ms})
    await time_passes(any_redis, TTL_S + 1)
    await submit(any_redis, new_turn(session="waits"), 1)
    found: list[str] = []
    while "waits" not in found and len(found) < 20:
        found += sweep(blocking, 0, limit=1)
        claimed = await claim_among_others(any_redis, found[-1], ids.new_nonce(), TTL_S, 1, 2, may_start_one=False)
        assert isinstance(claimed, Grant) == (found[-1] == "waits")
        await time_passes(any_redis, 2)
    assert sorted(found) == [*(f"begun/{number}" for number in range(6)), "waits"]
    assert await any_redis.zscore(keys.due(0), keys.DUE_LEASE + "begun/0") is not None


@pytest.mark.requirement("lease:suspect:reserved-on")
async def test_a_suspect_is_kept_for_a_process_that_is_slow_to_come_up(any_redis: Redis, blocking: redis.Redis) -> None:
    turn = await crashed(any_redis, 2)
    await asked(any_redis, "n1")
    for _ in range(3):
        await any_redis.hset(keys.turn_record(turn), "reserved_ms", 1)  # nobody has asked in time
        await any_redis.zadd(keys.due(0), {keys.DUE_LEASE + SESSION: 1})
        assert await reserve(any_redis, SESSION, "n1", 1)
        assert await asked(any_redis, "n2") is None
        assert sweep(blocking, 0) == []
    assert (await taken(any_redis)).suspect


async def reserved_by_another(client: Redis, turn: str) -> None:
    await client.hset(keys.turn_record(turn), "reserved_ms", 1)
    assert await asked(client, "n2") == Suspected(turn, 2, reserved=True)


async def claimed(client: Redis, turn: str) -> None:
    assert (await taken(client)).turn == turn


async def claimed_and_given_back(client: Redis, turn: str) -> None:
    grant = await taken(client)
    assert grant.turn == turn
    await driver_of(client, grant).release()


async def cancelled(client: Redis, turn: str) -> None:
    await cancel(client, turn, "jo", 60)


async def ended(client: Redis, turn: str) -> None:
    grant = await taken(client)
    assert grant.turn == turn
    await seal(driver_of(client, grant))


@pytest.mark.requirement("lease:suspect:reserved-on")
@pytest.mark.parametrize("then", [reserved_by_another, claimed, claimed_and_given_back, cancelled, ended])
async def test_a_suspect_is_kept_for_nobody_once_others_have_it_or_it_is_to_end(any_redis: Redis, then: Any) -> None:
    turn = await crashed(any_redis, 2)
    await asked(any_redis, "n1")
    await then(any_redis, turn)
    before = await dump(any_redis)
    assert not await reserve(any_redis, SESSION, "n1", 1)
    assert await dump(any_redis) == before


@pytest.mark.requirement("lease:suspect:deadline")
async def test_the_deadline_of_a_suspect_stands_still_while_it_waits_for_a_process(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 2)
    record = keys.turn_record(turn)
    for _ in range(2):
        assert await asked(any_redis, room=False) == Suspected(turn, 2, reserved=False)
    await any_redis.hincrby(record, "suspected_ms", -10_000_000)  # it has waited for so long
    await any_redis.hincrby(record, "deadline_ms", -10_000_000)
    grant = await taken(any_redis)
    assert 7190 < grant.remaining_s <= 7200
    await driver_of(any_redis, grant).release()
    assert (await taken(any_redis)).remaining_s == pytest.approx(grant.remaining_s, abs=5)  # counted once


@pytest.mark.requirement("lease:suspect:blame")
async def test_only_a_crash_of_a_suspect_counts_against_the_turn(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 2)
    for blamed in range(3):
        grant = await taken(any_redis)
        assert (grant.progress.crashes, grant.progress.suspect_crashes) == (2 + blamed, blamed)
        await lapse(any_redis, turn)


@pytest.mark.requirement("lease:suspect:blame")
async def test_a_suspect_that_is_handed_over_is_not_blamed_and_stays_a_suspect(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 2)
    await driver_of(any_redis, await taken(any_redis)).release()
    assert await asked(any_redis) == Suspected(turn, 2, reserved=True)
    grant = await taken(any_redis)
    assert (grant.came, grant.suspect) == ("resumed", True)
    assert (grant.progress.crashes, grant.progress.suspect_crashes) == (2, 0)


@pytest.mark.requirement("lease:suspect:blame")
async def test_how_a_turn_came_is_told_again_with_the_same_nonce(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 1)
    first, again = await taken(any_redis, nonce="n1"), await taken(any_redis, nonce="n1")
    assert (first.came, again.came) == ("takeover", "takeover")
    assert again.progress == first.progress
    await submit(any_redis, new_turn(session="chat/2"), 1)
    assert (await taken(any_redis, "chat/2")).came == "first"
    assert turn == first.turn


@pytest.mark.requirement("lease:suspect:old-records")
async def test_a_turn_of_an_earlier_version_is_taken_over_as_before(any_redis: Redis) -> None:
    turn = await crashed(any_redis, 1)
    record = keys.turn_record(turn)
    await any_redis.hdel(record, "suspect", "suspect_crashes", "came", "reserved", "reserved_ms")
    await any_redis.hset(record, "v", 2)
    stored = await record_of(any_redis, turn)
    assert (stored.suspect, stored.suspect_crashes, stored.replay_of) == (False, 0, None)
    grant = await asked(any_redis)
    assert isinstance(grant, Grant)
    assert (grant.progress.crashes, grant.progress.suspect_crashes, grant.suspect) == (1, 0, False)


@pytest.mark.requirement("lease:pulse:calm")
async def test_the_first_claim_after_an_outage_takes_nobody_over(any_redis: Redis, blocking: redis.Redis) -> None:
    """It comes before any renewal, from a process that has seen nothing of the outage."""
    turn = await crashed(any_redis, 1)
    assert not pulse(blocking, 0, TTL_S)
    await any_redis.hincrby(keys.pulse(0), "at_ms", -round(TTL_S * 600))
    before = await dump(any_redis)
    assert await refused(any_redis)
    assert await asked(any_redis) is None
    assert await dump(any_redis) == before
    assert pulse(blocking, 0, TTL_S)
    assert pulse(blocking, 0, TTL_S)
    assert await refused(any_redis)
    await any_redis.hset(keys.pulse(0), "calm_ms", 1)
    assert not pulse(blocking, 0, TTL_S)
    assert (await taken(any_redis)).turn == turn


@pytest.mark.requirement("lease:pulse:calm")
async def test_a_turn_that_nobody_drives_is_claimed_whatever_the_pulse_says(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    pulse(blocking, 0, TTL_S)
    await any_redis.hincrby(keys.pulse(0), "at_ms", -round(TTL_S * 600))
    await driver_of(any_redis, await granted(any_redis)).release()
    assert (await taken(any_redis)).came == "resumed"


@pytest.mark.requirement("lease:pulse:calm")
async def test_pulses_in_time_call_for_no_calm(any_redis: Redis, blocking: redis.Redis) -> None:
    turn = await crashed(any_redis, 1)
    pulse(blocking, 0, TTL_S)
    await any_redis.hincrby(keys.pulse(0), "at_ms", -round(TTL_S * 400))
    await beat(any_redis, 1, TTL_S)
    await any_redis.hincrby(keys.pulse(0), "at_ms", -round(TTL_S * 400))
    grant = await claim(any_redis, SESSION, ids.new_nonce(), TTL_S, 1)
    assert grant is not None
    assert grant.turn == turn


@pytest.mark.requirement("lease:clock:put-back")
async def test_a_clock_that_is_put_back_stops_takeovers_for_one_lease_and_no_longer(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    turn = await crashed(any_redis, 1)
    now_ms = (await any_redis.time())[0] * 1000
    hour_ms = 3_600_000
    ahead = {"at_ms": now_ms + hour_ms, "calm_ms": now_ms + hour_ms + round(TTL_S * 1000)}
    await any_redis.hset(keys.pulse(0), mapping={"v": 1, **ahead})
    assert await refused(any_redis)  # drivers that live have leases that look over
    assert pulse(blocking, 0, TTL_S)
    calm_ms = int(await any_redis.hget(keys.pulse(0), "calm_ms"))
    assert calm_ms <= now_ms + 60_000
    assert await refused(any_redis)
    await any_redis.hset(keys.pulse(0), "calm_ms", 1)
    assert not pulse(blocking, 0, TTL_S)
    assert (await taken(any_redis)).turn == turn


@pytest.mark.requirement("lease:clock:put-back")
async def test_a_clock_that_is_put_back_takes_no_turn_from_a_driver_that_lives(
    any_redis: Redis, blocking: redis.Redis
) -> None:
    """No outage went before, and its lease looks like one of another clock until it renews."""
    grant = await granted(any_redis)
    pulse(blocking, 0, TTL_S)
    for name, field in ((keys.turn_record(grant.turn), "lease_ms"), (keys.pulse(0), "at_ms")):
        await any_redis.hincrby(name, field, 3_600_000)
    assert await any_redis.hget(keys.pulse(0), "calm_ms") == b"0"
    assert pulse(blocking, 0, TTL_S)
    assert await refused(any_redis)
    assert renew(blocking, 0, [(grant.turn, grant.nonce)], TTL_S)[0].held
    await any_redis.hset(keys.pulse(0), "calm_ms", 1)
    assert await refused(any_redis)
    assert (await record_of(any_redis, grant.turn)).crashes == 0


@pytest.mark.requirement("lease:clock:put-back")
async def test_a_calm_that_another_clock_began_is_over_after_one_lease(any_redis: Redis, blocking: redis.Redis) -> None:
    """It was put back by minutes, so little that a lease might reach as far."""
    turn = await crashed(any_redis, 1)
    pulse(blocking, 0, TTL_S)
    now_ms = (await any_redis.time())[0] * 1000
    await any_redis.hset(keys.pulse(0), "calm_ms", now_ms + 300_000)
    assert pulse(blocking, 0, TTL_S)
    calm_ms = int(await any_redis.hget(keys.pulse(0), "calm_ms"))
    assert calm_ms <= now_ms + TTL_S * 1000 + 60_000
    assert await refused(any_redis)
    await any_redis.hincrby(keys.pulse(0), "calm_ms", -round(TTL_S * 1000) - 1)
    assert not pulse(blocking, 0, TTL_S)
    assert (await taken(any_redis)).turn == turn


@pytest.mark.requirement("lease:clock:put-back")
async def test_a_calm_or_a_reservation_by_another_clock_is_over(any_redis: Redis, blocking: redis.Redis) -> None:
    turn = await crashed(any_redis, 2)
    ahead_ms = (await any_redis.time())[0] * 1000 + 3_600_000
    pulse(blocking, 0, TTL_S)
    await any_redis.hset(keys.pulse(0), "calm_ms", ahead_ms)
    await any_redis.hset(keys.turn_record(turn), mapping={"reserved": "n1", "reserved_ms": ahead_ms})
    assert await asked(any_redis) == Suspected(turn, 2, reserved=True)


@pytest.mark.requirement("lease:clock:put-back")
def test_no_lease_that_can_be_set_is_taken_for_one_of_another_clock() -> None:
    longest = next(each.le for each in LeaseSettings.model_fields["ttl_s"].metadata if hasattr(each, "le"))
    assert longest * 2000 <= FURTHEST_MS
