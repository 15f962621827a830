"""The text of a Responses answer in the order of its places, however its items are interleaved.

What belongs here: which text may be given now, and which waits. What must not be known here: events of the wire
format, what a place holds.

A place is (output index, content index). Text waits while an earlier place is open, as that one may still speak.
"""

from bisect import bisect_left, insort

from worker.codecs.answer_text import AnswerText
from worker.codecs.events import StreamEvent, TextDelta
from worker.codecs.limits import LimitPassedError, RuleBrokenError

Place = tuple[int, int]


class TextOrder:
    """Gives text to `text`. `limit`: characters that may wait, see `StreamLimits.text_chars`."""

    def __init__(self, text: AnswerText, limit: int) -> None:
        self._text = text
        self._limit = limit
        self._open: list[Place] = []
        self._held: dict[Place, list[str]] = {}
        self._waiting: list[Place] = []
        self._held_chars = 0
        self._given: Place = (-1, -1)

    def open(self, place: Place) -> None:
        """Text may come at `place`, until it is closed. A place is opened once."""
        insort(self._open, place)

    def close(self, place: Place, events: list[StreamEvent]) -> None:
        """Nothing more comes at `place`: give what waited for that. A place that is not open is none."""
        found = bisect_left(self._open, place)
        if found < len(self._open) and self._open[found] == place:
            del self._open[found]
            self._release(events)

    def say(self, place: Place, text: str, events: list[StreamEvent]) -> None:
        """The next piece at `place`. Raises RuleBrokenError when text of a later place was given before."""
        if place < self._given:
            raise RuleBrokenError("text_out_of_order", "text must not come for a place before text that was given")
        if self._open and self._open[0] < place:
            if place not in self._held:
                self._held[place] = []
                insort(self._waiting, place)
            self._held[place].append(text)
            self._held_chars += len(text)
            if self._held_chars > self._limit:
                raise LimitPassedError("text_too_long", f"the answer is longer than {self._limit} characters")
        else:
            self._give(place, text, events)

    def _release(self, events: list[StreamEvent]) -> None:
        while self._waiting and not (self._open and self._open[0] < self._waiting[0]):
            place = self._waiting.pop(0)
            text = "".join(self._held.pop(place))
            self._held_chars -= len(text)
            self._give(place, text, events)

    def _give(self, place: Place, text: str, events: list[StreamEvent]) -> None:
        self._given = place
        self._text.say(TextDelta, text, events)
