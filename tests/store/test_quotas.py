"""How many turns are taken under one name within a while."""

import asyncio
from dataclasses import replace

import pytest

from tests.store.lossy import dump
from tests.store.turns import Redis, new_turn
from worker import ids
from worker.store import keys
from worker.store.inbox import IdempotencyConflict, NewTurn, Quota, QuotaSpent, Terms, submit

THREE = Quota("hook/crm", 3, 60)


def asked(number: int, quota: Quota = THREE, key: str | None = None) -> NewTurn:
    return replace(
        new_turn(f"message {number}", session=f"s/{number}", key=key), turn=ids.new_turn(0), terms=Terms(quota=quota)
    )


async def outcomes(client: Redis, count: int, quota: Quota = THREE) -> list[bool]:
    answers = await asyncio.gather(
        *(submit(client, asked(number, quota), 1) for number in range(count)), return_exceptions=True
    )
    assert all(not isinstance(answer, BaseException) or isinstance(answer, QuotaSpent) for answer in answers), answers
    return [not isinstance(answer, BaseException) for answer in answers]


@pytest.mark.requirement("hooks:quota")
async def test_as_many_are_taken_as_the_quota_says_however_many_ask(any_redis: Redis) -> None:
    assert sum(await outcomes(any_redis, 20)) == 3
    assert await any_redis.zcard(keys.live(0)) == 3
    assert sum(await outcomes(any_redis, 5, Quota("hook/other", 2))) == 2


@pytest.mark.requirement("hooks:quota")
async def test_what_is_refused_changes_nothing_and_says_when_to_come_again(any_redis: Redis) -> None:
    await outcomes(any_redis, 3)
    before = await dump(any_redis)
    with pytest.raises(QuotaSpent) as caught:
        await submit(any_redis, asked(9, key="K"), 1)
    assert 0 < caught.value.wait_s <= 60
    assert await dump(any_redis) == before


@pytest.mark.requirement("hooks:quota")
async def test_a_place_is_free_once_its_turn_is_older_than_the_span(any_redis: Redis) -> None:
    await outcomes(any_redis, 3)
    name = keys.quota("hook/crm", 1)
    scores = [score for _, score in await any_redis.zrange(name, 0, -1, withscores=True)]
    members = [member for member, _ in await any_redis.zrange(name, 0, -1, withscores=True)]
    await any_redis.zadd(name, {members[0]: scores[0] - 50_000, members[1]: scores[1] - 20_000})
    with pytest.raises(QuotaSpent) as caught:
        await submit(any_redis, asked(4), 1)
    assert 5 < caught.value.wait_s <= 10
    await any_redis.zadd(name, {members[0]: scores[0] - 60_000})
    assert (await submit(any_redis, asked(4), 1)).duplicate is False
    with pytest.raises(QuotaSpent) as caught:
        await submit(any_redis, asked(5), 1)
    assert 30 < caught.value.wait_s <= 40
    assert await any_redis.zcard(name) == 3
    assert 0 < await any_redis.pttl(name) <= 60_000


@pytest.mark.requirement("hooks:quota:clock")
async def test_what_was_taken_before_the_clock_was_put_back_keeps_nothing_out(any_redis: Redis) -> None:
    await outcomes(any_redis, 3)
    name = keys.quota("hook/crm", 1)
    taken = await any_redis.zrange(name, 0, -1, withscores=True)
    await any_redis.zadd(name, {member: score + 86_400_000 for member, score in taken})
    await any_redis.pexpire(name, 86_460_000)
    assert [(await submit(any_redis, asked(number), 1)).duplicate for number in range(4, 7)] == [False] * 3
    with pytest.raises(QuotaSpent) as caught:
        await submit(any_redis, asked(7), 1)
    assert 0 < caught.value.wait_s <= 60
    assert await any_redis.zcard(name) == 3
    assert 0 < await any_redis.pttl(name) <= 60_000


@pytest.mark.requirement("hooks:quota")
async def test_a_lower_quota_counts_what_a_higher_one_took(any_redis: Redis) -> None:
    await outcomes(any_redis, 3)
    with pytest.raises(QuotaSpent) as caught:
        await submit(any_redis, asked(4, Quota("hook/crm", 1)), 1)
    assert 50 < caught.value.wait_s <= 60
    name = keys.quota("hook/crm", 1)
    taken = await any_redis.zrange(name, 0, -1, withscores=True)
    for (member, score), ago_ms in zip(taken, (50_000, 30_000, 10_000), strict=True):
        await any_redis.zadd(name, {member: score - ago_ms})
    for most, least_s, most_s in ((3, 5, 10), (2, 25, 30), (1, 45, 50)):  # until there are fewer than that
        with pytest.raises(QuotaSpent) as caught:
            await submit(any_redis, asked(4, Quota("hook/crm", most)), 1)
        assert least_s < caught.value.wait_s <= most_s, most


@pytest.mark.requirement("hooks:quota")
async def test_a_repetition_and_a_conflict_are_told_before_the_quota(any_redis: Redis) -> None:
    one = Quota("hook/crm", 1)
    first = await submit(any_redis, asked(1, one, key="K"), 1)
    again = await submit(any_redis, replace(asked(1, one, key="K")), 1)
    assert (again.turn, again.duplicate) == (first.turn, True)
    with pytest.raises(IdempotencyConflict) as caught:
        await submit(any_redis, asked(2, one, key="K"), 1)
    assert caught.value.turn == first.turn
    with pytest.raises(QuotaSpent):
        await submit(any_redis, asked(2, one, key="L"), 1)


@pytest.mark.requirement("hooks:quota")
async def test_a_submit_that_is_sent_twice_takes_one_place(any_redis: Redis) -> None:
    new = asked(1)
    for _ in range(3):
        assert (await submit(any_redis, new, 1)).turn == new.turn
    assert await any_redis.zcard(keys.quota("hook/crm", 1)) == 1


@pytest.mark.requirement("hooks:quota")
async def test_a_key_stands_for_as_long_as_was_said(any_redis: Redis) -> None:
    await submit(any_redis, replace(asked(1, key="K"), terms=Terms(key_s=77)), 1)
    assert 70 < await any_redis.ttl(keys.idempotency("K", 1)) <= 77
