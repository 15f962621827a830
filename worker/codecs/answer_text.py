"""What an answer says in words: text, reasoning and refusal, with the limit on all three together.

What belongs here: characters that came in two halves, and the limit. What must not be known here: wire formats.
"""

from worker.codecs.events import ReasoningDelta, RefusalDelta, StreamEvent, TextDelta
from worker.codecs.limits import LimitPassedError
from worker.codecs.wirejson import HalfCharacter

Said = type[TextDelta | ReasoningDelta | RefusalDelta]


class AnswerText:
    """The words of one answer. `limit`: see `StreamLimits.text_chars`. `is_answer`: some are text or refusal."""

    def __init__(self, limit: int) -> None:
        self.is_answer = False
        self._chars = 0
        self._limit = limit
        self._refusal: list[str] = []
        self._halves: dict[Said, HalfCharacter] | None = None

    @property
    def refusal(self) -> str | None:
        """The refusal so far, if there is one."""
        return "".join(self._refusal) or None

    def expect_half_characters(self) -> None:
        """From now on a piece of text may end in the first half of a character."""
        if self._halves is None:
            self._halves = {kind: HalfCharacter() for kind in (TextDelta, ReasoningDelta, RefusalDelta)}

    def say(self, kind: Said, text: str, events: list[StreamEvent]) -> None:
        """Append the next piece, unless it is empty. Raises LimitPassedError."""
        if self._halves is not None:
            text = self._halves[kind].join(text)
        if not text:
            return
        self._chars += len(text)
        if self._chars > self._limit:
            raise LimitPassedError("text_too_long", f"the answer is longer than {self._limit} characters")
        if kind is not ReasoningDelta:
            self.is_answer = True
        if kind is RefusalDelta:
            self._refusal.append(text)
        events.append(kind(text))

    def end(self, events: list[StreamEvent]) -> None:
        """The answer is whole: append what was held back for a second half that did not come."""
        for kind, half in (self._halves or {}).items():
            if rest := half.rest():
                if kind is RefusalDelta:
                    self._refusal.append(rest)
                events.append(kind(rest))
