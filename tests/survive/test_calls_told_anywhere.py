"""A process dies anywhere in a turn: who subscribes is told of the calls that completed, and of nothing else."""

import json
from collections import Counter
from typing import Any

import jsonschema
import pytest

from channels.contents import Contents
from channels.delivery.model import Delivery
from channels.events.schema import schema_of
from channels.webhook.payload import Form
from tests.delivery.subscribers import SOON, addressing_of, endpoint
from tests.survive.mortal import Place
from tests.survive.scenarios import SCENARIOS, Scenario
from tests.survive.stores import Store, fake_store
from tests.survive.story import Ending, Story
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed

pytestmark = pytest.mark.timeout(300)
EVERY = 5
SUBSCRIBER = endpoint("all", "*")


@pytest.fixture(params=SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "-"))
def scenario(request: pytest.FixtureRequest) -> Scenario:
    chosen: Scenario = request.param
    return chosen


async def told(store: Store, scenario: Scenario, deaths: list[Place | None]) -> tuple[Ending, list[dict[str, Any]]]:
    """The ending of a story, and the bodies of all that it had to tell."""
    ending = await Story(store, scenario, deaths).told()
    client = store.connect()
    deliveries: list[Delivery] = []
    for made in await addressing_of(client, SUBSCRIBER).made_of(ending.log, SOON):
        assert made is not None
        if made.content:
            await client.set(f"content:{made.event_id}", made.content)
        deliveries += [one for one in made.deliveries if one.destination == SUBSCRIBER.name]
    contents = Contents(client, Form(), lambda one: f"content:{one.event_id}")
    bodies = await contents.bodies([(one, True) for one in deliveries])
    await client.aclose()
    assert len({one.id for one in deliveries}) == len(deliveries)
    read = []
    for delivery, body in zip(deliveries, bodies, strict=True):
        assert isinstance(body, bytes), body
        read.append(json.loads(body))
        jsonschema.Draft202012Validator(schema_of(delivery.event_type)).validate(read[-1])
    return ending, read


def faults(ending: Ending, bodies: list[dict[str, Any]]) -> list[str]:
    """What is not as it should be."""
    wrong = []
    for turn in ending.turns:
        of_turn = [body for body in bodies if body["data"]["turn"] == turn.record.turn]
        calls = [body["data"] for body in of_turn if body["type"] == "call.completed"]
        committed = [(fact.call, fact.text, fact.finish_reason) for fact in turn.facts if isinstance(fact, Committed)]
        if [(data["call"], data["text"], data["finish_reason"]) for data in calls] != committed:
            wrong.append(f"told of the calls {calls}, there were {committed}")
        if "".join(data["text"] for data in calls) != turn.text:
            wrong.append(f"the texts of the calls are not {turn.text!r}")
        outcome = turn.record.outcome
        ends = [(body["type"], body["data"]["text"]) for body in of_turn if body["type"].startswith("turn.")]
        if ends != ([] if outcome == "merged" else [(f"turn.{outcome}", turn.text)]):
            wrong.append(f"told of the ends {ends}")
        types = Counter(body["type"] for body in of_turn)
        asked = sum(isinstance(fact, ApprovalAsked) for fact in turn.facts)
        options = [fact.option for fact in turn.facts if isinstance(fact, ApprovalDecided)]
        decided = (asked, len(options) - options.count("expired"), options.count("expired"))
        if tuple(types[f"approval.{what}"] for what in ("requested", "decided", "expired")) != decided:
            wrong.append(f"told of approvals {types}, there were {decided}")
    return wrong


@pytest.mark.requirement("events:survive:crash-anywhere")
async def test_wherever_a_process_dies_who_subscribes_is_told_of_what_was_committed_and_nothing_else(
    scenario: Scenario,
) -> None:
    calm, bodies = await told(fake_store(), scenario, [])
    assert faults(calm, bodies) == []
    assert bodies
    wrong = []
    for life, fate in enumerate(calm.fates):
        for place in fate.passed[::EVERY]:
            deaths = [*[None] * life, place]
            wrong += [f"{deaths}: {fault}" for fault in faults(*await told(fake_store(), scenario, deaths))]
    assert wrong == []
