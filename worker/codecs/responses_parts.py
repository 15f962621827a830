"""One text that is streamed inside an item of a Responses answer, and the events that belong to it.

What belongs here: which events carry which text, and that a text ends as it was streamed. What must not be known here:
items, what a text means to the answer, repairs.

A text is declared (parts only), grows by deltas, gets its final value, and is closed (parts only), in that order.
Pieces are joined once, at the end, so the work is linear in their length.
"""

from typing import NamedTuple

from worker.codecs.limits import RuleBrokenError
from worker.codecs.wirejson import HalfCharacter

MESSAGE = "message"
REASONING = "reasoning"
FUNCTION = "function_call"
CUSTOM = "custom_tool_call"
CALLS = (FUNCTION, CUSTOM)


class Channel(NamedTuple):
    """One kind of text. `event`: its events, less `.delta` and `.done`. `holder`: the type of item that streams it.

    `place`: where an item holds it: a list of parts, or a field that is the text itself. `part`: the type of its part,
    which is also the field that a part without a type of its own would be. `value`: the field of its final value.
    """

    event: str
    holder: str
    place: str
    part: str
    value: str


_CHANNELS = (
    Channel("response.output_text", MESSAGE, "content", "output_text", "text"),
    Channel("response.refusal", MESSAGE, "content", "refusal", "refusal"),
    Channel("response.reasoning_text", REASONING, "content", "reasoning_text", "text"),
    Channel("response.reasoning_summary_text", REASONING, "summary", "summary_text", "text"),
    Channel("response.function_call_arguments", FUNCTION, "arguments", "arguments", "arguments"),
    Channel("response.custom_tool_call_input", CUSTOM, "input", "input", "input"),
)
DELTAS = {f"{channel.event}.delta": channel for channel in _CHANNELS}
VALUES = {f"{channel.event}.done": channel for channel in _CHANNELS}
BY_PART = {channel.part: channel for channel in _CHANNELS}
INDEX_OF = {"content": "content_index", "summary": "summary_index"}
"""The field that tells the parts of one place apart. A place that is not in it holds one text."""
PLACES = {MESSAGE: ("content",), REASONING: ("summary", "content"), FUNCTION: ("arguments",), CUSTOM: ("input",)}
"""Where an item of a type holds what it streams; items of other types stream nothing that we read."""
PART_ADDED = {"response.content_part.added": "content", "response.reasoning_summary_part.added": "summary"}
PART_DONE = {"response.content_part.done": "content", "response.reasoning_summary_part.done": "summary"}
PART_EVENT = {"content": "response.content_part", "summary": "response.reasoning_summary_part"}


class Streamed:
    """One text. `declared`, `done`, `closed`: how far its lifecycle is."""

    __slots__ = ("_half", "_pieces", "channel", "closed", "declared", "done")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.declared = False
        self.done = False
        self.closed = False
        self._pieces: list[str] = []
        self._half: HalfCharacter | None = None

    def add(self, piece: str, *, halves: bool) -> str:
        """Take the next piece; what of it can be told. `halves`: it may end in the first half of a character."""
        if self.done:
            raise RuleBrokenError("text_after_done", f"{self.channel.part}: no delta comes after the final value")
        if halves:
            if self._half is None:
                self._half = HalfCharacter()
            piece = self._half.join(piece)
        return self._keep(piece)

    def rest(self) -> str:
        """What was held back for a second half that did not come."""
        rest = "" if self._half is None else self._half.rest()
        self._half = None
        return self._keep(rest)

    def finish(self, value: str) -> None:
        """The final value came. Raises RuleBrokenError when it is not what was streamed."""
        if self.done:
            raise RuleBrokenError("done_twice", f"{self.channel.part}: the final value comes once")
        if value != self.value():
            raise _changed(self.channel)
        self.done = True

    def check(self, value: str) -> None:
        """The value is repeated. Raises RuleBrokenError when it is another one."""
        if value != self.value():
            raise _changed(self.channel)

    def value(self) -> str:
        """The text as far as it has come, as if nothing more came."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        text = self._pieces[0] if self._pieces else ""
        return text if self._half is None else text + self._half.rest()

    def _keep(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece


def _changed(channel: Channel) -> RuleBrokenError:
    code = "arguments_changed" if channel.holder in CALLS else "text_changed"
    return RuleBrokenError(code, f"{channel.part}: the final value must be what was streamed")
