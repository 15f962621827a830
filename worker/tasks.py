"""The Celery module of a process that runs turns: `celery --app worker.tasks worker --queues turns`.

What belongs here: the one task, and the start and end of the process. What must not be known here: how a turn runs.

The task hands a coroutine to the process's loop and waits. Time limits, cancelling and draining are the driver's; a
warm shutdown tells the drivers, they hand their turns over, and the tasks end. Anything harder is a crash.
"""

from concurrent.futures import CancelledError
from typing import Any

from celery import signals

from worker.app import RUN_TURN, make_app, wake_session
from worker.engine.loop import LoopThread
from worker.engine.presence import Doing, Presence
from worker.engine.shutdown import Shutdown
from worker.observability import configure_logging, configure_sentry, fault, info
from worker.settings import load_settings
from worker.store import connect
from worker.wiring import TurnProcess

settings = load_settings()
app = make_app(settings, concurrency=settings.processes.turns_concurrency)
_loop = LoopThread()
_process = TurnProcess(settings, lambda session: wake_session(app, session))
_shutdown = Shutdown(lambda: _loop.loop.call_soon_threadsafe(_process.drain), settings.processes.drain_s)
_presence = Presence(
    connect.open_redis_sync(settings.redis()),
    "turns",
    lambda: Doing(_process.turns, draining=_process.draining),
    settings.metrics,
)


@app.task(name=RUN_TURN)
def run_turn(session: str) -> None:
    """Drive what waits in `session`. Any number of these messages for one session do no harm."""
    try:
        _loop.run(_process.run_session(session))
    except CancelledError:  # what a future on another thread raises
        info("session_left", session=session)
    except Exception as error:  # noqa: BLE001 - the last place that sees it; the lease runs out and the turn goes on
        fault("turn_crashed", error, session=session)


@signals.worker_init.connect
def _start(**_: Any) -> None:
    configure_logging(settings.log_level)
    configure_sentry(settings.sentry())
    _loop.start()
    try:
        _loop.run(_process.start())
        _presence.start(_loop.loop)
    except Exception as error:  # Celery passes over whatever a signal's receiver raises, but not over an exit
        raise SystemExit(f"the turns process cannot start: {error}") from error
    info("turns_process_started", concurrency=settings.processes.turns_concurrency)


@signals.worker_ready.connect
def _listen(**_: Any) -> None:
    _shutdown.listen()


@signals.worker_shutting_down.connect
def _drain(sig: str, **_: Any) -> None:
    _shutdown.told(sig)


@signals.worker_shutdown.connect
def _stop(**_: Any) -> None:
    _presence.stop()
    _loop.run(_process.stop())
    _loop.stop()
    info("turns_process_stopped")
