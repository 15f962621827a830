"""A result that is too long keeps both its ends, and says how much is missing."""

import re
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from worker.tools.clamp import clamped

NOTE = re.compile(r"\n\[\.\.\. (\d+) characters left out \.\.\.\]\n")
ACCENT, FAMILY = "e\u0301", "👩\u200d👩\u200d👧"

texts = st.lists(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from([ACCENT, FAMILY, "👍🏽", "\r\n", "x" * 50])),
    max_size=400,
).map("".join)


@pytest.mark.requirement("tools:result:clamped")
@given(text=texts, limit=st.integers(100, 500))
@example(text="e" + "\u0301" * 1000, limit=100)
@example(text="x" * 101, limit=100)
def test_a_clamped_text_fits_and_is_the_text_less_what_it_says_is_left_out(text: str, limit: int) -> None:
    told = clamped(text, limit)
    if len(text) <= limit:
        assert told == text
        return
    assert len(told) <= limit
    notes = [note for note in NOTE.finditer(told) if is_note_of(text, told, note)]
    assert notes


def is_note_of(text: str, told: str, note: re.Match[str]) -> bool:
    head, tail = told[: note.start()], told[note.end() :]
    left_out = int(note[1])
    return text.startswith(head) and text.endswith(tail) and len(head) + left_out + len(tail) == len(text)


@pytest.mark.requirement("tools:result:clamped")
@pytest.mark.parametrize("cluster", [ACCENT, FAMILY, "👍🏽", "\r\n"])
def test_no_cut_goes_through_what_a_reader_sees_as_one_character(cluster: str) -> None:
    for shift in range(len(cluster)):
        text = "x" * shift + cluster * 200
        head, _, tail = NOTE.split(clamped(text, 150))
        assert (len(head) - shift) % len(cluster) == 0
        assert tail.endswith(cluster)
        assert not unicodedata.combining(tail[0])
        assert len(tail) % len(cluster) == 0


@pytest.mark.requirement("tools:result:clamped")
def test_a_letter_with_more_accents_than_any_has_is_cut_all_the_same() -> None:
    head, _, tail = NOTE.split(clamped("e" + "\u0301" * 1000, 150))
    assert head
    assert tail
