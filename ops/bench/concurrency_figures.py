"""The figures of the concurrency benchmark: from what was counted to what is told.

What belongs here: percentiles, shares, verdicts. What must not be known here: processes, clocks, files.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

AGE_P99_MS = 250.0
"""How old a delta may be when it reaches a reader, in 99 of 100 cases."""
SHARE = 0.98
"""So much of what was to come must have come: of the deltas to the turns, and of a turn's deltas to its reader."""
WAITING_KB = 60.0
"""How much memory a turn may take that only waits."""


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` (0 to 1) of all values do not exceed; NaN where there are none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the largest."""
    return {
        "p50": percentile(values, 0.5),
        "p99": percentile(values, 0.99),
        "max": max(values, default=float("nan")),
    }


def without_nan(found: Any) -> Any:
    """The figures with None where nothing was seen: JSON knows no NaN."""
    if isinstance(found, dict):
        return {name: without_nan(one) for name, one in found.items()}
    if isinstance(found, list):
        return [without_nan(one) for one in found]
    return None if isinstance(found, float) and math.isnan(found) else found


@dataclass(frozen=True, slots=True)
class Used:
    """What a group of processes has used so far: CPU in seconds, proportional and resident memory in kB."""

    cpu_s: float
    pss_kb: float
    rss_kb: float


def cpu_us(before: Used, after: Used, count: int) -> float:
    """CPU microseconds for each of `count` things."""
    return round((after.cpu_s - before.cpu_s) / max(1, count) * 1e6, 1)


def memory_kb(before: Used, after: Used, count: int) -> float:
    """Proportional memory for each of `count` things."""
    return round((after.pss_kb - before.pss_kb) / max(1, count), 1)


def holds(found: dict[str, Any]) -> bool:
    """Whether a load was borne: young deltas, no watchdog that misfired, all turns ended well, at the full pace.

    Each reader must have got nearly each delta of its turn as a delta: one that it got in a snapshot, or never, has no
    age, and the oldest would be missing.
    """
    watched_deltas = found["deltas_per_s"] / found["turns"] * found["watched"] * found["seconds"]
    return bool(
        found["age_ms"]["p99"] <= AGE_P99_MS
        and found["resumes"] == 0
        and found["discards_seen"] == 0
        and found["completed"] == found["turns"]
        and found["deltas_per_s"] >= SHARE * found["nominal_per_s"]
        and found["readers_failed"] == 0
        and found["readers_reset"] == 0
        and found["ages"] >= SHARE * watched_deltas
    )


def next_load(held: int, failed: int | None, start: int, step: int) -> int | None:
    """The load to try next: doubled until one fails, then halfway between, in whole steps; None: it is found.

    `held`: the highest load that was borne (0: none yet). `failed`: the lowest that was not (None: none yet).
    """
    if failed is None:
        return max(start, 2 * held)
    middle = (held + failed) // 2 // step * step
    return middle if held < middle < failed else None
