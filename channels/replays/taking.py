"""Taking bulk replays on: a page at a time, by whoever comes.

What belongs here: the order of the steps, and what a fault costs. What must not be known here: how replays are stored,
and how deliveries are stored, found or replayed (it is given that).

Any process may take any replay on: nothing is lost with one that dies, since all that a replay is lies in Redis.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import redis.asyncio

from channels.delivery import replay as decided
from channels.delivery.replay import Job, Page
from channels.loops import keep_going
from channels.replays.stored import LostReplayError, change, running, store, take
from worker import ids
from worker.observability import fault, info, warn
from worker.store.repeat import is_unanswered

LEASE_S = 30.0
_IDLE_S = 1.0

Find = Callable[[Job, int], Awaitable[Page]]
"""A page of at most so many deliveries in `job.reading`, from `job.cursor` on, the oldest first. It may hold some that
the job does not admit."""

Replay = Callable[[Sequence[str]], Awaitable[int]]
"""Make those of these deliveries due that are dead or held; gives how many were."""


class Replays:
    """Takes bulk replays on, for one process. `wake`: call those who deliver."""

    def __init__(
        self,
        client: redis.asyncio.Redis,
        find: Find,
        replay_some: Replay,
        wake: Callable[[], Awaitable[None]],
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        self._redis = client
        self._find = find
        self._replay_some = replay_some
        self._wake = wake
        self._lease_s = lease_s
        self._nonce = ids.new_nonce()

    async def run(self, stop: asyncio.Event) -> None:
        """Take replays on until `stop` is set."""
        await keep_going("replays", self.step, stop)

    async def step(self) -> float:
        """Take each replay that runs on by one page; gives the seconds after which to come again.

        Raises redis-py's exceptions while Redis is away; every other fault is the replay's, and told.
        """
        waits, errors = [_IDLE_S], list[Exception]()
        for name in await running(self._redis):
            try:
                waits.append(await self._take_on(name))
            except Exception as error:  # noqa: BLE001 - one that fails must not keep the others from their turn
                errors.append(error)
        if errors:
            raise errors[0]
        return min(waits)

    async def _take_on(self, name: str) -> float:
        taken = await take(self._redis, name, self._nonce, self._lease_s)
        if taken is None:
            return _IDLE_S
        job, now_ms = taken
        wait_s = _IDLE_S
        if job is not None:
            if count := decided.allowed(job, now_ms):
                return await self._page_within_lease(job, count, now_ms)
            wait_s = min(_IDLE_S, max(0.0, decided.free_ms(job, now_ms) - now_ms) / 1000)
        await take(self._redis, name, self._nonce, 0)
        return wait_s

    async def _page_within_lease(self, job: Job, count: int, now_ms: int) -> float:
        try:
            # Half of it: what comes later could come beside another who has taken the replay over.
            async with asyncio.timeout(self._lease_s / 2):
                return await self._page(job, count, now_ms)
        except TimeoutError as error:
            return await self._failed(job, error)

    async def _page(self, job: Job, count: int, now_ms: int) -> float:
        try:
            page = await self._find(job, count)
            begun = decided.begun(job, page, now_ms)
            if (begun.begun or job.begun) and not await store(self._redis, job.version, begun, nonce=self._nonce):
                return 0
            replayed = await self._replay_some(begun.begun) if begun.begun else 0
        except Exception as error:
            if is_unanswered(error):
                raise
            return await self._failed(job, error)
        after = await self._changed(job.id, lambda one, at_ms: decided.advanced(one, page, replayed, at_ms))
        if after is not None and after.state == "done":
            info("replay_done", replay=after.id, found=after.found, replayed=after.replayed, skipped=after.skipped)
        if after is not None and after.why == decided.STANDS_STILL:
            warn("replay_paused", replay=after.id, error="stands_still", found=after.found, replayed=after.replayed)
        if replayed:
            await self._wake()
        return 0

    async def _failed(self, job: Job, error: Exception) -> float:
        fault("replay_step_failed", error, replay=job.id)
        why = type(error).__name__
        after = await self._changed(job.id, lambda one, _: decided.failed(one, why))
        if after is not None and after.state == "paused":
            warn("replay_paused", replay=after.id, error=why, found=after.found, replayed=after.replayed)
        return _IDLE_S

    async def _changed(self, name: str, following: Callable[[Job, int], Job]) -> Job | None:
        """The replay after a change, whatever a person did to it meanwhile; None: it is another's by now."""
        try:
            return await change(self._redis, name, following, nonce=self._nonce)
        except LostReplayError:
            warn("replay_taken_over", replay=name)
            return None
