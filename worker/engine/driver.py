"""The driver of one turn: reads events, asks the machine, performs its commands in order.

What belongs here: performing commands. What must not be known here: what to do next (the machine decides), how text is
stored (the accumulator's), how bytes are read (`stream`).

Events wait in one queue with the time they arrived, so a store that is slow to answer never makes a living stream look
dead.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from time import monotonic
from typing import Any

from worker import metrics
from worker.codecs.events import ToolCall
from worker.codecs.messages import Request
from worker.engine.health import ProviderHealth
from worker.engine.recording import Asked, Recording
from worker.engine.timer import LazyTimer
from worker.engine.toolbox import Toolbox
from worker.errors import Fenced, InboxChanged, StoreFull
from worker.observability import info, warn
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.lease import Grant
from worker.turn import commands as c
from worker.turn import outputs
from worker.turn.events import Begin, Cancel, Decided, Drain, Event, InboxMoved, InboxRead, Sent, Tick
from worker.turn.machine import TurnMachine

Attempt = Callable[[str, Request, int, int], AsyncIterator[list[Event]]]
"""Sends a request to a provider for (call, attempt) and gives what comes of it; closing it drops the connection."""

_NEED_NO_ROOM = c.RecordToolResult | c.StopTools | c.DiscardCall | c.CloseCall | c.Seal | c.HandOff | c.Warn
"""What can be done in a full store: tools that run end and are recorded, and so does the turn, if it is to."""


class TurnDriver:
    """Drives one claimed turn to its seal, to a hand-off, or to the loss of its lease.

    `health` is told how the providers do. `is_valid`: whether the lease is surely still ours. Raises `Fenced`,
    `Rewound` or `TurnCancelled` from the store, and `StoreFull` once the tools that run have ended.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the joints of a turn, each named
        self,
        grant: Grant,
        machine: TurnMachine,
        accumulator: ExecutionOutputAccumulator,
        attempt: Attempt,
        toolbox: Toolbox,
        health: ProviderHealth,
        is_valid: Callable[[], bool],
    ) -> None:
        self._grant = grant
        self._machine = machine
        self._accumulator = accumulator
        self._recording = Recording(grant, accumulator, health)
        self._attempt = attempt
        self._toolbox = toolbox
        self._health = health
        self._is_valid = is_valid
        self._queue: asyncio.Queue[tuple[float, Event]] = asyncio.Queue()
        self._timer = LazyTimer(lambda: None if self._ended else machine.deadline(), self._look_at_the_clock)
        self._reader: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._renewal = asyncio.Event()
        self._ended = False
        self._lost = False
        self._has_no_time = False
        self._full: StoreFull | None = None
        """The store has no room for the next step; what runs may still end, which needs none."""
        self._tools: set[asyncio.Task[None]] = set()
        self._not_begun: set[int] = set()
        """Tools of the last call that the store had no room to start: whoever goes on starts them."""
        self._has_tick = False
        """A look at the clock is queued. A second one would keep the first from ever coming to its turn."""

    # What the heartbeat and the process tell; all on the event loop.

    def renewed(self, *, watched: bool) -> None:
        """The lease was renewed; whether a reader watches the turn."""
        self._accumulator.watched = watched
        self._renewal.set()

    def lost(self) -> None:
        """Another driver owns the turn: stop, and change nothing more."""
        self._lost = True
        self._renewal.set()
        self._look_at_the_clock()

    def drain(self) -> None:
        """This process is shutting down."""
        self._tell(Drain())

    def cancel(self, reason: str) -> None:
        """Somebody wants the turn to end."""
        self._tell(Cancel(reason))

    def cut_off(self) -> None:
        """This process has no more time to shut down."""
        self._has_no_time = True
        self._renewal.set()
        self._tell(Drain(is_over=True))

    async def run(self) -> None:
        """Drive the turn until it ends here."""
        failure: Exception | None = None
        async with asyncio.TaskGroup() as self._group:
            try:
                self._tell(Begin())
                while not self._ended:
                    await self._handle_next()
            except Exception as error:  # noqa: BLE001 - raised below, bare: a group would hide its type
                failure = error
            finally:
                self._timer.cancel()
                for task in self._tasks:
                    task.cancel()
        if failure is not None:
            raise failure

    async def _handle_next(self) -> None:
        arrived, event = await self._queue.get()
        if self._lost:
            raise Fenced(self._grant.turn)
        if isinstance(event, Tick):
            if not self._queue.empty():  # what has arrived is older than this look at the clock
                self._queue.put_nowait((arrived, event))
                return
            self._has_tick = False
            arrived = monotonic()
        for command in self._machine.handle(event, arrived):
            await self._perform_if_room(command)
        are_over = all(tool.done() for tool in self._tools)
        if self._full is not None and not self._ended and are_over and self._queue.empty():
            raise self._full
        self._timer.set()

    def _tell(self, event: Event) -> None:
        self._queue.put_nowait((monotonic(), event))

    def _look_at_the_clock(self) -> None:
        if not self._has_tick:
            self._has_tick = True
            self._tell(Tick())

    # The commands, one at a time and in order.

    async def _perform_if_room(self, command: c.Command) -> None:
        """Tools that run are not cut off for want of room: they end and are recorded, but no further one begins."""
        if self._full is not None and not isinstance(command, _NEED_NO_ROOM):
            raise self._full
        if isinstance(command, c.RecordToolResult) and command.index in self._not_begun:
            return
        try:
            await self._perform(command)
        except StoreFull as error:
            self._full = error

    async def _perform(self, command: c.Command) -> None:  # noqa: C901, PLR0912 - one arm a command
        match command:
            case c.StageText(text):
                self._accumulator.stage_text(text)
            case c.StageThinking(text):
                self._accumulator.stage_thinking(text)
            case c.AskInbox():
                self._tell(InboxRead(await self._accumulator.waiting_messages()))
            case c.OpenCall():
                await self._open(command)
            case c.ReopenCall(call, attempt, request, provider):
                await self._read_unrecorded(provider, request, call, attempt)
            case c.OpenSidecar(attempt, request, provider):
                await self._read_unrecorded(provider, request, 0, attempt)
            case c.Blame(provider):
                self._health.died(provider)
            case c.CloseCall():
                if self._reader is not None:
                    self._reader.cancel()
            case c.CommitCall():
                await self._recording.commit(command)
            case c.DiscardCall():
                await self._recording.discard(command)
            case c.RunTools() | c.StopTools():
                await self._run_or_stop_tools(command)
            case c.RecordToolResult() | c.RecordCompaction():
                await self._recording.fact(command)
            case c.AskApproval():
                await self._recording.ask(command, self._toolbox.approvals_expire_s)
            case c.Park():
                await self._park()
            case c.Seal():
                await self._recording.seal(command)
                self._ended = True
            case c.HandOff():
                await self._recording.hand_off()
                self._ended = True
            case c.Warn(event, fields):
                warn(event, turn=self._grant.turn, session=self._grant.session, **dict(fields))

    async def _open(self, command: c.OpenCall) -> None:
        try:
            await self._recording.open(command)
        except InboxChanged:
            self._tell(InboxMoved())
            return
        await self._read(command.provider, command.request, command.call, command.attempt)

    async def _read_unrecorded(self, provider: str, request: Request, call: int, attempt: int) -> None:
        """Send a request of which no verb tells the store, unless somebody wants the turn to end."""
        await self._accumulator.check_wanted()
        await self._read(provider, request, call, attempt)

    async def _read(self, provider: str, request: Request, call: int, attempt: int) -> None:
        await self._hold_valid()
        asked = Asked(monotonic())
        if call:  # not beside the turn
            self._recording.asked = asked
        self._tell(Sent(call, attempt))
        self._reader = self._spawn(self._pump(self._attempt(provider, request, call, attempt), asked))

    async def _pump(self, events: AsyncIterator[list[Event]], asked: Asked) -> None:
        before = 0.0
        async for batch in events:
            arrived = monotonic()
            if before and arrived - before > asked.longest_gap_s:
                asked.longest_gap_s = arrived - before
            before = arrived
            for event in batch:
                self._queue.put_nowait((arrived, event))

    # Tools.

    async def _run_or_stop_tools(self, command: c.RunTools | c.StopTools) -> None:
        if isinstance(command, c.StopTools):
            await self._stop_tools()
            return
        self._not_begun = {index for index, _ in command.tool_calls}
        for index, tool_call in command.tool_calls:
            started = outputs.of_tool_start(command.call, tool_call, command.attempt)
            await self._accumulator.tool_start(command.call, index, started)
            self._not_begun.discard(index)
            await self._hold_valid()
            running = self._spawn(self._run_tool(command.call, index, tool_call))
            self._tools.add(running)
            running.add_done_callback(self._tools.discard)

    async def _run_tool(self, call: int, index: int, tool_call: ToolCall) -> None:
        self._tell(await self._toolbox.run(self._grant, call, index, tool_call))

    async def _stop_tools(self) -> None:
        stopped = set(self._tools)
        for task in stopped:
            task.cancel()
        if stopped:  # a tool that does not end is left behind after its grace
            await asyncio.wait(stopped)

    async def _park(self) -> None:
        """Give the turn back until a person decides, unless somebody has decided just now."""
        decisions = await self._accumulator.park()
        if decisions:
            self._tell(Decided(decisions))
            return
        metrics.turn_parked()
        info("turn_parked", turn=self._grant.turn, session=self._grant.session)
        self._ended = True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hold_valid(self) -> None:
        """Wait until the lease is surely ours: a process that slept past it must not act outside the store.

        After an outage of the store nobody has claimed the turn, and the next renewal ends the wait; a process that
        must end does not outstay its lease.
        """
        while not self._is_valid():
            self._renewal.clear()
            if not (self._lost or self._has_no_time):
                await self._renewal.wait()
            if self._lost or (self._has_no_time and not self._is_valid()):
                raise Fenced(self._grant.turn)
