"""The commands around endpoints, `lastword endpoints`, and their arguments.

What belongs here: names, arguments and help. What must not be known here: what a command does; each line hands over.
"""

from pathlib import Path
from typing import Annotated, Literal

import typer

endpoints_app = typer.Typer(help="Who gets webhooks, where and how.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of an endpoint.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Event = Annotated[
    list[str] | None, typer.Option(metavar="TYPE", help="Events that it gets without being named, as in turn.*")
]
Source = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="Only of turns from there; crm/* is all that begins so.")
]
Label = Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Only of turns with this label.")]
Header = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="A request header; NAME=@FILE reads its value.")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="FIELD=VALUE", help=r"Any other field of \[endpoints.NAME], its value as JSON or as it is."
    ),
]
SecretFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Holds the secret, whsec_ or whsk_; not set: one is made.")
]
Version = Annotated[int | None, typer.Option(min=0, help="Only if it has this version.")]
Why = Annotated[str | None, typer.Option(metavar="TEXT", help="Shown beside its state; not set: who did it.")]


@endpoints_app.command(
    "create", epilog="Example: lastword endpoints create crm --url https://example.com/hook --event 'turn.*'"
)
def create(  # noqa: PLR0913, PLR0917 - one parameter an option
    name: Name,
    url: Annotated[str, typer.Option(help="Where its webhooks are posted to.")],
    event: Event = None,
    source: Source = None,
    label: Label = None,
    header: Header = None,
    setting: Set = None,
    secret_file: SecretFile = None,
    scheme: Annotated[Literal["v1", "v1a"], typer.Option(help="Of a secret that is made.")] = "v1",
    as_json: Json = False,
) -> None:
    """Make an endpoint and print its secret. It counts at once in all processes."""
    from channels.console import endpoints
    from channels.console.endpoint_fields import Given
    from channels.settings import load_settings

    given = Given(url, event, source, label, header, setting or ())
    raise typer.Exit(
        endpoints.run_create(load_settings(), name, given, secret_file=secret_file, scheme=scheme, as_json=as_json)
    )


@endpoints_app.command("list", epilog="Example: lastword endpoints list --json")
def list_(as_json: Json = False) -> None:
    """List the endpoints by name: those of the settings, and those that were made. With --json one object a line."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_list(load_settings(), as_json=as_json))


@endpoints_app.command("show", epilog="Example: lastword endpoints show crm")
def show(name: Name, as_json: Json = False) -> None:
    """Show an endpoint, without its secrets."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_show(load_settings(), name, as_json=as_json))


@endpoints_app.command("update", epilog="Example: lastword endpoints update crm --set timeout_s=10 --unset rate_per_s")
def update(  # noqa: PLR0913, PLR0917 - one parameter an option
    name: Name,
    url: Annotated[str | None, typer.Option(help="Where its webhooks are posted to from now on.")] = None,
    event: Event = None,
    source: Source = None,
    label: Label = None,
    header: Header = None,
    setting: Set = None,
    unset: Annotated[list[str] | None, typer.Option(metavar="FIELD", help="Take back what was said of it.")] = None,
    version: Version = None,
    as_json: Json = False,
) -> None:
    """Change what is given and leave the rest. Lists and headers are replaced as a whole."""
    from channels.console import endpoints
    from channels.console.endpoint_fields import Given
    from channels.settings import load_settings

    given = Given(url, event, source, label, header, setting or (), unset or ())
    raise typer.Exit(endpoints.run_update(load_settings(), name, given, version=version, as_json=as_json))


@endpoints_app.command("delete", epilog="Example: lastword endpoints delete crm")
def delete(name: Name, version: Version = None) -> None:
    """Delete an endpoint. What waits for it is cancelled."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_delete(load_settings(), name, version=version))


@endpoints_app.command("rotate", epilog="Example: lastword endpoints rotate crm --overlap 2d")
def rotate(
    name: Name,
    overlap: Annotated[
        str, typer.Option(metavar="TIME", help="How long the old secrets sign, too: 90s, 30m, 2h, 2d; 7d at most.")
    ] = "1d",
    secret_file: SecretFile = None,
    scheme: Annotated[
        Literal["v1", "v1a"] | None, typer.Option(help="Of a secret that is made; not set: that of the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Give an endpoint a new secret and print it. --overlap 0 ends the old ones at once, as after a leak."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(
        endpoints.run_rotate(
            load_settings(), name, overlap=overlap, secret_file=secret_file, scheme=scheme, as_json=as_json
        )
    )


@endpoints_app.command("secret", epilog="Example: lastword endpoints secret crm")
def secret(name: Name, as_json: Json = False) -> None:
    """Print the secrets that sign what goes to an endpoint, the newest first."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_secret(load_settings(), name, as_json=as_json))


@endpoints_app.command("pause", epilog="Example: lastword endpoints pause crm --why 'it moves house'")
def pause(name: Name, why: Why = None) -> None:
    """Hold what is for an endpoint, and what comes, until it is resumed."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_act(load_settings(), name, "pause", why=why))


@endpoints_app.command("resume", epilog="Example: lastword endpoints resume crm")
def resume(name: Name) -> None:
    """Send again what comes for an endpoint that is paused, and what it held."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_act(load_settings(), name, "resume", why=None))


@endpoints_app.command("enable", epilog="Example: lastword endpoints enable crm --replay")
def enable(
    name: Name, replay: Annotated[bool, typer.Option("--replay", help="Also what it held, however old.")] = False
) -> None:
    """Send again what comes for an endpoint that is disabled. What it held stays held, unless --replay is given."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_act(load_settings(), name, "enable", why=None, replay=replay))


@endpoints_app.command("disable", epilog="Example: lastword endpoints disable crm --why 'they have left us'")
def disable(name: Name, why: Why = None) -> None:
    """Hold what is for an endpoint, and what comes, until it is enabled."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_act(load_settings(), name, "disable", why=why))


@endpoints_app.command("test", epilog="Example: lastword endpoints test crm")
def try_it(name: Name, as_json: Json = False) -> None:
    """Send an endpoint a test event, whatever it subscribes to, and print the event's id."""
    from channels.console import endpoints
    from channels.settings import load_settings

    raise typer.Exit(endpoints.run_test(load_settings(), name, as_json=as_json))
