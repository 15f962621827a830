"""`lastword turns`: which ones go on, and what one emitted, to the byte that a reader may have seen.

What belongs here: the form of that answer, for people and for programs. What must not be known here: how it is stored.
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.asked_turns import Asked, wanted_of
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import cleaner, open_console, time_of
from channels.destinations import check_destinations
from channels.settings import Settings
from worker import api
from worker.app import make_app, wake_session
from worker.errors import ConfigurationError
from worker.output import events
from worker.output.events import Output
from worker.store import clock, listing, outputs, records
from worker.store.records import TurnRecord

_STYLES = {"parked": "yellow", "incomplete": "yellow", "failed": "red", "dead": "red"}


def run_list(settings: Settings, asked: Asked, limit: int, *, as_json: bool) -> int:
    """Print the turns that were asked for; returns the exit code."""

    async def listed(there: Joined, client: Client) -> int:
        wanted = wanted_of(asked, now_ms=await clock.now_ms(client))
        found = await listing.find(client, there.settings.partitions, wanted, limit)
        newer = [{"turn": each.turn, "state": each.state, "newer": True} for each in found.newer]
        if as_json:
            told = [*(head_of(record) for record in found.turns), *newer]
            sys.stdout.writelines(json.dumps(each, ensure_ascii=False) + "\n" for each in told)
        else:
            console = open_console()
            nothing = "no such turns" if wanted.outcomes or asked.narrows else "no turns that go on"
            if found.turns or not newer:
                console.print(_list_of(found.turns, cleaner(console)) if found.turns else nothing)
            for each in found.newer:
                words = f"{each.turn} {each.state} (written by a newer release: use that release to see more)"
                console.print(cleaner(console)(words), markup=False, soft_wrap=True)
        if found.stopped and len(found.turns) + len(newer) < limit:
            words = f"stopped after {found.looked_at} turns, there are more: narrow it with --since or --state"
            open_console(stderr=True).print(words, style="yellow", soft_wrap=True)
        return exits.OK

    return ask(settings, listed)


def run_show(settings: Settings, turn: str, *, as_json: bool) -> int:
    """Print a turn and its outputs; returns the exit code of its outcome."""
    return ask(settings, partial(_show, turn, as_json))


async def _show(turn: str, as_json: bool, _: Joined, client: Client) -> int:
    record = await records.read_turn(client, turn)
    if record is None:
        raise ConfigurationError(f"turn {turn} is not known: it was never submitted here, or its keep_s is over")
    emitted = await outputs.all_outputs(client, turn)
    if as_json:
        told = head_of(record) | {"outputs": [json.loads(events.encode(output)) for output in emitted]}
        sys.stdout.write(json.dumps(told, ensure_ascii=False) + "\n")
    else:
        console = open_console()
        clean = cleaner(console)
        for name, value in head_of(record).items():
            if value not in (None, {}, []):
                console.print(Text.assemble((f"{name:<14} ", "dim"), clean(str(value))), soft_wrap=True)
        console.print(table_of(emitted, clean))
    return exits.of_outcome(record.outcome)


def run_replay(settings: Settings, turn: str, *, force: bool, as_json: bool) -> int:
    """Ask the message of an ended turn anew and print the new turn's id; returns the exit code."""

    async def replayed(there: Joined, client: Client) -> int:
        record = await records.read_turn(client, turn)
        if record is not None:
            await check_destinations(client, settings, record.destinations)
        wake = partial(wake_session, make_app(there.settings, concurrency=1))
        submitted = await api.replay_turn(there.settings, client, turn=turn, wake=wake, force=force)
        if as_json:
            told = asdict(submitted)
            del told["interrupted"]  # a replay waits for its place, whatever the setting of new messages says
            sys.stdout.write(json.dumps({"replay_of": turn, **told}) + "\n")
            return exits.OK
        if submitted.duplicate:
            note = f"{turn} was replayed before; to try once more, replay the turn that this gave"
            open_console(stderr=True).print(note, style="yellow", soft_wrap=True)
        sys.stdout.write(submitted.turn + "\n")
        return exits.OK

    return ask(settings, replayed)


def head_of(record: TurnRecord) -> dict[str, object]:
    """What is known about the turn as a whole, without its message."""
    return {
        "turn": record.turn,
        "session": record.session,
        "state": record.state,
        "outcome": record.outcome,
        "reason": record.reason,
        "error": None if record.failure is None else f"{record.failure.message} [{record.failure.code}]",
        "correlation_id": record.correlation_id or None,
        "agent": record.agent,
        "source": record.source,
        "requester": record.requester,
        "cancelled_by": record.cancelled_by,
        "merged_into": record.merged_into,
        "replay_of": record.replay_of,
        "labels": dict(record.labels),
        "destinations": list(record.destinations),
        "discards": record.discards,
        "created_ms": record.created_ms,
        "sealed_ms": record.sealed_ms,
    }


