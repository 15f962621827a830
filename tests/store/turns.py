"""What every test of the store needs: a turn that was submitted and claimed."""

from dataclasses import replace
from typing import Any

from worker import ids
from worker.codecs.events import ToolCall
from worker.output.approvals import OPTIONS
from worker.output.events import (
    ApprovalRequestOutput,
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
from worker.turn.facts import ApprovalAsked, Committed
from worker.turn.usage import NO_USAGE

Redis = Any
"""A client of redis-py, whose types say less than a test knows."""

SESSION = "chat/1"
TTL_S = 8.0


ARGUMENTS = '{"to": "bob@example.com"}'


def new_turn(
    message: str = "hello",
    *,
    session: str = SESSION,
    key: str | None = None,
    watch_s: float = 0,
    requester: str | None = None,
    **more: Any,
) -> NewTurn:
    """A message to be submitted. `more`: other fields of it."""
    new = NewTurn(
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
        requester=requester,
    )
    return replace(new, **more)


async def granted(client: Redis, *, session: str = SESSION, watch_s: float = 0, requester: str | None = None) -> Grant:
    """A fresh turn, claimed."""
    await submit(client, new_turn(session=session, watch_s=watch_s, requester=requester), 1)
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


async def driven(
    client: Redis, *, session: str = SESSION, watch_s: float = 0, requester: str | None = None
) -> ExecutionOutputAccumulator:
    """The accumulator of a fresh turn."""
    return driver_of(client, await granted(client, session=session, watch_s=watch_s, requester=requester))


def driver_of(client: Redis, grant: Grant) -> ExecutionOutputAccumulator:
    """The accumulator of a granted turn."""
    return ExecutionOutputAccumulator(client, grant, lambda: True)


async def with_tools(accumulator: ExecutionOutputAccumulator, *tools: str) -> None:
    """Commit a first call that asked for these tools."""
    await accumulator.open_call(1, 1, 0, True)
    calls = tuple(ToolCall(f"t{index}", tool, ARGUMENTS, {"to": "bob"}) for index, tool in enumerate(tools))
    await accumulator.commit(Committed(1, 1, "One moment. ", calls, "tool_calls", None), NO_USAGE, [])


async def ask(
    accumulator: ExecutionOutputAccumulator,
    index: int = 0,
    *,
    call: int = 1,
    tool: str = "mail",
    requester: str | None = None,
    expire_s: float = 3600,
) -> str:
    """Ask a person about a tool call; the id of the approval."""
    approval = ids.approval_of(accumulator.turn, call, index)
    request = ApprovalRequestOutput(
        call=call,
        attempt=1,
        approval=approval,
        tool_call_id=f"t{index}",
        name=tool,
        arguments=ARGUMENTS,
        options=OPTIONS,
        requester=requester,
    )
    await accumulator.ask_approval(ApprovalAsked(call, index, "digest"), request, expire_s)
    return approval


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
