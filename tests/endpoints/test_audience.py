from typing import Any

import pytest

from channels.endpoints.audience import Audience
from channels.endpoints.model import Endpoint, Match, Subscription
from channels.endpoints.subscription import Event


def endpoint(name: str, *events: str, **subscription: Any) -> Endpoint:
    return Endpoint(name, f"https://{name}.example/", "file", (), Subscription(events, **subscription))


AUDIENCE = Audience(
    [
        endpoint("crm", "turn.*"),
        endpoint("audit", "*"),
        endpoint("ops", "delivery.*", "turn.failed"),
        endpoint("german", "turn.completed", labels=(("language", Match("de", prefix=True)),)),
        endpoint("web", "call.completed", sources=(Match("http"),)),
        endpoint("quiet"),
    ]
)


@pytest.mark.requirement("events:audience:found")
@pytest.mark.parametrize(
    ("event", "names"),
    [
        (Event("turn.completed"), ["crm", "audit"]),
        (Event("turn.completed", "http", {"language": "de-AT"}), ["crm", "audit", "german"]),
        (Event("turn.failed"), ["crm", "audit", "ops"]),
        (Event("call.completed", "http"), ["audit", "web"]),
        (Event("call.completed", "cli"), ["audit"]),
        (Event("delivery.dead"), ["ops"]),
        (Event("endpoint.test"), []),
        (Event("of.tomorrow"), []),
    ],
)
def test_who_subscribes_gets_it_and_nobody_else(event: Event, names: list[str]) -> None:
    assert [one.name for one in AUDIENCE.subscribed(event)] == names
    assert [one.name for one in AUDIENCE.subscribed(event)] == names


@pytest.mark.requirement("events:audience:found")
def test_whether_anybody_wants_a_type_is_known_without_source_and_labels() -> None:
    assert AUDIENCE.wants("call.completed")
    assert not Audience([endpoint("crm", "turn.*")]).wants("call.completed")
    assert not AUDIENCE.wants("of.tomorrow")
    assert not Audience().wants("turn.completed")


def test_an_endpoint_is_found_by_its_name_also_if_it_subscribes_to_nothing() -> None:
    found = AUDIENCE.named("quiet")
    assert found is not None
    assert found.name == "quiet"
    assert AUDIENCE.named("https://crm.example/") is None
