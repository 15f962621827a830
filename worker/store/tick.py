"""The tick: what all watched turns of a process have streamed goes to Redis in one pipeline.

What belongs here: when to flush, and one verdict per turn. What must not be known here: what a verdict means to a turn.

A turn whose verb is under way is passed over. Nothing here is needed for the answer: a commit carries its whole text.
"""

import asyncio
from collections.abc import Sequence
from time import monotonic

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from worker import metrics
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.ops import STAGE, Flight

Sending = tuple[ExecutionOutputAccumulator, Flight]


class StagingTick:
    """Flushes every `tick_s` seconds, for as long as `run` runs."""

    def __init__(self, redis: redis.asyncio.Redis, tick_s: float = 0.05) -> None:
        self._redis = redis
        self._tick_s = tick_s
        self._turns: set[ExecutionOutputAccumulator] = set()
        self._any = asyncio.Event()

    def add(self, turn: ExecutionOutputAccumulator) -> None:
        """Flush this turn from now on, while it is watched."""
        self._turns.add(turn)
        self._any.set()

    def remove(self, turn: ExecutionOutputAccumulator) -> None:
        """Flush this turn no more."""
        self._turns.discard(turn)
        if not self._turns:
            self._any.clear()

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await self._any.wait()
            await asyncio.sleep(self._tick_s)
            await self.flush()

    async def flush(self) -> None:
        """Send what waits, at most 64 kB of each turn."""
        sending = [(turn, flight) for turn in self._turns if (flight := turn.take_off()) is not None]
        if not sending:
            return
        answers: Sequence[object] = [None] * len(sending)
        sent_at = monotonic()
        try:
            answers = await self._send(sending)
        except (redis.RedisError, OSError):
            pass  # unanswered: each turn sends its op again, at the next tick or before its next verb
        finally:
            metrics.staging_flushed(len(sending), monotonic() - sent_at)
            for (turn, _), answer in zip(sending, answers, strict=True):
                turn.land(answer)

    async def _send(self, sending: Sequence[Sending]) -> list[object]:
        answers = await self._pipe(sending)
        forgotten = [at for at, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if forgotten:
            await STAGE.load(self._redis)
            for at, answer in zip(forgotten, await self._pipe([sending[at] for at in forgotten]), strict=True):
                answers[at] = answer
        return answers

    async def _pipe(self, sending: Sequence[Sending]) -> list[object]:
        pipeline = self._redis.pipeline(transaction=False)
        for turn, flight in sending:
            STAGE.queue(pipeline, flight.keys, turn.stage_args(flight))
        answers: list[object] = await pipeline.execute(raise_on_error=False)
        return answers
