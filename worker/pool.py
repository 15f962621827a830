"""Celery's pool of a process that runs turns: few threads, which hand work to the event loop.

What belongs here: what Celery asks a pool before it takes a message. What must not be known here: turns, the loop.
"""

from collections.abc import Callable

from celery.concurrency.thread import TaskPool

HANDOVER_THREADS = 32
"""None is held for long. With too few of them Celery would let messages lie until its next look, a second later."""


def pool_with_room(room: Callable[[], int]) -> type:
    """A pool that takes no message while `room` gives 0: another process may have the room."""

    class RoomPool(TaskPool):
        @property
        def num_processes(self) -> int:
            return min(HANDOVER_THREADS, room())

    return RoomPool
