"""Making the driver of a turn that was granted to this process.

What belongs here: what a driver needs, fetched and put together, and what becomes of a turn for which it cannot be had.
What must not be known here: claiming, leases, what the driver then does.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic

from worker.assembly import Providers, strategy, toolbox, turn_limits, turn_start
from worker.codecs.messages import Message
from worker.engine.driver import TurnDriver
from worker.engine.health import ProviderHealth
from worker.engine.lease_holder import LeaseHolder
from worker.engine.recording import Recording
from worker.errors import (
    ConfigurationError,
    Fenced,
    Rewound,
    StoreError,
    StoreUnavailable,
    ToolsUnavailable,
    TurnCancelled,
    TurnSealed,
)
from worker.guard import guard_operator
from worker.observability import fault, warn
from worker.sections import AgentSettings
from worker.settings import WorkerSettings
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.lease import Grant
from worker.store.repeat import is_unanswered
from worker.tools.shelf import ToolShelf
from worker.tools.tool import Tool
from worker.turn import verdict
from worker.turn.commands import Failure, Seal
from worker.turn.compaction import DEFAULT
from worker.turn.ends import has_untold_discards, void
from worker.turn.facts import Committed
from worker.turn.machine import TurnMachine
from worker.turn.usage import Tally
from worker.turn.verdict import Ending

_LOOK_S = 0.5
_chance = random.SystemRandom()


class DriverMaker:
    """Makes the drivers of one process, on one event loop.

    `history`: the messages of a session before a turn; raises `StoreUnavailable` when they alone are never answered.
    `is_valid`: whether a turn with a nonce is surely still ours. `is_draining`: whether this process shuts down.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        history: Callable[[Grant], Awaitable[tuple[Message, ...]]],
        health: ProviderHealth,
        is_valid: Callable[[str, str], bool],
        is_draining: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._history = history
        self._health = health
        self._is_valid = is_valid
        self._is_draining = is_draining
        guard = guard_operator(settings.egress)
        self._providers = Providers(settings.providers, guard)
        self._shelf = ToolShelf(settings.mcp, settings.tools, guard)
        self._strategy = DEFAULT

    async def start(self) -> None:
        """Load what may be foreign code. Raises `ConfigurationError` for a strategy that cannot be had."""
        self._strategy = await asyncio.to_thread(strategy, self._settings.compaction.strategy)

    async def stop(self) -> None:
        """Close the connections to providers and tools."""
        try:
            await self._shelf.close()
        finally:
            await self._providers.close()

    async def made(
        self, grant: Grant, accumulator: ExecutionOutputAccumulator, claimed_at: float, holder: LeaseHolder
    ) -> TurnDriver | None:
        """The driver of a granted turn. None: it needs none or can have none, and was sealed or given back.

        `holder`: of its lease; learns meanwhile that the turn is lost, or is to end.
        """
        ending = self._known_ending(grant)
        if ending is not None:
            reason = "cancelled" if ending.outcome == "cancelled" else "takeover"
            await self._seal(grant, accumulator, ending, reason)
            return None
        try:
            history = await self._history(grant)
            agent = self._settings.agent(grant.agent)
            tools = await self._tools(grant, accumulator, agent, claimed_at, holder)
            return self._driver(grant, agent, tools, history, accumulator, claimed_at + grant.remaining_s)
        except (Fenced, Rewound, TurnCancelled, TurnSealed):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the turn must not go round for ever
            failure = self._failure(grant, error)
        if failure is None:
            await self._void(grant, accumulator)
            await accumulator.release()
            return None
        await self._seal(grant, accumulator, Ending("failed", None, failure))
        warn("turn_not_driven", turn=grant.turn, code=failure.code)
        return None

    def _known_ending(self, grant: Grant) -> Ending | None:
        """How the turn ends, where nobody and nothing is needed to end it."""
        answer = _answer_of(grant)
        if answer is not None:
            return verdict.ending(answer, (), may_nudge=False) or Ending("completed")
        if grant.cancelled is not None:
            return Ending("cancelled", grant.cancelled)
        # Whatever takes the process down may wait already where the driver is made.
        return verdict.death(grant.progress, self._settings.turns.crash_cap)

    def _failure(self, grant: Grant, error: Exception) -> Failure | None:
        """How the turn fails because no driver can be made. None: it is given back, and no crash is counted.

        Raises `error` where others should try as after a crash.
        """
        match error:
            case ConfigurationError():
                return Failure("input", "not_configured", str(error))
            case ToolsUnavailable():
                is_handed_over = self._is_draining() and self._settings.turns.on_drain == "handoff"
                return None if is_handed_over else Failure("tool_failure", "tools_unavailable", str(error))
            case _ if is_unanswered(error):  # this process has no time left to ask, but it has not vanished
                return None
        may_pass = grant.progress.crashes < self._settings.turns.crash_cap and grant.remaining_s > 0
        if may_pass and not isinstance(error, StoreUnavailable):
            raise error
        fault("turn_cannot_be_driven", error, turn=grant.turn, session=grant.session)
        message = f"No process could begin to run this turn ({type(error).__name__}); its log has the place."
        return Failure("internal", "cannot_be_driven", message)

    async def _tools(
        self,
        grant: Grant,
        accumulator: ExecutionOutputAccumulator,
        agent: AgentSettings,
        claimed_at: float,
        holder: LeaseHolder,
    ) -> Mapping[str, Tool]:
        """The tools that an agent offers. A server may be as long out of reach as a tool may be silent."""
        patience_ends = claimed_at + min(self._settings.turns.tool_timeout_s, grant.remaining_s)
        while True:
            try:
                return await self._listed(grant, agent, holder)
            except ToolsUnavailable as error:
                again_at = monotonic() + max(error.retry_after_s, _LOOK_S)
                if again_at >= patience_ends:
                    raise
                while monotonic() < again_at:  # a drain and a lost lease are seen at once, or nearly so
                    if self._is_draining():
                        raise
                    if holder.is_lost:
                        raise Fenced(grant.turn) from None
                    await accumulator.check_wanted()
                    await asyncio.sleep(min(_LOOK_S, max(0.0, again_at - monotonic())))

    async def _listed(self, grant: Grant, agent: AgentSettings, holder: LeaseHolder) -> Mapping[str, Tool]:
        """One look at the tools, whose servers may take their time to answer.

        Given up when this process shuts down, and when the turn is lost or is to end.
        """
        listing = asyncio.get_running_loop().create_task(self._shelf.offered(grant.agent, agent))
        try:
            while not listing.done():
                await asyncio.wait({listing}, timeout=_LOOK_S)
                if holder.is_lost:
                    raise Fenced(grant.turn)
                if holder.cancel_reason is not None:
                    raise TurnCancelled(f"{grant.turn}: the turn is to end")
                if self._is_draining() and not listing.done():
                    raise ToolsUnavailable(
                        f"agents.{grant.agent}.tools: this process shuts down before their servers have answered"
                    )
            return listing.result()
        finally:
            listing.cancel()

    def _driver(  # noqa: PLR0913, PLR0917 - what a driver is made of
        self,
        grant: Grant,
        agent: AgentSettings,
        tools: Mapping[str, Tool],
        history: tuple[Message, ...],
        accumulator: ExecutionOutputAccumulator,
        deadline: float,
    ) -> TurnDriver:
        if grant.unreadable is not None:
            raise StoreError(f"{grant.turn}: its journal cannot be read ({grant.unreadable})")
        settings = self._settings
        machine = TurnMachine(
            turn_start(grant, agent, settings.providers, tools, history),
            turn_limits(settings),
            deadline=deadline,
            jitter=_chance.random,
            skipped=lambda: self._health.skipped,
            strategy=self._strategy,
        )
        return TurnDriver(
            grant,
            machine,
            accumulator,
            self._providers.attempt(agent),
            toolbox(settings, tools),
            self._health,
            lambda: self._is_valid(grant.turn, grant.nonce),
        )

    async def _void(self, grant: Grant, accumulator: ExecutionOutputAccumulator, reason: str = "takeover") -> Tally:
        """Void what was left open; what the turn has cost then."""
        last = _last_commit(grant)
        tally = Tally(
            grant.progress.totals,
            grant.progress.last_input_tokens,
            has_untold_discards=has_untold_discards(grant.progress, last),
        )
        for command in void(grant.progress, tally, reason):
            await Recording(grant, accumulator, self._health).discard(command)
        return tally

    async def _seal(
        self, grant: Grant, accumulator: ExecutionOutputAccumulator, ending: Ending, reason: str = "takeover"
    ) -> None:
        """End a turn that needs no driver, or can have none. `reason`: why what was left open is void."""
        tally = await self._void(grant, accumulator, reason)
        seal = Seal(ending.outcome, ending.reason, ending.failure, tally.totals, tally.has_untold_discards)
        await Recording(grant, accumulator, self._health).seal(seal)


def _last_commit(grant: Grant) -> Committed | None:
    return next((fact for fact in reversed(grant.facts) if isinstance(fact, Committed)), None)


def _answer_of(grant: Grant) -> Committed | None:
    """The call with which the turn ends, whatever tools are offered; None: it goes on."""
    last = _last_commit(grant)
    return last if last is not None and last.call >= grant.progress.call and verdict.is_final(last) else None
