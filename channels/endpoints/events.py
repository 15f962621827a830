"""The types of events that endpoints can be told of.

What belongs here: their names, and what a pattern over them is. What must not be known here: who subscribes to what,
what an event says.
"""

import difflib

from worker.errors import ConfigurationError

TEST = "endpoint.test"
"""Sent to one endpoint at an operator's request."""

TYPES: tuple[str, ...] = (
    "turn.completed",
    "turn.incomplete",
    "turn.failed",
    "turn.cancelled",
    "turn.skipped",
    "turn.dead",
    "call.completed",
    "approval.requested",
    "approval.decided",
    "approval.expired",
    "reminder.fired",
    "reminder.failed",
    "reminder.skipped",
    "reminder.disabled",
    "delivery.failing",
    "delivery.recovered",
    "delivery.endpoint_disabled",
    "delivery.dead",
    TEST,
)
"""Every type there is. Those of reminders are reserved: nothing tells of them yet."""

ALL = "*"
_OPERATIONAL = ("delivery.", "endpoint.")
_FAMILIES = tuple(dict.fromkeys(f"{one.partition('.')[0]}.*" for one in TYPES))
PATTERNS: tuple[str, ...] = (ALL, *_FAMILIES, *TYPES)
"""All that may be subscribed to."""


def check_pattern(field: str, text: str) -> str:
    """Give `text` back when it is a known type, a family such as `turn.*`, or `*`; else raise `ConfigurationError`."""
    if text in PATTERNS:
        return text
    close = difflib.get_close_matches(text, PATTERNS, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"use some of {', '.join(PATTERNS)}"
    raise ConfigurationError(f"{field}: there is no event type {text[:80]!r}; {hint}")


def is_operational(pattern: str) -> bool:
    """Whether a pattern that was checked means events of deliveries or endpoints alone."""
    return pattern.startswith(_OPERATIONAL)


def admits(pattern: str, event_type: str) -> bool:
    """Whether a pattern that was checked means this type.

    `*` means what happens to turns, calls, approvals and reminders. What tells of deliveries and endpoints must be
    asked for by name: an endpoint that fails would else be told of its own failures.
    """
    if pattern == ALL:
        return not event_type.startswith(_OPERATIONAL)
    return event_type.startswith(pattern[:-1]) if pattern.endswith(".*") else event_type == pattern
