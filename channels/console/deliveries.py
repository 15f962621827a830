"""`lastword deliveries`: what is on its way to whom, what is dead and why, and another try.

What belongs here: the form of these answers. What must not be known here: how deliveries are stored or sent.
"""

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.approvals import person
from channels.console.asked_turns import chosen, moment_of
from channels.console.joined import Client, Joined, ask
from channels.console.standing import standing_object, standing_words
from channels.console.terminal import cleaner, open_console, print_rows, time_of
from channels.delivery.faring import Faring, faring
from channels.delivery.lane import Lane
from channels.delivery.model import Delivery, Evidence, State
from channels.outbox import lanes, reading, replaying
from channels.outbox.exporting import Wanted, evidence_object
from channels.settings import Settings
from channels.webhook.address import shown
from worker.app import make_app, wake_delivery
from worker.store import clock

_STYLES: dict[State, str] = {"delivered": "green", "dead": "red", "waiting": "yellow", "held": "yellow"}


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of `list` and `export`, as they were given."""

    state: State | None = None
    endpoint: str | None = None
    type: str | None = None
    turn: str | None = None
    since: str | None = None
    until: str | None = None

    def wanted(self, now_ms: int) -> Wanted:
        """What it chooses. `now_ms`: the store's clock."""
        return Wanted(
            self.state,
            chosen("--endpoint", self.endpoint),
            chosen("--type", self.type),
            chosen("--turn", self.turn),
            moment_of("--since", self.since, now_ms) or None,
            moment_of("--until", self.until, now_ms) or None,
        )


def run_list(settings: Settings, asked: Asked, limit: int, after: str, *, as_json: bool) -> int:
    """Print the newest deliveries; returns the exit code."""

    async def listed(_: Joined, client: Client) -> int:
        found, following = await _found(client, asked.wanted(await clock.now_ms(client)), limit, after)
        if as_json:
            sys.stdout.writelines(json.dumps(asdict(delivery)) + "\n" for delivery in found)
        else:
            open_console().print(_table(found) if found else "no deliveries")
        if following:
            open_console(stderr=True).print(f"there are more: --after {following}", soft_wrap=True)
        return exits.OK

    return ask(settings, listed)


def run_show(settings: Settings, delivery: str, *, as_json: bool) -> int:
    """Print one delivery with its attempts; the exit code says whether it is dead."""

    async def show(_: Joined, client: Client) -> int:
        found = await reading.show(client, delivery)
        now_ms, seen = await lanes.read_lanes(client, [found.lane])
        lane = seen[found.lane].lane
        of_endpoint = (lane, faring(lane, now_ms)) if found.lane and not found.ended_ms else None
        _print(found, await reading.evidence(client, delivery), of_endpoint, as_json=as_json)
        return exits.FAILED if found.state == "dead" else exits.OK

    return ask(settings, show)


def run_replay(settings: Settings, delivery: str, *, as_json: bool) -> int:
    """Make a dead or held delivery due now and wake a delivery process; returns the exit code."""

    async def replayed(there: Joined, client: Client) -> int:
        found = await replaying.replay(client, delivery)
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
        _print(found, {}, as_json=as_json)
        return exits.OK

    return ask(settings, replayed)


def run_cancel(settings: Settings, delivery: str, *, as_json: bool) -> int:
    """Cancel a delivery and print it; returns the exit code."""

    async def cancel(_: Joined, client: Client) -> int:
        _print(await replaying.cancel(client, delivery, f"cancelled by {person()}"), {}, as_json=as_json)
        return exits.OK

    return ask(settings, cancel)


def object_of(delivery: Delivery, evidence: Mapping[int, Evidence]) -> dict[str, Any]:
    """A delivery as programs get it, with what its attempts showed."""
    return {**asdict(delivery), "evidence": {number: evidence_object(one) for number, one in evidence.items()}}


async def _found(client: Client, wanted: Wanted, limit: int, after: str) -> tuple[list[Delivery], str]:
    """As many as are asked for, and where the next ones begin: a single page may hold fewer."""
    found: list[Delivery] = []
    while True:
        page = await wanted.page(client, limit - len(found), after)
        found += page.deliveries
        after = page.after
        if not after or len(found) == limit:
            return found, after


def _print(
    delivery: Delivery,
    evidence: Mapping[int, Evidence],
    of_endpoint: tuple[Lane, Faring] | None = None,
    *,
    as_json: bool,
) -> None:
    """`of_endpoint`: what one that has not ended waits for."""
    if as_json:
        told = object_of(delivery, evidence)
        standing = {"standing": standing_object(*of_endpoint)} if of_endpoint else {}
        sys.stdout.write(json.dumps(told | standing) + "\n")
        return
    console = open_console()
    clean = cleaner(console)
    rows = {
        "delivery": delivery.id,
        "event": f"{delivery.event_type} {delivery.event_id}",
        "turn": delivery.turn,
        "destination": shown(delivery.destination),
        "state": delivery.state,
        "created": time_of(delivery.created_ms),
        "next look": time_of(delivery.due_ms),
        "ended": time_of(delivery.ended_ms),
        "endpoint": standing_words(*of_endpoint) if of_endpoint else "",
        "reason": f"{delivery.message} [{delivery.code}]" if delivery.code else "",
    }
    print_rows(console, rows)
    for attempt in delivery.log:
        words = f"attempt {attempt.number}  {time_of(attempt.at_ms)}  {attempt.code}: {attempt.message}"
        console.print(clean(words), markup=False, soft_wrap=True)
        if attempt.number in evidence:
            for line in _shown(evidence[attempt.number]):
                console.print(Text.assemble("           ", clean(line)), soft_wrap=True)


def _shown(evidence: Evidence) -> list[str]:
    """What an attempt showed, for a person."""
    steps = {"lookup": evidence.lookup_ms, "connect": evidence.connect_ms, "tls": evidence.tls_ms}
    steps |= {"head": evidence.head_ms, "total": evidence.total_ms}
    times = ", ".join(f"{name} {took} ms" for name, took in steps.items() if took is not None)
    where = f"to {evidence.address} " if evidence.address else ""
    lines = [f"{where}{'on an open connection ' if evidence.reused else ''}{times}"]
    if evidence.body:
        lines.append(f"answered {evidence.content_type or 'without a type'}{', cut' if evidence.truncated else ''}:")
        lines += evidence.body.decode(errors="replace").splitlines()[:20]
    return lines


def _table(deliveries: Sequence[Delivery]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name, widest in (("delivery", max(len(one.id) for one in deliveries)), ("state", len("delivered"))):
        table.add_column(name, no_wrap=True, min_width=widest)  # half an id is of no use
    for name in ("event", "destination", "attempts", "next look", "reason"):
        table.add_column(name, overflow="fold")
    for one in deliveries:
        style = _STYLES.get(one.state, "")
        cells = (one.event_type, shown(one.destination), str(one.attempts), time_of(one.due_ms), one.code)
        table.add_row(one.id, Text(one.state, style), *map(Text, cells))
    return table
