"""`lastword status`: what runs, waits, is parked and is dead, and who is there to do it.

What belongs here: the form of that answer, for people and for programs. What must not be known here: how it is found,
what counts as wrong.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.standing import faring_words
from channels.console.terminal import open_console, time_of
from channels.faults import Fault, faults
from channels.settings import Settings
from channels.survey import LogSurvey, Survey, hangs, look
from worker.store.processes import LivingProcess
from worker.store.survey import TurnsSurvey

_NAMED = 5
"""So many endpoints are named in a line."""

_LATE = ("failed", "dead", "incomplete", "cancelled", "completed", "skipped", "merged")


def run_status(settings: Settings, *, as_json: bool) -> int:
    """Print it; the exit code is 1 when something needs a person."""

    async def told(there: Joined, client: Client) -> int:
        survey = await look(client, there.settings)
        wrong = faults(survey)
        if as_json:
            sys.stdout.write(json.dumps(object_of(survey, wrong)) + "\n")
        else:
            _print(open_console(), survey, wrong)
        return exits.FAILED if wrong else exits.OK

    return ask(settings, told)


def object_of(survey: Survey, wrong: list[Fault]) -> dict[str, object]:
    """All of it, for a program."""
    return {
        "needs_a_person": [asdict(fault) for fault in wrong],
        "turns": survey.states(),
        "ended_within_a_day": survey.lately(),
        "partitions": [
            {"turns": asdict(turns), "log": asdict(log)} for turns, log in zip(survey.turns, survey.logs, strict=True)
        ],
        "deliveries": asdict(survey.deliveries),
        "processes": [
            {**asdict(each.told), "since_ms": each.since_ms, "seen_ms": each.seen_ms} for each in survey.processes
        ],
        "broker": survey.broker,
        "redis": asdict(survey.redis),
        "providers_skipped": dict(survey.skipped_s),
        "at_ms": survey.now_ms,
    }


def _print(console: Console, survey: Survey, wrong: list[Fault]) -> None:
    for fault in wrong:
        console.print(Text(f"needs a person: {fault.message}", "red"), soft_wrap=True)
    if not wrong:
        console.print(Text("nothing needs a person", "green"))
    for line in _lines(survey):
        console.print(Text.assemble((f"{line[0]:<11}", "dim"), line[1]), soft_wrap=True)
    if len(survey.turns) > 1:
        console.print(_partitions(survey))
    console.print(_processes(survey) if survey.processes else Text("no process lives", "yellow"))


def _lines(survey: Survey) -> list[tuple[str, str]]:
    states, lately, turns = survey.states(), survey.lately(), survey.turns
    waiting = sum(each.waiting for each in turns)
    oldest = max((each.waiting_oldest_s for each in turns), default=0.0)
    unseen = sum(each.unsealed - each.looked_at for each in turns)
    approvals = sum(each.approvals for each in turns)
    expiring = [each.approval_expires_s for each in turns if each.approval_expires_s is not None]
    return [
        (
            "turns",
            f"{states['running']} running, {states['queued']} queued, {states['parked']} parked"
            + (f", and {unseen} more that were not looked at" if unseen > 0 else ""),
        ),
        ("waiting", f"{waiting} for a process" + (f", the first for {oldest:.0f} s" if waiting else "")),
        (
            "approvals",
            f"{approvals} for a person" + (f", one expires in {min(expiring):.0f} s" if expiring else ""),
        ),
        ("last day", ", ".join(f"{lately[name]} {name}" for name in _LATE if lately.get(name)) or "no turn ended"),
        ("deliveries", _delivering(survey)),
        ("broker", "does not answer" if survey.broker is None else _counted(survey.broker)),
        ("redis", _redis(survey)),
        ("skipped", ", ".join(f"{name} for {left:.0f} s" for name, left in survey.skipped_s.items()) or "no provider"),
    ]


def _delivering(survey: Survey) -> str:
    deliveries, logs = survey.deliveries, survey.logs
    lag = max((each.relay_lag_s for each in logs), default=0.0)
    aside = sum(each.aside for each in logs)
    held = _some({lane: f"{count} for {lane}" for lane, count in deliveries.held.items()})
    failing = _some({name: f"{name} is {faring_words(one)}" for name, one in deliveries.failing.items()})
    asked = {name: until for name, until in deliveries.asked_to_wait.items() if name not in deliveries.failing}
    waits = _some({name: f"{name} asked to wait until {time_of(until)}" for name, until in asked.items()})
    stopped = _some({name: f"{name} is {standing}" for name, standing in deliveries.stopped.items()})
    return (
        f"{deliveries.open} open, {deliveries.by_state.get('in_flight', 0)} of them in flight, {deliveries.dead} dead"
        + (f"; held: {held}" if held else "")
        + "".join(f"; {words}" for words in (stopped, failing, waits) if words)
        + (f"; {deliveries.replays} bulk replays run" if deliveries.replays else "")
        + (f"; the relay is {lag:.1f} s behind" if lag else "; the relay has read all")
        + (f"; {aside} log entries wait for a newer release" if aside else "")
    )


def _some(words: Mapping[str, str]) -> str:
    """The first of them by name."""
    first = [words[name] for name in sorted(words)[:_NAMED]]
    return ", ".join(first) + (f" and {len(words) - _NAMED} more" if len(words) > _NAMED else "")


def _counted(broker: Mapping[str, int]) -> str:
    return ", ".join(f"{count} wake-ups for {name}" for name, count in broker.items())


def _redis(survey: Survey) -> str:
    state = survey.redis
    limit = f" of {state.limit_bytes / 1e6:.1f}" if state.limit_bytes else ""
    persists = "writes its append-only file" if state.persists else "writes no append-only file, or could not"
    return f"{state.memory_bytes / 1e6:.1f}{limit} MB, {persists}"


def _partitions(survey: Survey) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("partition", "running", "queued", "parked", "waiting", "log", "relay lag"):
        table.add_column(name)
    for number, (turns, log) in enumerate(zip(survey.turns, survey.logs, strict=True)):
        table.add_row(*_row(number, turns, log))
    return table


def _row(number: int, turns: TurnsSurvey, log: LogSurvey) -> list[str]:
    counts = [turns.states["running"], turns.states["queued"], turns.states["parked"], turns.waiting, log.entries]
    return [str(number), *map(str, counts), f"{log.relay_lag_s:.1f} s"]


def _processes(survey: Survey) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("process", no_wrap=True)
    for name in ("does", "state", "loop lag", "up for", "version"):
        table.add_column(name, overflow="fold")
    for each in survey.processes:
        table.add_row(*_cells(each, survey.now_ms))
    return table


def _cells(process: LivingProcess, now_ms: int) -> list[str]:
    told = process.told
    what = {"turns": "turns", "delivery": "attempts"}.get(told.role, "requests")
    state = "stopped" if told.stopped else "hangs" if hangs(process) else "drains" if told.draining else "takes work"
    up_s = max(0, now_ms - process.since_ms) / 1000
    return [told.name, f"{told.turns} {what}", state, f"{told.loop_lag_s:.3f} s", f"{up_s:.0f} s", told.version]
