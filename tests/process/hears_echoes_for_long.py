"""`worker.tasks` in a process to which a signal is the first one again for a minute, and not for two seconds.

So no machine is so slow that the second of two signals comes too late.
"""

from worker.engine import shutdown
from worker.tasks import app

__all__ = ["app"]

shutdown.AGAIN_AFTER_S = 60.0
