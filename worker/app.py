"""The Celery instance: how wake-ups travel.

What belongs here: Celery's settings, each with its reason, and the sending of a wake-up. What must not be known here:
what a turn is. A message says only that there may be work in a session; Redis holds what is to do. So tasks acknowledge
early, and a lost or doubled message does no harm.
"""

from typing import TYPE_CHECKING, Any

from celery import Celery
from kombu import Exchange, Queue
from kombu.connection import Connection

if TYPE_CHECKING:
    from worker.settings import WorkerSettings

RUN_TURN = "worker.run_turn"
DELIVER = "channels.deliver"
TURNS_QUEUE = "turns"
DELIVERY_QUEUE = "delivery"
_LOOK_TIMEOUT_S = 3
_SEND_TIMEOUT_S = 2

_SEND_ONCE = {"max_retries": 1, "interval_start": 0}
"""Whoever submits waits for the wake-up to be sent, and six seconds for a broker that is away would be for nothing."""
_RABBITMQ_REPLY_S = 5
"""A queue that has no leader yet, in a RabbitMQ that has just come back, is silent; who waits sends nothing more."""


class _App(Celery):
    """Celery, with a limit of its own for whoever sends: nobody waits for a silent broker as long as its readers do."""

    def connection_for_write(self, url: str | None = None, **more: Any) -> Connection:
        """A connection on which every step ends within few seconds."""
        options = _sending(url or self.conf.broker_write_url) | (more.pop("transport_options", None) or {})
        return super().connection_for_write(
            url, **{"connect_timeout": _SEND_TIMEOUT_S, **more}, transport_options=options
        )


def make_app(settings: "WorkerSettings", *, concurrency: int, pool: str | type = "threads") -> Celery:
    """A Celery app on the broker of `settings`. `concurrency`: tasks that run at once in one process, in `pool`."""
    _survive_a_lost_broker()
    app = _App("lastword", broker=settings.broker(), set_as_current=False)
    app.conf.update(
        task_ignore_result=True,
        result_backend=None,
        task_serializer="json",
        accept_content=["json"],
        task_queues=[_queue(name, settings.broker()) for name in (TURNS_QUEUE, DELIVERY_QUEUE)],
        task_default_queue=TURNS_QUEUE,
        task_create_missing_queues=False,
        task_routes={RUN_TURN: {"queue": TURNS_QUEUE}, DELIVER: {"queue": DELIVERY_QUEUE}},
        # A late acknowledgement runs a task twice after every blip of the broker; the lease does its work better.
        task_acks_late=False,
        # A message that waits in a process's memory is lost with it.
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_pool=pool,
        worker_consumer="worker.consumer:Consumer",
        worker_concurrency=concurrency,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_send_task_events=False,
        # Nothing asks for it, and a process that was killed would stay a member of its exchange for ever.
        worker_enable_remote_control=False,
        # Long streams on this process must outlive a lost broker connection; nothing is acknowledged late.
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # A broker that is full, becomes a replica or has no disk answers with an error: it is waited for, too.
        broker_channel_error_retry=True,
        broker_transport_options=_transport_options(settings.broker()),
    )
    return app


def wake_session(app: Celery, session: str) -> None:
    """Tell the turns processes that a session may have work. Loss is harmless: the due set knows it too."""
    app.send_task(RUN_TURN, args=[session], queue=TURNS_QUEUE, retry=False)


def wake_delivery(app: Celery) -> None:
    """Tell the delivery processes that a delivery may be due. Loss is harmless: the outbox knows it too."""
    app.send_task(DELIVER, queue=DELIVERY_QUEUE, retry=False)


def queue_depths(broker: str) -> dict[str, int]:
    """How many wake-ups wait in each queue of the broker at that URL. Blocks for some seconds at most.

    Raises what kombu raises when the broker does not answer.
    """
    timeouts = {"socket_timeout": _LOOK_TIMEOUT_S, "socket_connect_timeout": _LOOK_TIMEOUT_S}
    options = _transport_options(broker) | timeouts
    depths: dict[str, int] = {}
    with Connection(broker, connect_timeout=_LOOK_TIMEOUT_S, transport_options=options) as connection:
        for name in (TURNS_QUEUE, DELIVERY_QUEUE):
            channel: Any = connection.channel()
            try:
                depths[name] = channel.queue_declare(name, passive=True).message_count
            except connection.channel_errors:  # it is not there, as in Redis every empty one
                depths[name] = 0
            else:
                channel.close()
    return depths


def _queue(name: str, broker: str) -> Queue:
    """A queue, and in RabbitMQ one that outlives the loss of a node; no message in it is ever delivered twice."""
    arguments = None if _is_redis(broker) else {"x-queue-type": "quorum"}
    return Queue(name, Exchange(name, type="direct"), routing_key=name, queue_arguments=arguments)


def _is_redis(broker: str) -> bool:
    return broker.startswith(("redis", "rediss", "unix", "sentinel"))


def _transport_options(broker: str) -> dict[str, Any]:
    if not _is_redis(broker):
        limits = {"read_timeout": _RABBITMQ_REPLY_S, "write_timeout": _RABBITMQ_REPLY_S}
        return {"confirm_publish": True, **limits, **_SEND_ONCE}
    return {
        "visibility_timeout": 600,
        "max_connections": 1000,
        # The client's own default of 5 s would cut the broker's blocking reads.
        "socket_timeout": 30,
        "socket_connect_timeout": 5,
        "socket_keepalive": True,
        "health_check_interval": 25,
        **_SEND_ONCE,
    }


def _sending(broker: str) -> dict[str, Any]:
    if not _is_redis(broker):
        return {"read_timeout": _LOOK_TIMEOUT_S, "write_timeout": _LOOK_TIMEOUT_S}
    return {"socket_timeout": _SEND_TIMEOUT_S, "socket_connect_timeout": _SEND_TIMEOUT_S}


def _survive_a_lost_broker() -> None:
    """Let a worker reconnect when the broker goes away while a message is unacknowledged.

    Celery 5.7.0 closes a channel a second time after its transport was torn down, and kombu's restore of unacknowledged
    messages then fails with an AttributeError that ends the worker. Skipping that second close is enough.
    """
    close = Connection.maybe_close_channel
    if getattr(close, "is_safe_after_collect", False):
        return

    def maybe_close_channel(self: Connection, channel: Any) -> Any:
        connection = getattr(channel, "connection", None)
        if connection is not None and getattr(connection, "client", True) is None:
            return None
        return close(self, channel)

    maybe_close_channel.is_safe_after_collect = True  # type: ignore[attr-defined]
    Connection.maybe_close_channel = maybe_close_channel  # type: ignore[method-assign]
