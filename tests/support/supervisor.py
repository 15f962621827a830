"""What a supervisor does: starts a process again whenever it has died, until it is told to stop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

from tests.support.stack import Process, Stack

_LOOK_EVERY_S = 0.1


@contextlib.asynccontextmanager
async def supervised(stack: Stack, count: int, environment: Mapping[str, str]) -> AsyncIterator[list[Process]]:
    """Keep `count` turns processes running; gives every one that was started, the dead ones too."""
    started = [stack.start("turns", environment=environment) for _ in range(count)]
    running = list(started)

    async def watch() -> None:
        while True:
            for place, process in enumerate(running):
                if process.returncode is not None:
                    running[place] = stack.start("turns", environment=environment)
                    started.append(running[place])
            await asyncio.sleep(_LOOK_EVERY_S)

    watching = asyncio.get_running_loop().create_task(watch())
    try:
        yield started
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
