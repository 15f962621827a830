"""What a driver records of its turn: in the store, in the log, and of the health of providers.

What belongs here: each recording command as a step of the store, and the line that tells of it (ids, counts and times).
What must not be known here: what comes before and after it.
"""

from time import monotonic

from worker.engine.health import ProviderHealth
from worker.ids import approval_of, correlation_of
from worker.observability import info
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.lease import Grant
from worker.turn import commands as c
from worker.turn import outputs
from worker.turn.batch import arguments_hash
from worker.turn.facts import ApprovalAsked, Committed, ToolEnded
from worker.turn.resume import is_the_providers


class Recording:
    """Records the commands of one granted turn. Raises what the accumulator raises."""

    def __init__(self, grant: Grant, accumulator: ExecutionOutputAccumulator, health: ProviderHealth) -> None:
        self._grant = grant
        self._accumulator = accumulator
        self._health = health

    async def open(self, command: c.OpenCall) -> None:
        """An attempt begins. Raises `InboxChanged` where the messages that it carries wait no more as they did."""
        await self._accumulator.open_call(
            command.call,
            command.attempt,
            command.resumes_spent,
            command.is_new_call,
            command.provider,
            streamed=command.streamed,
            carries=command.carries,
        )

    async def commit(self, command: c.CommitCall, asked_at: float) -> None:
        """A call completed. `asked_at`: when its request went out, by the monotonic clock."""
        fact = Committed(
            command.call,
            command.attempt,
            command.text,
            command.tool_calls,
            command.finish_reason,
            command.usage,
            command.provider,
            command.echo,
        )
        await self._accumulator.commit(fact, command.totals, outputs.of_commit(command), command.joined)
        self._health.completed(command.provider)
        info(
            "call_completed",
            turn=self._grant.turn,
            call=command.call,
            attempt=command.attempt,
            provider=command.provider,
            finish_reason=command.finish_reason,
            tool_calls=len(command.tool_calls),
            joined=len(command.joined),
            characters=len(command.text),
            input_tokens=command.usage.input_tokens if command.usage else None,
            output_tokens=command.usage.output_tokens if command.usage else None,
            took_s=round(monotonic() - asked_at, 3),
        )

    async def discard(self, command: c.DiscardCall) -> None:
        """An attempt died."""
        if command.provider and is_the_providers(command.reason):
            self._health.died(command.provider)
        await self._accumulator.discard(
            command.call,
            command.attempt,
            command.totals,
            outputs.of_discard(command),
            resumes_spent=command.resumes_spent,
            streamed=command.streamed,
            died="" if command.resumes_spent is None else command.provider,
        )

    async def fact(self, command: c.RecordToolResult | c.RecordCompaction) -> None:
        """A tool has ended, or was answered without running; or the conversation was made shorter."""
        if isinstance(command, c.RecordCompaction):
            await self._accumulator.record(command.fact, outputs.of_compaction(command))
        else:
            fact = ToolEnded(command.call, command.index, command.result, command.failure)
            await self._accumulator.record(fact, outputs.of_tool_result(command))

    async def ask(self, command: c.AskApproval, expire_s: float) -> None:
        """A person is asked, and has `expire_s` seconds to decide."""
        fact = ApprovalAsked(command.call, command.index, arguments_hash(command.tool_call))
        approval = approval_of(self._grant.turn, command.call, command.index)
        request = outputs.of_ask(command, approval, self._grant.requester)
        await self._accumulator.ask_approval(fact, request, expire_s)

    async def seal(self, command: c.Seal) -> None:
        """The turn has ended."""
        correlation = correlation_of(self._grant.turn, self._grant.nonce)
        failure = command.failure
        await self._accumulator.seal(
            command.outcome, command.reason, failure, correlation, command.totals, outputs.of_seal(command, correlation)
        )
        info(
            "turn_sealed",
            turn=self._grant.turn,
            session=self._grant.session,
            outcome=command.outcome,
            reason=command.reason,
            code=failure.code if failure else None,
            correlation_id=correlation if failure else None,
            discarded_resume_attempts=command.totals.discarded_resume_attempts,
        )
