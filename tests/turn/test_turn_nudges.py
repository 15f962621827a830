"""Answers without a word: the model is asked again, a bounded number of times."""

from typing import Any
from unittest.mock import ANY

import pytest

from tests.support.turns import begun, completed, opened, play, text, tool_call
from worker.codecs.events import Completed, ReasoningDelta
from worker.codecs.messages import AssistantMessage, Echo, ToolMessage, UserMessage
from worker.turn.commands import Failure, Seal
from worker.turn.events import Begin, Heard, ToolFinished
from worker.turn.facts import Committed, Progress, ToolEnded
from worker.turn.transcript import BE_BRIEF, NUDGE, with_turn

EMPTY = Committed(1, 1, "", (), "stop", None, "main")


def failed_empty() -> Any:
    return Seal("failed", None, Failure("provider_failure", "empty_answer", ANY), ANY)


@pytest.mark.requirement("turn:nudge:asks-again")
@pytest.mark.parametrize("words", ["", " \n"])
def test_an_answer_without_a_word_is_asked_for_again_in_the_next_call(words: str) -> None:
    scene = begun()
    if words:
        scene.given(text(1, 1, words)).expect(ANY)
    scene.given(completed(1, 1)).expect(ANY, opened(2, 1, 0, is_new_call=True))
    assert scene.commands[-1].request.messages == (UserMessage("What is due?"), UserMessage(NUDGE))
    scene.given(text(2, 1, "Friday.")).expect(ANY)
    scene.given(completed(2, 1)).expect(ANY, Seal("completed", None, None, ANY))


@pytest.mark.requirement("turn:nudge:reasoning-is-no-answer")
def test_an_answer_of_reasoning_alone_is_asked_for_again() -> None:
    scene = begun()
    scene.given(Heard(1, 1, ReasoningDelta("Hm."))).expect(ANY)
    scene.given(completed(1, 1)).expect(ANY, opened(2, 1, 0, is_new_call=True))


@pytest.mark.requirement("turn:nudge:cut-before-a-word")
def test_a_model_that_spent_its_tokens_before_the_first_word_is_asked_to_be_brief_and_its_cut_tool_call_is_void() -> (
    None
):
    scene = begun()
    scene.given(completed(1, 1, "length", tool_call())).expect(ANY, opened(2, 1, 0, is_new_call=True))
    assert scene.commands[-1].request.messages == (UserMessage("What is due?"), UserMessage(BE_BRIEF))


@pytest.mark.requirement("turn:nudge:bounded")
def test_before_any_tool_ran_it_is_asked_again_five_times_and_then_the_turn_has_failed() -> None:
    scene = begun()
    for number in range(1, 6):
        scene.given(completed(number, 1)).expect(ANY, opened(number + 1, 1, 0, is_new_call=True))
    scene.given(completed(6, 1)).expect(ANY, failed_empty())


@pytest.mark.requirement("turn:nudge:bounded")
def test_a_model_that_is_cut_short_again_and_again_ends_incomplete() -> None:
    scene = begun(empty_nudges=1)
    scene.given(completed(1, 1, "length")).expect(ANY, ANY)
    scene.given(completed(2, 1, "length")).expect(ANY, Seal("incomplete", "length", None, ANY))


@pytest.mark.requirement("turn:nudge:counts-anew-after-tools")
def test_after_tools_it_counts_anew_up_to_the_larger_number() -> None:
    scene = begun(empty_nudges=1, empty_nudges_after_tools=2)
    scene.given(completed(1, 1)).expect(ANY, ANY)
    scene.given(completed(2, 1, "tool_calls", tool_call())).expect(ANY, ANY)
    scene.given(ToolFinished(2, 0, "12:00")).expect(ANY, ANY)
    for number in (3, 4):
        scene.given(completed(number, 1)).expect(ANY, opened(number + 1, 1, 0, is_new_call=True))
    scene.given(completed(5, 1)).expect(ANY, failed_empty())


@pytest.mark.requirement("turn:nudge:bounded")
def test_nudges_count_as_calls() -> None:
    scene = begun(max_calls=1)
    scene.given(completed(1, 1)).expect(ANY, Seal("failed", None, Failure("provider_failure", "max_calls", ANY), ANY))


@pytest.mark.requirement("turn:nudge:survives-a-takeover")
def test_another_driver_reads_from_the_journal_how_often_it_was_asked() -> None:
    two = (EMPTY, Committed(2, 1, "", (), "stop", None, "main"))
    progress = Progress(call=2, attempt=1, calls=2)
    scene = play(facts=two, progress=progress, empty_nudges=2)
    scene.given(Begin()).expect(ANY, opened(3, 1, 0, is_new_call=True))
    scene.given(completed(3, 1)).expect(ANY, failed_empty())


@pytest.mark.requirement("turn:nudge:filtered-is-not-empty")
@pytest.mark.parametrize(
    ("finish_reason", "refusal"), [("content_filter", None), ("refusal", None), ("stop", "I can't.")]
)
def test_what_was_filtered_or_refused_is_not_asked_for_again(finish_reason: str, refusal: str | None) -> None:
    scene = begun()
    reason = "content_filter" if finish_reason == "content_filter" else "refusal"
    scene.given(completed(1, 1, finish_reason, refusal=refusal)).expect(ANY, Seal("incomplete", reason, None, ANY))


@pytest.mark.requirement("turn:nudge:not-remembered")
def test_later_turns_read_nothing_of_empty_answers_and_nudges() -> None:
    facts = (
        EMPTY,
        Committed(2, 1, "", (tool_call(),), "tool_calls", None, "main"),
        ToolEnded(2, 0, "12:00", None),
        Committed(3, 1, "", (), "stop", None, "main"),
        Committed(4, 1, "Noon.", (), "stop", None, "main"),
    )
    assert with_turn((), "What is due?", facts) == (
        UserMessage("What is due?"),
        AssistantMessage("", (tool_call(),)),
        ToolMessage("t1", "clock", "12:00"),
        AssistantMessage("Noon."),
    )


@pytest.mark.requirement("turn:paused:goes-on")
@pytest.mark.parametrize("words", ["", "Searching."])
def test_a_provider_that_pauses_in_its_own_work_gets_its_answer_back_and_goes_on(words: str) -> None:
    items: tuple[dict[str, object], ...] = ({"type": "server_tool_use", "id": "s1"},)
    scene = begun()
    if words:
        scene.given(text(1, 1, words)).take()
    paused = Completed("pause_turn", (), None, echo=items)
    scene.given(Heard(1, 1, paused)).expect(ANY, opened(2, 1, 0, is_new_call=True))
    assert scene.commands[-1].request.messages[1:] == (AssistantMessage(words, (), Echo("main", "chat", items)),)
    scene.given(text(2, 1, "Friday.")).take()
    scene.given(completed(2, 1)).expect(ANY, Seal("completed", None, None, ANY))
