"""Whether an endpoint is sent to and how it fares, for people and for programs.

What belongs here: the words and the object that commands share. What must not be known here: how it is found, what else
is told of an endpoint.
"""

from dataclasses import asdict

from channels.console.terminal import time_of
from channels.delivery.faring import Faring
from channels.delivery.lane import Lane


def standing_object(lane: Lane, faring: Faring) -> dict[str, object]:
    """For a program."""
    return {"state": lane.standing, "why": lane.why, "since_ms": lane.since_ms or None, **asdict(faring)}


def standing_words(lane: Lane, faring: Faring) -> str:
    """For a person: the standing, why, and what goes wrong."""
    stands = (
        lane.standing if lane.standing == "active" else f"{lane.standing} since {time_of(lane.since_ms)}: {lane.why}"
    )
    return "; ".join(filter(None, (stands, faring_words(faring))))


def faring_words(faring: Faring) -> str:
    """What goes wrong, for a person; empty: nothing does."""
    words = []
    if faring.failed:
        words.append(f"failing since {time_of(faring.failing_since_ms)} ({faring.failed} attempts)")
    if faring.open_until_ms is not None:
        words.append(f"next attempt due at {time_of(faring.open_until_ms)}, one at a time until it takes one")
    if faring.not_before_ms is not None:
        words.append(f"its receiver asked to wait until {time_of(faring.not_before_ms)}")
    return "; ".join(words)
