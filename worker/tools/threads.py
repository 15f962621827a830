"""Foreign code that may block: each call in a thread of its own, which holds up neither the loop nor the process's end.

What belongs here: the thread and the way back to the loop. What must not be known here: what is called.

A thread of a pool would be waited for when the process ends, and a pool full of calls that hang holds up all others.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from worker.observability import warn

T = TypeVar("T")


async def in_thread(name: str, call: Callable[[], T]) -> T:
    """Give what `call` gives, and raise what it raises. `name`: of what runs, for the log.

    When this is cancelled the thread is left behind with a warning: nothing can end it but itself. The end of the
    process does not wait for it.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()
    context = contextvars.copy_context()

    def settle(value: object, error: BaseException | None) -> None:
        if not outcome.done():
            outcome.set_result((value, error))

    def work() -> None:
        value: object = None
        error: BaseException | None = None
        try:
            value = context.run(call)
        except BaseException as caught:  # noqa: BLE001 - raised on the loop
            error = caught
        with suppress(RuntimeError):  # the loop has closed: nobody waits any more
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=work, name=f"lastword-{name}", daemon=True).start()
    try:
        value, error = await outcome
    except asyncio.CancelledError:
        warn("thread_left_behind", name=name)
        raise
    if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):  # not a person's, not the loop's
        raise RuntimeError(f"{name} raised {type(error).__name__}") from error  # noqa: TRY004 - no matter of types
    if error is not None:
        raise error
    result: T = value
    return result
