"""The process of one suspect: `python -m worker.suspect SESSION FILE`, started by a turns process.

What belongs here: the start and end of that process. What must not be known here: how a turn runs, Celery.

It has a loop and a heartbeat of its own and sweeps nothing. It runs the turn at the head of the session and ends with
it; SIGTERM hands the turn over. When its parent is killed it goes on, unless Redis stays out of reach, too: then nobody
is left for whom it could. When its loop hangs for longer than a lease, it ends: it has lost the turn. Until it has it,
its loop may take its time: machines are slow when they are loaded. In FILE, a file descriptor, it tells its parent that
it has the turn, by a line break, and leaves there what it counted.
"""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from time import monotonic

from worker import metrics
from worker.engine.loop import new_event_loop
from worker.engine.loop_watch import LoopWatch
from worker.engine.shutdown import Shutdown, end_here
from worker.engine.suspects import COMES_UP_WITHIN_S
from worker.observability import configure_logging, configure_sentry, fault, warn
from worker.settings import WorkerSettings, load_settings
from worker.store.repeat import UNANSWERED
from worker.wiring import TurnProcess

_LOOK_EVERY_S = 1.0
_ALONE_S = 60.0
"""How long a suspect without a parent waits for Redis."""
_SHORTEST_HANG_S = 2.0
"""How long the loop may hang even where leases are shorter."""


def main() -> int:
    """Run the turn; the exit code: 0 when it ended here or was handed over."""
    settings = load_settings()
    configure_logging(settings.log_level)
    configure_sentry(settings.sentry())
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(_run(settings, sys.argv[1]))
    except UNANSWERED as error:  # its lease, if it has one, runs out, and the turn goes on
        warn("suspect_lost_redis", session=sys.argv[1], error=type(error).__name__)
        return 1
    except Exception as error:  # noqa: BLE001 - the last place that sees it; the lease runs out and the turn goes on
        fault("turn_crashed", error, session=sys.argv[1])
        return 1
    return 0


async def _run(settings: WorkerSettings, session: str) -> None:
    loop = asyncio.get_running_loop()
    watch = LoopWatch(loop, COMES_UP_WITHIN_S)
    watch.start()
    process = TurnProcess(settings)
    shutdown = Shutdown(process.drain, settings.processes.drain_s)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, shutdown.told, number.name)

    def has_turn() -> None:
        watch.limit_s = max(_SHORTEST_HANG_S, settings.lease.ttl_s)
        with suppress(OSError):  # the disk is full: the parent takes it for one that comes up, for as long as it may
            os.write(int(sys.argv[2]), b"\n")

    watching = loop.create_task(_end_when_alone(process, os.getppid()))
    try:
        await process.start()
        await process.run_turn(session, has_turn)
    finally:
        watching.cancel()
        await process.stop()
        watch.stop()


async def _end_when_alone(process: TurnProcess, parent: int) -> None:
    heard = monotonic()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        if os.getppid() == parent or process.reaches_store:
            heard = monotonic()
        elif monotonic() - heard > _ALONE_S:
            warn("suspect_left_alone", for_s=_ALONE_S)
            os._exit(1)


if __name__ == "__main__":
    code = main()
    try:
        os.write(int(sys.argv[2]), metrics.counted())
    except OSError as error:  # its disk is full: the figures of one turn are lost, and nothing else
        warn("suspect_not_counted", session=sys.argv[1], error=type(error).__name__)
    finally:  # what a tool has left behind must not keep the process, and its room
        end_here(code)
