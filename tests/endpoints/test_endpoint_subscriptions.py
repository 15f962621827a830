"""Which events an endpoint gets without being named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from channels.endpoints import patterns, subscription
from channels.endpoints.model import Match
from channels.endpoints.subscription import Event
from worker.errors import ConfigurationError

TURN = Event("turn.completed", "crm/tickets", {"team": "ops", "job": "42"})
words = st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="*"), min_size=1, max_size=20)


@pytest.mark.requirement("endpoints:subscription:events")
@pytest.mark.parametrize(
    ("pattern", "event_type", "gets"),
    [
        ("turn.completed", "turn.completed", True),
        ("turn.completed", "turn.failed", False),
        ("turn.*", "turn.dead", True),
        ("turn.*", "call.completed", False),
        ("call.completed", "call.completed", True),
        ("reminder.*", "reminder.fired", True),
        ("approval.*", "approval.expired", True),
        ("delivery.*", "delivery.endpoint_disabled", True),
        ("delivery.dead", "delivery.dead", True),
        ("delivery.dead", "delivery.failing", False),
        ("*", "turn.skipped", True),
        ("*", "approval.requested", True),
        ("*", "reminder.skipped", True),
        ("*", "delivery.failing", False),
        ("*", "endpoint.test", False),
    ],
)
def test_an_event_is_had_by_its_type_its_family_or_a_star(pattern: str, event_type: str, gets: bool) -> None:
    """What tells of deliveries must be asked for by name: a failing endpoint would else be told of its failures."""
    assert subscription.admits(subscription.parse([pattern], [], {}), Event(event_type)) is gets


@pytest.mark.requirement("endpoints:subscription:events")
def test_who_names_no_event_gets_none() -> None:
    assert not any(subscription.admits(subscription.parse([], [], {}), Event(one)) for one in patterns.TYPES)


@pytest.mark.requirement("endpoints:subscription:narrowed")
@pytest.mark.parametrize(
    ("sources", "labels", "gets"),
    [
        ([], {}, True),
        (["crm/tickets"], {}, True),
        (["crm"], {}, False),
        (["crm/*"], {}, True),
        (["crm*"], {}, True),
        (["*"], {}, True),
        (["slack", "crm/*"], {}, True),
        (["slack", "http"], {}, False),
        ([], {"team": "ops"}, True),
        ([], {"team": "op"}, False),
        ([], {"team": "o*"}, True),
        ([], {"team": "*"}, True),
        ([], {"region": "*"}, False),
        ([], {"team": "ops", "job": "4*"}, True),
        ([], {"team": "ops", "job": "5*"}, False),
        (["slack"], {"team": "ops"}, False),
    ],
)
def test_source_and_labels_narrow_by_equality_or_by_what_stands_before_a_star(
    sources: list[str], labels: dict[str, str], gets: bool
) -> None:
    assert subscription.admits(subscription.parse(["turn.*"], sources, labels), TURN) is gets


@pytest.mark.requirement("endpoints:subscription:narrowed")
@given(words, words)
def test_a_text_is_met_by_itself_alone_and_with_a_star_by_all_that_begins_so(text: str, more: str) -> None:
    equal, prefix = subscription.parse_match("source", text), subscription.parse_match("source", f"{text}*")
    assert (equal, prefix) == (Match(text), Match(text, prefix=True))
    assert [equal.admits(text), equal.admits(text + more)] == [True, False]
    assert [prefix.admits(text), prefix.admits(text + more)] == [True, True]
    assert prefix.admits(more) is more.startswith(text)


@pytest.mark.requirement("endpoints:subscription:refused")
@pytest.mark.parametrize(
    ("patterns", "sources", "labels", "told"),
    [
        (["turn.complete"], [], {}, "events: there is no event type 'turn.complete'; did you mean 'turn.completed'?"),
        (["turns.*"], [], {}, "did you mean 'turn.*'?"),
        (["Turn.*"], [], {}, "did you mean 'turn.*'?"),
        (["turn.comp*"], [], {}, "there is no event type 'turn.comp*'"),
        (["zzzz"], [], {}, "use some of *, turn.*"),
        (["*"] * 33, [], {}, "events: 33 given, at most 32"),
        ([], ["crm"], {}, "source is set, but there are no events"),
        ([], [], {"team": "ops"}, "labels is set, but there are no events"),
        (["delivery.*"], ["crm"], {}, "source = 'crm': events = ['delivery.*'] tell of no turn"),
        (
            ["delivery.dead", "delivery.failing"],
            ["crm/*", "cli"],
            {},
            "remove source, or add events of turns, as 'turn.*'",
        ),
        (["delivery.*"], ["*"], {"team": "*"}, "labels.team = '*': events = ['delivery.*'] tell of no turn"),
        (["delivery.*"], [], {"team": "ops"}, "remove labels.team, or add events of turns"),
        (["turn.*", "endpoint.test"], [], {}, "events: 'endpoint.test' is subscribed to by nobody"),
        (
            ["endpoint.*"],
            [],
            {},
            "'endpoint.*' is subscribed to by nobody: endpoint.test comes to the endpoint that is",
        ),
        (["endpoint.tset"], [], {}, "is subscribed to by nobody"),
        (["*"], ["a*b"], {}, "source = 'a*b': a star may only stand at the end"),
        (["*"], ["**"], {}, "a star may only stand at the end"),
        (["*"], [""], {}, "source: '' is none"),
        (["*"], ["a\n"], {}, "printable"),
        (["*"], [], {"team": "x" * 201}, "labels.team"),
        (["*"], [], {"": "x"}, "labels: '' is none"),
    ],
)
def test_what_means_nothing_is_refused_with_the_nearest_that_does(
    patterns: list[str], sources: list[str], labels: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        subscription.parse(patterns, sources, labels)
    assert told in str(caught.value)


@pytest.mark.requirement("endpoints:subscription:refused")
@pytest.mark.parametrize(
    ("patterns", "sources"),
    [(["delivery.*"], ["*"]), (["delivery.*"], ["crm", "*"]), (["delivery.*", "turn.*"], ["crm"])],
)
def test_what_some_event_can_meet_is_taken(patterns: list[str], sources: list[str]) -> None:
    parsed = subscription.parse(patterns, sources, {})
    assert any(subscription.admits(parsed, each) for each in (Event("turn.completed", "crm"), Event("delivery.dead")))


@pytest.mark.requirement("endpoints:subscription:refused")
def test_all_that_is_offered_may_be_subscribed_to_and_every_type_is_offered_that_comes_so() -> None:
    for pattern in patterns.PATTERNS:
        parsed = subscription.parse([pattern], [], {})
        assert any(subscription.admits(parsed, Event(one)) for one in patterns.TYPES), pattern
    everything = subscription.parse([*patterns.PATTERNS], [], {})
    assert [one for one in patterns.TYPES if not subscription.admits(everything, Event(one))] == ["endpoint.test"]
    with pytest.raises(ConfigurationError) as caught:
        subscription.parse(["zzzz"], [], {})
    assert "endpoint." not in str(caught.value)
