"""Whether what a message is to be delivered to can be delivered to.

What belongs here: the check of destinations before a turn is stored. What must not be known here: who asks, what is
sent.
"""

import difflib
from collections.abc import Sequence

import redis.asyncio

from channels.endpoints.directory import known, unknown
from channels.settings import Settings
from channels.webhook.address import check_url, shown
from worker.errors import ConfigurationError


async def check_destinations(client: redis.asyncio.Redis, settings: Settings, destinations: Sequence[str]) -> None:
    """Raise `ConfigurationError` for the first destination that is neither a URL nor an endpoint, with the fix."""
    for destination in destinations:
        if "://" in destination:
            check_url("destination", destination, settings.egress.for_outsiders)
    names = [destination for destination in destinations if "://" not in destination]
    for name in await unknown(client, settings, names):
        raise _unknown_destination(name, await known(client, settings))


def _unknown_destination(destination: str, names: Sequence[str]) -> ConfigurationError:
    """What is said of a destination that is none. It may be a URL that was mistyped, and hold a secret."""
    close = difflib.get_close_matches(destination, names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]!r}?" if close else "`lastword endpoints list` shows those that there are"
    return ConfigurationError(
        f"destination {shown(destination)!r} is neither a URL nor an endpoint; add [endpoints.NAME] for it, or make it "
        f"with `lastword endpoints create`; {hint}"
    )
