"""The commands of `lastword` and their arguments.

What belongs here: names, arguments and help. What must not be known here: what a command does; each line hands over.

A command loads what it needs when it is called, so that none waits for the libraries of another.
"""

import json
import os
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Annotated, Literal

import typer

from channels.console import exits
from channels.console.delivery_commands import deliveries_app
from channels.console.endpoint_commands import endpoints_app
from channels.console.http_commands import hooks_app, serve_web, tokens_app
from channels.console.schema_commands import schema
from channels.console.turn_commands import turns_app
from channels.console.webhook_commands import vault_app, webhook_app
from worker.errors import ConfigurationError

EXIT_CODES = "Exit codes: " + "; ".join(f"{code}: {meaning}" for code, meaning in exits.MEANING.items()) + "."

app = typer.Typer(
    name="lastword",
    help="Runs agent turns and delivers only the text of calls that completed.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
approvals_app = typer.Typer(help="What waits for a person.", no_args_is_help=True)
providers_app = typer.Typer(help="Whom turns ask.", no_args_is_help=True)
tools_app = typer.Typer(help="What models may call.", no_args_is_help=True)
app.add_typer(turns_app, name="turns")
app.add_typer(deliveries_app, name="deliveries")
app.add_typer(endpoints_app, name="endpoints")
app.add_typer(approvals_app, name="approvals")
app.add_typer(providers_app, name="providers")
app.add_typer(tools_app, name="tools")
app.add_typer(tokens_app, name="token")
app.add_typer(hooks_app, name="hooks")
app.add_typer(webhook_app, name="webhook")
app.add_typer(vault_app, name="vault")
webhook_app.command("schema", epilog="Example: lastword webhook schema turn.completed")(schema)
app.command("web", epilog="Example: lastword web --port 8080")(serve_web)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Agent = Annotated[str, typer.Option(help=r"Name of the \[agents.NAME] that answers.")]
Session = Annotated[str | None, typer.Option(help="Conversation that the message belongs to; none: one of its own.")]
Prompt = Annotated[str, typer.Argument(help="The message; - reads it from the standard input.")]
ApprovalId = Annotated[str, typer.Argument(metavar="ID", help="Id of a request, as `approvals list` prints it.")]
OnBusy = Literal["queue", "reject", "interrupt"]
By = Annotated[str | None, typer.Option(metavar="NAME", help="Who decides; not set: the name of your login.")]


@app.command("up", epilog="Example: lastword up")
def up_command() -> None:
    """Run everything on this machine: the turns and the delivery workers, and an embedded Valkey under them."""
    from channels.console import up
    from channels.settings import load_settings

    raise typer.Exit(up.run_up(load_settings()))


@app.command("run", epilog='Example: lastword run "What is the time in Oslo?" --json')
def run_command(prompt: Prompt, agent: Agent = "default", session: Session = None, as_json: Json = False) -> None:
    """Run one turn in this process and show it as it happens."""
    from channels.console.joined import joined
    from channels.console.run import run, to_its_end
    from channels.settings import load_settings

    loaded, message = load_settings(), _prompt(prompt)
    loaded.agent(agent)
    with joined(loaded) as there:
        url = there.settings.redis()
        code, left_behind = to_its_end(run(loaded, url, message, agent=agent, session=session, as_json=as_json))
    if left_behind:  # a tool that does not let itself be cancelled; the interpreter would wait for it
        sys.stdout.flush()
        os._exit(code)
    raise typer.Exit(code)


@app.command(
    "submit", epilog='Example: lastword submit "Summarise the day" --to https://example.com/hook --label job=42'
)
def submit_command(  # noqa: PLR0913, PLR0917 - one parameter an option
    prompt: Prompt,
    to: Annotated[list[str] | None, typer.Option(metavar="NAME|URL", help="Who gets the outcome.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="Comes back with the outcome.")] = None,
    idempotency_key: Annotated[str | None, typer.Option(help="The same key gives the same turn, for a day.")] = None,
    agent: Agent = "default",
    session: Session = None,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait that long for the outcome.")] = 0,
    on_busy: Annotated[OnBusy | None, typer.Option(help="If the session has a turn; not set: turns.on_busy.")] = None,
    join: Annotated[bool, typer.Option("--join", help="Let the message join a turn that runs, or be joined.")] = False,
    as_json: Json = False,
) -> None:
    """Hand a message in; `lastword up` runs the turn and delivers its outcome."""
    from channels.console import submit
    from channels.settings import load_settings

    message = submit.Message(
        prompt=_prompt(prompt),
        agent=agent,
        session=session,
        to=tuple(to or ()),
        labels=submit.labels_of(label or ()),
        idempotency_key=idempotency_key,
        wait_s=wait,
        on_busy=on_busy,
        joins=join,
    )
    raise typer.Exit(submit.run_submit(load_settings(), message, as_json=as_json))


@app.command("status", epilog="Example: lastword status --json")
def status_command(as_json: Json = False) -> None:
    """Show what runs, waits, is parked and is dead, and which processes live. Exit code 1: something needs a person."""
    from channels.console import status
    from channels.settings import load_settings

    raise typer.Exit(status.run_status(load_settings(), as_json=as_json))


@approvals_app.command("list", epilog="Example: lastword approvals list --json")
def approvals_list(as_json: Json = False) -> None:
    """List the tool calls that wait for a person, the one that expires first. With --json one object a line."""
    from channels.console import approvals
    from channels.settings import load_settings

    raise typer.Exit(approvals.run_list(load_settings(), as_json=as_json))


@approvals_app.command("grant", epilog="Example: lastword approvals grant appr_00f3a1b2c3d4e5f6071829_1_0")
def approvals_grant(
    approval: ApprovalId,
    session: Annotated[bool, typer.Option("--session", help="The tool may run for the rest of the session.")] = False,
    by: By = None,
) -> None:
    """Let a tool call run. The exit code is 1 if the answer does not count."""
    from channels.console import approvals
    from channels.settings import load_settings

    option = "approve_session" if session else "approve_once"
    raise typer.Exit(approvals.run_decide(load_settings(), approval, option, by))


@approvals_app.command("deny", epilog="Example: lastword approvals deny appr_00f3a1b2c3d4e5f6071829_1_0")
def approvals_deny(approval: ApprovalId, by: By = None) -> None:
    """Refuse a tool call; the model is told. The exit code is 1 if the answer does not count."""
    from channels.console import approvals
    from channels.settings import load_settings

    raise typer.Exit(approvals.run_decide(load_settings(), approval, "deny", by))


@tools_app.command("list", epilog="Example: lastword tools list --agent default")
def tools_list(
    agent: Annotated[str | None, typer.Option(help=r"Only what \[agents.NAME] offers.")] = None,
    as_json: Json = False,
) -> None:
    """List tools, where each comes from, and what is wrong. Starts MCP servers to ask them for theirs."""
    from channels.console import tools
    from channels.settings import load_settings

    raise typer.Exit(tools.run_list(load_settings(), agent, as_json=as_json))


@providers_app.command("list", epilog="Example: lastword providers list")
def providers_list(as_json: Json = False) -> None:
    """List the providers, and which of them are skipped because they keep dying. With --json one object a line."""
    from channels.console import providers
    from channels.settings import load_settings

    raise typer.Exit(providers.run_list(load_settings(), as_json=as_json))


@app.command("doctor", epilog="Example: lastword doctor --json")
def doctor_command(as_json: Json = False) -> None:
    """Look whether everything is as it must be, and name the fix where it is not. Exit code 0: all is good."""
    from channels.console import doctor
    from channels.settings import load_settings

    raise typer.Exit(doctor.run_doctor(load_settings(), as_json=as_json))


@app.command("decode", epilog="Example: lastword decode --wire anthropic capture.sse --chunk 7")
def decode_command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Captured streams.")],
    wire: Annotated[str, typer.Option(help="Wire format: chat, responses or anthropic.")] = "chat",
    profile: Annotated[str, typer.Option(help="compat repairs known deviations, strict refuses them.")] = "compat",
    chunk: Annotated[int | None, typer.Option(min=1, metavar="BYTES", help="Feed that many at a time.")] = None,
) -> None:
    """Show what Lastword makes of captured streams: one JSON object a line, also for a stream that broke off."""
    from channels.console.decode import check_options, decode_file

    check_options(wire, profile)
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"FILE {str(file)!r} cannot be read: {error.strerror}; correct the path") from None
        sys.stdout.write(json.dumps(decode_file(str(file), data, chunk, wire, profile), ensure_ascii=False) + "\n")


@app.command("provider", epilog="Example: lastword provider rehearsal.toml --transcript transcript.jsonl")
def provider_command(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="What it answers, call by call.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: a free one.")] = 0,
    transcript: Annotated[Path | None, typer.Option(metavar="FILE", help="Gets what was asked and sent.")] = None,
) -> None:
    """Run a stand-in provider that answers from a script, to rehearse without a model. Prints its base URL."""
    from channels.rehearsal import server

    server.run(script, host, port, transcript, started=lambda url: print(url, flush=True))


@app.command("settings", epilog="Example: lastword settings --schema > lastword.schema.json")
def settings_command(
    as_json: Json = False,
    schema: Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of lastword.toml instead.")] = False,
) -> None:
    """Show each setting, its unit and where its value came from. Secrets are never shown."""
    from channels.console import settings

    raise typer.Exit(settings.run_schema() if schema else settings.run_settings(as_json=as_json))


@app.command("version", epilog="Example: lastword version")
def version_command() -> None:
    """Show the version."""
    sys.stdout.write(version_of("lastword") + "\n")


def _prompt(argument: str) -> str:
    return sys.stdin.read() if argument == "-" else argument
