"""Recorded streams, and what may happen to one on its way.

A stream is cut into its events (with their blank lines), and mutations work on that list; the bytes that come out may
be anything. The corpus is what ships with the tests, and the recordings beside the checkout where they are at hand.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from worker.codecs.wires import WIRES

SHIPPED = Path(__file__).parents[1] / "codecs" / "streams"
RECORDED = Path(__file__).parents[3] / "shared" / "fixtures"
LARGEST = 8_000
"""Bytes of the largest recording that is used: the larger ones differ by their length alone."""

QUIET = {
    "chat": [b": still here\n\n", b"\n", b":\n"],
    "responses": [b": still here\n\n", b"\n", b":\n"],
    "anthropic": [b": still here\n\n", b"\n", b":\n", b'event: ping\ndata: {"type": "ping"}\n\n'],
}
"""What a peer may send between two events to say that it lives, by wire format."""

_BETWEEN_EVENTS = re.compile(rb"(?<=\n\n)|(?<=\r\n\r\n)|(?<=\r\r)")


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded stream."""

    wire: str
    name: str
    data: bytes

    @property
    def events(self) -> list[bytes]:
        """The bytes, cut behind each event."""
        return [event for event in _BETWEEN_EVENTS.split(self.data) if event]

    @property
    def is_stream(self) -> bool:
        """Whether it is one at all: some peers answer with a page or with one JSON object."""
        return re.search(rb"(?:^|[\r\n])data:", self.data) is not None


@cache
def recordings(wire: str) -> tuple[Recording, ...]:
    """All of one wire format that are not too large, by name."""
    found = [path for path in SHIPPED.rglob("*.sse") if wire_of(path) == wire]
    found += (RECORDED / wire).glob("*.sse")
    read = [Recording(wire, path.stem, path.read_bytes()) for path in sorted(found)]
    return tuple(recording for recording in read if len(recording.data) <= LARGEST)


def wire_of(path: Path) -> str:
    """The wire format of a shipped stream: its folder's name; those of chat have none of their own."""
    return path.parent.name if path.parent.name in WIRES else "chat"


def _drop(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    at = draw(st.integers(0, len(events) - 1))
    return events[:at] + events[at + 1 :]


def _duplicate(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    at, times = draw(st.integers(0, len(events) - 1)), draw(st.sampled_from([1, 1, 2, 50]))
    return events[:at] + [events[at]] * times + events[at:]


def _swap(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    one, other = draw(st.integers(0, len(events) - 1)), draw(st.integers(0, len(events) - 1))
    swapped = list(events)
    swapped[one], swapped[other] = events[other], events[one]
    return swapped


def _corrupt(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    at = draw(st.integers(0, len(events) - 1))
    event = bytearray(events[at])
    place = draw(st.integers(0, len(event) - 1))
    event[place : place + draw(st.sampled_from([0, 1, 1, 1, 9]))] = draw(
        st.sampled_from([b"", b"\x00", b"\xff", b"{", b"}", b'"', b"\\", b"\n", b"\r", b"0", b"null", b":", b"e"])
    )
    return [*events[:at], bytes(event), *events[at + 1 :]]


def _cut(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    data = b"".join(events)
    return [data[: draw(st.integers(0, len(data)))]]


def _lose(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    """A piece in the middle is gone, whatever it was part of."""
    data = b"".join(events)
    begin = draw(st.integers(0, len(data)))
    return [data[:begin], data[begin + draw(st.integers(1, 200)) :]]


def _repeat(draw: Callable[[Any], Any], events: list[bytes]) -> list[bytes]:
    """The stream begins again in its middle, as behind a proxy that asked twice."""
    return events[: draw(st.integers(0, len(events)))] + events


def quieter(draw: Callable[[Any], Any], events: list[bytes], wire: str) -> list[bytes]:
    """Signs of life between some events: they must change nothing."""
    said: list[bytes] = []
    for event in events:
        said += [draw(st.sampled_from(QUIET[wire]))] * draw(st.sampled_from([0, 0, 1, 3]))
        said.append(event)
    return said


MUTATIONS = {
    "drop": _drop,
    "duplicate": _duplicate,
    "swap": _swap,
    "corrupt": _corrupt,
    "cut": _cut,
    "lose": _lose,
    "repeat": _repeat,
}


@st.composite
def mutated(draw: Any, wire: str) -> bytes:
    """A recording of `wire` after up to three mutations, some with signs of life in between."""
    events = draw(st.sampled_from(recordings(wire))).events
    for mutate in draw(st.lists(st.sampled_from([*MUTATIONS.values()]), max_size=3)):
        events = [event for event in mutate(draw, events) if event] or [b"\n"]
    if draw(st.sampled_from([False, False, True])):
        events = quieter(draw, events, wire)
    return b"".join(events)
