"""The Celery module of a process that runs turns: `celery --app worker.tasks worker --queues turns`.

What belongs here: the one task, and the start and end of the process. What must not be known here: how a turn runs.

The task hands a coroutine to the process's loop and ends; a turn that waits holds no thread. Time limits, cancelling
and draining are the driver's. A process that is full, or drains, or whose loop is late, takes no message, and gives
back what it had taken. A warm shutdown tells the drivers, they hand their turns over, and the process ends behind the
last of them. Anything harder is a crash.
"""

import asyncio
from concurrent.futures import CancelledError
from functools import partial
from typing import Any

from celery import signals

from worker.app import RUN_TURN, make_app, wake_session
from worker.consumer import on_signals_taken
from worker.engine.loop import LoopThread
from worker.engine.loop_watch import LoopWatch, hung_after_s
from worker.engine.presence import Doing, Presence
from worker.engine.seats import Seats
from worker.engine.shutdown import Leaving, Shutdown
from worker.engine.started import tell_started
from worker.observability import configure_logging, configure_sentry, fault, info, warn
from worker.pool import HANDOVER_THREADS, pool_with_room
from worker.settings import load_settings
from worker.store import connect
from worker.wiring import TurnProcess

settings = load_settings()
_loop = LoopThread()
_watch = LoopWatch(_loop.loop, hung_after_s(settings.lease.ttl_s))
_seats = Seats(_loop, settings.processes.turns_concurrency)


def _room() -> int:
    return 0 if _watch.is_late or _process.draining else _seats.free


app = make_app(settings, concurrency=HANDOVER_THREADS, pool=pool_with_room(_room))


def _look(session: str) -> None:
    if _process.draining or not _seats.take(lambda: _run(session), partial(_ended, session)):
        _give_back(session)


async def _run(session: str) -> None:
    if _process.draining:  # it has begun while the wake-up waited for a seat, or for the loop
        await asyncio.to_thread(_give_back, session)
    else:
        await _process.run_session(session)


_process = TurnProcess(settings, lambda session: wake_session(app, session), _look)


def _close() -> None:
    _seats.wait()
    _presence.stop()
    _loop.run(_process.stop())
    _watch.stop()
    _loop.stop()
    info("turns_process_stopped")


_leaving = Leaving(_seats.wait, _close)
_shutdown = Shutdown(lambda: _loop.loop.call_soon_threadsafe(_process.drain), settings.processes.drain_s, _leaving)


def _listen() -> None:
    _shutdown.listen()
    tell_started("turns_process_started", concurrency=settings.processes.turns_concurrency)


on_signals_taken(app, _listen)
_presence = Presence(
    connect.open_redis_sync(settings.redis()),
    "turns",
    lambda: Doing(_process.turns, draining=_process.draining),
    settings.metrics,
)


@app.task(name=RUN_TURN)
def run_turn(session: str) -> None:
    """Drive what waits in `session`. Any number of these messages for one session do no harm."""
    _look(session)


def _give_back(session: str) -> None:
    """Let another process have the wake-up: this one has no room, or drains, or its loop hangs."""
    info("wake_up_given_back", session=session)
    try:
        wake_session(app, session)
    except Exception as error:  # noqa: BLE001 - whatever the broker says, the due set knows the session
        warn("wake_up_not_sent", session=session, error=type(error).__name__)


def _ended(session: str, error: BaseException | None) -> None:
    """The last place that sees an error; the lease runs out, and the turn goes on elsewhere."""
    if isinstance(error, CancelledError):
        info("session_left", session=session)
    elif error is not None:
        fault("turn_crashed", error, session=session)


@signals.worker_init.connect
def _start(**_: Any) -> None:
    configure_logging(settings.log_level)
    configure_sentry(settings.sentry())
    _loop.start()
    _watch.start()
    try:
        _loop.run(_process.start())
        _presence.start(_loop.loop)
    except Exception as error:  # Celery passes over whatever a signal's receiver raises, but not over an exit
        raise SystemExit(f"the turns process cannot start: {error}") from error


@signals.worker_shutting_down.connect
def _drain(sig: str, **_: Any) -> None:
    _shutdown.told(sig)


@signals.worker_shutdown.connect
def _stop(**_: Any) -> None:
    _shutdown.parted()
