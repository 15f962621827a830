"""`/metrics`: what all living processes count, and what the store holds, in the text format of Prometheus.

What belongs here: putting it together. What must not be known here: HTTP, how a survey is made.

Each sample of a process gets the labels `role` and `process`; the state of the whole, read at the scrape, has neither.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import redis.asyncio
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample

from channels.settings import Settings
from channels.survey import DeliveriesSurvey, LogSurvey, Survey, look
from worker.metrics import REGISTRY
from worker.observability import warn
from worker.store import processes

_KINDS = ("counter", "gauge", "histogram")
"""What a figure of ours may be."""

_MOST_LABELS = 100

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


async def render(client: redis.asyncio.Redis, settings: Settings) -> bytes:
    """The body of an answer to a scrape, of `CONTENT_TYPE`. Raises what redis-py raises."""
    told = await processes.figures(client)
    survey = await look(client, settings)
    return await asyncio.to_thread(_text, told, survey)  # many processes' figures take a while to read


def _text(told: Mapping[str, tuple[str, bytes]], survey: Survey) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Given(_merged(told, state(survey))))
    return generate_latest(registry)


class _Given(Collector):
    """Figures that are there already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = list(metrics)

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _merged(told: Mapping[str, tuple[str, bytes]], whole: Iterable[Metric]) -> Iterator[Metric]:
    """One family a name, and of the kind that it has here, whatever processes of other versions tell."""
    merged = {_shown(family): family for family in whole}
    for family in REGISTRY.collect():
        merged.setdefault(_shown(family), Metric(family.name, family.documentation, family.type))
    for process, (role, figures) in told.items():
        try:
            families = list(text_string_to_metric_families(figures.decode()))  # all of it, or nothing
        except ValueError as error:  # of another version; the others' figures are worth having
            warn("figures_unreadable", process=process, error=type(error).__name__)
            continue
        strange = None
        for family in families:
            into = merged.get(_shown(family))
            if into is None and family.type in _KINDS:
                into = merged[_shown(family)] = Metric(family.name, family.documentation, family.type)
            if into is None or into.type != family.type:  # what is counted there is something else here
                strange = strange or family.name
                continue
            into.samples += [_labelled(sample, role, process) for sample in family.samples]
        if strange is not None:
            warn("figures_unreadable", process=process, error="type", figure=strange)
    yield from merged.values()


def _shown(family: Metric) -> str:
    """The name that stands in the answer, where no two may be the same."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _labelled(sample: Sample, role: str, process: str) -> Sample:
    return Sample(sample.name, {**sample.labels, "role": role, "process": process}, sample.value)


def state(survey: Survey) -> Iterator[Metric]:
    """What the store, the broker and the processes are like now."""
    turns = survey.turns
    yield _by("turns", "Turns that have not ended, of the oldest some thousand.", "state", survey.states())
    yield _one("turns_unsealed", "Turns that have not ended.", sum(each.unsealed for each in turns))
    yield _one("turns_waiting", "Turns that a process should drive and none does.", sum(each.waiting for each in turns))
    yield _one(
        "turns_waiting_oldest_seconds",
        "How long the first of them has waited.",
        max(each.waiting_oldest_s for each in turns),
    )
    yield _by("turns_kept", "Turns that have ended and are stored.", "outcome", survey.kept())
    yield _one("due", "Sessions and approvals at which someone should look now.", sum(each.due for each in turns))
    yield _one("due_oldest_seconds", "How late the first of them is.", max(each.due_oldest_s for each in turns))
    yield _one("approvals_waiting", "Tool calls that wait for a person.", sum(each.approvals for each in turns))
    yield from _of_deliveries(survey.deliveries)
    yield from _of_logs(survey.logs)
    roles = sorted({each.told.role for each in survey.processes} | {"turns", "delivery"})
    living = {role: len(survey.living(role)) for role in roles}
    yield _by("processes", "Processes that live.", "role", living)
    yield _one("broker_up", "1: the broker answers.", int(survey.broker is not None))
    yield _by("broker_messages", "Wake-ups that wait in the broker.", "queue", survey.broker or {})
    yield _by(
        "provider_skipped", "1: this provider is left alone just now.", "provider", dict.fromkeys(survey.skipped_s, 1)
    )
    yield _one("redis_memory_bytes", "Memory that Redis uses.", survey.redis.memory_bytes)
    yield _one("redis_memory_limit_bytes", "Its maxmemory; 0: none.", survey.redis.limit_bytes)
    yield _one("redis_persists", "1: Redis writes its append-only file.", int(survey.redis.persists))


def _of_deliveries(deliveries: DeliveriesSurvey) -> Iterator[Metric]:
    states: dict[str, float] = {"queued": 0, "waiting": 0, "in_flight": 0, "held": 0}
    states.update(deliveries.by_state.items())
    yield _by("deliveries", "Deliveries that have not ended.", "state", states)
    yield _by("deliveries_held", "Those that are held, by endpoint.", "endpoint", _largest(deliveries.held))
    standings = Counter[str](paused=0, disabled=0)
    standings.update(deliveries.stopped.values())
    yield _by("endpoints_stopped", "Endpoints that are sent nothing.", "standing", standings)
    yield _one(
        "endpoints_failing", "Endpoints that keep failing while deliveries wait for them.", len(deliveries.failing)
    )
    yield _one("replays_running", "Bulk replays that go on.", deliveries.replays)
    yield _one("endpoints_ripe", "Endpoints to which something should be sent now.", deliveries.ripe)
    yield _one("endpoints_ripe_oldest_seconds", "How late the first of them is.", deliveries.ripe_oldest_s)
    yield _one("dead_letters", "Deliveries that were given up and are stored.", deliveries.dead)


def _largest(values: Mapping[str, float]) -> dict[str, float]:
    """At most a hundred of them: the smallest together as `other`."""
    ordered = sorted(values.items(), key=lambda one: (-one[1], one[0]))
    others = sum(value for _, value in ordered[_MOST_LABELS - 1 :])
    if len(ordered) <= _MOST_LABELS:
        return dict(ordered)
    return {**dict(ordered[: _MOST_LABELS - 1]), "other": others}


def _of_logs(logs: Sequence[LogSurvey]) -> Iterator[Metric]:
    yield _one("log_entries", "Entries of the output log.", sum(each.entries for each in logs))
    yield _one(
        "relay_lag_seconds",
        "How long the first entry that no relay has dealt with has waited.",
        max(each.relay_lag_s for each in logs),
    )
    yield _one(
        "log_entries_aside",
        "Entries of the output log that wait for a delivery process of a newer release.",
        sum(each.aside for each in logs),
    )


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"lastword_{name}", text, value=value)


def _by(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"lastword_{name}", text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
