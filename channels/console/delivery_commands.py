"""The commands `lastword deliveries ...` and their arguments.

What belongs here: names, arguments and help. What must not be known here: what a command does; each line hands over.
"""

from pathlib import Path
from typing import Annotated

import typer

from channels.delivery.model import State

deliveries_app = typer.Typer(help="What is on its way to receivers.", no_args_is_help=True)
replays_app = typer.Typer(help="Bulk replays, which go on by themselves.", no_args_is_help=True)
deliveries_app.add_typer(replays_app, name="replays")

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DeliveryId = Annotated[str, typer.Argument(metavar="ID", help="Id of a delivery, as `deliveries list` prints it.")]
ReplayId = Annotated[
    str, typer.Argument(metavar="ID", help="Id of a bulk replay, as `deliveries replays list` prints it.")
]
Of = Annotated[State | None, typer.Option("--state", help="Only those of this state.")]
Endpoint = Annotated[str | None, typer.Option(metavar="NAME|URL", help="Only those for this endpoint.")]
Kind = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only those of this event type.")]
Turn = Annotated[str | None, typer.Option(metavar="ID", help="Only those of this turn.")]
Since = Annotated[str | None, typer.Option(metavar="AGO|TIME", help="Made since then: 2h, or ISO 8601.")]
Until = Annotated[str | None, typer.Option(metavar="AGO|TIME", help="Made before then.")]


@deliveries_app.command("list", epilog="Example: lastword deliveries list --state dead --endpoint billing --since 2h")
def list_(  # noqa: PLR0913, PLR0917 - one parameter an option
    state: Of = None,
    endpoint: Endpoint = None,
    kind: Kind = None,
    turn: Turn = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most that many.")] = 50,
    after: Annotated[str, typer.Option(metavar="PLACE", help="Behind this place, as the page before told it.")] = "",
    as_json: Json = False,
) -> None:
    """List deliveries, the newest first. With --json one object a line."""
    from channels.console import deliveries
    from channels.settings import load_settings

    asked = deliveries.Asked(state, endpoint, kind, turn, since, until)
    raise typer.Exit(deliveries.run_list(load_settings(), asked, limit, after, as_json=as_json))


@deliveries_app.command("show", epilog="Example: lastword deliveries show dlv_00f3a1b2c3d4e5f6071829")
def show(delivery: DeliveryId, as_json: Json = False) -> None:
    """Show a delivery, its attempts, and what they showed: times, status, answer. The exit code is 1 if it is dead."""
    from channels.console import deliveries
    from channels.settings import load_settings

    raise typer.Exit(deliveries.run_show(load_settings(), delivery, as_json=as_json))


@deliveries_app.command("replay", epilog="Example: lastword deliveries replay --endpoint billing --since 2h --rate 20")
def replay(  # noqa: PLR0913, PLR0917 - one parameter an option
    delivery: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of one delivery. Not given: all that the options choose.")
    ] = None,
    state: Annotated[list[str] | None, typer.Option(help="dead, held; repeated: both. Not set: dead.")] = None,
    endpoint: Endpoint = None,
    kind: Annotated[list[str] | None, typer.Option("--type", metavar="TYPE", help="Of these event types.")] = None,
    turn: Turn = None,
    since: Since = None,
    until: Until = None,
    rate: Annotated[float | None, typer.Option(metavar="PER_SECOND", help="How fast. Not set: 20.")] = None,
    as_json: Json = False,
) -> None:
    """Send a dead or held delivery again, from its first attempt; or all of a range, at a pace."""
    from channels.console import deliveries, replays
    from channels.settings import load_settings

    asked = replays.Asked(tuple(state or ()), endpoint, tuple(kind or ()), turn, since, until, rate)
    if delivery is not None:
        asked.refuse_beside(delivery)
        raise typer.Exit(deliveries.run_replay(load_settings(), delivery, as_json=as_json))
    raise typer.Exit(replays.run_start(load_settings(), asked, as_json=as_json))


@deliveries_app.command("cancel", epilog="Example: lastword deliveries cancel dlv_00f3a1b2c3d4e5f6071829")
def cancel(delivery: DeliveryId, as_json: Json = False) -> None:
    """Let a delivery that is queued, waiting or held not be sent any more."""
    from channels.console import deliveries
    from channels.settings import load_settings

    raise typer.Exit(deliveries.run_cancel(load_settings(), delivery, as_json=as_json))


@deliveries_app.command("export", epilog="Example: lastword deliveries export --state dead --out dead.jsonl")
def export_(  # noqa: PLR0913, PLR0917 - one parameter an option
    state: Of = None,
    endpoint: Endpoint = None,
    kind: Kind = None,
    turn: Turn = None,
    since: Since = None,
    until: Until = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Not set: the standard output.")] = None,
) -> None:
    """Write all deliveries of a range with what their attempts showed, one JSON object a line, the newest first."""
    from channels.console import deliveries, export
    from channels.settings import load_settings

    asked = deliveries.Asked(state, endpoint, kind, turn, since, until)
    raise typer.Exit(export.run_export(load_settings(), asked, out))


@replays_app.command("list", epilog="Example: lastword deliveries replays list")
def replays_list(
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most that many.")] = 20, as_json: Json = False
) -> None:
    """List bulk replays and how far they have come, the newest first. With --json one object a line."""
    from channels.console import replays
    from channels.settings import load_settings

    raise typer.Exit(replays.run_list(load_settings(), limit, as_json=as_json))


@replays_app.command("show", epilog="Example: lastword deliveries replays show rpl_00f3a1b2c3d4e5f60718")
def replays_show(replay: ReplayId, as_json: Json = False) -> None:
    """Show a bulk replay and how far it has come."""
    from channels.console import replays
    from channels.settings import load_settings

    raise typer.Exit(replays.run_step(load_settings(), replay, "show", as_json=as_json))


@replays_app.command("pause", epilog="Example: lastword deliveries replays pause rpl_00f3a1b2c3d4e5f60718")
def replays_pause(replay: ReplayId, as_json: Json = False) -> None:
    """Let a bulk replay wait until it is resumed."""
    from channels.console import replays
    from channels.settings import load_settings

    raise typer.Exit(replays.run_step(load_settings(), replay, "pause", as_json=as_json))


@replays_app.command("resume", epilog="Example: lastword deliveries replays resume rpl_00f3a1b2c3d4e5f60718")
def replays_resume(replay: ReplayId, as_json: Json = False) -> None:
    """Let a paused bulk replay go on where it was."""
    from channels.console import replays
    from channels.settings import load_settings

    raise typer.Exit(replays.run_step(load_settings(), replay, "resume", as_json=as_json))


@replays_app.command("cancel", epilog="Example: lastword deliveries replays cancel rpl_00f3a1b2c3d4e5f60718")
def replays_cancel(replay: ReplayId, as_json: Json = False) -> None:
    """End a bulk replay. What it has replayed stays so."""
    from channels.console import replays
    from channels.settings import load_settings

    raise typer.Exit(replays.run_step(load_settings(), replay, "cancel", as_json=as_json))
