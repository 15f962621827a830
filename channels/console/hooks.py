"""`lastword hooks`: which inbound routes there are, and what a sender would send to one.

What belongs here: the form of these answers. What must not be known here: how an event is checked or stored.
"""

import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.terminal import open_console
from channels.hooks.settings import HookSettings
from channels.hooks.verification import proof
from channels.settings import Settings
from channels.webhook.address import shown
from worker.errors import ConfigurationError
from worker.sources import nearest


@dataclass(frozen=True, slots=True)
class Row:
    """One route. `secrets`: their names. `to`: of URLs scheme and host only. `events` empty: all."""

    route: str
    enabled: bool
    path: str
    verification: str
    secrets: list[str]
    agent: str
    events: list[str]
    session: str | None
    to: list[str]
    rate_per_minute: int


def run_list(settings: Settings, *, as_json: bool) -> int:
    """Print the routes; returns the exit code."""
    rows = [_row(name, hook) for name, hook in settings.hooks.items()]
    if as_json:
        sys.stdout.writelines(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows)
        return exits.OK
    table = Table(box=None, pad_edge=False)
    for name in ("route", "path", "verification", "secrets", "agent", "events", "session", "to", "a minute"):
        table.add_column(name, overflow="fold", no_wrap=name == "route")
    for row in rows:
        path = row.path if row.enabled else "not enabled"
        words = (row.route, path, row.verification, ", ".join(row.secrets), row.agent)
        more = (", ".join(row.events) or "all", row.session or "", ", ".join(row.to), str(row.rate_per_minute))
        table.add_row(*(Text(word, "" if row.enabled else "dim") for word in (*words, *more)))
    open_console().print(table if rows else r"no inbound routes: add \[hooks.NAME] to lastword.toml")
    return exits.OK


def run_sign(  # noqa: PLR0913 - one parameter an option
    settings: Settings, name: str, body: bytes, *, event: str | None, delivery: str | None, as_json: bool
) -> int:
    """Print the headers that a sender of this body would send; returns the exit code."""
    if name not in settings.hooks:
        raise ConfigurationError(f"route {name[:80]!r} is none of [hooks.NAME]: {nearest(name, list(settings.hooks))}")
    headers = headers_of(settings.hooks[name], name, body, event, delivery, _unix_s)
    if as_json:
        sys.stdout.write(json.dumps(headers) + "\n")
    else:
        sys.stdout.writelines(f"{header}: {value}\n" for header, value in headers.items())
    return exits.OK


def headers_of(  # noqa: PLR0913, PLR0917 - what a sender knows
    hook: HookSettings, name: str, body: bytes, event: str | None, delivery: str | None, clock: Callable[[], float]
) -> dict[str, str]:
    """The headers with which the first secret of a route proves a body. Without `delivery` its id is a fresh one."""
    route = hook.route(name)
    message = delivery if delivery is not None else f"msg_{secrets.token_hex(10)}"
    told = {} if route.delivery.pointer is not None else {route.delivery.header: message}
    if event is not None:
        told[route.event.header] = event
    return {**told, **proof(route.verification, body, now_s=int(clock()), message=message)}


def read_body(file: Path) -> bytes:
    """The body that is to be signed; of `-` the standard input. Raises `ConfigurationError`."""
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--body {str(file)!r} cannot be read: {error.strerror}; correct the path") from None


def _row(name: str, hook: HookSettings) -> Row:
    return Row(
        route=name,
        enabled=hook.enabled,
        path=f"/hooks/{name}",
        verification=hook.verification,
        secrets=list(hook.secrets),
        agent=hook.agent,
        events=list(hook.events),
        session=hook.session,
        to=[shown(each) if "://" in each else each for each in hook.to],
        rate_per_minute=hook.rate_per_minute,
    )


def _unix_s() -> float:
    return datetime.now(UTC).timestamp()  # noqa: TID251 - a signature has the time of its sender
