"""A fold that begins with a snapshot, and the places by which a reader knows that it has missed something."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.output.buffer import CommitBuffer
from worker.output.events import (
    CallCompletedOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    TurnCompletedOutput,
)
from worker.output.filters import OutputFilter
from worker.output.snapshot import Cursor, Snapshot, parse_place, shown_place


def said() -> list[Output]:
    """Two calls, the second with a dead attempt, and the end."""
    outputs: list[Output] = [
        TextDeltaOutput(call=1, attempt=1, text="One. "),
        TextOutput(call=1, attempt=1, text="One. "),
        CallCompletedOutput(call=1, attempt=1),
        TextDeltaOutput(call=2, attempt=1, text="Tw"),
        TextStreamDiscardedOutput(call=2, attempt=1),
        TextDeltaOutput(call=2, attempt=2, text="Tw"),
        TextDeltaOutput(call=2, attempt=2, text="o."),
        TextOutput(call=2, attempt=2, text="Two."),
        CallCompletedOutput(call=2, attempt=2),
        TurnCompletedOutput(),
    ]
    return [output.model_copy(update={"seq": seq}) for seq, output in enumerate(outputs, 1)]


def snapshot_at(seq: int) -> Snapshot:
    """What a reader gets that joins behind so many outputs."""
    whole, place = CommitBuffer(), (0, 0)
    for output in said()[:seq]:
        whole.apply(output)
        place = (output.call, output.attempt) if isinstance(output, TextDeltaOutput) else (0, 0)
    return Snapshot(
        turn="turn_x",
        reason="joined",
        seq=seq,
        at_ms=5,
        epoch=1,
        state="running",
        marker=whole.marker,
        text=whole.committed,
        open_text=whole.staged,
        call=place[0],
        attempt=place[1],
    )


@pytest.mark.requirement("readers:fold")
@pytest.mark.parametrize("seq", range(10))
def test_a_fold_that_begins_with_a_snapshot_goes_on_as_one_that_saw_everything(seq: int) -> None:
    whole, joined = CommitBuffer(), CommitBuffer.of(snapshot_at(seq))
    for output in said():
        whole.apply(output)
        joined.apply(output)  # also what it holds already
        if output.seq >= seq:
            assert (joined.committed, joined.staged, joined.marker) == (whole.committed, whole.staged, whole.marker)
    assert (joined.committed, joined.outcome) == ("One. Two.", "completed")


@pytest.mark.requirement("readers:filter")
def test_a_snapshot_shows_a_filter_what_its_outputs_would_have_shown() -> None:
    snapshot = snapshot_at(7)
    assert (snapshot.text, snapshot.open_text) == ("One. ", "Two.")
    assert snapshot.through(OutputFilter.FULL) == snapshot
    assert snapshot.through(OutputFilter.TEXT_STREAMING) == snapshot
    assert snapshot.through(OutputFilter.TEXT) == snapshot.model_copy(update={"open_text": ""})
    assert snapshot.through(OutputFilter.USAGE) == snapshot.model_copy(update={"text": "", "open_text": ""})


@pytest.mark.requirement("readers:gap")
def test_a_cursor_knows_what_follows_what_it_has_and_what_is_missing() -> None:
    cursor = Cursor((5, 3))
    assert cursor.meets((5, 3)) == "seen"
    assert cursor.meets((4, 9)) == "seen"
    assert cursor.meets((5, 4)) == "next"
    assert cursor.meets((9, 6)) == "gap"
    assert cursor.at == (5, 4)
    assert cursor.meets((9, 3)) == "gap"  # a store that was put back counts anew


@pytest.mark.requirement("cases:t18:minus-one")
@given(text=st.text(max_size=30))
def test_only_what_an_id_looks_like_is_a_place(text: str) -> None:
    place = parse_place(text)
    assert place is None or shown_place(place) == text
    for wrong in (
        "",
        "-1",
        "0-0",
        "1-0",
        "01-1",
        "1-01",
        "1-1 ",
        "1-1-1",
        "$",
        "+1-1",
        "9" * 17 + "-1",
        "1-" + "9" * 17,
    ):
        assert parse_place(wrong) is None
    assert parse_place("1796075496871-22") == (1796075496871, 22)
