"""The composition root of a process that runs turns: where the parts meet.

What belongs here: building and owning connections, heartbeat, tick and drivers. What must not be known here: what a
turn does next, Celery.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic

from worker import ids
from worker.assembly import health_rules
from worker.codecs.messages import Message
from worker.drivers import DriverMaker
from worker.engine.claimant import Claimant
from worker.engine.driver import TurnDriver
from worker.engine.health import ProviderHealth
from worker.engine.heartbeat import Heartbeat, HeartbeatLimits
from worker.engine.lease_holder import LeaseHolder
from worker.engine.recording import tell_of_claim
from worker.engine.suspects import Suspects
from worker.errors import Fenced, Rewound, StoreFull, StoreUnavailable, TurnCancelled, TurnSealed
from worker.observability import warn
from worker.settings import WorkerSettings
from worker.store import claims, connect, journal
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import ensure_meta
from worker.store.lease import Grant
from worker.store.repeat import UNANSWERED, until_answered
from worker.store.server import warn_of_shortcomings
from worker.store.tick import StagingTick

_START_PATIENCE_S = 30.0
_REWOUND_PAUSE_S, _NO_ROOM_PAUSE_S = 0.2, 2.0
_CUT_OFF_AT = 0.8
_GIVE_UP_AT = 0.95
"""Shares of the time to shut down: when what still runs is cut off, when the store is asked no more."""


class TurnProcess:
    """Everything of one process that runs turns. Made, started and stopped on one event loop.

    `wake`: asks any turns process to look at a session; called from the heartbeat's thread. Without it the process
    sweeps nothing and runs only what it is handed, one turn at a time; so it may run suspects itself. `look`: lets this
    very process look at a session; called from threads. Without it any process does.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        wake: Callable[[str], None] | None = None,
        look: Callable[[str], object] | None = None,
    ) -> None:
        self._settings = settings
        self._draining = False
        self._drain_ends: float | None = None
        self._sessions = 0
        self._drivers: set[TurnDriver] = set()
        self._redis = connect.open_redis(settings.redis())
        self._health = ProviderHealth(
            ids.new_nonce(),
            health_rules(settings),
            watching=any(provider.fallback for provider in settings.providers.values()),
        )
        lives = settings.lease
        self._heartbeat = Heartbeat(
            connect.open_redis_sync(settings.redis()),
            HeartbeatLimits(lives.ttl_s, lives.renew_s, lives.sweep_s),
            settings.partitions,
            wake,
            lambda: settings.processes.turns_concurrency - self._sessions,
            self._health,
        )
        self._suspects: Suspects | None = None
        if wake is not None:
            reserve = partial(claims.reserve, self._redis, partitions=settings.partitions)
            self._suspects = Suspects(settings.processes.suspects, look or wake, reserve)
        self._claimant = Claimant(settings, self._redis, self._heartbeat.may_claim, self._has_time, self._suspects)
        self._maker = DriverMaker(
            settings,
            self._history,
            self._health,
            self._heartbeat.is_valid,
            lambda: self._draining,
        )
        self._tick = StagingTick(self._redis, settings.staging.tick_s)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, waiting up to 30 s for Redis, and start the heartbeat and the tick.

        Raises `ConfigurationError` for a store of other settings, and for a strategy of compaction that cannot be had.
        """
        settings = self._settings
        await self._maker.start()
        patience_ends = monotonic() + _START_PATIENCE_S
        await until_answered(lambda: ensure_meta(self._redis, settings.partitions), lambda: monotonic() < patience_ends)
        await warn_of_shortcomings(self._redis)
        loop = asyncio.get_running_loop()
        self._heartbeat.start(loop)
        self._ticking = loop.create_task(self._tick.run())

    async def stop(self) -> None:
        """Close what `start` opened, also when it failed. Turns that still run lose their lease and go on elsewhere."""
        if self._suspects is not None:
            limit = self._drain_ends or monotonic() + self._settings.processes.drain_s
            await self._suspects.stop(limit - monotonic())
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.to_thread(self._heartbeat.stop)
        try:
            await self._maker.stop()
        finally:
            await self._redis.aclose()

    @property
    def turns(self) -> int:
        """How many turns it drives, those of its suspects' processes included."""
        return len(self._drivers) + (0 if self._suspects is None else len(self._suspects))

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    @property
    def reaches_store(self) -> bool:
        """Whether the store has answered of late."""
        return self._heartbeat.may_claim()

    def drain(self) -> None:
        """Take no new turn and tell the running ones; later, cut off what still runs. Call it on the event loop."""
        if self._draining:
            return
        limit_s = self._settings.processes.drain_s
        self._draining = True
        self._drain_ends = monotonic() + limit_s * _GIVE_UP_AT
        asyncio.get_running_loop().call_later(limit_s * _CUT_OFF_AT, self.cut_off)
        self._heartbeat.drain()
        if self._suspects is not None:
            self._suspects.drain()
        for driver in tuple(self._drivers):
            driver.drain()

    def cut_off(self) -> None:
        """End what still runs, though not as it should. To be called on the event loop, after `drain`."""
        for driver in tuple(self._drivers):
            driver.cut_off()

    async def run_turn(self, session: str, at_claim: Callable[[], object] = lambda: None) -> None:
        """Drive the session's next turn, and none after it. `at_claim`: called once it is ours."""
        nonce = ids.new_nonce()
        is_ours = False
        while await self._run_next(session, nonce, at_claim, is_ours=is_ours) == nonce:  # the store lost our last steps
            is_ours = True

    async def run_session(self, session: str) -> None:
        """Drive the turns of a session, one after the other, as long as they are ours to drive."""
        self._sessions += 1
        try:
            nonce: str | None = ids.new_nonce()
            is_ours = False
            while nonce is not None:
                following = await self._run_next(session, nonce, is_ours=is_ours)
                nonce, is_ours = following, following == nonce
        finally:
            self._sessions -= 1

    async def _run_next(
        self, session: str, nonce: str, at_claim: Callable[[], object] = lambda: None, *, is_ours: bool = False
    ) -> str | None:
        """Drive the session's next turn; the nonce with which to claim the one after it, or None when there is none.

        The same nonce: it is the same turn, to be claimed anew. `is_ours`: it was, so it is driven also while draining.
        """
        while not self._heartbeat.may_claim() and not self._draining:  # noqa: ASYNC110 - another thread decides it
            await asyncio.sleep(self._settings.lease.renew_s)
        if self._draining and not is_ours:
            return None
        granted = await self._claimant.granted(session, nonce)
        if granted is None:
            return None
        grant, claimed_at = granted
        if not is_ours:
            at_claim()
            tell_of_claim(grant)
        try:
            await self._drive(grant, claimed_at)
        except Rewound:  # the store still knows us by this nonce, and what it knows is what stands
            warn("turn_rewound", turn=grant.turn, session=session)
            await asyncio.sleep(_REWOUND_PAUSE_S)
        except TurnCancelled:  # refused in the midst of a step: what the store knows is what ends
            pass
        except (Fenced, TurnSealed):
            warn("turn_lost", turn=grant.turn, session=session)
            return None
        else:
            return ids.new_nonce()
        return nonce

    async def _history(self, grant: Grant) -> tuple[Message, ...]:
        """What was said before, asked for as any step of a turn is.

        Raises `StoreUnavailable` when it is not answered for as long as a tool may be silent, though renewals are.
        """
        settings = self._settings
        waits_since = monotonic()

        def is_hopeless() -> bool:
            return monotonic() - waits_since >= settings.turns.tool_timeout_s

        def going() -> bool:
            nonlocal waits_since
            if not self._heartbeat.is_valid(grant.turn, grant.nonce):  # it is the store that is away
                waits_since = monotonic()
            return self._may_ask(grant) and not is_hopeless()

        try:
            return await until_answered(
                lambda: journal.history(
                    self._redis, grant.session, grant.turn, settings.turns.history_turns, settings.partitions
                ),
                going,
            )
        except UNANSWERED as error:
            if is_hopeless():
                raise StoreUnavailable(f"{grant.turn}: what was said before it cannot be read") from error
            raise

    async def _drive(self, grant: Grant, claimed_at: float) -> None:
        partition = ids.partition_of_session(grant.session, self._settings.partitions)
        accumulator = ExecutionOutputAccumulator(
            self._redis,
            grant,
            lambda: self._may_ask(grant),
            round(self._settings.turns.keep_s),
        )
        holder = LeaseHolder()
        self._heartbeat.hold(grant, partition, holder, claimed_at)
        try:
            driver = await self._maker.made(grant, accumulator, claimed_at, holder)
            if driver is not None and not holder.is_lost:
                holder.driver = driver
                await self._run(driver, grant, accumulator)
        finally:
            self._heartbeat.let_go(grant.turn, grant.nonce)

    async def _run(self, driver: TurnDriver, grant: Grant, accumulator: ExecutionOutputAccumulator) -> None:
        self._drivers.add(driver)
        if self._draining:
            driver.drain()
        self._tick.add(accumulator)
        try:
            await driver.run()
        except StoreFull:  # a hand-over needs no room; the turn is tried again until there is some, or its time is up
            warn("turn_waits_for_room", turn=grant.turn, session=grant.session)
            # Who finds it due has no room either, and takes a suspect that sleeps behind that for one that hangs.
            await asyncio.sleep(0 if self._draining else _NO_ROOM_PAUSE_S)
            await accumulator.release()
        finally:
            self._tick.remove(accumulator)
            self._drivers.discard(driver)

    def _may_ask(self, grant: Grant) -> bool:
        """Whether a step that the store does not answer is worth repeating.

        As long as nobody else is known to own the turn, and this process has the time.
        """
        return self._has_time() and self._heartbeat.holds(grant.turn, grant.nonce)

    def _has_time(self) -> bool:
        return self._drain_ends is None or monotonic() < self._drain_ends
