"""The presence of a process: one thread that tells what the process does, and looks whether its event loop still turns.

What belongs here: when to look and when to tell, and what live and ready mean. What must not be known here: where it is
told, what the process does, what its figures are.

The thread has a connection of its own and touches no lease: a report that hangs costs no turn.
"""

import contextlib
import os
import secrets
import socket
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from time import monotonic

import redis

from worker import metrics
from worker.engine.probes import Probes
from worker.observability import fault, warn
from worker.sections import MetricsSettings
from worker.store import processes

STUCK_S = 10.0
"""A loop that has not answered for so long hangs; a busy one answers within a second."""

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class Doing:
    """What a process does just now. `turns`: driven, or read along, in it; of a delivery process, attempts."""

    turns: int
    draining: bool


class Presence:
    """Tells of one process from `start` to `stop`.

    `role`: turns, delivery or web. `doing` is asked from threads and must not wait.
    """

    def __init__(self, client: redis.Redis, role: str, doing: Callable[[], Doing], settings: MetricsSettings) -> None:
        self._client = client
        self._role = role
        self._doing = doing
        self._settings = settings
        self._every_s = settings.report_s
        self._host = socket.gethostname()
        # A host and a process number may be those of another container, too.
        self.process = f"{role}@{self._host}:{os.getpid()}:{secrets.token_hex(2)}"
        self._loop: AbstractEventLoop
        self._asked_at: float | None = None
        self._lag_s = 0.0
        self._told_at: float | None = None
        self._is_away = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lastword-presence", daemon=True)
        self._probes: Probes | None = None

    def start(self, loop: AbstractEventLoop) -> None:
        """Start the thread. `loop`: the one that must turn.

        Raises `ConfigurationError` when there is a port to be listened on and it cannot be.
        """
        self._loop = loop
        if self._settings.port:
            self._probes = Probes(self._settings, self.is_live, self.is_ready, metrics.text)
            self._probes.start()
        self._thread.start()

    def stop(self) -> None:
        """Tell for the last time, and end the thread."""
        if self._probes is not None:
            self._probes.stop()
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(STUCK_S)

    def is_live(self) -> bool:
        """Whether the event loop turns. If not, only a restart helps."""
        return self.loop_lag_s() < STUCK_S

    def is_ready(self) -> bool:
        """Whether it takes work: its loop turns, Redis has taken its last reports, and it does not shut down."""
        told_at = self._told_at
        knows_redis = told_at is not None and monotonic() - told_at < self._every_s * processes.MISSED
        return knows_redis and self.is_live() and not self._doing().draining

    def loop_lag_s(self) -> float:
        """How long the loop took to answer when it was asked last, or has been taking so far."""
        asked_at = self._asked_at
        return self._lag_s if asked_at is None else max(self._lag_s, monotonic() - asked_at)

    def _run(self) -> None:
        next_report = monotonic()
        while not self._stop.is_set():
            self._look()
            if monotonic() >= next_report:
                next_report = monotonic() + self._every_s
                self._guarded(stopped=False)
            self._stop.wait(min(_LOOK_S, max(0.01, next_report - monotonic())))
        self._guarded(stopped=True)

    def _look(self) -> None:
        """Ask the loop for a sign, unless it still owes one."""
        if self._asked_at is None:
            self._asked_at = monotonic()
            with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
                self._loop.call_soon_threadsafe(self._answered, self._asked_at)

    def _answered(self, asked_at: float) -> None:
        self._lag_s = monotonic() - asked_at
        self._asked_at = None
        metrics.loop_lagged(self._lag_s)

    def _guarded(self, *, stopped: bool) -> None:
        try:
            self._report(stopped=stopped)
            self._is_away = False
        except (redis.RedisError, OSError) as error:
            if not self._is_away:  # once an outage
                warn("process_not_told", error=type(error).__name__)
            self._is_away = True
        except Exception as error:  # noqa: BLE001 - a thread that ended would be taken for a dead process
            fault("presence_failed", error)

    def _report(self, *, stopped: bool) -> None:
        doing = self._doing()
        metrics.process_does(doing.turns, draining=doing.draining)
        told = processes.Told(
            role=self._role,
            name=self.process,
            host=self._host,
            pid=os.getpid(),
            version=version("lastword"),
            turns=doing.turns,
            draining=doing.draining,
            stopped=stopped,
            loop_lag_s=round(self.loop_lag_s(), 4),
        )
        processes.report(self._client, self.process, told, metrics.text(), self._every_s)
        self._told_at = monotonic()
