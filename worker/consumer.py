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
from kombu.connection import Connection

_RETRY_S = 2
"""Between two looks for a broker that is away. Celery's own waits grow to 30 s, long after it may be back."""


class Consumer(consumer.Consumer):
    """Celery's, which looks for a lost broker steadily, and declares nothing in it that we do not use."""

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[misc, valid-type]
        """Without the 28 queues and as many exchanges by which RabbitMQ delays messages: none of ours is delayed."""

        default_steps: ClassVar[list[str]] = [
            step for step in consumer.Consumer.Blueprint.default_steps if not step.endswith(":DelayedDelivery")
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
