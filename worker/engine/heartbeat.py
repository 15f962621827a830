"""The heartbeat of a process: one thread that renews the leases of all its turns and wakes what is due.

What belongs here: renewing, sweeping, and when not to. What must not be known here: what a turn does.

The thread has a connection of its own, so a busy event loop cannot delay it; but it renews only while the loop has
ticked lately, so a process whose loop is stuck gives its turns away. Each process sweeps: no leader, no beat. After an
outage of Redis (or a restart, seen by a new run id) it lets one lease lifetime pass before it sweeps, so that living
drivers renew first.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Protocol

import redis

from worker.observability import warn
from worker.store import lease


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


@dataclass(slots=True)
class _Held:
    nonce: str
    partition: int
    holder: Holder
    valid_until: float = field(default=0.0)


class Heartbeat:
    """Renews and sweeps from `start` to `stop`. `hold` and `let_go` are called on the event loop."""

    def __init__(
        self,
        client: redis.Redis,
        limits: HeartbeatLimits,
        partitions: int,
        wake: Callable[[str], None] | None,
    ) -> None:
        self._client = client
        self._limits = limits
        self._partitions = partitions
        self._loop: asyncio.AbstractEventLoop
        self._wake = wake
        self._held: dict[str, _Held] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._draining = threading.Event()
        self._loop_ticked = monotonic()
        self._run_id: bytes = b""
        self._sweep_from = 0.0
        self._thread = threading.Thread(target=self._run, name="lastword-heartbeat", daemon=True)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the thread. Holders are told on `loop`."""
        self._loop = loop
        self._thread.start()

    def drain(self) -> None:
        """Go on renewing, but sweep nothing more: this process takes no new work."""
        self._draining.set()

    def stop(self) -> None:
        """End the thread; leases still held run out."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(self._limits.ttl_s)

    def hold(self, turn: str, nonce: str, partition: int, holder: Holder, claimed_at: float) -> None:
        """Renew this lease from now on. `claimed_at`: the monotonic time before the claim was sent."""
        valid = claimed_at + self._limits.ttl_s - self._limits.margin_s
        with self._lock:
            self._held[turn] = _Held(nonce, partition, holder, valid)

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

    def _run(self) -> None:
        next_renew = next_sweep = monotonic()
        while not self._stop.is_set():
            now = monotonic()
            if now >= next_renew:
                next_renew = now + self._limits.renew_s
                self._loop.call_soon_threadsafe(self._tick)
                self._guarded(self._renew)
            if now >= next_sweep:
                next_sweep = now + self._limits.sweep_s
                if self._wake is not None and not self._draining.is_set():
                    self._guarded(partial(self._sweep, self._wake))
            self._stop.wait(max(0.01, min(next_renew, next_sweep) - monotonic()))

    def _tick(self) -> None:
        self._loop_ticked = monotonic()

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except (redis.RedisError, OSError) as error:
            self._sweep_from = monotonic() + self._limits.ttl_s
            warn("heartbeat_lost_redis", error=type(error).__name__)

    def _renew(self) -> None:
        if monotonic() - self._loop_ticked > self._limits.ttl_s / 2 + self._limits.renew_s:
            warn("heartbeat_loop_is_stuck", for_s=round(monotonic() - self._loop_ticked, 1))
            return
        with self._lock:
            held = dict(self._held)
        for partition in {one.partition for one in held.values()}:
            mine = [(turn, one.nonce) for turn, one in held.items() if one.partition == partition]
            sent_at = monotonic()
            for renewal in lease.renew(self._client, partition, mine, self._limits.ttl_s):
                self._take(renewal, held[renewal.turn], sent_at)

    def _take(self, renewal: lease.Renewal, one: _Held, sent_at: float) -> None:
        if renewal.held:
            one.valid_until = sent_at + self._limits.ttl_s - self._limits.margin_s
        else:
            self.let_go(renewal.turn, one.nonce)
        tell = partial(one.holder.renewed, watched=renewal.watched) if renewal.held else one.holder.lost
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            self._loop.call_soon_threadsafe(tell)

    def _sweep(self, wake: Callable[[str], None]) -> None:
        run_id = str(self._client.info("server").get("run_id", "")).encode()
        if run_id != self._run_id:
            if self._run_id:
                self._sweep_from = monotonic() + self._limits.ttl_s
            self._run_id = run_id
        if monotonic() < self._sweep_from:
            return
        for partition in range(self._partitions):
            for session in lease.sweep(self._client, partition):
                wake(session)
