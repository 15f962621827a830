"""The composition root of a process that runs turns: where the parts meet.

What belongs here: building and owning connections, heartbeat, tick and drivers. What must not be known here: what a
turn does next, Celery.
"""

import asyncio
import random
from collections.abc import Callable
from time import monotonic

from worker import ids
from worker.assembly import Providers, toolbox, turn_limits, turn_start
from worker.codecs.messages import Message
from worker.engine.driver import TurnDriver
from worker.engine.heartbeat import Heartbeat, HeartbeatLimits
from worker.errors import ConfigurationError, Fenced, Rewound, StoreError, StoreFull, TurnSealed
from worker.observability import fault, warn
from worker.settings import WorkerSettings
from worker.store import connect, journal, lease
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.inbox import ensure_meta
from worker.store.lease import Grant
from worker.store.repeat import is_unanswered, until_answered
from worker.store.tick import StagingTick
from worker.turn import outputs
from worker.turn.commands import DiscardCall, Failure, Seal
from worker.turn.machine import TurnMachine

_START_PATIENCE_S = 30.0


class TurnProcess:
    """Everything of one process that runs turns. Made, started and stopped on one event loop.

    `wake`: asks any turns process to look at a session; called from the heartbeat's thread. Without it the process
    sweeps nothing and runs only what it is handed.
    """

    def __init__(self, settings: WorkerSettings, wake: Callable[[str], None] | None = None) -> None:
        self._settings = settings
        self._draining = False
        self._sessions = 0
        self._drivers: set[TurnDriver] = set()
        self._redis = connect.open_redis(settings.redis())
        self._providers = Providers()
        lives = settings.lease
        self._heartbeat = Heartbeat(
            connect.open_redis_sync(settings.redis()),
            HeartbeatLimits(lives.ttl_s, lives.renew_s, lives.sweep_s),
            settings.partitions,
            wake,
            lambda: settings.processes.turns_concurrency - self._sessions,
        )
        self._tick = StagingTick(self._redis, settings.staging.tick_s)
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect, waiting up to 30 s for Redis, and start the heartbeat and the tick.

        Raises `ConfigurationError` for a store of other settings.
        """
        settings = self._settings
        patience_ends = monotonic() + _START_PATIENCE_S
        await until_answered(lambda: ensure_meta(self._redis, settings.partitions), lambda: monotonic() < patience_ends)
        loop = asyncio.get_running_loop()
        self._heartbeat.start(loop)
        self._ticking = loop.create_task(self._tick.run())

    async def stop(self) -> None:
        """Close what `start` opened, also when it failed. Turns that still run lose their lease and go on elsewhere."""
        if self._ticking is not None:
            self._ticking.cancel()
        await asyncio.to_thread(self._heartbeat.stop)
        await self._providers.close()
        await self._redis.aclose()

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._draining

    def drain(self) -> None:
        """Take no new turn, and tell the running ones. To be called on the event loop."""
        self._draining = True
        self._heartbeat.drain()
        for driver in tuple(self._drivers):
            driver.drain()

    async def run_session(self, session: str) -> None:
        """Drive the turns of a session, one after the other, as long as they are ours to drive."""
        self._sessions += 1
        try:
            nonce: str | None = ids.new_nonce()
            while nonce is not None:
                nonce = await self._run_next(session, nonce)
        finally:
            self._sessions -= 1

    async def _run_next(self, session: str, nonce: str) -> str | None:
        """Drive the session's next turn; the nonce with which to claim the one after it, or None when there is none."""
        while not self._heartbeat.may_claim() and not self._draining:  # noqa: ASYNC110 - another thread decides it
            await asyncio.sleep(self._settings.lease.renew_s)
        if self._draining:
            return None
        claimed_at = monotonic()
        patience_ends = claimed_at + self._settings.lease.ttl_s
        try:
            grant = await self._claim(session, nonce, patience_ends)
        except Exception as error:
            if not is_unanswered(error):
                raise
            # The due set knows the session; someone will look again.
            warn("session_not_claimed", session=session, error=type(error).__name__)
            return None
        if grant is None:
            return None
        try:
            await self._drive(grant, claimed_at)
        except Rewound:  # the store still knows us by this nonce, and what it knows is what stands
            warn("turn_rewound", turn=grant.turn, session=session)
            return nonce
        except (Fenced, TurnSealed):
            warn("turn_lost", turn=grant.turn, session=session)
            return None
        return ids.new_nonce()

    async def _claim(self, session: str, nonce: str, patience_ends: float) -> Grant | None:
        settings = self._settings
        return await until_answered(
            lambda: lease.claim(self._redis, session, nonce, settings.lease.ttl_s, settings.partitions),
            # Once the heartbeat has seen an outage, living drivers renew before anyone claims.
            lambda: monotonic() < patience_ends and self._heartbeat.may_claim(),
        )

    async def _history(self, grant: Grant, patience_ends: float) -> tuple[Message, ...]:
        settings = self._settings
        return await until_answered(
            lambda: journal.history(
                self._redis, grant.session, grant.turn, settings.turns.history_turns, settings.partitions
            ),
            lambda: monotonic() < patience_ends,
        )

    async def _drive(self, grant: Grant, claimed_at: float) -> None:
        partition = ids.partition_of_session(grant.session, self._settings.partitions)
        accumulator = ExecutionOutputAccumulator(
            self._redis,
            grant,
            lambda: self._may_ask(grant),
            round(self._settings.turns.keep_s),
        )
        driver = await self._made(grant, accumulator, claimed_at + self._settings.lease.ttl_s)
        if driver is None:
            return
        self._heartbeat.hold(grant, partition, driver, claimed_at)
        self._drivers.add(driver)
        if self._draining:
            driver.drain()
        self._tick.add(accumulator)
        try:
            await driver.run()
        except StoreFull:  # a hand-over needs no room; the turn is tried again until there is some, or its time is up
            warn("turn_waits_for_room", turn=grant.turn, session=grant.session)
            await accumulator.release()
            await asyncio.sleep(self._settings.lease.renew_s)
        finally:
            self._tick.remove(accumulator)
            self._heartbeat.let_go(grant.turn, grant.nonce)
            self._drivers.discard(driver)

    def _may_ask(self, grant: Grant) -> bool:
        """Whether a step that the store does not answer is worth repeating.

        As long as nobody else is known to own the turn; but a process that shuts down does not outstay its lease.
        """
        if self._draining and not self._heartbeat.is_valid(grant.turn, grant.nonce):
            return False
        return self._heartbeat.holds(grant.turn, grant.nonce)

    async def _made(
        self, grant: Grant, accumulator: ExecutionOutputAccumulator, patience_ends: float
    ) -> TurnDriver | None:
        """The driver of a granted turn; or None, and the turn is sealed, when it cannot be made here."""
        try:
            return self._driver(grant, await self._history(grant, patience_ends), accumulator)
        except ConfigurationError as error:
            failure = Failure("input", "not_configured", str(error))
        except Exception as error:
            # Given back to others a few times, as after a crash; then it must end, or it would go round for ever.
            may_pass = grant.progress.crashes < self._settings.turns.crash_cap and grant.remaining_s > 0
            if may_pass or is_unanswered(error):
                raise
            fault("turn_cannot_be_driven", error, turn=grant.turn, session=grant.session)
            message = f"No process could begin to run this turn ({type(error).__name__}); its log has the place."
            failure = Failure("internal", "cannot_be_driven", message)
        await self._fail(grant, accumulator, failure)
        return None

    def _driver(
        self, grant: Grant, history: tuple[Message, ...], accumulator: ExecutionOutputAccumulator
    ) -> TurnDriver:
        if grant.unreadable is not None:
            raise StoreError(f"{grant.turn}: its journal cannot be read ({grant.unreadable})")
        settings = self._settings
        agent = settings.agent(grant.agent)
        provider = settings.providers[agent.provider]
        machine = TurnMachine(
            turn_start(grant, agent, provider, history=history),
            turn_limits(settings, provider),
            deadline=monotonic() + grant.remaining_s,
            jitter=random.SystemRandom().random,
        )
        return TurnDriver(
            grant,
            machine,
            accumulator,
            self._providers.attempt(agent, provider),
            toolbox(settings, agent),
            lambda: self._heartbeat.is_valid(grant.turn, grant.nonce),
        )

    async def _fail(self, grant: Grant, accumulator: ExecutionOutputAccumulator, failure: Failure) -> None:
        """Seal a turn that cannot even be asked."""
        progress, totals = grant.progress, grant.progress.totals
        correlation = ids.correlation_of(grant.turn, grant.nonce)
        if progress.is_open:
            discard = DiscardCall(progress.call, progress.attempt, "takeover", 0, totals)
            await accumulator.discard(progress.call, progress.attempt, totals, outputs.of_discard(discard))
        seal = Seal("failed", None, failure, totals)
        await accumulator.seal("failed", None, failure, correlation, totals, outputs.of_seal(seal, correlation))
        warn("turn_not_driven", turn=grant.turn, code=failure.code, correlation_id=correlation)