def _list_of(found: Sequence[TurnRecord], clean: Callable[[str], str]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, widest in (("turn", max(len(record.turn) for record in found)), ("state", len("running"))):
        table.add_column(name, no_wrap=True, min_width=widest)  # half an id is of no use
    for name in ("session", "agent", "source", "created", "ended"):
        table.add_column(name, overflow="fold")
    for record in found:
        cells = (record.session, record.agent, record.source, time_of(record.created_ms), time_of(record.sealed_ms))
        state = Text(record.outcome or record.state, _STYLES.get(record.outcome or record.state, ""))
        table.add_row(record.turn, state, *(Text(clean(cell)) for cell in cells))
    return table


def table_of(emitted: Sequence[Output], clean: Callable[[str], str] = str) -> Table:
    """One row an output: seconds since the first one, call and attempt, and what it says.

    Deltas have no row of their own. What became of them has: the text of the call, or a discard, with the text struck
    through if a reader may have seen it. `clean`: what text of others goes through before it is shown.
    """
    table = Table.grid(padding=(0, 2))
    started = emitted[0].at_ms if emitted else 0
    seen: dict[tuple[int, int], str] = {}
    for output in emitted:
        place = (output.call, output.attempt)
        if isinstance(output, events.TextDeltaOutput):
            seen[place] = seen.get(place, "") + clean(output.text)
            continue
        said = _said(output, clean, seen.pop(place, "") if isinstance(output, events.TextStreamDiscardedOutput) else "")
        if said is not None:
            when = f"{(output.at_ms - started) / 1000:8.2f} s"
            where = f"call {output.call}.{output.attempt}" if output.call else ""
            table.add_row(Text(when, "dim"), Text(where, "dim"), said)
    for place, text in seen.items():
        if text and not any(_ends(output, place) for output in emitted):
            table.add_row("", Text(f"call {place[0]}.{place[1]}", "dim"), Text(f"{text} (streaming)", "italic"))
    return table


def _ends(output: Output, place: tuple[int, int]) -> bool:
    return isinstance(output, events.CallCompletedOutput | events.TextStreamDiscardedOutput) and (
        (output.call, output.attempt) == place
    )


def _said(output: Output, clean: Callable[[str], str], seen: str) -> Text | None:  # noqa: PLR0911 - one form an output
    match output:
        case events.TextOutput():
            if output.is_call_boundary:
                return Text(clean(output.text))
            return Text(clean(f"notice ({output.notice or 'of no kind'}): {output.text}"), "italic")
        case events.TextStreamDiscardedOutput():
            note = f"discarded ({output.reason}): "
            size = (
                f"{output.discarded_bytes} bytes that nobody saw" if output.discarded_bytes else "nothing had streamed"
            )
            return Text.assemble((note, "yellow"), (seen, "strike") if seen else (size, ""))
        case events.ThinkingOutput():
            return Text(clean(f"thinking: {output.text}"), "dim")
        case events.UsageOutput():
            return Text(f"usage: {_counts(output)}", "dim")
        case events.CallCompletedOutput():
            return Text(clean(f"call completed ({output.finish_reason or 'no reason given'})"), "dim")
        case events.ErrorOutput():
            return Text(clean(f"error: {output.message} [{output.code}, reference {output.correlation_id}]"), "red")
        case events.TurnCompletedOutput():
            said = (
                f" ({output.reason})" if output.reason else f" into {output.merged_into}" if output.merged_into else ""
            )
            return Text(f"turn {output.outcome}{said}", "bold")
        case _:
            return _said_between_calls(output, clean)


def _said_between_calls(output: Output, clean: Callable[[str], str]) -> Text | None:
    match output:
        case events.ToolCallOutput():
            return Text(clean(f"tool {output.name} {output.arguments or ''}"), "cyan")
        case events.ToolResultOutput():
            return Text(clean(f"tool {output.name} answered: {output.result}"), "red" if output.failure else "cyan")
        case events.ApprovalRequestOutput():
            only = f", {output.requester} alone may decide" if output.requester else ""
            words = f"approval {output.approval} of tool {output.name} {output.arguments}{only}"
            return Text(clean(words), "magenta")
        case events.ApprovalDecidedOutput():
            by = f" by {output.by}" if output.by else ""
            return Text(clean(f"approval {output.approval}: {output.option}{by}"), "magenta")
        case events.CompactionOutput():
            return Text(clean(_compaction(output)), "yellow")
        case _:
            return None


def _compaction(output: events.CompactionOutput) -> str:
    why = "the context overflowed, " if output.forced else ""
    made = f"{output.messages_before} messages became {output.messages_after}"
    results = f", {output.results_cleared} tool results dropped" if output.results_cleared else ""
    summed_up = ", the rest summed up" if output.summarised else ""
    failure = f"; no summary could be had ({output.failure})" if output.failure else ""
    return f"conversation made shorter: {why}{made}{results}{summed_up}{failure}"


def _counts(usage: events.UsageOutput) -> str:
    counts = usage.model_dump(include={name for name in type(usage).model_fields if name not in Output.model_fields})
    return ", ".join(f"{name} {value}" for name, value in counts.items() if value is not None and name != "type")
