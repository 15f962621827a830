"""What must be true of inbound routes before events come, and what to do where it is not.

What belongs here: looking at their secrets' files and at who gets their outcomes, and naming the fix. What must not be
known here: how the findings are shown, how events are verified.
"""

from pathlib import Path

import redis.asyncio
from redis.exceptions import RedisError

from channels.doctor import Check
from channels.endpoints.directory import unknown
from channels.settings import Settings
from channels.webhook.address import shown


def check_given(settings: Settings) -> list[Check]:
    """Whether the inbound routes lead somewhere, and their secrets are kept. What cannot work is refused at start."""
    checks = []
    for name, hook in settings.hooks.items():
        files = [secret.value_file for secret in hook.secrets.values() if secret.value_file is not None]
        title, open_to_all = f"hook {name}", [str(file) for file in files if _is_open_to_all(file)]
        if not hook.enabled:
            checks.append(Check(title, True, "it is not enabled"))
        elif open_to_all:
            finding = f"everybody on this machine can read {', '.join(open_to_all)}"
            checks.append(Check(title, False, finding, "take the rights from the others: chmod 600"))
        elif not hook.to:
            finding, fix = "its route names nobody who gets the outcomes", f"set hooks.{name}.to, unless a subscription"
            checks.append(Check(title, True, finding, f"{fix} on the source hook/{name} is meant to find them"))
        else:
            to = ", ".join(shown(each) if "://" in each else each for each in hook.to)
            checks.append(Check(title, True, f"{hook.verification}, agent {hook.agent}, to {to}"))
    return checks


async def check_receivers(client: redis.asyncio.Redis, settings: Settings) -> list[Check]:
    """Whether there are the endpoints that get the outcomes of inbound routes, in the settings or in the store."""
    try:
        missing = await missing_receivers(client, settings)
    except (RedisError, OSError):
        return []  # the check of Redis tells of it
    return [
        Check(
            f"hook {name}",
            False,
            f"there is no endpoint {each} that could get its outcomes",
            f"make it with `lastword endpoints create {each}`, or correct hooks.{name}.to",
        )
        for name, each in missing
    ]


async def missing_receivers(client: redis.asyncio.Redis, settings: Settings) -> list[tuple[str, str]]:
    """The routes and what they name as receivers that no endpoint is. Raises what says that the store is away."""
    named = [
        (name, each) for name, hook in settings.hooks.items() for each in hook.to if hook.enabled and "://" not in each
    ]
    missing = await unknown(client, settings, {each for _, each in named})
    return [(name, each) for name, each in named if each in missing]


def _is_open_to_all(file: Path) -> bool:
    try:
        return bool(file.stat().st_mode & 0o004)
    except OSError:
        return False  # it was read a moment ago
