"""The heartbeat of a process: one thread that renews the leases of all its turns and wakes what is due.

What belongs here: renewing, sweeping, expiring, and when not to. What must not be known here: what a turn does.

The thread has a connection of its own, so a busy event loop cannot delay it; but it renews only while the loop ticks,
so a process whose loop is stuck gives its turns away. Each process sweeps: no leader, no beat; it wakes no more
sessions than it could run itself, nor than it could at its sweep before, so a backlog does not flood the broker: a
place that was just left is for what the broker holds already. It wakes none that it drives. After an outage of Redis
(or a restart, seen by a new run id) it lets one lease lifetime pass before it sweeps or claims, so that living
drivers renew first; an outage that it has not seen itself, the store sees by the pulse. Wake-ups are sent by a second
thread: a broker that hangs must not cost a lease.
"""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol

import redis

from worker import metrics
from worker.engine.health import ProviderHealth
from worker.engine.wakes import Wakes
from worker.observability import fault, info, warn
from worker.store import approvals, cancels, lease
from worker.store import health as shared_health
from worker.store.repeat import is_unanswered

_SWEEP_LIMIT = 100
_LOOK_S = 0.4
"""Between two looks at who is to end: a cancel stops a stream within a second."""


@dataclass(frozen=True, slots=True)
class HeartbeatLimits:
    """`ttl_s`: a lease's lifetime. `renew_s`: between renewals. `sweep_s`: between sweeps. All in seconds."""

    ttl_s: float
    renew_s: float
    sweep_s: float

    @property
    def margin_s(self) -> float:
        """How long before the lease's end its holder stops: longer than a slow reply, far shorter than the lease."""
        return self.ttl_s / 8


class Holder(Protocol):
    """A turn that this process drives."""

    def renewed(self, *, watched: bool) -> None:
        """The lease was renewed; whether a reader watches the turn."""
        ...

    def lost(self) -> None:
        """Another driver owns the turn."""
        ...

    def cancelled(self, reason: str) -> None:
        """Somebody wants the turn to end. Told once."""
        ...


@dataclass(slots=True)
class _Held:
    nonce: str
    session: str
    partition: int
    holder: Holder
    valid_until: float = field(default=0.0)
    is_cancelled: bool = False


