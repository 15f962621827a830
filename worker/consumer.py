"""What Celery's consumer does in our processes, and what it is kept from.

What belongs here: the steps with which a worker process begins to listen. What must not be known here: tasks, turns.
Celery loads this module by its name, from `worker_consumer`.
"""

from collections.abc import Callable
from functools import partial
from time import sleep
from typing import Any, ClassVar

from celery import Celery, bootsteps
from celery.worker import consumer
from celery.worker.consumer.tasks import Tasks
from kombu.connection import Connection

_RETRY_S = 2
"""Between two looks for a broker that is away. Celery's own waits grow to 30 s, long after it may be back."""


class TakesWhatCame(bootsteps.StartStopStep):
    """A message that Redis has handed over is taken, though the pool got full, or late, while it was waited for.

    Celery would leave it in the socket until there is room again, where no other process finds it, and where it ends
    with this one. The task gives back what it cannot begin.
    """

    requires = (Tasks,)

    def start(self, parent: Any) -> None:
        """Each time the consumer has a new channel."""
        channel = parent.task_consumer.channel
        if parent.connection.transport.driver_type != "redis":  # others hand a message over and take it back
            return
        has_room = channel.qos.can_consume
        channel.qos.can_consume = lambda: bool(channel._in_poll) or has_room()  # noqa: SLF001 - nothing public tells


class Consumer(consumer.Consumer):
    """Celery's, which looks for a lost broker steadily, holds no message back, and declares nothing that is not used.

    What is not: the 28 queues and as many exchanges by which RabbitMQ delays messages; none of ours is delayed.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[misc, valid-type]
        """The steps of a consumer."""

        default_steps: ClassVar[list[Any]] = [
            *(step for step in consumer.Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")),
            TakesWhatCame,
        ]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._most_prefetched: int = named["initial_prefetch_count"]
        super().__init__(*arguments, **named)

    @property
    def max_prefetch_count(self) -> int:
        """What is asked of a broker that has come back. Celery's is the room in the pool, and 0 means without limit."""
        return self._most_prefetched

    def ensure_connected(self, conn: Connection) -> Connection:
        """Wait until the broker takes the connection."""
        ensure = partial(conn.ensure_connection, interval_start=_RETRY_S, interval_step=0, interval_max=_RETRY_S)
        conn.ensure_connection = ensure  # type: ignore[method-assign]
        return super().ensure_connected(conn)

    def on_connection_error_before_connected(self, exc: Exception) -> None:
        """Wait also where it takes the connection, and refuses what is asked through it."""
        super().on_connection_error_before_connected(exc)
        sleep(_RETRY_S)


def on_signals_taken(app: Celery, then: Callable[[], object]) -> None:
    """Call `then` once Celery has taken the signals of the process, before it waits for its broker."""

    class Taken(bootsteps.StartStopStep):
        def start(self, _: Any) -> None:
            then()

    app.steps["worker"].add(Taken)
