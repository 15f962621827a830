"""What a strike explains: POSTs, requests and tool runs that come again, and turns that another process goes on with.

What belongs here: whether a strike can be the cause of a second event, from who was struck and when. What must not be
known here: what is right, files.

Of two events of a turn, the second needs a cause where a product that nobody strikes would not show it. The cause is a
strike between them on the process of the first, or on the store. A strike does not end with its last moment: a lease
runs out after it, a process that was told to end works on for a while. And a process that was frozen behind its last
question to the store does what it was allowed to, once it goes on: the second event may be its own.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from ops.chaos_run.records import Post, Strike

STORE = "valkey"
_LEASES = 2
"""So many leases a strike reaches beyond its end: one runs out, and another passes before anybody is taken over."""


class Moment(NamedTuple):
    """Which process did something of a turn, and when, in seconds of the run's clock."""

    process: str
    at: float


class Causes:
    """The strikes of a run. `lease_s`: how long a turn's lease lasts."""

    def __init__(self, strikes: Sequence[Strike], lease_s: float) -> None:
        self._strikes = strikes
        self._reach_s = _LEASES * lease_s

    def explain(self, first: Moment, then: Moment) -> bool:
        """Whether a strike explains that a turn shows the second event after the first."""
        return any(self._meets(each, first, then) and _hits(each, first, then) for each in self._strikes)

    def explain_freeze(self, first: Moment, then: Moment) -> bool:
        """Whether the process of the second event was frozen before it, and so may be late with it."""
        return any(self._meets(each, first, then) and _delays(each, then) for each in self._strikes)

    def explain_post(self, answered: Post, repeat: Post) -> bool:
        """Whether a strike explains that a POST which was answered came again."""
        return any(
            strike.at <= repeat.came and strike.until >= answered.came and strike.process in {STORE, answered.process}
            for strike in self._strikes
        )

    def _meets(self, strike: Strike, first: Moment, then: Moment) -> bool:
        until = math.inf if strike.kind == "drain" else strike.until + self._reach_s
        return strike.at <= then.at and until >= first.at


def _hits(strike: Strike, first: Moment, then: Moment) -> bool:
    return strike.process in {STORE, first.process} or _delays(strike, then)


def _delays(strike: Strike, then: Moment) -> bool:
    return strike.kind == "freeze" and strike.process == then.process
