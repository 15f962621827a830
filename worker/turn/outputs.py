"""What the readers of a turn are told of each step.

What belongs here: the outputs that go with a command, in their order. What must not be known here: who reads, how
outputs are numbered and stored.

The boundary comes after the call's text, usage after both, and nothing after the turn's end.
"""

from worker.codecs.events import ToolCall, Usage
from worker.output.approvals import OPTIONS
from worker.output.events import (
    ApprovalRequestOutput,
    CallCompletedOutput,
    CompactionOutput,
    ErrorOutput,
    Output,
    TextOutput,
    TextStreamDiscardedOutput,
    ThinkingOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
    UsageOutput,
)
from worker.turn.commands import AskApproval, CommitCall, DiscardCall, RecordCompaction, RecordToolResult, Seal, Timing
from worker.turn.usage import UsageTotals

_NO_TIMING = Timing()


def of_commit(command: CommitCall) -> tuple[Output, ...]:
    """The call's text if it has any (white space is text), the boundary always, then thinking and usage."""
    call, attempt = command.call, command.attempt
    outputs: list[Output] = []
    if command.text:
        outputs.append(TextOutput(call=call, attempt=attempt, text=command.text))
    outputs.append(CallCompletedOutput(call=call, attempt=attempt, finish_reason=command.finish_reason))
    if command.thinking:
        outputs.append(ThinkingOutput(call=call, attempt=attempt, text=command.thinking))
    if command.usage is not None or command.totals.discarded_resume_attempts is not None:
        outputs.append(_usage(command.usage or Usage(), command.totals, call, attempt, command.timing))
    return tuple(outputs)


def of_discard(command: DiscardCall) -> tuple[Output, ...]:
    """The discard, also of an attempt that said nothing."""
    return (
        TextStreamDiscardedOutput(
            call=command.call,
            attempt=command.attempt,
            reason=command.reason,
            discarded_bytes=command.streamed_bytes,
        ),
    )


def of_compaction(command: RecordCompaction) -> tuple[Output, ...]:
    """The conversation was made shorter, and what it cost to sum it up."""
    fact = command.fact
    told = CompactionOutput(
        messages_before=fact.messages_before,
        messages_after=fact.messages_after,
        results_cleared=fact.results_cleared,
        summarised=fact.summary is not None,
        forced=fact.forced,
        failure=command.failure.code if command.failure else None,
    )
    if command.usage is None:
        return (told,)
    return (told, _usage(command.usage, command.totals, 0, 0).model_copy(update={"purpose": "compaction"}))


def of_ask(command: AskApproval, approval: str, requester: str | None) -> ApprovalRequestOutput:
    """A person is asked. `approval`: its id; `requester`: who alone may decide. The store fills in the expiry."""
    return ApprovalRequestOutput(
        call=command.call,
        attempt=command.attempt,
        approval=approval,
        tool_call_id=command.tool_call.id,
        name=command.tool_call.name,
        arguments=command.tool_call.arguments,
        options=OPTIONS,
        requester=requester,
    )


def of_tool_start(call: int, tool_call: ToolCall, attempt: int = 0) -> tuple[Output, ...]:
    """One tool of a `RunTools` is about to run."""
    return (
        ToolCallOutput(
            call=call,
            attempt=attempt,
            tool_call_id=tool_call.id,
            name=tool_call.name,
            arguments=tool_call.arguments,
        ),
    )


def of_tool_result(command: RecordToolResult) -> tuple[Output, ...]:
    """One tool has ended, or was never run and the result says why."""
    return (
        ToolResultOutput(
            call=command.call,
            attempt=command.attempt,
            tool_call_id=command.tool_call.id,
            name=command.tool_call.name,
            result=command.result,
            failure=command.failure,
        ),
    )


def of_seal(command: Seal, correlation_id: str) -> tuple[Output, ...]:
    """What discarded attempts cost, when no completed call can still report it; the failure; the end."""
    outputs: list[Output] = []
    if command.has_untold_discards:
        outputs.append(_usage(Usage(), command.totals, 0, 0))
    if command.failure is not None:
        outputs.append(
            ErrorOutput(
                message=command.failure.message,
                category=command.failure.category,
                code=command.failure.code,
                correlation_id=correlation_id,
            )
        )
    outputs.append(TurnCompletedOutput(outcome=command.outcome, reason=command.reason))
    return tuple(outputs)


def _usage(usage: Usage, totals: UsageTotals, call: int, attempt: int, timing: Timing = _NO_TIMING) -> UsageOutput:
    return UsageOutput(
        call=call,
        attempt=attempt,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        cache_write_input_tokens=usage.cache_write_input_tokens,
        first_delta_ms=_ms(timing.first_delta_s),
        surviving_first_delta_ms=_ms(timing.surviving_first_delta_s),
        discarded_resume_attempts=totals.discarded_resume_attempts,
        discarded_resume_estimated_input_tokens=totals.discarded_resume_estimated_input_tokens,
    )


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
