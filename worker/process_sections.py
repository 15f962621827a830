"""The sections of the settings about processes: leases, staging, how much one does and how it ends.

What belongs here: their fields with unit, default, bounds and meaning. What must not be known here: the checks between
sections (`worker.settings`), where values come from (`worker.sources`).
"""

from typing import Self

from pydantic import model_validator

from worker.fields import Section, amount


class LeaseSettings(Section):
    """Who drives a turn, and when another process takes over."""

    ttl_s: float = amount(
        8,
        0.4,
        300,
        "seconds",
        "A turn whose process has been silent this long is taken over. Lower: sooner after a crash. Higher: a process "
        "may be cut off from Redis, or stand still, for longer before it loses its turns.",
    )
    renew_s: float = amount(2, 0.1, 75, "seconds", "Time between two signs of life of a process.")
    sweep_s: float = amount(1, 0.1, 60, "seconds", "Time between two searches for turns that nobody drives.")

    @model_validator(mode="after")
    def _renewals_fit(self) -> Self:
        if self.renew_s * 4 > self.ttl_s:
            raise ValueError(
                f"ttl_s ({self.ttl_s:g}) must be at least 4 x renew_s (4 x {self.renew_s:g} = {4 * self.renew_s:g}), "
                "so that one lost sign of life takes no turn away; raise ttl_s or lower renew_s"
            )
        return self


class StagingSettings(Section):
    """How streaming text reaches live readers."""

    tick_s: float = amount(0.05, 0.005, 5, "seconds", "Time between two flushes of streaming text to its readers.")


class ProcessSettings(Section):
    """How much one process does."""

    turns_concurrency: int = amount(250, 1, 2000, "turns", "Turns that one process runs at a time.")
    suspects: int = amount(
        2, 1, 50, "processes", "Processes that one turns process may start beside it, each for one suspect turn."
    )
    drain_s: float = amount(
        25,
        1,
        3600,
        "seconds",
        "A turns process that is told to stop ends within this time; set its supervisor's limit 5 s above.",
    )
