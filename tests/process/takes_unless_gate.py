"""`worker.tasks` with a pool that has no room while the file that `ROOM_GATE` names is there."""

import os
from pathlib import Path

from worker.pool import HANDOVER_THREADS, pool_with_room
from worker.tasks import app

__all__ = ["app"]

_gate = Path(os.environ["ROOM_GATE"])
app.conf.worker_pool = pool_with_room(lambda: 0 if _gate.exists() else HANDOVER_THREADS)
