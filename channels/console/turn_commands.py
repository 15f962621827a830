"""The commands `lastword turns ...` and their arguments.

What belongs here: names, arguments and help. What must not be known here: what a command does; each line hands over.
"""

from typing import Annotated

import typer

turns_app = typer.Typer(help="What turns emitted.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@turns_app.command("list", epilog="Example: lastword turns list --state failed --since 2h --label team=ops")
def turns_list(  # noqa: PLR0913, PLR0917 - one parameter an option
    state: Annotated[
        str | None,
        typer.Option(help="queued, running, parked, sealed (all that ended), an outcome, or all. Not set: not ended."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="AGO|TIME", help="Submitted, or ended, since then: 2h, or ISO 8601.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only those with this label.")] = None,
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most that many.")] = 50,
    as_json: Json = False,
) -> None:
    """List turns: those that have not ended, the oldest first, or those that have, the latest first."""
    from channels.console import turns
    from channels.console.asked_turns import Asked
    from channels.settings import load_settings

    asked = Asked(state, since, tuple(label or ()), agent)
    raise typer.Exit(turns.run_list(load_settings(), asked, limit, as_json=as_json))


@turns_app.command("replay", epilog="Example: lastword turns replay turn_00f3a1b2c3d4e5f6071829")
def turns_replay(
    turn: Annotated[str, typer.Argument(metavar="ID", help="Id of a turn that has ended.")],
    force: Annotated[bool, typer.Option("--force", help="Also a turn that has its answer.")] = False,
    as_json: Json = False,
) -> None:
    """Ask a turn's message anew, as a fresh turn of its session: after it ended as dead, failed, cut or cancelled."""
    from channels.console import turns
    from channels.settings import load_settings

    raise typer.Exit(turns.run_replay(load_settings(), turn, force=force, as_json=as_json))


@turns_app.command("show", epilog="Example: lastword turns show turn_00f3a1b2c3d4e5f6071829")
def turns_show(
    turn: Annotated[str, typer.Argument(metavar="ID", help="Id of a turn, as `submit` prints it.")],
    as_json: Json = False,
) -> None:
    """Show a turn's outputs. Discarded text is struck through where a reader saw it, else its size is told."""
    from channels.console import turns
    from channels.settings import load_settings

    raise typer.Exit(turns.run_show(load_settings(), turn, as_json=as_json))


@turns_app.command("cancel", epilog="Example: lastword turns cancel turn_00f3a1b2c3d4e5f6071829 --wait 10")
def turns_cancel(
    turn: Annotated[str, typer.Argument(metavar="ID", help="Id of a turn, as `submit` prints it.")],
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait that long for its end.")] = 0,
    by: Annotated[str | None, typer.Option(metavar="NAME", help="Who wants it; not set: your login.")] = None,
    as_json: Json = False,
) -> None:
    """End a turn, wherever it stands. What has been answered so far is delivered as `turn.cancelled`."""
    from channels.console import cancel
    from channels.settings import load_settings

    raise typer.Exit(cancel.run_cancel(load_settings(), turn, by, wait, as_json=as_json))
