"""What every test of the store needs: a turn that was submitted and claimed."""

import redis.asyncio

from worker import ids
from worker.output.events import (
    CallCompletedOutput,
    Output,
    TextOutput,
    TextStreamDiscardedOutput,
    TurnCompletedOutput,
)
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import NewTurn, submit
from worker.store.lease import Grant, claim
from worker.turn.commands import NO_USAGE
from worker.turn.facts import Committed

SESSION = "chat/1"
TTL_S = 8.0


def new_turn(message: str = "hello", *, session: str = SESSION, key: str | None = None, watch_s: float = 0) -> NewTurn:
    return NewTurn(
        turn=ids.new_turn(0),
        session=session,
        message=message,
        agent="default",
        source="test",
        labels={"team": "a"},
        destinations=("there",),
        idempotency_key=key,
        deadline_s=7200,
        watch_s=watch_s,
    )


async def granted(client: redis.asyncio.Redis, *, session: str = SESSION, watch_s: float = 0) -> Grant:
    """A fresh turn, claimed."""
    await submit(client, new_turn(session=session, watch_s=watch_s), 1)
    grant = await claim(client, session, ids.new_nonce(), TTL_S, 1)
    assert grant is not None
    return grant


async def driven(
    client: redis.asyncio.Redis, *, session: str = SESSION, watch_s: float = 0
) -> ExecutionOutputAccumulator:
    """The accumulator of a fresh turn."""
    return ExecutionOutputAccumulator(client, await granted(client, session=session, watch_s=watch_s), lambda: True)


def completed(call: int, attempt: int, text: str) -> Committed:
    return Committed(call, attempt, text, (), "stop", None)


def outputs_of_commit(fact: Committed) -> list[Output]:
    where = {"call": fact.call, "attempt": fact.attempt}
    outputs: list[Output] = [TextOutput(text=fact.text, **where)] if fact.text else []
    return [*outputs, CallCompletedOutput(finish_reason=fact.finish_reason, **where)]


def outputs_of_discard(call: int, attempt: int) -> list[Output]:
    return [TextStreamDiscardedOutput(call=call, attempt=attempt, reason="timeout")]


async def commit(accumulator: ExecutionOutputAccumulator, call: int, attempt: int, text: str) -> None:
    fact = completed(call, attempt, text)
    await accumulator.commit(fact, NO_USAGE, outputs_of_commit(fact))


async def discard(accumulator: ExecutionOutputAccumulator, call: int, attempt: int) -> None:
    await accumulator.discard(call, attempt, NO_USAGE, outputs_of_discard(call, attempt))


async def seal(accumulator: ExecutionOutputAccumulator) -> None:
    await accumulator.seal("completed", None, None, "", NO_USAGE, [TurnCompletedOutput(outcome="completed")])
