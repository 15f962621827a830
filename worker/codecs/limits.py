"""What one answer may grow to, and how strictly its wire format is read; the same for every wire format.

What belongs here: the numbers, each with the code of its error. What must not be known here: any wire format.
"""

from dataclasses import dataclass
from typing import Literal

Profile = Literal["strict", "compat"]
"""`strict`: the documented lifecycle, every deviation is a protocol failure. `compat`: known deviations of real servers
are repaired first, then the same check follows."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Sizes of one answer; what passes one ends the call with an error of that limit's own code.

    `line_bytes` (`line_too_long`), `event_bytes` (`event_too_long`), `stream_bytes` (`stream_too_long`): of the event
    stream. `index` (`index_too_high`): the highest index of a choice, an item, a part or a tool call. `text_chars`
    (`text_too_long`): text, reasoning and refusal together. `argument_chars` (`arguments_too_long`): arguments of all
    tool calls together. `tool_calls` (`too_many_tool_calls`): their number.
    """

    line_bytes: int = 4 * 1024 * 1024
    event_bytes: int = 8 * 1024 * 1024
    stream_bytes: int = 256 * 1024 * 1024
    index: int = 1023
    text_chars: int = 16 * 1024 * 1024
    argument_chars: int = 4 * 1024 * 1024
    tool_calls: int = 128


DEFAULT_LIMITS = StreamLimits()


class RuleBrokenError(Exception):
    """The peer broke a rule of the wire format. `code` for programs; the message names the rule."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class LimitPassedError(RuleBrokenError):
    """The answer outgrew a limit of ours, so a part of it would be lost."""
