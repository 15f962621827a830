"""`lastword token`: who may use the HTTP API.

What belongs here: the form of these answers. What must not be known here: how tokens are stored or checked.
"""

import json
import re
import sys
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from channels.console import exits
from channels.console.joined import Client, Joined, ask
from channels.console.terminal import cleaner, open_console, time_of
from channels.settings import Settings
from channels.web import tokens
from channels.web.tokens import SCOPES, Token
from worker.errors import ConfigurationError

_TIME = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Asked:
    """The token that is to be made. `expires_s`: seconds from now; None: never."""

    name: str
    scopes: tuple[str, ...]
    expires_s: float | None
    agent: str | None
    sessions: str | None


def seconds_of(text: str | None) -> float | None:
    """A time such as 90d in seconds. Raises `ConfigurationError`."""
    if text is None:
        return None
    match = _TIME.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"--expires {text[:40]!r}: give a number and s, m, h or d, as in 12h or 90d")
    return float(match[1]) * _UNITS[match[2]]


def run_create(settings: Settings, asked: Asked, *, as_json: bool) -> int:
    """Make a token and print it; returns the exit code."""
    if asked.agent:  # an empty one is refused with the others
        settings.agent(asked.agent)

    async def make(_: Joined, client: Client) -> int:
        token, text = await tokens.create(
            client,
            name=asked.name,
            scopes=frozenset(asked.scopes),
            expires_s=asked.expires_s,
            agent=asked.agent,
            sessions=asked.sessions,
        )
        if as_json:
            sys.stdout.write(json.dumps({**_object(token), "token": text}) + "\n")
            return exits.OK
        sys.stdout.write(text + "\n")
        errors = open_console(stderr=True)
        errors.print(
            f"token {token.id}: it is shown this once; `lastword token revoke {token.id}` ends it", style="dim"
        )
        return exits.OK

    return ask(settings, make)


def run_list(settings: Settings, *, as_json: bool) -> int:
    """Print the tokens; returns the exit code."""

    async def listed(_: Joined, client: Client) -> int:
        found = await tokens.listed(client)
        if as_json:
            sys.stdout.writelines(json.dumps(_object(token), ensure_ascii=False) + "\n" for token in found)
            return exits.OK
        console = open_console()
        clean = cleaner(console)
        table = Table(box=None, pad_edge=False)
        for name in ("id", "name", "scopes", "agent", "sessions", "made", "expires"):
            table.add_column(name, overflow="fold", no_wrap=name == "id")
        for token in found:
            cells = (token.id, token.name, " ".join(sorted(token.scopes)), token.agent, token.sessions)
            times = (time_of(token.created_ms), time_of(token.expires_ms) or "never")
            table.add_row(*(Text(clean(cell)) for cell in (*cells, *times)))
        console.print(table if found else "no tokens: `lastword token create` makes one")
        return exits.OK

    return ask(settings, listed)


def run_revoke(settings: Settings, identifier: str) -> int:
    """Let a token count no more; returns the exit code."""

    async def end(_: Joined, client: Client) -> int:
        if not await tokens.revoke(client, identifier):
            raise ConfigurationError(f"token {identifier} is not there: it was revoked, or has expired")
        sys.stdout.write(f"{identifier} revoked\n")
        return exits.OK

    return ask(settings, end)


def run_scopes() -> int:
    """Print what a token may be made for; returns the exit code."""
    width = max(map(len, SCOPES))
    sys.stdout.writelines(f"{name:<{width}}  {meaning}\n" for name, meaning in SCOPES.items())
    return exits.OK


def _object(token: Token) -> dict[str, object]:
    return {
        "id": token.id,
        "name": token.name,
        "scopes": sorted(token.scopes),
        "agent": token.agent or None,
        "sessions": token.sessions or None,
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms or None,
    }
