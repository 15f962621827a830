"""The figures of one process, in the form that Prometheus reads.

What belongs here: which figures there are, their labels, and what each thing that happens adds to them. What must not
be known here: when it happens, who reads the figures, Redis, HTTP.

A label is a word of ours or a name of the settings: never an id, never text. `bounded` holds that, whatever comes in
from outside. Names and meanings are listed in ops/runbooks/metrics.md; a test holds the list to this file.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
"""What this process counts. Nothing else is ever registered here than what this file and those of the channels name."""

ProcessCollector(namespace="lastword", registry=REGISTRY)

SOON = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
"""Bounds of what should take milliseconds, in seconds."""

LONG = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200, 3600, 7200)
"""Bounds of what a model takes its time for, in seconds."""

_MOST_WORDS = 100
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,64}")

_counters: dict[str, Counter] = {}
_words: dict[str, set[str]] = defaultdict(set)


def _counter(name: str, text: str, *labels: str) -> Counter:
    _counters[name] = Counter(f"lastword_{name}", text, labels, registry=REGISTRY)
    return _counters[name]


def _gauge(name: str, text: str) -> Gauge:
    return Gauge(f"lastword_{name}", text, registry=REGISTRY)


def _histogram(name: str, text: str, bounds: tuple[float, ...], *labels: str) -> Histogram:
    return Histogram(f"lastword_{name}", text, labels, registry=REGISTRY, buckets=bounds)


_turns = _counter("turns_sealed", "Turns that ended in this process.", "outcome", "code", "agent")
_turn_s = _histogram("turn_duration_seconds", "From submit to seal.", LONG, "outcome")
_turn_wait_s = _histogram("turn_wait_seconds", "From submit to the first claim.", LONG)
_parked = _counter("turns_parked", "Turns that were given back to wait for a person.")
_handed_off = _counter("turns_handed_off", "Turns that were given back because the process shuts down.")
_claims = _counter(
    "turns_claimed", "Turns that were taken up: first, by takeover from one that vanished, or resumed.", "came"
)
_calls = _counter("calls_completed", "Calls that completed.", "provider")
_call_s = _histogram(
    "call_duration_seconds", "From the request of the attempt that completed to its end.", LONG, "provider"
)
_content_s = _histogram(
    "first_content_seconds", "From the request of the attempt that completed to its first content.", LONG, "provider"
)
_gap_s = _histogram("attempt_longest_gap_seconds", "Longest wait between two chunks of one attempt.", LONG, "provider")
_discards = _counter("attempts_discarded", "Attempts that died.", "provider", "reason")
_resumes = _counter("resumes", "Calls that were asked again after a death.", "provider")
_tokens = _counter("tokens", "Tokens of completed calls, as providers reported them.", "provider", "kind")
_tools = _counter("tool_runs", "Tool calls that were answered: ok, or what kind of failure.", "outcome")
_asked = _counter("approvals_asked", "Tool calls for which a person was asked.")
_commit_s = _histogram("commit_seconds", "How long the store took to commit a call.", SOON)
_refused = _counter(
    "verbs_refused", "Writes of a turn that the store refused: fenced (another driver owns it), rewound, sealed.", "why"
)
_flush_s = _histogram("staging_flush_seconds", "One flush of streaming text, of all watched turns at once.", SOON)
_flushed = _counter("staging_flushed_turns", "Turns whose streaming text was flushed; one a flush.")
_renew_s = _histogram("heartbeat_renew_seconds", "How long the store took to renew the leases of a partition.", SOON)
_missed = _counter(
    "heartbeats_missed",
    "Rounds of the heartbeat that came to nothing: redis was away, the loop hung, or a fault of ours.",
    "why",
)
_lag_s = _histogram(
    "event_loop_lag_seconds", "How long a callback waited for the event loop; asked once a second.", SOON
)
_driven = _gauge("turns_driven", "Turns that this process drives now, or a process that it started for a suspect.")
_draining = _gauge("process_draining", "1 while the process shuts down.")


def text() -> bytes:
    """All figures of this process in the text format of Prometheus."""
    return generate_latest(REGISTRY)


def counted() -> bytes:
    """What this process has counted so far, for `add`."""
    samples = [
        (name, sample.labels, sample.value)
        for name, counter in _counters.items()
        for family in counter.collect()
        for sample in family.samples
        if sample.value
    ]
    return json.dumps(samples).encode()


def add(counts: bytes) -> None:
    """Count what another process has `counted` as if it had happened here."""
    for name, labels, value in json.loads(counts):
        counter = _counters[name]
        known = {label: bounded(label, word) for label, word in labels.items()}  # many others tell of other words
        (counter.labels(**known) if known else counter).inc(value)


def turn_sealed(outcome: str, code: str | None, agent: str, duration_s: float) -> None:
    """A turn has ended here. `code`: of its failure."""
    _turns.labels(outcome, bounded("code", code or ""), bounded("agent", agent)).inc()
    _turn_s.labels(outcome).observe(duration_s)


def turn_claimed(came: str, waited_s: float) -> None:
    """A turn was taken up, `waited_s` after its submit. `came`: `first`, or how it left the driver before."""
    _claims.labels(came).inc()
    if came == "first":
        _turn_wait_s.observe(waited_s)


def turn_parked() -> None:
    """A turn waits for a person."""
    _parked.inc()


def turn_handed_off() -> None:
    """A turn was given to another process."""
    _handed_off.inc()


def call_completed(provider: str, took_s: float, first_content_s: float | None, gap_s: float, commit_s: float) -> None:
    """A call completed. `gap_s`: the longest wait between two chunks; `commit_s`: what the store took."""
    provider = bounded("provider", provider)
    _calls.labels(provider).inc()
    _call_s.labels(provider).observe(took_s)
    _gap_s.labels(provider).observe(gap_s)
    _commit_s.observe(commit_s)
    if first_content_s is not None:
        _content_s.labels(provider).observe(first_content_s)


def tokens_used(provider: str, counts: Mapping[str, int | None]) -> None:
    """What a provider reported of a completed call, by kind: input, output and what is a part of one of them."""
    for kind, count in counts.items():
        if count:
            _tokens.labels(bounded("provider", provider), kind).inc(count)


def attempt_discarded(provider: str, reason: str, gap_s: float | None, *, resumed: bool) -> None:
    """An attempt died. `gap_s`: None where it was another process's. `resumed`: the call is asked again."""
    provider = bounded("provider", provider)
    _discards.labels(provider, bounded("reason", reason)).inc()
    if gap_s is not None:
        _gap_s.labels(provider).observe(gap_s)
    if resumed:
        _resumes.labels(provider).inc()