class Heartbeat:
    """Renews and sweeps from `start` to `stop`. `hold` and `let_go` are called on the event loop.

    `wake`: asks any turns process to look at a session; may block or raise. None: no session is swept. `free`: how many
    more sessions this process could run. `health`: is told and asked with each renewal.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it beats for
        self,
        client: redis.Redis,
        limits: HeartbeatLimits,
        partitions: int,
        wake: Callable[[str], None] | None,
        free: Callable[[], int],
        health: ProviderHealth | None = None,
    ) -> None:
        self._client = client
        self._limits = limits
        self._partitions = partitions
        self._loop: asyncio.AbstractEventLoop
        self._wakes = None if wake is None else Wakes(wake)
        self._free = free
        self._health = health
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._draining = threading.Event()
        self._had_room = sys.maxsize
        self._run_id: bytes = b""
        self._calm_from = 0.0
        self._calm: set[int] = set()
        """Partitions in which nobody is taken over now."""
        self._thread = threading.Thread(target=self._run, name="lastword-heartbeat", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. Holders are told on `loop`."""
        self._loop = loop
        self._thread.start()
        if self._wakes is not None:
            self._wakes.start()

    def drain(self) -> None:
        """Go on renewing, but sweep nothing more: this process takes no new work."""
        self._draining.set()

    def stop(self) -> None:
        """End the thread; leases still held run out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._limits.ttl_s)

    def hold(self, grant: lease.Grant, partition: int, holder: Holder, claimed_at: float) -> None:
        """Renew this lease from now on. `claimed_at`: the monotonic time before the claim was sent."""
        valid = claimed_at + self._limits.ttl_s - self._limits.margin_s
        with self._lock:
            before = self._held.get(grant.turn)
            self._held[grant.turn] = _Held(grant.nonce, grant.session, partition, holder, valid)
        if before is not None:  # this process has taken its own turn over
            before.holder.lost()

    def let_go(self, turn: str, nonce: str) -> None:
        """Renew this lease no more."""
        with self._lock:
            held = self._held.get(turn)
            if held is not None and held.nonce == nonce:
                del self._held[turn]

    def holds(self, turn: str, nonce: str) -> bool:
        """Whether nothing has been heard of another owner. What only the store may decide can still be asked of it."""
        with self._lock:
            held = self._held.get(turn)
            return held is not None and held.nonce == nonce

    def is_valid(self, turn: str, nonce: str) -> bool:
        """Whether the lease is surely still ours, by this process's own clock."""
        with self._lock:
            held = self._held.get(turn)
            return held is not None and held.nonce == nonce and monotonic() < held.valid_until

    def may_claim(self) -> bool:
        """Whether living drivers have had the time to renew since Redis was last away."""
        return monotonic() >= self._calm_from

    def _run(self) -> None:
        next_renew = next_sweep = next_look = monotonic()
        while not self._stop.is_set():
            now = monotonic()
            if now >= next_renew:
                next_renew = now + self._limits.renew_s
                self._guarded(self._renew)
            if now >= next_sweep:
                next_sweep = now + self._limits.sweep_s
                if not self._draining.is_set():
                    self._guarded(self._expire)
                if self._wakes is not None and not self._draining.is_set():
                    self._guarded(partial(self._sweep, self._wakes))
            if now >= next_look:
                next_look = now + _LOOK_S
                self._guarded(self._look_for_cancels)
            self._stop.wait(max(0.01, min(next_renew, next_sweep, next_look) - monotonic()))

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - a thread that ended would take every turn of the process with it
            if is_unanswered(error):
                self._calm_from = monotonic() + self._limits.ttl_s
                metrics.heartbeat_missed("redis")
                warn("heartbeat_lost_redis", error=type(error).__name__)
            else:  # it was there, and refused
                metrics.heartbeat_missed("fault")
                fault("heartbeat_failed", error)

    def _renew(self) -> None:
        if not self._loop_ticks():
            self._calm_from = monotonic() + self._limits.ttl_s
            metrics.heartbeat_missed("loop")
            warn("heartbeat_loop_is_stuck", within_s=self._limits.renew_s)
            return
        with self._lock:
            held = dict(self._held)
        self._calm = {each for each in range(self._partitions) if lease.pulse(self._client, each, self._limits.ttl_s)}
        for partition in {one.partition for one in held.values()}:
            mine = [(turn, one.nonce) for turn, one in held.items() if one.partition == partition]
            sent_at = monotonic()
            renewals = lease.renew(self._client, partition, mine, self._limits.ttl_s)
            metrics.leases_renewed(monotonic() - sent_at)
            for renewal in renewals:
                self._take(renewal, held[renewal.turn], sent_at)
        if self._health is not None:
            self._exchange_health(self._health)

    def _look_for_cancels(self) -> None:
        with self._lock:
            held = {turn: one for turn, one in self._held.items() if not one.is_cancelled}
        for partition in {one.partition for one in held.values()}:
            for turn, reason in cancels.flagged(self._client, partition, held.keys()).items():
                held[turn].is_cancelled = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                    self._loop.call_soon_threadsafe(held[turn].holder.cancelled, reason)

    def _loop_ticks(self) -> bool:
        """Whether the loop runs a callback in time: asked afresh, since a process that slept has old news of itself."""
        ticked = threading.Event()
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(ticked.set)
        return ticked.wait(self._limits.renew_s)

    def _take(self, renewal: lease.Renewal, one: _Held, sent_at: float) -> None:
        if renewal.held:
            one.valid_until = sent_at + self._limits.ttl_s - self._limits.margin_s
        else:
            self.let_go(renewal.turn, one.nonce)
        tell = partial(one.holder.renewed, watched=renewal.watched) if renewal.held else one.holder.lost
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(tell)

    def _exchange_health(self, health: ProviderHealth) -> None:
        """Tell what was seen of providers and learn whom to leave alone. Whatever comes of it, the leases stand."""
        try:
            report = health.take()
            if report is not None:
                answer = shared_health.exchange(self._client, report, health.rules)
                health.answered(answer)
                for name, seen in answer.fresh.items():
                    warn(
                        "provider_skipped",
                        provider=name,
                        deaths=seen.deaths,
                        completions=seen.completions,
                        for_s=health.rules.skip_s,
                    )
        except (redis.RedisError, OSError) as error:
            warn("provider_health_not_told", error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - as everywhere in this thread
            fault("provider_health_failed", error)
        for name in health.take_ended():
            info("provider_asked_again", provider=name)

    def _expire(self) -> None:
        """Before the sweep, so that a turn whose request has expired is woken by it."""
        for partition in range(self._partitions):
            approvals.expire_due(self._client, partition)

    def _asked_run_id(self) -> bytes:
        """Which run of the server this is; nothing where it may not be asked: then the pulse tells of restarts."""
        try:
            return str(self._client.info("server").get("run_id", "")).encode()
        except redis.ResponseError as error:
            if is_unanswered(error):
                raise
            return b""

    def _sweep(self, wakes: Wakes) -> None:
        run_id = self._asked_run_id()
        if run_id != self._run_id:
            if self._run_id:
                self._calm_from = monotonic() + self._limits.ttl_s
            self._run_id = run_id
        free = self._free()
        room, self._had_room = min(free, self._had_room), free
        if room <= 0 or not self.may_claim() or wakes.busy():
            return
        with self._lock:
            driven = {one.session for one in self._held.values()}
        for partition in set(range(self._partitions)) - self._calm:
            for session in lease.sweep(self._client, partition, min(room, _SWEEP_LIMIT)):
                if session not in driven:
                    wakes.add(session)
