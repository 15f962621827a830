"""Reasoning that a model writes into its content, between `<think>` and `</think>`.

What belongs here: telling the two apart, however the tags are cut. What must not be known here: wire formats.

Only a tag at the very start of the content counts: anywhere else it may be what the answer is about. Nothing is
trimmed: what stands right after the closing tag is the answer.
"""

from worker.codecs.answer_text import Said
from worker.codecs.events import ReasoningDelta, TextDelta

_OPENS = "<think>"
_CLOSES = "</think>"


class ThinkTag:
    """Splits the content of one answer. `is_past`: all that follows is text."""

    def __init__(self) -> None:
        self.is_past = False
        self._is_inside = False
        self._held = ""

    def split(self, piece: str) -> list[tuple[Said, str]]:
        """The next piece of content, as what it is; the start of a tag is held until the tag is whole."""
        if self.is_past:
            return [(TextDelta, piece)]
        piece = self._held + piece
        self._held = ""
        if not self._is_inside:
            if len(piece) < len(_OPENS) and _OPENS.startswith(piece):
                self._held = piece
                return []
            if not piece.startswith(_OPENS):
                self.is_past = True
                return [(TextDelta, piece)]
            self._is_inside = True
            piece = piece[len(_OPENS) :]
        thought, tag, text = piece.partition(_CLOSES)
        if tag:
            self.is_past = True
        else:
            size = _held_back(thought)
            thought, self._held = thought[: len(thought) - size], thought[len(thought) - size :]
        return [(ReasoningDelta, thought), (TextDelta, text)]

    @property
    def is_inside(self) -> bool:
        """Whether a tag was opened and not closed."""
        return self._is_inside and not self.is_past

    def rest(self) -> list[tuple[Said, str]]:
        """What is still held when nothing more comes: it was no tag."""
        held, self._held = self._held, ""
        return [(ReasoningDelta if self._is_inside else TextDelta, held)]


def _held_back(thought: str) -> int:
    """How many characters at the end may begin the closing tag."""
    sizes = range(min(len(_CLOSES) - 1, len(thought)), 0, -1)
    return next((size for size in sizes if _CLOSES.startswith(thought[-size:])), 0)
