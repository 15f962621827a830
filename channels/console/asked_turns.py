"""What `lastword turns list` is asked for, as words, and what is wrong with them: pure.

What belongs here: reading the options. What must not be known here: how turns are found and shown.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from worker.errors import ConfigurationError
from worker.store.listing import LIVE, OUTCOMES, Wanted

_AGO = re.compile(r"([1-9][0-9]{0,8})(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were given. `labels`: NAME=VALUE each."""

    state: str | None = None
    since: str | None = None
    labels: Sequence[str] = ()
    agent: str | None = None

    @property
    def narrows(self) -> bool:
        """Whether any option was given."""
        return bool(self.state or self.since or self.labels or self.agent)


def wanted_of(asked: Asked, *, now_ms: int) -> Wanted:
    """Which turns these are. `now_ms`: the store's clock. Raises `ConfigurationError` with option, value and fix."""
    states, outcomes = _states(asked.state)
    return Wanted(
        states,
        outcomes,
        moment_of("--since", asked.since, now_ms),
        _labels(asked.labels),
        chosen("--agent", asked.agent) or None,
    )


def _states(state: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    match state:
        case None:
            return LIVE, ()
        case "all":
            return LIVE, OUTCOMES
        case "sealed":
            return (), OUTCOMES
        case _ if state in LIVE:
            return (state,), ()
        case _ if state in OUTCOMES:
            return (), (state,)
        case _:
            raise ConfigurationError(
                f"--state {state[:80]!r} is neither a state nor an outcome: give one of "
                f"{', '.join((*LIVE, 'sealed', 'all', *OUTCOMES))}"
            )


def chosen(option: str, text: str | None) -> str:
    """What an option chooses, empty for None. Raises `ConfigurationError` for what was left empty.

    An empty text chooses nothing that there is; taken as not given, it would choose everything.
    """
    if text == "":
        raise ConfigurationError(f"{option} '' is empty: give what it is to choose, or leave {option} out")
    return text or ""


def moment_of(option: str, text: str | None, now_ms: int) -> int:
    """UTC ms of a moment, given as how long ago or as date and time; 0 for None. Raises `ConfigurationError`."""
    if text is None:
        return 0
    ago = _AGO.fullmatch(text)
    if ago:
        return max(0, now_ms - int(ago[1]) * _SECONDS[ago[2]] * 1000)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{option} {text[:80]!r} is no time: give how long ago, as in 90s, 30m, 2h or 7d, or date and time, as in "
            "2026-03-01T08:00:00+01:00 (without an offset: UTC)"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1000))


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name or name in labels:
            fault = "is given twice" if name in labels else "is no NAME=VALUE"
            raise ConfigurationError(f"--label {pair[:80]!r} {fault}: give NAME=VALUE, each name once")
        labels[name] = value
    return labels
