"""A bulk replay: which deliveries are made due again, how fast, and how far that has come.

What belongs here: the job as a value, and its steps as functions from a job and what was found to the job that follows.
What must not be known here: where jobs and deliveries are stored, who replays one, the clock.

A step goes in three: `begun` says which deliveries are about to be replayed and is stored first; then they are; then
`advanced` says so. Whoever finds a job that was begun and not advanced reads the same page again: what is not there any
more was replayed by the one who vanished.

No job replays a delivery twice, however often a page is read: what was replayed since the job was made is none of its
(`admits`), also when it is dead or held again by then. And what was made after the job is not either, so a job ends.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import orjson

from channels.delivery import lane as lanes
from channels.delivery.lane import Lane, Limits
from channels.delivery.model import Delivery, json_bytes
from worker.errors import ConfigurationError

RECORD_VERSION = 1

DAY_MS = 86_400_000

# Deliveries that are read and replayed in one step, at most.
PAGE = 100

# Steps in a row that fail before a job is paused: what they fail with is not going to pass by itself.
FAILED_MOST = 8

RATE_MOST = 1_000.0

STANDS_STILL = "the next page begins where this one began: a fault of Lastword's own; please report it"

From = Literal["dead", "held"]
Progress = Literal["running", "paused", "done", "cancelled"]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one job may be at most: how many days back it reaches, and how many deliveries it replays."""

    days: float = 14.0
    deliveries: int = 100_000


@dataclass(frozen=True, slots=True)
class Filters:
    """Which deliveries. Empty texts and no types: any.

    `states`: those that are in one of these. `destination`: an endpoint's name, or a URL. `event_types`: one of them.
    `since_ms`, `until_ms`: made at or after the one and before the other, in UTC milliseconds of the store's clock.
    """

    states: tuple[From, ...]
    since_ms: int
    until_ms: int
    destination: str = field(default="", repr=False)
    event_types: tuple[str, ...] = ()
    turn: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A bulk replay. Times are UTC milliseconds of the store's clock.

    `most`: it is done when it has found so many. `cursor`: where the next page of the `at`-th state begins; empty: at
    the start. `begun`: ids that are about to be replayed. `found`: deliveries that were to be replayed; of them
    `replayed` were, and `skipped` had changed meanwhile or have nothing left to tell. `failed`: steps in a row that
    could not be taken. `why`: it is paused, cancelled or done early. `by`: who asked for it.
    """

    id: str
    filters: Filters
    rate_per_s: float
    most: int
    created_ms: int
    by: str = ""
    version: int = 1
    state: Progress = "running"
    why: str = ""
    at: int = 0
    cursor: str = ""
    begun: tuple[str, ...] = ()
    found: int = 0
    replayed: int = 0
    skipped: int = 0
    failed: int = 0
    rate_ms: float = 0.0
    ended_ms: int = 0

    @property
    def reading(self) -> From:
        """The state whose deliveries it looks through now."""
        return self.filters.states[min(self.at, len(self.filters.states) - 1)]


@dataclass(frozen=True, slots=True)
class Page:
    """What was found from a job's cursor on, the oldest first. `after`: where the next begins; None: there is none."""

    deliveries: Sequence[Delivery]
    after: str | None


def new(  # noqa: PLR0913 - what a job is made of
    job: str, filters: Filters, rate_per_s: float, now_ms: int, *, by: str = "", bounds: Bounds
) -> Job:
    """A job that starts now. `filters.until_ms` 0: until now.

    Raises `ConfigurationError` for what no job may be.
    """
    until_ms = min(filters.until_ms or now_ms, now_ms)
    if not filters.states or not {*filters.states} <= {"dead", "held"}:
        raise ConfigurationError(
            f"states {', '.join(filters.states) or 'are empty'}: only what is dead or held can be replayed; "
            "give dead, held or both"
        )
    if not 0 < rate_per_s <= RATE_MOST:
        raise ConfigurationError(f"rate {rate_per_s:g} per second: give more than 0 and at most {RATE_MOST:g}")
    if filters.since_ms >= until_ms:
        raise ConfigurationError("since is not before until, or lies in the future: give a time before it")
    if now_ms - filters.since_ms > bounds.days * DAY_MS:
        raise ConfigurationError(
            f"since lies {(now_ms - filters.since_ms) / DAY_MS:.1f} days back: one replay reaches back "
            f"{bounds.days:g} days at most; give a later time, or raise delivery.replay_days"
        )
    states = tuple(dict.fromkeys(filters.states))
    filters = replace(filters, states=states, until_ms=until_ms)
    return Job(job, filters, float(rate_per_s), bounds.deliveries, now_ms, by)


