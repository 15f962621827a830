"""Durations as they are written at the terminal: a number and a unit.

What belongs here: reading them. What must not be known here: what they are for.
"""

import re

from worker.errors import ConfigurationError

_DURATION = re.compile(r"([0-9]{1,9})([smhd]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(option: str, text: str, *, most_s: int) -> int:
    """A duration such as 90s, 30m, 2h, 7d or 3600 in seconds. Raises `ConfigurationError` above `most_s`, too."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ConfigurationError(
            f"{option} {text[:40]!r} is no duration: give a number and s, m, h or d, as in 90s or 2d; without a letter "
            "it is seconds"
        )
    seconds = int(match[1]) * _UNITS[match[2]]
    if seconds > most_s:
        raise ConfigurationError(f"{option} {text} is too long: give {most_s // 86400}d at most")
    return seconds
