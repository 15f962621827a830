"""Live readers: some turns are read as they stream, through whatever happens to the store, or to the web processes.

What belongs here: following a turn to its end, and one line of what its reader was left with. What must not be known
here: what is right.

A line: {"message", "text", "staged", "gaps"}. `text`: what stands in the reader's fold at the end; `staged`: what it
still takes for a running attempt. `gaps`: how often an output had not the number after the one before it.
"""

import asyncio
from pathlib import Path
from typing import Any

import redis

from channels.console.run import FOLLOW_BLOCK_S
from ops.chaos_run.web import WebClient, is_by_http, write_line
from worker.output.buffer import CommitBuffer
from worker.store import connect
from worker.store.outputs import outputs_after, watch

WATCH_S = 30.0
_EVERY = 3
_AGAIN_S = 0.2
_BLOCK_MS = round(FOLLOW_BLOCK_S * 1000)


def is_read(message: int) -> bool:
    """Whether a message's turn has a live reader."""
    return message % _EVERY == 0


class Readers:
    """Reads turns in tasks of `group`, and writes a line for each whose end was read."""

    def __init__(self, url: str, path: Path, group: asyncio.TaskGroup, web: WebClient) -> None:
        self._web = web
        self._client = connect.open_redis(url, block_s=FOLLOW_BLOCK_S)
        self._path = path
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, message: int, turn: str) -> None:
        """Read this turn from its first output on."""
        task = self._group.create_task(self._read(message, turn))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, within_s: float) -> None:
        """Wait a little for those that still read, then leave them."""
        tasks = set(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        for task in tasks:
            task.cancel()
        await self._client.aclose()

    async def _read(self, message: int, turn: str) -> None:
        reading = self._web.read(message, turn) if is_by_http(message) else self._follow(message, turn)
        write_line(self._path, await reading)

    async def _follow(self, message: int, turn: str) -> dict[str, Any]:
        fold, last, gaps = CommitBuffer(), "0-0", 0
        while not fold.sealed:
            try:
                await watch(self._client, turn, WATCH_S)
                outputs = await outputs_after(self._client, turn, last, _BLOCK_MS)
            except (redis.RedisError, OSError):
                await asyncio.sleep(_AGAIN_S)
                continue
            for entry, output in outputs:
                gaps += output.seq != int(last.partition("-")[2]) + 1
                last = entry
                fold.apply(output)
        return {"message": message, "text": fold.committed, "staged": fold.staged, "gaps": gaps}
