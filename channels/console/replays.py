"""`lastword deliveries replay` of a range, and `lastword deliveries replays`: starting one, and seeing how far it is.

What belongs here: the options as filters, and the form of the answers. What must not be known here: how a replay runs.
"""

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.approvals import person
from channels.console.asked_turns import chosen, moment_of
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import open_console, print_rows, time_of
from channels.delivery.replay import Filters, From, Job
from channels.replays import starting, stored
from channels.settings import Settings
from channels.webhook.address import shown
from worker.errors import ConfigurationError
from worker.store import clock

Step = Literal["show", "pause", "resume", "cancel"]


@dataclass(frozen=True, slots=True)
class Asked:
    """The options as they were given."""

    states: tuple[str, ...] = ()
    endpoint: str | None = None
    types: tuple[str, ...] = ()
    turn: str | None = None
    since: str | None = None
    until: str | None = None
    rate: float | None = None

    def refuse_beside(self, delivery: str) -> None:
        """Raise `ConfigurationError` where one delivery was named and options were given that choose many."""
        if self != Asked():
            raise ConfigurationError(
                f"{delivery[:80]} is one delivery: leave the options that choose many out, or the id"
            )

    def filters(self, now_ms: int) -> Filters:
        """What it chooses. `now_ms`: the store's clock."""
        since_ms = moment_of("--since", self.since, now_ms)
        states = cast("tuple[From, ...]", self.states or ("dead",))
        until_ms = moment_of("--until", self.until, now_ms)
        types = tuple(chosen("--type", one) for one in self.types)
        endpoint, turn = chosen("--endpoint", self.endpoint), chosen("--turn", self.turn)
        return Filters(states, since_ms, until_ms, endpoint, types, turn)


def run_start(settings: Settings, asked: Asked, *, as_json: bool) -> int:
    """Start a bulk replay and print it; returns the exit code."""

    async def start(there: Joined, client: Client) -> int:
        now_ms = await clock.now_ms(client)
        rate = starting.RATE if asked.rate is None else asked.rate
        bounds = there.settings.delivery.replay_bounds
        job = await starting.start(client, asked.filters(now_ms), rate, now_ms, by=person(), bounds=bounds)
        _print(job, as_json=as_json)
        return exits.OK

    return ask(settings, start)


def run_list(settings: Settings, limit: int, *, as_json: bool) -> int:
    """Print the newest bulk replays; returns the exit code."""

    async def listed(_: Joined, client: Client) -> int:
        found = await stored.listed(client, limit)
        if as_json:
            sys.stdout.writelines(json.dumps(object_of(job)) + "\n" for job in found)
        else:
            open_console().print(_table(found) if found else "no bulk replays")
        return exits.OK

    return ask(settings, listed)


def run_step(settings: Settings, replay: str, step: Step, *, as_json: bool) -> int:
    """Do that, and print the replay as it is then; returns the exit code."""

    async def done(_: Joined, client: Client) -> int:
        _print(await _stepped(client, replay, step), as_json=as_json)
        return exits.OK

    return ask(settings, done)


async def _stepped(client: Client, replay: str, step: Step) -> Job:
    match step:
        case "show":
            return await stored.show(client, replay)
        case "pause":
            return await stored.pause(client, replay, f"paused by {person()}")
        case "resume":
            return await stored.resume(client, replay)
        case "cancel":
            return await stored.cancel(client, replay, f"cancelled by {person()}")


def object_of(job: Job) -> dict[str, Any]:
    """A bulk replay as programs get it."""
    filters = asdict(job.filters) | {"destination": shown(job.filters.destination)}
    told = ("id", "state", "why", "by", "rate_per_s", "most", "found", "replayed", "skipped", "created_ms", "ended_ms")
    return {**{name: getattr(job, name) for name in told}, "filters": filters}


def _print(job: Job, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(object_of(job)) + "\n")
        return
    filters = job.filters
    rows = {
        "replay": job.id,
        "of": f"{' and '.join(filters.states)} deliveries, at most {job.most}",
        "endpoint": shown(filters.destination),
        "types": ", ".join(filters.event_types),
        "turn": filters.turn,
        "made": f"from {time_of(filters.since_ms)} until {time_of(filters.until_ms)}",
        "rate": f"{job.rate_per_s:g} a second",
        "asked for": f"by {job.by} at {time_of(job.created_ms)}",
        "state": f"{job.state}{f': {job.why}' if job.why else ''}",
        "ended": time_of(job.ended_ms),
        "found": f"{job.found}, of which {job.replayed} are replayed and {job.skipped} skipped",
    }
    print_rows(open_console(), rows)


def _table(jobs: list[Job]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("replay", no_wrap=True, min_width=max(len(job.id) for job in jobs))
    for name in ("state", "endpoint", "found", "replayed", "skipped", "why"):
        table.add_column(name, overflow="fold")
    for job in jobs:
        counts = map(str, (job.found, job.replayed, job.skipped))
        table.add_row(job.id, job.state, Text(shown(job.filters.destination)), *counts, Text(job.why))
    return table
