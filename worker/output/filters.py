"""Which outputs a subscriber gets.

What belongs here: the filter bits and the rule of what passes always. What must not be known here: who subscribes.

Discards, call boundaries, errors and turn ends pass every filter: without them a reader could not know which text
stands. So do approval requests and their answers: a turn that waits for a person must reach one. A boundary text passes
a filter with either text bit, so each of them ends with the same text.
"""

from enum import Flag, auto

from worker.output.events import (
    ApprovalDecidedOutput,
    ApprovalRequestOutput,
    CallCompletedOutput,
    CompactionOutput,
    ErrorOutput,
    Output,
    ProcessingStateOutput,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ThinkingDeltaOutput,
    ThinkingOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
    UsageOutput,
)


class OutputFilter(Flag):
    """What a subscriber asks for, as bits. The values are part of the wire form."""

    NONE = 0
    TEXT = auto()
    THINKING = auto()
    TOOL_CALLS = auto()
    USAGE = auto()
    FILES = auto()
    TEXT_STREAMING = auto()
    PROCESSING_STATE = auto()

    FULL = TEXT | TEXT_STREAMING | THINKING | TOOL_CALLS | USAGE | FILES


PASSES_EVERY_FILTER = (
    TextStreamDiscardedOutput,
    CallCompletedOutput,
    ApprovalRequestOutput,
    ApprovalDecidedOutput,
    ErrorOutput,
    TurnCompletedOutput,
)

_NEEDS: dict[type[Output], OutputFilter] = {
    TextDeltaOutput: OutputFilter.TEXT_STREAMING,
    ThinkingOutput: OutputFilter.THINKING,
    ThinkingDeltaOutput: OutputFilter.THINKING,
    ToolCallOutput: OutputFilter.TOOL_CALLS,
    ToolResultOutput: OutputFilter.TOOL_CALLS,
    UsageOutput: OutputFilter.USAGE,
    ProcessingStateOutput: OutputFilter.PROCESSING_STATE,
    CompactionOutput: OutputFilter.PROCESSING_STATE,
}


def admits(wanted: OutputFilter, output: Output) -> bool:
    """Whether a subscriber that asked for `wanted` gets `output`."""
    if isinstance(output, PASSES_EVERY_FILTER):
        return True
    if isinstance(output, TextOutput):
        needs = OutputFilter.TEXT
        if output.is_call_boundary:
            needs |= OutputFilter.TEXT_STREAMING
    else:
        needs = _NEEDS[type(output)]
    return bool(wanted & needs)
