"""The Celery module of a delivery process: `celery --app channels.tasks worker --queues delivery`.

What belongs here: the one task, and the start and end of the process. What must not be known here: how a delivery is
made or sent.

The task is a wake-up: it sends whatever is due. Relays and sweeper run beside it on the process's loop. A warm shutdown
lets attempts under way end within their deadline, and the process ends behind the last of them, also where the broker
is silent. Behind its lease (twice `delivery.timeout_s` and 10 s) nothing of it can be settled any more: who has not
ended then is cut off.
"""

from concurrent.futures import CancelledError
from typing import Any

from celery import signals

from channels.delivery.lane import lease_for
from channels.settings import load_settings
from channels.wiring import DeliveryProcess
from worker.app import DELIVER, make_app, wake_delivery
from worker.consumer import on_signals_taken
from worker.engine.loop import LoopThread
from worker.engine.presence import Doing, Presence
from worker.engine.shutdown import Leaving, Shutdown
from worker.engine.started import tell_started
from worker.observability import configure_logging, configure_sentry, fault, info
from worker.store import connect

settings = load_settings()
# A task lasts as long as what it sends, so there are at most as many as attempts, and one that looks for more.
app = make_app(settings, concurrency=settings.delivery.concurrency + 1)
_loop = LoopThread()
_process = DeliveryProcess(settings, lambda: wake_delivery(app))
_drain_s = lease_for(settings.longest_timeout_s)


def _close() -> None:
    _presence.stop()
    _loop.run(_process.stop())
    _loop.stop()
    info("delivery_process_stopped")


_leaving = Leaving(lambda: _loop.run(_process.drained()), _close)
_shutdown = Shutdown(lambda: _loop.loop.call_soon_threadsafe(_process.drain), _drain_s, _leaving)
on_signals_taken(app, _shutdown.listen)
_presence = Presence(
    connect.open_redis_sync(settings.redis()),
    "delivery",
    lambda: Doing(_process.in_flight, draining=_process.draining),
    settings.metrics,
)


@app.task(name=DELIVER)
def deliver() -> None:
    """Send what is due. Any number of these messages do no harm."""
    try:
        _loop.run(_process.deliver())
    except CancelledError:  # what a future on another thread raises
        info("delivery_left")
    except Exception as error:  # noqa: BLE001 - the last place that sees it; leases run out and deliveries go on
        fault("delivery_crashed", error)


@signals.worker_init.connect
def _prepare(**_: Any) -> None:
    configure_logging(settings.log_level)
    configure_sentry(settings.sentry())
    _loop.start()
    try:
        _loop.run(_process.start())
        _presence.start(_loop.loop)
    except Exception as error:
        # Celery would swallow any other exception and go on without us.
        raise SystemExit(f"the delivery process cannot start: {error}") from error
    # Before Celery has its broker: one that is full, or away, must not keep a full store from being drained.
    _loop.loop.call_soon_threadsafe(_process.begin)


@signals.worker_ready.connect
def _tell(**_: Any) -> None:
    tell_started("delivery_process_started", concurrency=settings.delivery.concurrency)


@signals.worker_shutting_down.connect
def _drain(sig: str, **_: Any) -> None:
    _shutdown.told(sig)


@signals.worker_shutdown.connect
def _stop(**_: Any) -> None:
    _shutdown.parted()
