"""The processes that a turns process starts beside it, each for one turn that is suspected of taking its process down.

What belongs here: starting, counting, ending them, and what waits for one. What must not be known here: why a turn is
a suspect, how it is run (`worker.suspect` is what runs there).

They are in sessions of their own: whatever happens to this process, they end their turn. When it shuts down, they do,
too.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from time import monotonic
from typing import Any

from worker.observability import info, warn

_LAST_WAIT_S = 1.0


class Suspects:
    """The suspects of one process, on one event loop. `most`: how many may run at a time.

    `look_again`: looks at a session that had to wait, now that there is room.
    """

    def __init__(self, most: int, look_again: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        self._most = most
        self._look_again = look_again
        self._promised = 0
        self._running: dict[str, asyncio.subprocess.Process | None] = {}
        self._waiting: dict[str, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    def promise(self) -> bool:
        """Keep room for one more, which `start` or `unneeded` uses up. False: there is none."""
        if self._draining or len(self._running) + self._promised >= self._most:
            return False
        self._promised += 1
        return True

    def unneeded(self) -> None:
        """What was promised is not needed."""
        self._promised -= 1
        self._next()

    def start(self, session: str) -> None:
        """Start a process for the suspect at the head of this session, in the room that was promised."""
        self._promised -= 1
        self._running[session] = None
        self._spawn(self._run(session))

    def wait(self, session: str) -> None:
        """Look at the session again once there is room. If this process does not live so long, it is due anyway."""
        self._waiting[session] = None

    def drain(self) -> None:
        """Start no more, and tell those that run to hand their turns over."""
        self._draining = True
        self._waiting.clear()
        self._signal(signal.SIGTERM)

    async def stop(self, within_s: float) -> None:
        """Wait until all have ended, at most so many seconds; who has not ended then is killed."""
        if not self._draining:
            self.drain()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, within_s))
        if self._running:
            warn("suspects_killed", count=len(self._running))
            self._signal(signal.SIGKILL)
            await asyncio.wait(self._tasks, timeout=_LAST_WAIT_S)

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            if process is not None:
                with suppress(ProcessLookupError):
                    process.send_signal(number)

    async def _run(self, session: str) -> None:
        began = monotonic()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "worker.suspect",
                session,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            self._running[session] = process
            info("suspect_process_started", session=session, pid=process.pid)
            if self._draining:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            code = await process.wait()
            info("suspect_process_ended", session=session, code=code, took_s=round(monotonic() - began, 3))
        except OSError as error:  # no memory, no more processes: its reservation ends, and it is due again
            warn("suspect_process_not_started", session=session, error=type(error).__name__)
        finally:
            del self._running[session]
            self._next()

    def _next(self) -> None:
        if self._waiting and not self._draining:
            session = next(iter(self._waiting))
            del self._waiting[session]
            self._spawn(self._look_again(session))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
