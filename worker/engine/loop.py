"""One asyncio loop in a thread of its own: what a Celery process of the thread pool runs its coroutines on.

What belongs here: starting the loop, handing coroutines to it, stopping it. What must not be known here: turns.
"""

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from worker.observability import fault, warn

T = TypeVar("T")

_STOP_LIMIT_S = 10.0

LOOP_LOST = 70
"""Exit code of a process whose loop broke: EX_SOFTWARE of sysexits.h."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A uvloop where it installs, else asyncio's own. What nobody awaits is reported without its words."""
    return _reporting(_fastest_loop())


def new_terminal_loop() -> asyncio.AbstractEventLoop:
    """As `new_event_loop`, for who reads a terminal: uvloop would make it non-blocking, for all who have it open."""
    return _reporting(asyncio.new_event_loop())


def _reporting(loop: asyncio.AbstractEventLoop) -> asyncio.AbstractEventLoop:
    loop.set_exception_handler(_report)
    return loop


def _fastest_loop() -> asyncio.AbstractEventLoop:
    if sys.platform != "win32":
        try:
            import uvloop  # noqa: PLC0415 - it does not install everywhere
        except ImportError:
            pass
        else:
            return uvloop.new_event_loop()
    return asyncio.new_event_loop()


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """A background task of foreign code failed, say. asyncio itself would print the exception, words and all."""
    error = context.get("exception")
    if isinstance(error, BaseException):
        fault("background_task_failed", error)
    else:
        warn("event_loop_complains")


class LoopThread:
    """An event loop that runs in a daemon thread from `start` to `stop`.

    A KeyboardInterrupt or SystemExit of a task breaks the loop. The process then ends at once with `LOOP_LOST`: what
    it has under way would hang for ever, and it would go on to take work.
    """

    def __init__(self, name: str = "lastword-loop") -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; coroutines may be handed over from now on."""
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop; the context variables of the caller go with it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self.submit(coroutine).result()

    def stop(self) -> None:
        """Cancel what still runs, then end the loop and its thread."""
        if not self._thread.is_alive():
            return
        concurrent.futures.wait([self.submit(_cancel_others())], _STOP_LIMIT_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_STOP_LIMIT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
        except BaseException as error:  # noqa: BLE001 - whatever it was, the loop is gone
            try:
                fault("event_loop_broke", error)
            finally:
                os._exit(LOOP_LOST)
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
