"""What all processes together know of their providers: which of them die, and which are left alone for a while.

What belongs here: telling and reading it. What must not be known here: what a death is, when to tell, whom a turn then
asks.

Times are the server's. Everything stored here expires.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import redis
import redis.asyncio

from worker.store import clock, keys
from worker.store.script import Argument, Script

_VERSION = 1
_ANSWER_KEPT_MS = 86_400_000
"""A process that has not been answered for a day tells the same once more, at the worst."""

FURTHEST_MS = 2 * 86_400_000
"""No skip reaches further ahead than this, twice the longest that can be set: one that does is of another clock."""

_health = Script("worker.store", "health")


@dataclass(frozen=True, slots=True)
class HealthRules:
    """A provider that died `deaths` times within `window_s`, and more often than it completed, is skipped for `skip_s`.

    Times in seconds. `deaths` 0: nothing is counted, and none is skipped.
    """

    deaths: int
    window_s: float
    skip_s: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Attempts that died of the provider, and calls that completed."""

    deaths: int = 0
    completions: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """What a process has seen since its last report.

    `number` rises by one with each report of the `process`. The same number says the same, however often it is told.
    Without `counts` it only asks.
    """

    process: str
    number: int
    counts: Mapping[str, Counts]


@dataclass(frozen=True, slots=True)
class Answer:
    """`fresh`: the providers that this report has led to skip, with the counts that did it.

    `left_s`: every provider that is skipped, and for how many more seconds.
    """

    fresh: Mapping[str, Counts]
    left_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Standing:
    """One provider: its `counts` within the window; of a skipped one those that led to it.

    `left_s`: seconds for which it is still skipped, and `until_ms` the UTC milliseconds at which that ends; None: it is
    not skipped.
    """

    counts: Counts = field(default_factory=Counts)
    left_s: float | None = None
    until_ms: int | None = None


def exchange(redis: redis.Redis, report: Report, rules: HealthRules) -> Answer:
    """Tell a report and learn whom to leave alone. Sent again with the same number it changes nothing."""
    names = [keys.HEALTH, keys.health_answer(report.process), *(keys.health(name) for name in report.counts)]
    args: list[Argument] = [
        report.number,
        rules.deaths,
        round(rules.window_s * 1000),
        round(rules.skip_s * 1000),
        _VERSION,
        _ANSWER_KEPT_MS,
        FURTHEST_MS,
    ]
    for name, counts in report.counts.items():
        args += [name, counts.deaths, counts.completions]
    fresh, skipped = _health.run(redis, names, args)
    return Answer(
        {
            name.decode(): Counts(int(deaths), int(completions))
            for name, deaths, completions in zip(fresh[::3], fresh[1::3], fresh[2::3], strict=True)
        },
        {name.decode(): int(left_ms) / 1000 for name, left_ms in zip(skipped[::2], skipped[1::2], strict=True)},
    )


async def standings(redis: redis.asyncio.Redis, providers: Iterable[str], rules: HealthRules) -> dict[str, Standing]:
    """How each of these providers stands."""
    names = tuple(providers)
    pipeline = redis.pipeline(transaction=False)
    pipeline.time()
    for name in names:
        pipeline.hgetall(keys.health(name))
    time, *records = await pipeline.execute()
    now_ms = clock.ms(time)
    window_ms = round(rules.window_s * 1000)
    return {name: _standing(record, now_ms, window_ms) for name, record in zip(names, records, strict=True)}


def _standing(record: dict[bytes, Any], now_ms: int, window_ms: int) -> Standing:
    if record.get(b"v") != b"%d" % _VERSION:  # none, or that of a newer version
        return Standing()
    until_ms = int(record.get(b"until", 0))
    if 0 < until_ms <= now_ms or until_ms > now_ms + FURTHEST_MS:
        return Standing()
    slices = [
        value.split()
        for start, value in record.items()
        if start.isdigit() and (until_ms or now_ms - window_ms < int(start) <= now_ms)
    ]
    counts = Counts(sum(int(deaths) for deaths, _ in slices), sum(int(completions) for _, completions in slices))
    return Standing(counts, (until_ms - now_ms) / 1000, until_ms) if until_ms else Standing(counts)
