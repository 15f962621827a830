"""Patterns over the types of events, as endpoints subscribe to them.

What belongs here: which types there are, which may be subscribed to, and what a pattern means. What must not be known
here: who subscribes to what, what an event says.
"""

import difflib

from channels.events.content import ABOUT_DELIVERIES, CONTENTS, ENDPOINT_TEST
from worker.errors import ConfigurationError

RESERVED = ("reminder.fired", "reminder.failed", "reminder.skipped", "reminder.disabled")
"""Types that may be subscribed to, and that nothing tells of yet."""

TYPES: tuple[str, ...] = (*CONTENTS, *RESERVED)
"""Every type there is."""

ALL = "*"
_TRIALS = "endpoint."
"""What the types of events begin with that come to the endpoint that they are about, and to no other."""

_OFFERED = tuple(one for one in TYPES if not one.startswith(_TRIALS))
_FAMILIES = tuple(dict.fromkeys(f"{one.partition('.')[0]}.*" for one in _OFFERED))
PATTERNS: tuple[str, ...] = (ALL, *_FAMILIES, *_OFFERED)
"""All that may be subscribed to."""


def check_pattern(field: str, text: str) -> str:
    """Give `text` back when it is a known type, a family such as `turn.*`, or `*`; else raise `ConfigurationError`."""
    if text in PATTERNS:
        return text
    if text.startswith(_TRIALS):
        raise ConfigurationError(
            f"{field}: {text[:80]!r} is subscribed to by nobody: {ENDPOINT_TEST} comes to the endpoint that is tried, "
            "whatever it subscribes to; remove it"
        )
    close = difflib.get_close_matches(text, PATTERNS, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else f"use some of {', '.join(PATTERNS)}"
    raise ConfigurationError(f"{field}: there is no event type {text[:80]!r}; {hint}")


def is_operational(pattern: str) -> bool:
    """Whether a pattern that was checked means events of deliveries alone."""
    return pattern.startswith(ABOUT_DELIVERIES)


def admits(pattern: str, event_type: str) -> bool:
    """Whether a pattern that was checked means this type.

    `*` means what happens to turns, calls, approvals and reminders. What tells of deliveries must be asked for by
    name: an endpoint that fails would else be told of its own failures.
    """
    if pattern == ALL:
        return not event_type.startswith((ABOUT_DELIVERIES, _TRIALS))
    return event_type.startswith(pattern[:-1]) if pattern.endswith(".*") else event_type == pattern
