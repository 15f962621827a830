"""`worker.tasks` with a pool that takes messages though it has no room, as a process does to which RabbitMQ pushes."""

from worker.tasks import app

__all__ = ["app"]

app.conf.worker_pool = "threads"
