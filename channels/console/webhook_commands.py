"""The commands around signatures, `lastword webhook` and `lastword vault`, and their arguments.

What belongs here: names, arguments and help. What must not be known here: what a command does; each line hands over.
"""

from pathlib import Path
from typing import Annotated

import typer

webhook_app = typer.Typer(help="Secrets and signatures of webhooks.", no_args_is_help=True)
vault_app = typer.Typer(help="The keys that stored secrets are encrypted with.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@webhook_app.command("verify", epilog="Example: lastword webhook verify body.json --headers headers.txt")
def verify(  # noqa: PLR0913, PLR0917 - one parameter an option
    body: Annotated[
        Path, typer.Argument(metavar="BODY", help="File that holds the bytes; - reads the standard input.")
    ],
    headers: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The headers as they came, one a line; others do no harm.")
    ] = None,
    identifier: Annotated[str | None, typer.Option("--id", metavar="ID", help="webhook-id, without --headers.")] = None,
    timestamp: Annotated[str | None, typer.Option(metavar="SECONDS", help="webhook-timestamp.")] = None,
    signature: Annotated[str | None, typer.Option(metavar="TEXT", help="webhook-signature.")] = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Secrets (whsec_, whsk_) or public keys (whpk_), one a line. Not set: $WEBHOOK_SECRET."
        ),
    ] = None,
    tolerance: Annotated[
        int, typer.Option(min=0, metavar="SECONDS", help="How old it may be, or how far ahead.")
    ] = 300,
    as_json: Json = False,
) -> None:
    """Tell whether a webhook that somebody got is signed rightly, by which key, and why not. Exit code 1: it is not."""
    from channels.console import webhook

    given = webhook.Given(headers, identifier, timestamp, signature, secret_file)
    raise typer.Exit(webhook.run_verify(body, given, tolerance, as_json=as_json))


@webhook_app.command("secret", epilog="Example: lastword webhook secret --ed25519")
def secret(
    ed25519: Annotated[
        bool, typer.Option("--ed25519", help="A key pair: receivers verify with the public key, and cannot sign.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a signing secret and print it: once, it is kept nowhere. With --ed25519 the public key follows."""
    from channels.console import webhook

    raise typer.Exit(webhook.run_secret("v1a" if ed25519 else "v1", as_json=as_json))


@vault_app.command("key", epilog="Example: lastword vault key > fresh-key")
def key() -> None:
    """Make a master key and print its line: once, it is kept nowhere. As the first of vault.keys_file it encrypts."""
    from channels.console import vault

    raise typer.Exit(vault.run_key())


@vault_app.command("reseal", epilog="Example: lastword vault reseal --json")
def reseal(as_json: Json = False) -> None:
    """Encrypt all stored secrets with the first master key. Exit code 1: some are under an older one still."""
    from channels.console import vault
    from channels.endpoints.registry import Registry
    from channels.settings import load_settings

    raise typer.Exit(vault.run_reseal(load_settings(), Registry, as_json=as_json))
