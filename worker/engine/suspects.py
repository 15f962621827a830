"""The processes that a turns process starts beside it, each for one turn that is suspected of taking its process down.

What belongs here: starting, counting, ending them, and what waits for one. What must not be known here: why a turn is
a suspect, how it is run (`worker.suspect` is what runs there).

They are in sessions of their own: whatever happens to this process, they end their turn. When it shuts down, they do,
too. One that has lost its turn, as its session is said to have a suspect again, is killed: it may hang for ever. One
that has not had it yet is slow, as on any loaded machine: the turn is kept for it meanwhile, and only one that does not
come up in ample time is ended. What they counted is counted here once they have ended.
"""

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import IO, Any

from worker import metrics
from worker.observability import info, warn
from worker.store.lease import RESERVE_MS, Suspected

COMES_UP_WITHIN_S = 120.0
"""How long a process may take from its start to its turn."""

_RESERVE_AGAIN_S = RESERVE_MS / 3000
_TERM_S = 10.0
"""How long one that did not come up has to end by itself: it may have its turn just now, and hand it over."""

_LAST_WAIT_S = 1.0


@dataclass(eq=False, slots=True)
class _Suspect:
    """One process, from the moment it has room. `process`: None until it is started.

    `found`: its turn, as the store told of it last; `nonce`: has reserved it.
    """

    session: str
    found: Suspected
    nonce: str
    began: float = field(default_factory=monotonic)
    process: asyncio.subprocess.Process | None = None
    task: asyncio.Task[None] | None = None
    told: signal.Signals | None = None

    def may_still_come_up(self, found: Suspected) -> bool:
        """Whether it is slow, or ends just now, rather than hangs: of this turn nothing has vanished since it began."""
        is_same = (self.found.turn, self.found.crashes) == (found.turn, found.crashes)
        return is_same and self.told is None and monotonic() - self.began < COMES_UP_WITHIN_S

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, now or as soon as it is there."""
        self.told = number
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


class Suspects:
    """The suspects of one process, on one event loop. `most`: how many may run at a time.

    `look_again`: lets this process look at a session that had to wait, now that there is room; called in a thread of
    its own, may block. `reserve`: keeps the suspect of a session for the nonce that has reserved it, for another 15 s.
    """

    def __init__(
        self, most: int, look_again: Callable[[str], object], reserve: Callable[[str, str], Awaitable[object]]
    ) -> None:
        self._most = most
        self._look_again = look_again
        self._reserve = reserve
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

    def start(self, session: str, nonce: str, found: Suspected) -> bool:
        """Start a process for the suspect at the head of this session, in the room that was promised.

        `nonce`: has reserved the turn. False: one that was started before may still come up, and is left to do so.
        """
        self._promised -= 1
        self._waiting.pop(session, None)
        slow = self._slow(session, found)
        if slow is not None:
            slow.nonce = nonce
            self._next()
            return False
        older = self._kill(session)
        one = _Suspect(session, found, nonce)
        self._running.add(one)
        one.task = self._spawn(self._run(one, older))
        return True

    def wait(self, session: str, found: Suspected) -> bool:
        """Look at the session again once there is room. If this process does not live so long, it is due anyway.

        False: it waits already.
        """
        if self._slow(session, found) is None:
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

    def _slow(self, session: str, found: Suspected) -> _Suspect | None:
        return next((one for one in self._running if one.session == session and one.may_still_come_up(found)), None)

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
                process = await _started(one, figures)
                attending = self._spawn(self._attend(one, figures))
                try:
                    code = await process.wait()
                finally:
                    attending.cancel()
                info("suspect_process_ended", session=one.session, code=code, took_s=round(monotonic() - began, 3))
                _count(figures)
        except OSError as error:  # no memory, no more processes: its reservation ends, and it is due again
            warn("suspect_process_not_started", session=one.session, error=type(error).__name__)
        finally:
            self._running.discard(one)
            self._next()

    async def _attend(self, one: _Suspect, figures: IO[bytes]) -> None:
        """Keep the turn for a process until it has it, and end the process if it does not come up."""
        while not _has_turn(figures):
            left_s = one.began + COMES_UP_WITHIN_S - monotonic()
            if left_s <= 0:
                warn("suspect_process_not_up", session=one.session, pid=one.process.pid if one.process else None)
                one.signal(signal.SIGTERM)
                await asyncio.sleep(_TERM_S)
                if not _has_turn(figures):
                    one.signal(signal.SIGKILL)
                return
            await asyncio.sleep(min(left_s, _RESERVE_AGAIN_S))
            try:
                await self._reserve(one.session, one.nonce)
            except Exception as error:  # noqa: BLE001 - others may start one, too: the first to claim has the turn
                warn("suspect_not_reserved", session=one.session, error=type(error).__name__)

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


async def _started(one: _Suspect, figures: IO[bytes]) -> asyncio.subprocess.Process:
    """Start the process. In `figures` it tells that it has its turn, and leaves what it counted."""
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
    return one.process


def _has_turn(figures: IO[bytes]) -> bool:
    return os.fstat(figures.fileno()).st_size > 0


def _count(figures: IO[bytes]) -> None:
    """What a process that was killed counted is lost; what a dead turn is, the store knows."""
    figures.seek(0)
    counted = figures.read().strip()
    if counted:
        metrics.add(counted)
