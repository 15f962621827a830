"""Whether what a message is to be delivered to can be delivered to.

What belongs here: the check of destinations before a turn is stored. What must not be known here: who asks, what is
sent.
"""

from collections.abc import Iterable, Sequence

import redis.asyncio

from channels.endpoints.directory import unknown
from channels.settings import Settings
from channels.webhook.address import check_url, shown
from worker.errors import ConfigurationError
from worker.sources import nearest


async def check_destinations(client: redis.asyncio.Redis, settings: Settings, destinations: Sequence[str]) -> None:
    """Raise `ConfigurationError` for the first destination that is neither a URL nor an endpoint, with the fix."""
    for destination in destinations:
        if "://" in destination:
            check_url("destination", destination, settings.egress.for_outsiders)
    names = [destination for destination in destinations if "://" not in destination]
    for name in await unknown(client, settings, names):
        raise unknown_destination(name, settings.endpoints)


def unknown_destination(destination: str, known: Iterable[str]) -> ConfigurationError:
    """What is said of a destination that is none. It may be a URL that was mistyped, and hold a secret."""
    return ConfigurationError(
        f"destination {shown(destination)!r} is neither a URL nor an endpoint; add [endpoints.NAME] for it, or make it "
        f"with `lastword endpoints create`; {nearest(destination, list(known))}"
    )
