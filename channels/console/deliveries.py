"""`lastword deliveries`: what is on its way to whom, what is dead and why, and another try.

What belongs here: the form of these answers. What must not be known here: how deliveries are stored or sent.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from urllib.parse import urlsplit

from rich.table import Table
from rich.text import Text

from channels import outbox
from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import cleaner, open_console
from channels.delivery.model import Delivery, State
from channels.settings import Settings
from worker.app import make_app, wake_delivery

_STYLES: dict[State, str] = {"delivered": "green", "dead": "red", "waiting": "yellow", "held": "yellow"}


def run_list(settings: Settings, state: State | None, limit: int, *, as_json: bool) -> int:
    """Print the newest deliveries; returns the exit code."""

    async def listed(there: Joined, client: Client) -> int:
        found = await outbox.listed(client, there.settings.partitions, limit, state)
        if as_json:
            sys.stdout.writelines(json.dumps(asdict(delivery)) + "\n" for delivery in found)
        else:
            open_console().print(_table(found) if found else "no deliveries")
        return exits.OK

    return ask(settings, listed)


def run_show(settings: Settings, delivery: str, *, as_json: bool) -> int:
    """Print one delivery with its attempts; the exit code says whether it is dead."""

    async def shown(_: Joined, client: Client) -> int:
        found = await outbox.show(client, delivery)
        _print(found, as_json=as_json)
        return exits.FAILED if found.state == "dead" else exits.OK

    return ask(settings, shown)


def run_replay(settings: Settings, delivery: str, *, as_json: bool) -> int:
    """Make a dead delivery due now and wake a delivery process; returns the exit code."""

    async def replayed(there: Joined, client: Client) -> int:
        found = await outbox.replay(client, delivery)
        app = make_app(there.settings, concurrency=1)
        try:
            await asyncio.to_thread(wake_delivery, app)
        except Exception as error:  # noqa: BLE001 - whatever the broker says: it is stored, and found by a sweep
            open_console(stderr=True).print(
                f"the broker does not answer ({type(error).__name__}): the replay is "
                "stored; the delivery processes will find it",
                style="yellow",
                soft_wrap=True,
            )
        _print(found, as_json=as_json)
        return exits.OK

    return ask(settings, replayed)


def shown_destination(destination: str) -> str:
    """A destination as a terminal may show it: of a URL scheme and host, since its path may be a secret."""
    parts = urlsplit(destination)
    return f"{parts.scheme}://{parts.netloc}/..." if parts.scheme else destination


def _print(delivery: Delivery, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(asdict(delivery)) + "\n")
        return
    console = open_console()
    clean = cleaner(console)
    rows = {
        "delivery": delivery.id,
        "event": f"{delivery.event_type} {delivery.event_id}",
        "turn": delivery.turn,
        "destination": shown_destination(delivery.destination),
        "state": delivery.state,
        "created": _time(delivery.created_ms),
        "next look": _time(delivery.due_ms),
        "ended": _time(delivery.ended_ms),
        "reason": f"{delivery.message} [{delivery.code}]" if delivery.code else "",
    }
    for name, value in rows.items():
        if value:
            console.print(Text.assemble((f"{name:<12} ", "dim"), clean(value)), soft_wrap=True)
    for attempt in delivery.log:
        words = f"attempt {attempt.number}  {_time(attempt.at_ms)}  {attempt.code}: {attempt.message}"
        console.print(clean(words), markup=False, soft_wrap=True)


def _table(deliveries: Sequence[Delivery]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, widest in (("delivery", max(len(one.id) for one in deliveries)), ("state", len("delivered"))):
        table.add_column(name, no_wrap=True, min_width=widest)  # half an id is of no use
    for name in ("event", "destination", "attempts", "next look", "reason"):
        table.add_column(name, overflow="fold")
    for one in deliveries:
        style = _STYLES.get(one.state, "")
        cells = (one.event_type, shown_destination(one.destination), str(one.attempts), _time(one.due_ms), one.code)
        table.add_row(one.id, Text(one.state, style), *map(Text, cells))
    return table


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds") if at_ms else ""
