"""Asking the message of an ended turn anew."""

from typing import Any

import pytest
import redis.asyncio

from tests.store.turns import taken
from worker import api
from worker.errors import ConfigurationError
from worker.output.events import Outcome
from worker.settings import WorkerSettings
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import Submitted
from worker.store.records import TurnRecord, read_turn
from worker.turn.usage import NO_USAGE

SETTINGS = WorkerSettings.model_validate(
    {"providers": {"main": {"base_url": "http://127.0.0.1:9/v1", "model": "stand-in"}}}
)


async def ended(client: redis.asyncio.Redis, outcome: Outcome) -> TurnRecord:
    submitted = await api.submit(
        SETTINGS,
        client,
        prompt="Who is due?",
        source="slack",
        wake=lambda _: None,
        session="chat/1",
        labels={"team": "ops"},
        destinations=("there",),
        idempotency_key="once",
        requester="U1",
    )
    accumulator = ExecutionOutputAccumulator(client, await taken(client, "chat/1"), lambda: True)
    await accumulator.seal(outcome, None, None, "", NO_USAGE, [])
    return await known(client, submitted.turn)


async def known(client: redis.asyncio.Redis, turn: str) -> TurnRecord:
    record = await read_turn(client, turn)
    assert record is not None
    return record


async def replay(client: redis.asyncio.Redis, turn: str, *, force: bool = False) -> tuple[Submitted, list[str]]:
    woken: list[str] = []
    submitted = await api.replay_turn(SETTINGS, client, turn=turn, wake=woken.append, force=force)
    return submitted, woken


@pytest.mark.requirement("replay:same-message")
@pytest.mark.parametrize("outcome", ["dead", "failed", "incomplete", "cancelled"])
async def test_the_same_is_asked_anew_by_the_same_person_for_the_same_receivers(
    any_redis: redis.asyncio.Redis, outcome: Any
) -> None:
    before = await ended(any_redis, outcome)
    submitted, woken = await replay(any_redis, before.turn)
    after = await known(any_redis, submitted.turn)
    assert woken == [before.session]
    assert (after.state, after.replay_of, submitted.duplicate) == ("queued", before.turn, False)
    for name in ("session", "message", "agent", "source", "labels", "destinations", "requester"):
        assert getattr(after, name) == getattr(before, name), name
    assert (await taken(any_redis, "chat/1")).turn == after.turn


@pytest.mark.requirement("replay:once")
async def test_a_replay_whose_answer_was_lost_is_the_same_turn_when_it_is_asked_for_again(
    any_redis: redis.asyncio.Redis,
) -> None:
    before = await ended(any_redis, "dead")
    first, _ = await replay(any_redis, before.turn)
    again, woken = await replay(any_redis, before.turn)
    assert (again.turn, again.duplicate, woken) == (first.turn, True, [])
    accumulator = ExecutionOutputAccumulator(any_redis, await taken(any_redis, "chat/1"), lambda: True)
    await accumulator.seal("dead", None, None, "", NO_USAGE, [])
    assert (await replay(any_redis, before.turn))[0].turn == first.turn
    second, _ = await replay(any_redis, first.turn)
    assert second.turn not in {before.turn, first.turn}
    assert not second.duplicate


@pytest.mark.requirement("replay:refused")
async def test_what_cannot_be_replayed_is_refused_with_the_reason(any_redis: redis.asyncio.Redis) -> None:
    for turn, named in (("turn_00" + "0" * 20, "not known"), ("nonsense", "is no turn id")):
        with pytest.raises(ConfigurationError, match=named):
            await replay(any_redis, turn)
    waiting = await api.submit(SETTINGS, any_redis, prompt="x", source="test", wake=lambda _: None, session="chat/2")
    with pytest.raises(ConfigurationError, match="is queued: only a turn that has ended"):
        await replay(any_redis, waiting.turn)


@pytest.mark.requirement("replay:refused")
async def test_a_turn_that_has_its_answer_is_asked_anew_only_by_force(any_redis: redis.asyncio.Redis) -> None:
    before = await ended(any_redis, "completed")
    with pytest.raises(ConfigurationError, match=r"ended as completed.*--force"):
        await replay(any_redis, before.turn)
    submitted, _ = await replay(any_redis, before.turn, force=True)
    assert (await known(any_redis, submitted.turn)).replay_of == before.turn
