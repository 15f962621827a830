"""What every test of the store needs: a turn that was submitted and claimed."""

from typing import Any

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
from worker.store.log import read_log
from worker.store.outputs import Snapshot, all_outputs, attach
from worker.store.records import TurnRecord, read_turn
from worker.turn.commands import NO_USAGE
from worker.turn.facts import Committed

Redis = Any
"""A client of redis-py, whose types say less than a test knows."""

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


async def granted(client: Redis, *, session: str = SESSION, watch_s: float = 0) -> Grant:
    """A fresh turn, claimed."""
    await submit(client, new_turn(session=session, watch_s=watch_s), 1)
    return await taken(client, session)


async def taken(client: Redis, session: str = SESSION, nonce: str | None = None) -> Grant:
    """The grant that a claimant gets, and must get."""
    grant = await claim(client, session, nonce or ids.new_nonce(), TTL_S, 1)
    assert grant is not None
    return grant


async def refused(client: Redis, session: str = SESSION) -> bool:
    """Whether a claimant gets nothing."""
    return await claim(client, session, ids.new_nonce(), TTL_S, 1) is None


async def snapshot_of(client: Redis, turn: str, watch_s: float = 0) -> Snapshot:
    snapshot = await attach(client, turn, watch_s)
    assert snapshot is not None
    return snapshot


async def record_of(client: Redis, turn: str) -> TurnRecord:
    record = await read_turn(client, turn)
    assert record is not None
    return record


async def outputs_of(client: Redis, turn: str) -> list[Any]:
    return list(await all_outputs(client, turn))


async def log_of(client: Redis) -> list[Any]:
    return list(await read_log(client, 0, "0-0", 1000, 0))


async def driven(client: Redis, *, session: str = SESSION, watch_s: float = 0) -> ExecutionOutputAccumulator:
    """The accumulator of a fresh turn."""
    return ExecutionOutputAccumulator(client, await granted(client, session=session, watch_s=watch_s), lambda: True)


def completed(call: int, attempt: int, text: str) -> Committed:
    return Committed(call, attempt, text, (), "stop", None)


def outputs_of_commit(fact: Committed) -> list[Output]:
    call, attempt = fact.call, fact.attempt
    outputs: list[Output] = [TextOutput(call=call, attempt=attempt, text=fact.text)] if fact.text else []
    return [*outputs, CallCompletedOutput(call=call, attempt=attempt, finish_reason=fact.finish_reason)]


def outputs_of_discard(call: int, attempt: int) -> list[Output]:
    return [TextStreamDiscardedOutput(call=call, attempt=attempt, reason="timeout")]


async def commit(accumulator: ExecutionOutputAccumulator, call: int, attempt: int, text: str) -> None:
    fact = completed(call, attempt, text)
    await accumulator.commit(fact, NO_USAGE, outputs_of_commit(fact))


async def discard(accumulator: ExecutionOutputAccumulator, call: int, attempt: int) -> None:
    await accumulator.discard(call, attempt, NO_USAGE, outputs_of_discard(call, attempt))


async def seal(accumulator: ExecutionOutputAccumulator) -> None:
    await accumulator.seal("completed", None, None, "", NO_USAGE, [TurnCompletedOutput(outcome="completed")])
