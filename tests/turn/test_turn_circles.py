"""A model that calls the same tool with the same result over and over."""

from unittest.mock import ANY

import pytest

from tests.support.turns import completed, opened, play, tool_call
from worker.turn.commands import Failure, RecordToolResult, RunTools, Seal
from worker.turn.events import Begin, ToolFinished
from worker.turn.facts import Committed, Fact, Progress, ToolEnded
from worker.turn.recurrence import REPEATED


@pytest.mark.requirement("turn:circles:corrected-then-settled")
def test_the_third_identical_call_is_corrected_and_the_fourth_ends_the_turn() -> None:
    scene = play().given(Begin())
    scene.take()
    for number in (1, 2):
        scene.given(completed(number, 1, "tool_calls", tool_call())).expect(ANY, RunTools(number, ANY, 1))
        scene.given(ToolFinished(number, 0, "12:00")).expect(ANY, opened(number + 1, 1, 0, is_new_call=True))
    scene.given(completed(3, 1, "tool_calls", tool_call())).expect(
        ANY,
        RecordToolResult(3, 0, tool_call(), REPEATED.result, "repeated", 1),
        opened(4, 1, 0, is_new_call=True),
    )
    scene.given(completed(4, 1, "tool_calls", tool_call())).expect(
        ANY, Seal("failed", None, Failure("provider_failure", "tool_loop", ANY), ANY)
    )


@pytest.mark.requirement("turn:circles:takeover")
def test_another_driver_comes_to_the_same() -> None:
    facts: list[Fact] = []
    for number in (1, 2):
        facts += [
            Committed(number, 1, "", (tool_call(),), "tool_calls", None, "main"),
            ToolEnded(number, 0, "12:00", None),
        ]
    third = Committed(3, 1, "", (tool_call(),), "tool_calls", None, "main")
    progress = Progress(call=3, attempt=1, calls=3)
    scene = play(facts=(*facts, third), progress=progress).given(Begin())
    scene.expect(ANY, RecordToolResult(3, 0, tool_call(), REPEATED.result, "repeated", 1), ANY)


@pytest.mark.requirement("turn:circles:other-result")
def test_a_result_that_changes_is_progress() -> None:
    scene = play().given(Begin())
    scene.take()
    for number in range(1, 9):
        scene.given(completed(number, 1, "tool_calls", tool_call())).expect(ANY, RunTools(number, ANY, 1))
        scene.given(ToolFinished(number, 0, f"12:{number:02}")).expect(ANY, ANY)
