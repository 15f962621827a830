"""Endpoints that subscribe, and what makes deliveries for them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from channels.addressing import Addressing
from channels.endpoints.audience import Audience
from channels.endpoints.model import Endpoint, Match, Subscription
from channels.made import Made
from worker.store.log import Entry
from worker.store.reads import Read, read_all

SOON = 10**15


def endpoint(name: str, *events: str, labels: Sequence[tuple[str, Match]] = (), **more: Any) -> Endpoint:
    """An endpoint that subscribes to these types of events, or families of them."""
    sources = more.pop("sources", ())
    made = Endpoint(name, f"https://{name}.example/", "file", (), Subscription(events, sources, tuple(labels)))
    return replace(made, **more)


def addressing_of(client: Any, *endpoints: Endpoint, read: Any = None) -> Addressing:
    """What makes the deliveries of the first partition. `read`: instead of asking the client."""
    known = Audience(endpoints)

    async def audience() -> Audience:
        return known

    return Addressing(0, read or partial(read_all, client), audience)


async def made_of(client: Any, entry: Entry, *endpoints: Endpoint) -> Made:
    """What is made of one entry, which no newer release must read."""
    (made,) = await addressing_of(client, *endpoints).made_of([entry], SOON)
    assert made is not None
    return made


class Counted:
    """Reads that are counted."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.round_trips: list[list[str]] = []

    async def __call__(self, reads: Sequence[Read[Any]]) -> list[Any]:
        self.round_trips.append([read.name[0] for read in reads])
        return await read_all(self.client, reads)
