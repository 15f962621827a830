"""What this process knows of its providers: what it has to tell the others, and whom all of them leave alone just now.

What belongs here: counting, and how long a skip still lasts. What must not be known here: where the processes meet
(the heartbeat tells), what a death is (the driver's), whom a turn then asks (the machine's).

Turns count on the event loop, the heartbeat tells from its thread.
"""

import threading
from collections.abc import Callable, Mapping
from time import monotonic

from worker.store.health import Answer, Counts, HealthRules, Report

_NOBODY: frozenset[str] = frozenset()


class ProviderHealth:
    """The providers as one process sees them. Everything here may be called from any thread, and nothing waits.

    `process`: an id that no other process has. `watching`: a provider has another one in its place, so that it matters
    what the others have seen also while there is nothing to tell. `clock`: seconds that only rise.
    """

    def __init__(
        self, process: str, rules: HealthRules, *, watching: bool, clock: Callable[[], float] = monotonic
    ) -> None:
        self.rules = rules
        self._process = process
        self._watching = watching
        self._clock = clock
        self._lock = threading.Lock()
        self._deaths: dict[str, int] = {}
        self._completions: dict[str, int] = {}
        self._number = 0
        self._unanswered: Report | None = None
        self._until: Mapping[str, float] = {}
        self._announced: set[str] = set()

    def died(self, provider: str) -> None:
        """An attempt died of the provider: it fell silent, broke off, failed, or gave no answer."""
        with self._lock:
            self._deaths[provider] = self._deaths.get(provider, 0) + 1

    def completed(self, provider: str) -> None:
        """A call completed."""
        with self._lock:
            self._completions[provider] = self._completions.get(provider, 0) + 1

    @property
    def skipped(self) -> frozenset[str]:
        """The providers to leave alone now, if there is another one to ask. Each skip ends by this process's clock."""
        until = self._until
        if not until:
            return _NOBODY
        now = self._clock()
        return frozenset(name for name, ends in until.items() if now < ends)

    def take(self) -> Report | None:
        """What to tell now; None: nothing, and nobody need be asked.

        A report is given again and again until it was `answered`: nobody knows whether a lost one was taken, and its
        number keeps it from counting twice.
        """
        if not self.rules.deaths:
            return None
        with self._lock:
            if self._unanswered is None and (self._deaths or self._completions):
                names = self._deaths.keys() | self._completions.keys()
                counts = {name: Counts(self._deaths.get(name, 0), self._completions.get(name, 0)) for name in names}
                self._number += 1
                self._unanswered = Report(self._process, self._number, counts)
                self._deaths, self._completions = {}, {}
            if self._unanswered is None and self._watching:
                return Report(self._process, self._number, {})
            return self._unanswered

    def answered(self, answer: Answer) -> None:
        """What `take` gave last was told, and this is what came back."""
        now = self._clock()
        self._until = {name: now + left_s for name, left_s in answer.left_s.items()}
        self._announced |= answer.fresh.keys()
        with self._lock:
            self._unanswered = None

    def take_ended(self) -> list[str]:
        """The providers whose skip began with a report of this process and is over; each is given once."""
        ended = self._announced - self.skipped
        self._announced -= ended
        return sorted(ended)
