"""The processes that a turns process starts beside it, each for one turn that is suspected of taking its process down.

What belongs here: starting, counting, ending them, and what waits for one. What must not be known here: why a turn is
a suspect, how it is run (`worker.suspect` is what runs there).

They are in sessions of their own: whatever happens to this process, they end their turn. When it shuts down, they do,
too. One that has lost its turn, as its session is said to have a suspect again, is killed: it may hang for ever. What
they counted is counted here once they have ended.
"""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, Any

from worker import metrics
from worker.observability import info, warn

_LAST_WAIT_S = 1.0


@dataclass(eq=False, slots=True)
class _Suspect:
    """One process, from the moment it has room. `process`: None until it is started."""

    session: str
    process: asyncio.subprocess.Process | None = None
    task: asyncio.Task[None] | None = None
    told: signal.Signals | None = None

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, now or as soon as it is there."""
        self.told = number
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Suspects:
    """The suspects of one process, on one event loop. `most`: how many may run at a time.

    `look_again`: lets this process look at a session that had to wait, now that there is room; called in a thread of
    its own, may block.
    """

    def __init__(self, most: int, look_again: Callable[[str], object]) -> None:
        self._most = most
        self._look_again = look_again
        self._promised = 0
        self._running: set[_Suspect] = set()
        self._waiting: dict[str, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    def __len__(self) -> int:
        """How many run now, or are about to."""
        return len(self._running)

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
        self._waiting.pop(session, None)
        older = self._kill(session)
        one = _Suspect(session)
        self._running.add(one)
        one.task = self._spawn(self._run(one, older))

    def wait(self, session: str) -> bool:
        """Look at the session again once there is room. If this process does not live so long, it is due anyway.

        False: it waits already.
        """
        self._kill(session)
        is_new = session not in self._waiting
        self._waiting[session] = None
        return is_new

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
        for one in self._running:
            if one.told is not signal.SIGKILL:
                one.signal(number)

    def _kill(self, session: str) -> list[asyncio.Task[None]]:
        """End what still runs for this session: it has lost the turn, and would have ended if it could."""
        older = [one for one in self._running if one.session == session]
        for one in older:
            if one.told is not signal.SIGKILL:
                warn("suspect_process_killed", session=session, pid=one.process.pid if one.process else None)
                one.signal(signal.SIGKILL)
        return [one.task for one in older if one.task is not None]

    async def _run(self, one: _Suspect, older: list[asyncio.Task[None]]) -> None:
        began = monotonic()
        try:
            if older:
                await asyncio.wait(older, timeout=_LAST_WAIT_S)
            with tempfile.TemporaryFile() as figures:
                code = await _ended(one, figures)
                info("suspect_process_ended", session=one.session, code=code, took_s=round(monotonic() - began, 3))
                _count(figures)
        except OSError as error:  # no memory, no more processes: its reservation ends, and it is due again
            warn("suspect_process_not_started", session=one.session, error=type(error).__name__)
        finally:
            self._running.discard(one)
            self._next()

    def _next(self) -> None:
        if self._waiting and not self._draining:
            session = next(iter(self._waiting))
            del self._waiting[session]
            self._spawn(self._look(session))

    async def _look(self, session: str) -> None:
        try:
            await asyncio.to_thread(self._look_again, session)
        except Exception as error:  # noqa: BLE001 - nobody waits for it, and the session is due anyway
            warn("suspect_not_looked_at", session=session, error=type(error).__name__)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


async def _ended(one: _Suspect, figures: IO[bytes]) -> int:
    """Start the process and wait for its end; its exit code. It leaves what it counted in `figures`."""
    file = figures.fileno()
    one.process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "worker.suspect",
        one.session,
        str(file),
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(file,),
    )
    info("suspect_process_started", session=one.session, pid=one.process.pid)
    if one.told is not None:
        one.signal(one.told)
    return await one.process.wait()


def _count(figures: IO[bytes]) -> None:
    """What a process that was killed counted is lost; what a dead turn is, the store knows."""
    figures.seek(0)
    counted = figures.read()
    if counted:
        metrics.add(counted)
