"""`worker.tasks` in a process that sweeps a session again after two minutes, and not after ten seconds.

So no turn that ends sooner owes it to a second wake-up, however slow the machine is.
"""

from worker.store import lease
from worker.tasks import app

__all__ = ["app"]

SWEPT_AGAIN_MS = 120_000

lease._SWEEP_AGAIN_MS = SWEPT_AGAIN_MS
