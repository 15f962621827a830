"""The fold: what a reader of a turn's outputs ends with."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.output_streams import (
    Call,
    a_turn,
    boundary,
    delta,
    discard,
    notice,
    outputs_of_a_turn,
    text_of_a_turn,
    whole,
)
from worker.output.buffer import CommitBuffer
from worker.output.events import (
    ErrorOutput,
    Output,
    ThinkingDeltaOutput,
    ThinkingOutput,
    TurnCompletedOutput,
)


def fold(*outputs: Output) -> CommitBuffer:
    buffer = CommitBuffer()
    for output in outputs:
        buffer.apply(output)
    return buffer


# The vectors of turn-resume 4.1, as old writers send them: without any id.


@pytest.mark.requirement("output:fold:discard-cuts-to-the-marker")
@pytest.mark.requirement("output:vector:several-deltas-then-a-discard")
def test_a_discard_drops_every_delta_of_the_dead_call() -> None:
    buffer = fold(delta("The "), delta("invoice"), delta(" is"), discard())
    assert (buffer.committed, buffer.staged, buffer.marker) == ("", "", 0)


@pytest.mark.requirement("output:fold:discard-cuts-to-the-marker")
@pytest.mark.requirement("output:vector:preamble-kept")
def test_a_completed_preamble_is_kept_and_only_the_dead_part_is_cut() -> None:
    buffer = fold(delta("Let me "), delta("look."), whole("Let me look."), delta("The invo"), discard())
    assert (buffer.committed, buffer.staged) == ("Let me look.", "")


@pytest.mark.requirement("output:fold:silent-call-contributes")
@pytest.mark.requirement("output:vector:one-text-after-a-discard")
def test_a_single_text_after_a_discard_is_the_answer() -> None:
    assert fold(delta("The invo"), discard(), whole("The invoice is paid.")).committed == "The invoice is paid."


@pytest.mark.requirement("output:fold:notices-are-no-answer")
@pytest.mark.requirement("output:vector:notice-moves-nothing")
@pytest.mark.requirement("output:trap-t10:notices-stand-apart")
def test_a_notice_neither_moves_the_marker_nor_touches_what_is_staged() -> None:
    buffer = fold(delta("The invo"), notice("This prompt has expired."))
    assert (buffer.committed, buffer.staged, buffer.marker, buffer.notices) == ("", "The invo", 0, 1)
    buffer.apply(discard())
    assert (buffer.committed, buffer.staged) == ("", "")


@pytest.mark.requirement("output:fold:streamed-text-counts-once")
@pytest.mark.requirement("output:vector:delta-then-full-text")
def test_a_call_that_streamed_and_then_repeats_its_text_contributes_it_once() -> None:
    assert fold(delta("Due "), delta("Friday."), whole("Due Friday.")).committed == "Due Friday."


# The same with ids, and what else the protocol promises.


@pytest.mark.requirement("output:fold:streamed-text-counts-once")
def test_the_two_halves_of_a_boundary_commit_once() -> None:
    buffer = fold(delta("Due ", 1, 1), delta("Friday.", 1, 1), whole("Due Friday.", 1, 1), boundary(1, 1))
    assert (buffer.committed, buffer.commits) == ("Due Friday.", 1)


@pytest.mark.requirement("output:fold:either-boundary-commits")
def test_a_boundary_without_text_commits_what_was_staged() -> None:
    buffer = fold(delta("Due ", 1, 1), delta("Friday.", 1, 1), boundary(1, 1))
    assert (buffer.committed, buffer.staged) == ("Due Friday.", "")


@pytest.mark.requirement("output:fold:streamed-text-counts-once")
def test_whether_deltas_were_seen_is_asked_for_each_call_anew() -> None:
    buffer = fold(delta("One. ", 1, 1), whole("One. ", 1, 1), boundary(1, 1), whole("Two.", 2, 1), boundary(2, 1))
    assert buffer.committed == "One. Two."


@pytest.mark.requirement("turn:trap-t5:white-space-only-call")
def test_a_call_of_white_space_only_is_committed_and_the_next_one_is_not_lost() -> None:
    buffer = fold(delta("\n", 1, 1), whole("\n", 1, 1), boundary(1, 1), whole("Due Friday.", 2, 1), boundary(2, 1))
    assert buffer.committed == "\nDue Friday."


@pytest.mark.requirement("output:fold:whole-text-replaces")
def test_the_whole_text_replaces_a_staged_part_that_came_with_holes() -> None:
    assert fold(delta("voice is", 1, 1), whole("The invoice is paid.", 1, 1)).committed == "The invoice is paid."


@pytest.mark.requirement("output:trap-t12:nothing-between-calls")
def test_nothing_is_put_between_the_texts_of_two_calls() -> None:
    assert fold(whole("One.", 1, 1), boundary(1, 1), whole("Two.", 2, 1), boundary(2, 1)).committed == "One.Two."


@pytest.mark.requirement("output:fold:discard-of-an-unseen-attempt")
@pytest.mark.parametrize("attempt", [(0, 0), (1, 1), (2, 1), (7, 3)])
def test_a_discard_of_an_attempt_that_was_never_seen_is_harmless(attempt: tuple[int, int]) -> None:
    buffer = fold(whole("One.", 1, 1), boundary(1, 1), discard(*attempt), discard(*attempt), whole("Two.", 8, 1))
    assert buffer.committed == "One.Two."


@pytest.mark.requirement("output:fold:stale-deltas-dropped")
def test_late_deltas_of_a_discarded_attempt_are_dropped() -> None:
    buffer = fold(delta("The invo", 1, 1), discard(1, 1), delta("ice", 1, 1), delta("Due ", 1, 2), delta("x", 1, 1))
    assert (buffer.staged, buffer.stale) == ("Due ", 2)
    buffer.apply(boundary(1, 2))
    assert buffer.committed == "Due "


@pytest.mark.requirement("output:fold:stale-deltas-dropped")
def test_late_outputs_of_a_call_that_completed_change_nothing() -> None:
    buffer = fold(whole("One.", 1, 1), boundary(1, 1), delta("One.", 1, 1), discard(1, 1), delta("Tw", 2, 1))
    assert (buffer.committed, buffer.staged, buffer.stale) == ("One.", "Tw", 2)


@pytest.mark.requirement("output:fold:dead-text-never-commits")
def test_a_boundary_of_a_discarded_attempt_commits_nothing() -> None:
    buffer = fold(delta("The invo", 1, 1), discard(1, 1), whole("The invo", 1, 1), boundary(1, 1))
    assert (buffer.committed, buffer.marker, buffer.commits) == ("", 0, 0)


@pytest.mark.requirement("output:fold:dead-text-never-commits")
def test_a_newer_attempt_drops_the_staged_text_of_an_older_one_whose_discard_was_lost() -> None:
    assert fold(delta("The invo", 1, 1), delta("Due Friday.", 1, 2), boundary(1, 2)).committed == "Due Friday."


@pytest.mark.requirement("output:fold:dead-text-never-commits")
def test_an_older_attempt_that_still_speaks_after_a_newer_one_began_is_not_heard() -> None:
    buffer = fold(delta("Due ", 1, 2), delta("The invo", 1, 1), delta("Friday.", 1, 2), boundary(1, 2))
    assert (buffer.committed, buffer.stale) == ("Due Friday.", 1)


@pytest.mark.requirement("output:fold:late-discard-spares-the-next-attempt")
def test_a_late_discard_leaves_the_text_of_the_next_attempt_alone() -> None:
    buffer = fold(delta("The invo", 1, 1), discard(1, 1), delta("Due ", 1, 2), discard(1, 1))
    assert buffer.staged == "Due "


@pytest.mark.requirement("output:fold:repeated-outputs")
def test_outputs_that_were_seen_before_change_nothing() -> None:
    outputs = [delta("Due ", 1, 1, 1), delta("Friday.", 1, 1, 2), whole("Due Friday.", 1, 1, 3), boundary(1, 1, 4)]
    buffer = fold(*outputs, *outputs, *outputs[2:])
    assert (buffer.committed, buffer.staged, buffer.repeated) == ("Due Friday.", "", 6)


@pytest.mark.requirement("output:fold:sealed")
def test_nothing_changes_after_the_seal() -> None:
    buffer = fold(whole("One.", 1, 1), delta("Tw", 2, 1), TurnCompletedOutput(outcome="failed"))
    assert (buffer.committed, buffer.staged, buffer.outcome, buffer.sealed) == ("One.", "", "failed", True)
    for output in (delta("x", 2, 1), whole("x", 2, 1), boundary(2, 1), discard(2, 1), TurnCompletedOutput()):
        assert not buffer.apply(output)
    buffer.stage("x")
    buffer.commit("x")
    buffer.discard()
    buffer.seal("completed")
    assert (buffer.committed, buffer.staged, buffer.outcome, buffer.discards) == ("One.", "", "failed", 0)


@pytest.mark.requirement("output:trap-t3:errors-do-not-end")
def test_an_error_is_no_end() -> None:
    buffer = fold(ErrorOutput(terminal=False), ErrorOutput(), whole("Due Friday.", 1, 1), TurnCompletedOutput())
    assert (buffer.committed, buffer.outcome) == ("Due Friday.", "completed")


@pytest.mark.requirement("output:trap-t4:outcome-is-checked")
def test_a_failed_end_without_an_error_is_no_success() -> None:
    assert fold(whole("One.", 1, 1), TurnCompletedOutput(outcome="failed")).outcome == "failed"


@pytest.mark.requirement("output:fold:thinking-is-no-answer")
def test_thinking_never_enters_the_text() -> None:
    buffer = fold(ThinkingDeltaOutput(text="hm", call=1, attempt=1), ThinkingOutput(text="hm", call=1), boundary(1, 1))
    assert buffer.committed == ""


@pytest.mark.requirement("output:wire:unknown-type")
def test_an_output_that_cannot_be_read_is_counted_and_nothing_else() -> None:
    buffer = fold(delta("Due", 1, 1))
    assert not buffer.apply(None)
    assert (buffer.unknown, buffer.staged) == (1, "Due")


def test_a_reader_that_joins_late_goes_on_from_a_snapshot() -> None:
    buffer = CommitBuffer()
    buffer.commit("One.")
    buffer.stage("Tw")
    buffer.apply(delta("o.", 2, 1, 9))
    assert buffer.staged == "Two."
    buffer.apply(boundary(2, 1, 10))
    assert buffer.committed == "One.Two."


def test_the_marker_counts_bytes() -> None:
    assert fold(whole("grün ", 1, 1), whole("日本", 2, 1)).marker == len("grün 日本".encode())


@pytest.mark.requirement("output:fold:cost")
def test_a_discard_does_not_touch_the_committed_text_and_a_delta_not_the_staged() -> None:
    buffer = fold(*(whole("x" * 1000, call, 1) for call in range(1, 101)))
    committed = buffer._committed
    pieces = list(committed)
    for attempt in range(1, 50):
        buffer.apply(delta("y", 101, attempt))
        buffer.apply(delta("z", 101, attempt))
        assert buffer._staged == ["y", "z"]
        buffer.apply(discard(101, attempt))
    assert buffer._committed is committed
    assert all(before is after for before, after in zip(pieces, committed, strict=True))


verbs = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), st.text(max_size=5)),
        st.tuples(st.just("commit"), st.none() | st.text(max_size=5)),
        st.tuples(st.just("discard"), st.none()),
        st.tuples(st.just("seal"), st.none()),
    ),
    max_size=30,
)


@pytest.mark.requirement("output:fold:marker-within-buffer")
@given(verbs)
def test_the_marker_lies_within_the_buffer_and_text_behind_it_is_never_delivered(
    steps: list[tuple[str, str | None]],
) -> None:
    """Design I1, against a reference of one text and one number."""
    buffer, text, marker, sealed = CommitBuffer(), "", 0, False
    for verb, argument in steps:
        if verb == "stage":
            buffer.stage(argument or "")
            text += "" if sealed else argument or ""
        elif verb == "commit":
            buffer.commit(argument)
            if not sealed:
                text = text if argument is None else text[:marker] + argument
                marker = len(text)
        elif verb == "discard":
            buffer.discard()
            text = text[:marker]
        else:
            buffer.seal("completed")
            text, sealed = text[:marker], True
        assert (buffer.committed, buffer.staged) == (text[:marker], text[marker:])
        assert buffer.marker == len(text[:marker].encode())


@pytest.mark.requirement("output:fold:exactly-the-completed-calls")
@given(a_turn, st.data())
def test_a_reader_ends_with_the_completed_calls_text_however_often_parts_are_repeated(
    calls: list[Call], data: st.DataObject
) -> None:
    outputs = outputs_of_a_turn(calls)
    buffer = CommitBuffer()
    for index, output in enumerate(outputs):
        buffer.apply(output)
        again = data.draw(st.integers(0, index), label="repeat from")
        for repeated in outputs[again : index + 1]:
            buffer.apply(repeated)
    assert buffer.committed == text_of_a_turn(calls)
