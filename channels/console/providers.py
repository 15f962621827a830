"""`lastword providers`: whom can be asked, and who is left alone just now.

What belongs here: the form of this answer. What must not be known here: how health is stored, what a death is.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import open_console, time_of
from channels.settings import Settings
from worker.store.health import HealthRules, Standing, standings


@dataclass(frozen=True, slots=True)
class Row:
    """One provider. Times in seconds; `skipped_until` in UTC. None: not set, not skipped; of counts: none is kept."""

    provider: str
    wire: str
    host: str
    model: str | None
    fallback: str | None
    skipped_until: str | None
    skipped_for_s: float | None
    deaths: int | None
    completions: int | None


def run_list(settings: Settings, *, as_json: bool) -> int:
    """Print the providers; returns the exit code."""
    health = settings.provider_health
    rules = HealthRules(health.deaths, health.window_s, health.skip_s)

    async def listed(_: Joined, client: Client) -> int:
        found = await standings(client, settings.providers, rules)
        rows = list(_rows(settings, found))
        if as_json:
            sys.stdout.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
        else:
            open_console().print(_table(rows) if rows else "no providers")
        return exits.OK

    return ask(settings, listed)


def _rows(settings: Settings, found: dict[str, Standing]) -> Iterator[Row]:
    counts = settings.provider_health.deaths > 0
    for name, provider in settings.providers.items():
        standing = found[name]
        until_ms = standing.until_ms
        yield Row(
            provider=name,
            wire=provider.wire,
            host=urlsplit(provider.base_url).netloc,
            model=provider.model,
            fallback=provider.fallback,
            skipped_until=time_of(until_ms) or None,
            skipped_for_s=standing.left_s,
            deaths=standing.counts.deaths if counts else None,
            completions=standing.counts.completions if counts else None,
        )


def _table(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("provider", no_wrap=True)
    for name in ("wire", "host", "model", "fallback", "skipped", "deaths", "completions"):
        table.add_column(name, overflow="fold")
    for row in rows:
        skipped = Text()
        if row.skipped_for_s is not None:
            skipped = Text(f"for {row.skipped_for_s:.0f} s, until {row.skipped_until}", "yellow")
        words = [row.wire, row.host, row.model or "", row.fallback or ""]
        counts = ["" if count is None else str(count) for count in (row.deaths, row.completions)]
        table.add_row(Text(row.provider), *map(Text, words), skipped, *map(Text, counts))
    return table
