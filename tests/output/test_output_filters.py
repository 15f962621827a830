"""What a subscriber gets, through the rule that production uses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.output_streams import Call, a_turn, outputs_of_a_turn, text_of_a_turn
from worker.output.buffer import CommitBuffer
from worker.output.events import (
    CallCompletedOutput,
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
from worker.output.filters import OutputFilter, admits

F = OutputFilter
EVERY_FILTER = [F(bits) for bits in range(1 << 7)]

ONE_OF_EACH: list[Output] = [
    TextOutput(text="a"),
    TextOutput(text="a", is_call_boundary=False),
    TextDeltaOutput(text="a"),
    ThinkingOutput(text="a"),
    ThinkingDeltaOutput(text="a"),
    ToolCallOutput(tool_call_id="t1", name="clock"),
    ToolResultOutput(tool_call_id="t1", name="clock", result="12:00"),
    UsageOutput(),
    ProcessingStateOutput(is_processing=True),
    CallCompletedOutput(),
    TextStreamDiscardedOutput(),
    ErrorOutput(),
    TurnCompletedOutput(),
]


def read_through(wanted: OutputFilter, outputs: list[Output]) -> CommitBuffer:
    buffer = CommitBuffer()
    for output in outputs:
        if admits(wanted, output):
            buffer.apply(output)
    return buffer


@pytest.mark.requirement("output:filter:always-delivered")
@pytest.mark.parametrize("wanted", EVERY_FILTER)
def test_discards_boundaries_errors_and_ends_pass_every_filter(wanted: OutputFilter) -> None:
    passed = [type(output) for output in ONE_OF_EACH if admits(wanted, output)]
    assert {CallCompletedOutput, TextStreamDiscardedOutput, ErrorOutput, TurnCompletedOutput} <= set(passed)


@pytest.mark.requirement("output:filter:text-streaming-alone")
def test_text_streaming_alone_gets_deltas_and_boundary_texts_but_no_notices() -> None:
    passed = [output for output in ONE_OF_EACH if admits(F.TEXT_STREAMING, output)]
    assert passed == [ONE_OF_EACH[0], ONE_OF_EACH[2], *ONE_OF_EACH[-4:]]


@pytest.mark.requirement("output:filter:tool-calls-alone")
def test_tool_calls_alone_gets_tools_and_what_passes_always_but_no_text() -> None:
    passed = [output for output in ONE_OF_EACH if admits(F.TOOL_CALLS, output)]
    assert passed == [ONE_OF_EACH[5], ONE_OF_EACH[6], *ONE_OF_EACH[-4:]]


@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (F.TEXT, 0),
        (F.TEXT, 1),
        (F.TEXT_STREAMING, 2),
        (F.THINKING, 3),
        (F.THINKING, 4),
        (F.TOOL_CALLS, 5),
        (F.TOOL_CALLS, 6),
        (F.USAGE, 7),
        (F.PROCESSING_STATE, 8),
    ],
)
def test_an_output_passes_with_its_bit_and_not_without_any(wanted: OutputFilter, index: int) -> None:
    assert admits(wanted, ONE_OF_EACH[index])
    assert not admits(F.NONE, ONE_OF_EACH[index])
    assert not admits(F.FILES, ONE_OF_EACH[index])


@pytest.mark.requirement("output:filter:same-text")
@pytest.mark.requirement("output:trap-t1:boundary-through-the-real-filter")
@pytest.mark.parametrize("text_bits", [F.TEXT, F.TEXT_STREAMING, F.TEXT | F.TEXT_STREAMING])
@given(calls=a_turn, other_bits=st.sampled_from(EVERY_FILTER))
def test_any_filter_with_text_ends_with_the_text_of_a_reader_without_a_filter(
    text_bits: OutputFilter, calls: list[Call], other_bits: OutputFilter
) -> None:
    outputs = outputs_of_a_turn(calls)
    unfiltered = CommitBuffer()
    for output in outputs:
        unfiltered.apply(output)
    filtered = read_through(text_bits | other_bits, outputs)
    assert filtered.committed == unfiltered.committed == text_of_a_turn(calls)
    assert filtered.discards == unfiltered.discards
    assert filtered.outcome == "completed"


@pytest.mark.requirement("output:filter:tool-calls-alone")
@given(a_turn)
def test_tool_calls_alone_ends_without_text_and_still_learns_of_every_discard_and_boundary(calls: list[Call]) -> None:
    outputs = outputs_of_a_turn(calls)
    buffer = read_through(F.TOOL_CALLS, outputs)
    assert (buffer.committed, buffer.staged, buffer.outcome) == ("", "", "completed")
    assert buffer.discards == sum(len(dead) for dead, _, _ in calls)
    assert buffer.commits == len(calls)
