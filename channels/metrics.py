"""What a delivery process counts, beside what every process does.

What belongs here: the figures of relaying and delivering. What must not be known here: when things happen, who reads
the figures.

As in `worker.metrics`: a label is a word of ours, never an id, never text.
"""

from prometheus_client import Counter, Histogram

from worker.metrics import LONG, REGISTRY, bounded

_attempt_s = Histogram(
    "lastword_delivery_attempt_seconds", "One attempt, from name to answer.", registry=REGISTRY, buckets=LONG
)
_settled = Counter(
    "lastword_deliveries_settled",
    "Attempts, by what their delivery was then and the code of the failure.",
    ("state", "code"),
    registry=REGISTRY,
)
_unsent = Counter("lastword_deliveries_unsent", "Claims that were given back without an attempt.", registry=REGISTRY)
_made = Counter("lastword_deliveries_made", "Deliveries that the relay made of the log.", registry=REGISTRY)
_relayed = Counter(
    "lastword_log_entries_relayed",
    "Entries of the output log that a relay dealt with; approvals and decisions are among them.",
    ("kind",),
    registry=REGISTRY,
)


def attempt_ended(took_s: float) -> None:
    """An attempt came to its end, whatever it was."""
    _attempt_s.observe(took_s)


def settled(state: str, code: str) -> None:
    """How an attempt left its delivery. `code`: of the failure, empty without one."""
    _settled.labels(state, bounded("delivery_code", code)).inc()


def unsent() -> None:
    """Too little of a lease was left, or what is to be told could not be read."""
    _unsent.inc()


def relayed(kind: str) -> None:
    """An entry of the log was dealt with; `unreadable` and `newer` (put aside) are kinds, too."""
    _relayed.labels(kind).inc()


def made(count: int) -> None:
    """So many new deliveries."""
    _made.inc(count)
