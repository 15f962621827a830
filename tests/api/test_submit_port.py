"""The command port: what it takes, what it refuses and with which words, and a Redis that blinks."""

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis.asyncio

from tests.support.forwarder import Forwarder
from worker import api
from worker.errors import ConfigurationError, StoreFull
from worker.settings import WorkerSettings
from worker.store import connect
from worker.store.inbox import IdempotencyConflict
from worker.store.records import read_turn

SETTINGS = WorkerSettings.model_validate(
    {"providers": {"main": {"base_url": "http://127.0.0.1:9/v1", "model": "stand-in"}}}
)
HALF = "Gr\udcfc\udcdfe"


async def submit(client: redis.asyncio.Redis, prompt: str = "hello", **more: Any) -> str:
    woken: list[str] = []
    submitted = await api.submit(SETTINGS, client, prompt=prompt, source="test", wake=woken.append, **more)
    assert woken == [submitted.session]
    return submitted.turn


@pytest.mark.requirement("bad-input:submit")
@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"prompt": " \n"}, "prompt"),
        ({"prompt": "x" * 1_000_001}, "1000001"),
        ({"prompt": HALF}, "prompt: character 2"),
        ({"agent": "nobody"}, "agents.nobody"),
        ({"session": "two words"}, "session 'two words'"),
        ({"labels": {"team": HALF}}, "label 'team': character 2"),
        ({"labels": {"two words": "x"}}, "label name 'two words'"),
        ({"labels": {"team": "x" * 201}}, "label team"),
        ({"labels": {f"l{n}": "x" for n in range(33)}}, "33"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": HALF}, "idempotency_key: character 2"),
    ],
)
async def test_what_cannot_become_a_turn_is_refused_by_its_field_and_nothing_is_stored(
    fake_redis: redis.asyncio.Redis, asked: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        await submit(fake_redis, **asked)
    assert named in str(refused.value)
    assert await fake_redis.keys("*") == []


async def test_a_wake_up_that_cannot_be_sent_costs_nothing(fake_redis: redis.asyncio.Redis) -> None:
    def wake(session: str) -> None:
        raise ConnectionError(session)

    submitted = await api.submit(SETTINGS, fake_redis, prompt="hello", source="test", wake=wake)
    assert await read_turn(fake_redis, submitted.turn) is not None


async def test_one_key_is_one_turn(any_redis: redis.asyncio.Redis) -> None:
    first = await submit(any_redis, idempotency_key="k")
    assert await submit(any_redis, idempotency_key="k") == first
    with pytest.raises(IdempotencyConflict, match="'k'"):
        await submit(any_redis, "another message", idempotency_key="k")


@pytest.mark.requirement("store:full:submit-port")
@pytest.mark.parametrize("is_first_use", [True, False])
async def test_a_full_redis_is_named_to_whoever_submits(real_redis: redis.asyncio.Redis, is_first_use: bool) -> None:
    if not is_first_use:
        await submit(real_redis)
    before = sorted(await real_redis.keys("*"))
    await real_redis.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreFull, match="raise maxmemory"):
            await submit(real_redis)
    finally:
        await real_redis.config_set("maxmemory", 0)
    assert sorted(await real_redis.keys("*")) == before


@pytest.mark.requirement("bad-input:submit:outage")
async def test_a_submit_outlasts_a_blink_of_redis(real_url: str) -> None:
    port = urlsplit(real_url).port
    assert port is not None
    async with Forwarder(port) as network:
        client = connect.open_redis(real_url.replace(str(port), str(network.port)))
        async with network.away():
            submitting = asyncio.ensure_future(submit(client))
            await asyncio.wait([submitting], timeout=1)
            assert not submitting.done()
        turn = await asyncio.wait_for(submitting, 10)
        assert await read_turn(client, turn) is not None
        await client.aclose()
