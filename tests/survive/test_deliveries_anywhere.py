"""A delivery process dies at every place between the log and the receiver, and another one goes on."""

import asyncio
from dataclasses import dataclass, field

import pytest

from channels.outbox import reading
from tests.delivery.passing_time import let_pass
from tests.survive.mortal import Fate, Line, Place
from tests.survive.outside import LEASE_S, Outside, Receiver
from tests.survive.scenarios import ANY_SCENARIO
from tests.survive.stores import NewStore, Store
from tests.survive.story import Story

PATIENCE_S = 20
MOST_LIVES = 5


@dataclass
class Told:
    """What receivers got from all processes together, and where these were."""

    turns: list[str]
    got: list[tuple[str, str, str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    states: list[str] = field(default_factory=list)


async def told(store: Store, deaths: list[Place]) -> Told:
    """Three turns that have ended, relayed and sent by process after process."""
    story = Story(store, ANY_SCENARIO["three queued turns"], [], relays=False)
    turns = await story.begun()
    await story.driven(turns)
    told = Told(turns)
    for _ in range(MOST_LIVES):
        fate = Fate(deaths[len(told.fates)] if len(told.fates) < len(deaths) else None)
        told.fates.append(fate)
        if not await _process(store, fate, told):
            break
        await let_pass(story.client, LEASE_S + 1)
    told.states = [delivery.state for delivery in (await reading.listed(story.client, 100)).deliveries]
    await story.client.aclose()
    return told


async def _process(store: Store, fate: Fate, told: Told) -> bool:
    """One delivery process until nothing is left to do, or it dies. Gives whether it died."""
    client = store.connect()
    Line(client, fate)
    receiver = Receiver(client, fate)
    outside = Outside(client)

    async def both() -> None:
        await outside.relayed()
        await outside.sent(receiver)

    running, dying = asyncio.ensure_future(both()), asyncio.ensure_future(fate.died.wait())
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([running, dying], return_when=asyncio.FIRST_COMPLETED)
    for each in (running, dying):
        each.cancel()
    await asyncio.wait([running, dying])
    await client.aclose()
    told.got += receiver.got
    told.ids += receiver.ids
    return fate.died.is_set()


@pytest.mark.requirement("survive:deliveries:crash-anywhere")
async def test_wherever_a_delivery_process_dies_each_answer_arrives_under_one_id(new_store: NewStore) -> None:
    calm = await told(new_store(), [])
    assert len(calm.got) == len(set(calm.ids)) == 3
    places = {what for what, _ in calm.fates[0].passed}
    assert {f"channels/{name}: unheard" for name in ("take", "insert", "look", "claim", "settle")} <= places
    wrong: list[str] = []
    for number, place in enumerate(calm.fates[0].passed):
        once = await told(new_store(), [place])
        wrong += [f"{place}: {fault}" for fault in faults(once, 1)]
        after = once.fates[1].passed
        again = after[number * 5 % len(after)]
        twice = await told(new_store(), [place, again])
        wrong += [f"{place}, {again}: {fault}" for fault in faults(twice, 2)]
    assert wrong == []


def faults(told: Told, deaths: int) -> list[str]:
    """What is not as it should be."""
    wrong = []
    if [fate.died.is_set() for fate in told.fates] != [True] * deaths + [False]:
        wrong.append("not every death came to pass")
    if told.states != ["delivered"] * 3:
        wrong.append(f"states {told.states}")
    by_id = dict(zip(told.ids, told.got, strict=True))
    expected = {(turn, "turn.completed", "The tide is low at four.") for turn in told.turns}
    if len(by_id) != 3 or set(by_id.values()) != expected or set(told.got) != expected:
        wrong.append(f"received {told.got} as {told.ids}")
    if len(told.ids) > 3 + deaths:
        wrong.append(f"sent {len(told.ids)} times")
    return wrong
