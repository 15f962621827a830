"""A server that answers with "not now" has not answered: it is asked again, and then told as one that is away."""

from collections.abc import AsyncIterator

import pytest
import redis

from tests.store.turns import Redis, driven, new_turn
from worker.errors import Fenced, StoreUnavailable
from worker.store.inbox import submit
from worker.store.repeat import UNANSWERED, is_unanswered, until_answered


@pytest.fixture
async def without_replicas(real_redis: Redis) -> AsyncIterator[Redis]:
    """A server that may write only with a replica, which it has not; at the end it may again."""
    yield real_redis
    await real_redis.config_set("min-replicas-to-write", 0)


@pytest.mark.requirement("faults:state:said-clearly")
async def test_who_submits_is_told_that_redis_did_not_answer(without_replicas: Redis) -> None:
    await without_replicas.config_set("min-replicas-to-write", 1)
    with pytest.raises(StoreUnavailable, match="submit it again with an idempotency key"):
        await submit(without_replicas, new_turn(), 1, patience_s=0.05)
    await without_replicas.config_set("min-replicas-to-write", 0)
    assert not (await submit(without_replicas, new_turn(), 1)).duplicate


@pytest.mark.requirement("faults:state:said-clearly")
async def test_a_driver_is_told_that_its_lease_is_lost(without_replicas: Redis) -> None:
    accumulator = await driven(without_replicas)
    accumulator._ops._still_mine = lambda: False
    await without_replicas.config_set("min-replicas-to-write", 1)
    with pytest.raises(Fenced, match="did not answer"):
        await accumulator.open_call(1, 1, 0, True)


@pytest.mark.requirement("faults:state:not-now")
async def test_not_now_is_no_answer_in_a_pipeline_either(without_replicas: Redis) -> None:
    """There the client puts words of its own before those of the server."""
    await without_replicas.config_set("min-replicas-to-write", 1)

    async def piped() -> list[object]:
        pipeline = without_replicas.pipeline(transaction=False)
        pipeline.set("any", "value")
        answers: list[object] = await pipeline.execute()
        return answers

    with pytest.raises(UNANSWERED, match="NOREPLICAS"):
        await until_answered(piped, lambda: False)


@pytest.mark.parametrize(
    "words",
    [
        "MISCONF Valkey is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        "BUSY Valkey is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOREPLICAS Not enough good replicas to write.",
        "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
    ],
)
@pytest.mark.requirement("faults:state:not-now")
def test_each_not_now_is_known_by_its_first_word(words: str) -> None:
    assert is_unanswered(redis.ResponseError(words))
    assert not is_unanswered(redis.ResponseError(f"ERR {words}"))
    assert not is_unanswered(redis.ResponseError(words.lower()))


@pytest.mark.requirement("faults:state:not-now")
def test_a_group_that_is_busy_is_another_word() -> None:
    assert not is_unanswered(redis.ResponseError("BUSYGROUP Consumer Group name already exists"))
