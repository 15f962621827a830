"""What a web process counts, beside what every process does.

What belongs here: the figures of requests and live readers. What must not be known here: when things happen, who reads
the figures.

As in `worker.metrics`: a label is a word of ours, never an id, never text. A route is its template.
"""

from prometheus_client import Counter, Gauge, Histogram

from worker.metrics import REGISTRY, SOON

_requests = Counter(
    "lastword_web_requests",
    "Requests, by route template (none: of no route), method and class of the status.",
    ("route", "method", "status"),
    registry=REGISTRY,
)
_answer_s = Histogram(
    "lastword_web_answer_seconds",
    "From a request to the beginning of its answer; of live readers, too.",
    ("route",),
    registry=REGISTRY,
    buckets=SOON,
)
_readers = Gauge("lastword_web_readers", "Live readers that are connected now.", registry=REGISTRY)

_hooks = Counter(
    "lastword_hooks_received",
    "Events that were posted to inbound routes, by route (none: of no route) and what became of them.",
    ("route", "result"),
    registry=REGISTRY,
)

_METHODS = frozenset({"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"})


def known_method(method: str) -> str:
    """The method, or `other`: anything may be written there."""
    return method if method in _METHODS else "other"


def answered(route: str, method: str, status: int, took_s: float) -> None:
    """The answer to a request has begun, `took_s` after it came."""
    _count(route, method, status)
    _answer_s.labels(route).observe(took_s)


def turned_away(status: int) -> None:
    """What came was no request that can be read, or there is no room for it."""
    _count("none", "other", status)


def hook_received(route: str, result: str) -> None:
    """An event was posted, and answered. `route`: the name of one that is set."""
    _hooks.labels(route, result).inc()


def reader_came() -> None:
    """A live reader is connected."""
    _readers.inc()


def reader_left() -> None:
    """It is not any more."""
    _readers.dec()


def _count(route: str, method: str, status: int) -> None:
    _requests.labels(route, known_method(method), f"{status // 100}xx").inc()
