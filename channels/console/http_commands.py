"""The commands around the HTTP API, `lastword web`, `lastword token` and `lastword hooks`, and their arguments.

What belongs here: names, arguments and help. What must not be known here: what a command does; each line hands over.
"""

from pathlib import Path
from typing import Annotated

import typer

tokens_app = typer.Typer(help="Who may use the HTTP API.", no_args_is_help=True)
hooks_app = typer.Typer(help="Where other programs post their events.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


def serve_web(
    host: Annotated[str | None, typer.Option(help="Instead of web.host.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Instead of web.port; 0: any free one.")] = None,
) -> None:
    """Serve the HTTP API: submit, status, cancel, approvals, and live events. SIGTERM drains it."""
    from channels.settings import load_settings
    from channels.web.server import run_web

    loaded = load_settings()
    given = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    raise typer.Exit(run_web(loaded.model_copy(update={"web": loaded.web.model_copy(update=given)})))


@tokens_app.command(
    "create", epilog="Example: lastword token create --name crm --scope turns:write --scope turns:read --expires 90d"
)
def create(  # noqa: PLR0913, PLR0917 - one parameter an option
    scope: Annotated[list[str] | None, typer.Option(help="What it may do; `token scopes` lists them.")] = None,
    name: Annotated[str, typer.Option(help="Who decides, where it decides approvals; shown in `token list`.")] = "api",
    expires: Annotated[str | None, typer.Option(metavar="TIME", help="As in 12h or 90d; not set: never.")] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            help="It sees and submits only turns of this agent. Without --sessions it can name no session: each of its "
            "turns then has one of its own."
        ),
    ] = None,
    sessions: Annotated[
        str | None,
        typer.Option(
            metavar="PREFIX",
            help="It sees and submits only turns of sessions that begin so. In a session that several agents share, "
            "each is shown what the others said.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a bearer token and print it: once, it is kept nowhere."""
    from channels.console import tokens
    from channels.settings import load_settings

    asked = tokens.Asked(name, tuple(scope or ()), tokens.seconds_of(expires), agent, sessions)
    raise typer.Exit(tokens.run_create(load_settings(), asked, as_json=as_json))


@tokens_app.command("list", epilog="Example: lastword token list --json")
def list_(as_json: Json = False) -> None:
    """List the tokens that count, without their secrets, the oldest first. With --json one object a line."""
    from channels.console import tokens
    from channels.settings import load_settings

    raise typer.Exit(tokens.run_list(load_settings(), as_json=as_json))


@tokens_app.command("revoke", epilog="Example: lastword token revoke 00f3a1b2c3d4e5f6")
def revoke(
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Id of a token, as `token list` prints it.")],
) -> None:
    """Let a token count no more, from its next request on."""
    from channels.console import tokens
    from channels.settings import load_settings

    raise typer.Exit(tokens.run_revoke(load_settings(), identifier))


@tokens_app.command("scopes", epilog="Example: lastword token scopes")
def scopes() -> None:
    """List what a token may be made for."""
    from channels.console import tokens

    raise typer.Exit(tokens.run_scopes())


@hooks_app.command("list", epilog="Example: lastword hooks list --json")
def hooks_list(as_json: Json = False) -> None:
    """List the inbound routes of the settings. With --json one object a line."""
    from channels.console import hooks
    from channels.settings import load_settings

    raise typer.Exit(hooks.run_list(load_settings(), as_json=as_json))


@hooks_app.command("sign", epilog="Example: lastword hooks sign crm --body event.json --event paid")
def hooks_sign(
    route: Annotated[str, typer.Argument(metavar="ROUTE", help=r"Name of the \[hooks.NAME].")],
    body: Annotated[Path, typer.Option(metavar="FILE", help="What is to be posted; - reads the standard input.")],
    event: Annotated[str | None, typer.Option(metavar="TYPE", help="Type of the event.")] = None,
    delivery: Annotated[str | None, typer.Option(metavar="ID", help="Of the delivery; not set: a fresh one.")] = None,
    as_json: Json = False,
) -> None:
    """Print the headers that a sender of this body would send, one a line, as `curl -H @FILE` takes them."""
    from channels.console import hooks
    from channels.settings import load_settings

    signed = hooks.read_body(body)
    raise typer.Exit(hooks.run_sign(load_settings(), route, signed, event=event, delivery=delivery, as_json=as_json))