def tool_ended(failure: str | None) -> None:
    """A tool call was answered. `failure`: what kind of; None: all went well."""
    _tools.labels(bounded("failure", failure or "ok")).inc()


def approval_asked() -> None:
    """A person was asked."""
    _asked.inc()


def verb_refused(why: str) -> None:
    """The store refused a write of a turn: `fenced`, `sealed`, `rewound` or `state`."""
    _refused.labels(why).inc()


def staging_flushed(turns: int, took_s: float) -> None:
    """The streaming text of so many turns went to the store at once."""
    _flush_s.observe(took_s)
    _flushed.inc(turns)


def leases_renewed(took_s: float) -> None:
    """The store renewed the leases of a partition."""
    _renew_s.observe(took_s)


def heartbeat_missed(why: str) -> None:
    """A round of the heartbeat came to nothing: `redis`, `loop` or `fault`."""
    _missed.labels(why).inc()


def loop_lagged(lag_s: float) -> None:
    """A callback waited so long for the event loop."""
    _lag_s.observe(lag_s)


def process_does(turns: int, *, draining: bool) -> None:
    """What the process does just now."""
    _driven.set(turns)
    _draining.set(draining)


def bounded(label: str, word: str) -> str:
    """The word as a value of that label; `other` for what is no word, and once a label has a hundred values."""
    known = _words[label]
    if word in known or not word:
        return word
    if not _WORD.fullmatch(word) or len(known) >= _MOST_WORDS:
        return "other"
    known.add(word)
    return word
