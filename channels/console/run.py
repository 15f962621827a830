"""`lastword run`: one turn in this process, shown as it happens.

What belongs here: starting the engine in-process, following the turn's outputs, ending early. What must not be known
here: how a turn runs, how it is printed, what a person is asked.

A signal hands the turn over, as it does in every turns process: another one goes on with it. A turn that waits for a
person asks whoever sits at the terminal; where nobody does, it is kept, and waits for `lastword approvals`.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from time import monotonic
from typing import Any

import redis.asyncio
from redis.exceptions import RedisError

from channels.console import approvals, exits
from channels.console.shown import Printer, Shown, printer_for
from channels.console.terminal import open_console
from channels.settings import Settings
from worker import api
from worker.engine.loop import new_terminal_loop
from worker.errors import StoreUnavailable
from worker.output.events import Output, TurnCompletedOutput
from worker.store import connect
from worker.store.outputs import attach, outputs_after, watch
from worker.store.records import read_turn
from worker.wiring import TurnProcess

FOLLOW_BLOCK_S = 1.0
_WATCH_S = 30.0
_HAND_OVER_S = 10.0
_CUT_OFF_S = 3.0
"""How long the turn may take to be given back once its tools were cut off."""
_ASK_AGAIN_S = 1.0
_LEFT_BEHIND_S = 2.0
"""How long tasks that were cancelled at the end may take."""
_LOOK_AGAIN_S = 0.05
_WAITS = "turn {} is kept: once that is decided, a turns process goes on with it (`lastword up` starts one)"
_KEPT = "turn {} is kept: the next turns process goes on with it (`lastword up` starts one)"


async def run(  # noqa: PLR0913 - what the command line was given
    settings: Settings, url: str, prompt: str, *, agent: str, session: str | None, as_json: bool
) -> int:
    """Run one turn on the store at `url`; returns the exit code of its outcome.

    On SIGINT or SIGTERM the turn is handed over, or ended where the settings say so. Raises `StoreUnavailable` when
    Redis is lost on the way.
    """
    settings = settings.model_copy(update={"redis_url": url})
    client = connect.open_redis(url, block_s=FOLLOW_BLOCK_S)
    process = TurnProcess(settings)
    await process.start()
    try:
        with _signals() as signals:
            submitted = await api.submit(
                settings,
                client,
                prompt=prompt,
                source="cli",
                wake=lambda _: None,
                agent=agent,
                session=session,
                watch_s=_WATCH_S,
            )
            shown = Shown(submitted.turn, submitted.session)
            try:
                asks = not as_json and sys.stdin.isatty() and sys.stdout.isatty()
                running = _Running(settings, client, process, shown, signals, asks=asks)
                code = await running.until_end(printer_for(as_json=as_json))
                record = await read_turn(client, shown.turn)
            except RedisError as error:
                kept = _KEPT.format(shown.turn)
                raise StoreUnavailable(f"Redis was lost ({type(error).__name__}); once it is back, {kept}") from None
    finally:
        await process.stop()
        await client.aclose()
    if as_json:
        totals = {} if record is None else asdict(record.totals)
        sys.stdout.write(json.dumps(shown.summary(totals), ensure_ascii=False) + "\n")
    return code


def to_its_end(running: Coroutine[Any, Any, int]) -> tuple[int, bool]:
    """Run a turn on a loop of its own; its exit code, and whether tasks went on after it that cannot be ended."""
    loop = new_terminal_loop()
    asyncio.set_event_loop(loop)
    left: set[asyncio.Task[Any]] = set()
    try:
        code = loop.run_until_complete(running)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            _, left = loop.run_until_complete(asyncio.wait(left, timeout=_LEFT_BEHIND_S))
        if not left:
            loop.run_until_complete(loop.shutdown_asyncgens())
            asyncio.set_event_loop(None)
            loop.close()
    return code, bool(left)


class _Running:
    """A turn that is driven and followed side by side; neither outlives `until_end`. `asks`: a person sits here."""

    def __init__(  # noqa: PLR0913 - a turn and all that may end it
        self,
        settings: Settings,
        client: redis.asyncio.Redis,
        process: TurnProcess,
        shown: Shown,
        signals: "asyncio.Queue[int]",
        *,
        asks: bool,
    ) -> None:
        self._settings = settings
        self._client = client
        self._process = process
        self._shown = shown
        self._signals = signals
        self._asks = asks

    async def until_end(self, printer: Printer) -> int:
        """The exit code: that of the outcome, or of the signal that came before it."""
        loop = asyncio.get_running_loop()
        following = loop.create_task(_follow(self._client, self._shown, printer))
        driving = loop.create_task(self._drive(following))
        signalled = loop.create_task(self._signals.get())
        try:
            await _first(following, signalled, driving)
            if driving.done() and not following.done():
                driving.result()  # a fault of ours is raised
            if signalled.done() and not following.done():
                return await self._hand_over(signalled.result(), following, driving)
            if not following.done():
                return self._leave_waiting()
            following.result()
            await driving
        finally:
            await _end(following, driving, signalled)
        return exits.of_outcome(self._shown.outcome)

    async def _drive(self, following: "asyncio.Task[None]") -> None:
        """Drive the turn to its end, or to where it waits for a person and none sits here.

        While another process holds the session, or held it and died, ask again.
        """
        while not following.done() and not self._process.draining:
            await self._process.run_session(self._shown.session)
            if not await self._is_parked():
                await _first(following, within_s=_ASK_AGAIN_S)
                continue
            await self._catch_up(following)
            if self._asks and self._shown.waiting:
                await self._ask_here()
            elif await self._is_parked():
                return

    async def _is_parked(self) -> bool:
        record = await read_turn(self._client, self._shown.turn)
        return record is not None and record.state == "parked"

    async def _catch_up(self, following: "asyncio.Task[None]") -> None:
        """Wait until all that the turn has said by now is shown."""
        snapshot = await attach(self._client, self._shown.turn, 0)
        patience_ends = monotonic() + 2 * FOLLOW_BLOCK_S
        while snapshot is not None and self._shown.seq < snapshot.seq and monotonic() < patience_ends:
            await _first(following, within_s=_LOOK_AGAIN_S)

    async def _ask_here(self) -> None:
        """Ask the person at the terminal about what waits; what is decided elsewhere meanwhile is asked no more."""
        for request in tuple(self._shown.waiting.values()):
            waits = partial(self._waits, request.approval)
            if not waits():  # decided meanwhile, or this process leaves
                continue
            self._shown.dangling = True  # whatever is printed before an answer begins a line of its own
            option = await approvals.answer_at_terminal(request, waits)
            if option is None and self._shown.dangling:
                open_console().print()
            self._shown.dangling = False
            if option is not None:
                await self._answer(request.approval, option)
            elif waits():  # the terminal says nothing more
                self._asks = False
                return

    def _waits(self, approval: str) -> bool:
        return approval in self._shown.waiting and not self._process.draining

    async def _answer(self, approval: str, option: str) -> None:
        try:
            await api.resolve_approval(
                self._settings,
                self._client,
                approval=approval,
                option=option,
                by=approvals.person(),
                wake=lambda _: None,  # the turn is driven here
            )
        except api.ApprovalRefused as refused:
            open_console(stderr=True).print(str(refused), style="yellow", markup=False, soft_wrap=True)

    def _leave_waiting(self) -> int:
        approvals.say_what_waits(self._shown.waiting.values())
        open_console(stderr=True).print(_WAITS.format(self._shown.turn), style="yellow", soft_wrap=True)
        return exits.UNDECIDED

    async def _hand_over(self, number: int, following: "asyncio.Task[None]", driving: "asyncio.Task[None]") -> int:
        self._process.drain()
        again = asyncio.get_running_loop().create_task(self._signals.get())
        await _first(driving, again, within_s=_HAND_OVER_S)
        if not (driving.done() or again.done()):
            self._process.cut_off()
            await _first(driving, again, within_s=_CUT_OFF_S)
        again.cancel()
        record = await read_turn(self._client, self._shown.turn)
        if record is not None and record.outcome is not None:
            await following
            return exits.of_outcome(record.outcome)
        if self._shown.waiting:
            self._leave_waiting()
        else:
            open_console(stderr=True).print(_KEPT.format(self._shown.turn), style="yellow", soft_wrap=True)
        return exits.SIGNALLED + number


@contextmanager
def _signals() -> "Iterator[asyncio.Queue[int]]":
    """The signals that ask for the end, as they come."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[int]()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, queue.put_nowait, int(number))
    try:
        yield queue
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _end(*tasks: "asyncio.Task[int] | asyncio.Task[None]") -> None:
    """End tasks, however they end. A cancellation may be lost in the timeouts of a client, so it is said again."""
    pending: set[asyncio.Task[int] | asyncio.Task[None]] = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=FOLLOW_BLOCK_S)
    await asyncio.gather(*tasks, return_exceptions=True)


async def _first(*tasks: "asyncio.Task[int] | asyncio.Task[None]", within_s: float | None = None) -> None:
    await asyncio.wait(tasks, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


async def follow(client: redis.asyncio.Redis, turn: str) -> AsyncIterator[Output]:
    """The outputs of a turn from its first, as they come, until it ends; it is watched meanwhile.

    `client` must allow a blocking read of `FOLLOW_BLOCK_S` seconds.
    """
    last = "0-0"
    while True:
        await watch(client, turn, _WATCH_S)
        for entry, output in await outputs_after(client, turn, last, round(FOLLOW_BLOCK_S * 1000)):
            last = entry
            yield output
            if isinstance(output, TurnCompletedOutput):
                return


async def _follow(client: redis.asyncio.Redis, shown: Shown, printer: Printer) -> None:
    async for output in follow(client, shown.turn):
        shown.take(output)
        printer.show(output, shown)
