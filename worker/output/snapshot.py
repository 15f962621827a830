"""Where a reader stands in a turn's outputs, and what it is given when it joins or cannot go on from there.

What belongs here: places and their order, the snapshot and its wire form. What must not be known here: who reads, how
outputs get there.

An output's id is its place, `<ms>-<seq>`. Places grow, and `seq` grows by one each time. So a reader that meets a seq
which does not follow its own has missed something, whatever the reason: an output was trimmed, the store was put back
to an earlier state, a queue was too short. It is told so, by a `reset`: a snapshot that stands in place of all it knew.
"""

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict

from worker.output.events import SCHEMA_VERSION, Outcome
from worker.output.filters import OutputFilter

Place = tuple[int, int]
"""Milliseconds and seq of an output."""

NOWHERE: Place = (0, 0)
"""Before the first output."""

State = Literal["queued", "running", "parked", "sealed"]

_PLACE = re.compile(r"(0|[1-9][0-9]{0,15})-([1-9][0-9]{0,15})")

Reason = Literal["joined", "unknown_id", "missed", "rewound"]
"""joined: the reader said no place. unknown_id: no output has the id that it named, or not any more. missed: it read
too slowly, or what it had not read was trimmed. rewound: the store has lost what the reader had been sent."""


def parse_place(text: str) -> Place | None:
    """The place in an output's id, or None when it is none."""
    match = _PLACE.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else None


def shown_place(place: Place) -> str:
    """A place as an output's id."""
    return f"{place[0]}-{place[1]}"


class Cursor:
    """How far one reader has come."""

    def __init__(self, at: Place) -> None:
        self.at = at

    def meets(self, place: Place) -> Literal["next", "seen", "gap"]:
        """What the output at `place` is to this reader: the next one, one that it knows, or one behind a gap."""
        if place <= self.at:
            return "seen"
        if place[1] != self.at[1] + 1:
            return "gap"
        self.at = place
        return "next"


class Snapshot(BaseModel):
    """A turn at one moment, for a reader that has nothing, or must forget what it has.

    `text`: of the completed calls; `marker`: its UTF-8 bytes. `open_text`: what the open attempt (`call`, `attempt`; 0
    when none is open) has streamed. `seq` and `at_ms`: place of the last output; what comes after follows. `epoch`:
    orders the processes that have driven the turn. Both texts are empty where the reader's filter has no text, and
    `open_text` where it has no streaming text.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = SCHEMA_VERSION
    turn: str
    reason: Reason
    seq: int
    at_ms: int
    epoch: int
    state: State
    outcome: Outcome | None = None
    marker: int
    text: str
    call: int = 0
    attempt: int = 0
    open_text: str = ""

    def through(self, wanted: OutputFilter) -> "Snapshot":
        """What a reader with this filter gets of it."""
        hidden: dict[str, str] = {}
        if not wanted & (OutputFilter.TEXT | OutputFilter.TEXT_STREAMING):
            hidden["text"] = ""
        if not wanted & OutputFilter.TEXT_STREAMING:
            hidden["open_text"] = ""
        return self.model_copy(update=hidden) if hidden else self