def admits(job: Job, delivery: Delivery) -> bool:
    """Whether a delivery is one to be replayed by the job."""
    wanted = job.filters
    return (
        delivery.state in wanted.states
        and bool(delivery.destination)
        and wanted.since_ms <= delivery.created_ms < wanted.until_ms
        and delivery.replayed_ms < job.created_ms
        and wanted.destination in {"", delivery.destination}
        and (not wanted.event_types or delivery.event_type in wanted.event_types)
        and wanted.turn in {"", delivery.turn}
    )


def allowed(job: Job, now_ms: int) -> int:
    """How many may be replayed now by the job's rate: as many at once as it has in a second.

    No page that is read may hold more, since all that is wanted of it is replayed. What was `begun` has spent the rate.
    """
    if job.state != "running":
        return 0
    left = min(PAGE, job.most - job.found)
    return max(len(job.begun), lanes.room(Lane(rate_ms=job.rate_ms), _limits(job), 0, left, now_ms))


def free_ms(job: Job, now_ms: int) -> int:
    """When `allowed` is more than nothing, while it runs: past or 0 when that is at once."""
    limits = _limits(job)
    return lanes.free_ms(lanes.put_right(Lane(rate_ms=job.rate_ms), limits, now_ms), limits)


def begun(job: Job, page: Page, now_ms: int) -> Job:
    """The job that is about to replay what it wants of the page that it has read. That spends its rate.

    What it was about to replay before, and is no more to be replayed, was so by one who could not say so. What is left
    of that comes first: the rate was spent for it, and for no other.
    """
    wanted = tuple(delivery.id for delivery in page.deliveries if admits(job, delivery))
    if job.begun:
        wanted = tuple(one for one in wanted if one in job.begun)
    fresh = len(set(wanted) - set(job.begun))
    lane = lanes.taken(Lane(rate_ms=job.rate_ms), _limits(job), fresh, now_ms)
    return replace(
        job,
        version=job.version + 1,
        begun=wanted,
        found=job.found + fresh,
        replayed=job.replayed + len(set(job.begun) - set(wanted)),
        rate_ms=lane.rate_ms,
    )


def advanced(job: Job, page: Page, replayed: int, now_ms: int) -> Job:
    """The job after those that were `begun` of the page: `replayed` of them are due again.

    A page of which it wants more is read once again. One that leads back to where it began ends in a pause.
    """
    before, is_whole = job, all(one.id in job.begun for one in page.deliveries if admits(job, one))
    job = replace(
        job,
        version=job.version + 1,
        begun=(),
        replayed=job.replayed + replayed,
        skipped=job.skipped + len(job.begun) - replayed,
        failed=0,
        cursor=(page.after or "") if is_whole else job.cursor,
        at=job.at + (is_whole and page.after is None),
    )
    if job.state != "running":
        return job
    if job.at >= len(job.filters.states):
        return replace(job, state="done", ended_ms=now_ms)
    if job.found >= job.most:
        return replace(job, state="done", ended_ms=now_ms, why=f"it has found {job.most}, the most that one may replay")
    if is_whole and page.after is not None and page.after == before.cursor:
        return replace(job, state="paused", why=STANDS_STILL)  # it would read this page for ever
    return job


def failed(job: Job, why: str) -> Job:
    """The job after a step that could not be taken; paused when there were too many in a row."""
    job = replace(job, version=job.version + 1, failed=job.failed + 1)
    if job.state == "running" and job.failed >= FAILED_MOST:
        return replace(job, state="paused", why=f"{job.failed} steps in a row failed, the last with {why}")
    return job


def pause(job: Job, why: str) -> Job:
    """The job that waits until somebody resumes it. What it has begun may still be replayed."""
    return replace(job, version=job.version + 1, state="paused", why=why) if job.state == "running" else job


def resume(job: Job) -> Job:
    """The job that goes on where it was paused. One that has ended stays so."""
    return replace(job, version=job.version + 1, state="running", why="", failed=0) if job.state == "paused" else job


def cancel(job: Job, now_ms: int, why: str) -> Job:
    """The job that replays nothing more. What it has replayed stays so."""
    if job.state not in {"running", "paused"}:
        return job
    return replace(job, version=job.version + 1, state="cancelled", why=why, ended_ms=now_ms)


def encode(job: Job) -> bytes:
    """The stored form: a JSON object of the record version and the job."""
    return json_bytes({"v": RECORD_VERSION, "job": asdict(job)})


def decode(data: bytes) -> Job | None:
    """Read a stored job; None when it is of a newer version or no job: leave it to who can read it."""
    try:
        stored = orjson.loads(data)
        if stored["v"] > RECORD_VERSION:
            return None
        values = stored["job"]
        filters: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.pop("filters").items()
        }
        return Job(**values | {"filters": Filters(**filters), "begun": tuple(values["begun"])})
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None


def _limits(job: Job) -> Limits:
    return Limits(concurrency=PAGE, rate_per_s=job.rate_per_s, burst=max(1, min(PAGE, round(job.rate_per_s))))
