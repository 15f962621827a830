"""The endpoints there are at one moment, found by name and by event.

What belongs here: finding. What must not be known here: where endpoints come from, when they change.
"""

from collections.abc import Sequence

from channels.endpoints import patterns, subscription
from channels.endpoints.model import Endpoint
from channels.endpoints.subscription import Event


class Audience:
    """Who may be told of something. To be kept as long as no endpoint changes: it remembers what it found."""

    def __init__(self, endpoints: Sequence[Endpoint] = ()) -> None:
        self.endpoints = endpoints
        self._named = {endpoint.name: endpoint for endpoint in endpoints}
        self._of_type: dict[str, tuple[Endpoint, ...]] = {}

    def named(self, destination: str) -> Endpoint | None:
        """The endpoint of that name; None: there is none (any more), or it is a URL."""
        return self._named.get(destination)

    def wants(self, event_type: str) -> bool:
        """Whether anybody subscribes to events of that type, whatever their source and labels."""
        return bool(self._subscribed(event_type))

    def subscribed(self, event: Event) -> list[Endpoint]:
        """Who gets an event without being named."""
        return [one for one in self._subscribed(event.type) if subscription.admits(one.subscription, event)]

    def _subscribed(self, event_type: str) -> tuple[Endpoint, ...]:
        if event_type not in patterns.TYPES:  # there may be any number of them, and nobody can have asked for one
            return ()
        found = self._of_type.get(event_type)
        if found is None:
            found = tuple(
                one
                for one in self._named.values()
                if any(patterns.admits(pattern, event_type) for pattern in one.subscription.events)
            )
            self._of_type[event_type] = found
        return found
