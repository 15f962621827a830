"""Which events an endpoint gets without being named by a turn.

What belongs here: reading a subscription as it is written in settings and requests, and whether it takes an event. What
must not be known here: where endpoints come from, what an event says.

Of source and labels a text stands for itself, or with a star at its end for all that begins so: `crm`, `crm/*`, `*`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from channels.endpoints import patterns as types
from channels.endpoints.model import Match, Subscription
from worker.errors import ConfigurationError

MAX_EVENTS = 32
MAX_SOURCES = 32
MAX_LABELS = 32
MAX_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Event:
    """What a subscription looks at. `source` and `labels` are those of the turn, if the event tells of one."""

    type: str
    source: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


def parse(patterns: Sequence[str], sources: Sequence[str], labels: Mapping[str, str]) -> Subscription:
    """A subscription as it is written. Raises `ConfigurationError` with field, value and fix."""
    _check_count("events", len(patterns), MAX_EVENTS)
    _check_count("source", len(sources), MAX_SOURCES)
    _check_count("labels", len(labels), MAX_LABELS)
    if (sources or labels) and not patterns:
        named = "source" if sources else "labels"
        raise ConfigurationError(
            f"{named} is set, but there are no events that it could narrow; set events, as in ['turn.*']"
        )
    for name in labels:
        _check_text("labels", name)
    parsed = Subscription(
        tuple(dict.fromkeys(types.check_pattern("events", one) for one in patterns)),
        tuple(dict.fromkeys(parse_match("source", one) for one in sources)),
        tuple((name, parse_match(f"labels.{name}", value)) for name, value in labels.items()),
    )
    _check_can_match(parsed)
    return parsed


def parse_match(field_name: str, text: str) -> Match:
    """A text, or a beginning and a star. Raises `ConfigurationError`."""
    _check_text(field_name, text)
    beginning, star, rest = text.partition("*")
    if rest:
        raise ConfigurationError(
            f"{field_name} = {text[:80]!r}: a star may only stand at the end, as in 'crm/*'; remove the others"
        )
    return Match(beginning, prefix=bool(star))


def admits(subscription: Subscription, event: Event) -> bool:
    """Whether the event is for who subscribed so."""
    return (
        any(types.admits(pattern, event.type) for pattern in subscription.events)
        and (not subscription.sources or any(source.admits(event.source) for source in subscription.sources))
        and all(name in event.labels and match.admits(event.labels[name]) for name, match in subscription.labels)
    )


def _check_can_match(parsed: Subscription) -> None:
    """Refuse what no event can meet: what tells of deliveries has no source and no labels."""
    if not parsed.events or not all(map(types.is_operational, parsed.events)):
        return
    narrowed = [f"source = {_written(one)!r}" for one in parsed.sources if not one.admits("")]
    if len(narrowed) < len(parsed.sources):  # a star alone
        narrowed = []
    narrowed += [f"labels.{name} = {_written(match)!r}" for name, match in parsed.labels]
    if narrowed:
        raise ConfigurationError(
            f"{narrowed[0][:120]}: events = {list(parsed.events)} tell of no turn, so they have no source and no "
            f"labels, and none would ever come; remove {narrowed[0].partition(' ')[0]}, or add events of turns, as "
            "'turn.*'"
        )


def _written(match: Match) -> str:
    return f"{match.text}*" if match.prefix else match.text


def _check_count(field_name: str, count: int, most: int) -> None:
    if count > most:
        raise ConfigurationError(f"{field_name}: {count} given, at most {most} are taken")


def _check_text(field_name: str, text: str) -> None:
    if not 1 <= len(text) <= MAX_CHARACTERS or not text.isprintable():
        raise ConfigurationError(f"{field_name}: {text[:80]!r} is none: use 1 to {MAX_CHARACTERS} printable characters")
