"""The settler: stores how attempts ended, of one process.

What belongs here: that what is known of an attempt is stored whatever happens to the store meanwhile. What must not be
known here: how a delivery is sent, which state follows.

One task settles, which takes all that came while the step before was under way. It asks until the store answers, also
beyond the end of a lease: only the store knows whether another has claimed the delivery since.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from channels import metrics
from channels.delivery.model import Delivery, Failed, Outcome, Unsent
from channels.outbox.outbox import Outbox
from worker.observability import fault, info, warn
from worker.store.repeat import UNANSWERED, is_unanswered, until_answered

_AT_MOST = 100
"""How many are settled in one step, which so lasts a millisecond or two and holds up nobody."""

_UNSENT_S, _UNSENT_LONGEST_S = 0.25, 30.0
"""A fault of ours that comes again and again is met again at once, then after 500 ms, 1 s, ... 30 s."""


@dataclass(slots=True)
class _Ended:
    """A delivery whose attempt has ended, or was not made; `stored` is set when that is stored, or never will be."""

    held: Delivery
    outcome: Outcome | Unsent
    lease_ends: float
    stored: asyncio.Event


class Settler:
    """What one process settles. `lease_s`: for so long after `stop` it asks a store that does not answer."""

    def __init__(self, outbox: Outbox, *, lease_s: float) -> None:
        self._outbox = outbox
        self._lease_s = lease_s
        self._ended: list[_Ended] = []
        self._task: asyncio.Task[None] | None = None
        self._patience_ends: float | None = None
        self._answered = asyncio.Event()
        self._answered.set()
        self._unsent_in_a_row = 0

    def stop(self) -> None:
        """The process ends: a store that stays away must not keep it."""
        if self._patience_ends is None:
            self._patience_ends = _now() + self._lease_s

    async def answered(self) -> None:
        """Return once the store answers: who claims before could take a delivery whose outcome is known here."""
        await self._answered.wait()

    async def settle(
        self, group: asyncio.TaskGroup, held: Delivery, outcome: Outcome | Unsent, lease_ends: float
    ) -> None:
        """Return when it is stored how an attempt ended, or never will be. `lease_ends`: of the loop's clock."""
        ended = _Ended(held, outcome, lease_ends, asyncio.Event())
        self._ended.append(ended)
        if self._task is None or self._task.done():
            self._task = group.create_task(self._settle_all())
        await ended.stored.wait()

    async def _settle_all(self) -> None:
        """Settle what has ended, until there is no more of it."""
        while self._ended:
            batch = self._ended[:_AT_MOST]
            del self._ended[:_AT_MOST]
            try:
                await self._settle(batch)
            finally:
                self._answered.set()
                for one in batch:
                    one.stored.set()

    async def _settle(self, batch: Sequence[_Ended]) -> None:
        attempted = [one for one in batch if not isinstance(one.outcome, Unsent)]
        unsent = [one for one in batch if isinstance(one.outcome, Unsent)]
        for part, store in ((attempted, self._store), (unsent, self._give_back)):
            if part:
                await self._together(part, store)

    async def _together(self, batch: Sequence[_Ended], store: Callable[[Sequence[_Ended]], Awaitable[None]]) -> None:
        """Store them in one step; where that is refused, each by itself, since one alone may be what is refused."""
        try:
            await until_answered(lambda: self._ask(batch, store), lambda: self._is_going(batch))
        except UNANSWERED as error:
            for one in batch:
                warn("delivery_not_settled", delivery=one.held.id, turn=one.held.turn, error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the others go on
            if len(batch) > 1:
                for one in batch:
                    await self._together([one], store)
                return
            [one] = batch
            fault("delivery_not_settled", error, delivery=one.held.id, turn=one.held.turn)
            instead = internal_fault(error)
            # What cannot be stored even so is left to its lease.
            if one.outcome != instead and not isinstance(one.outcome, Unsent):
                await self._together([replace(one, outcome=instead)], store)

    async def _ask(self, batch: Sequence[_Ended], store: Callable[[Sequence[_Ended]], Awaitable[None]]) -> None:
        try:
            await store(batch)
        except Exception as error:
            if is_unanswered(error):
                self._answered.clear()
            raise
        self._answered.set()

    def _is_going(self, batch: Sequence[_Ended]) -> bool:
        return self._patience_ends is None or _now() < max(self._patience_ends, *(one.lease_ends for one in batch))

    async def _store(self, batch: Sequence[_Ended]) -> None:
        ended = [(one.held, one.outcome) for one in batch if not isinstance(one.outcome, Unsent)]
        settled = await self._outbox.settle(ended)
        self._unsent_in_a_row = 0
        for (held, _), after in zip(ended, settled, strict=True):
            _tell(held, after)

    async def _give_back(self, batch: Sequence[_Ended]) -> None:
        row = self._unsent_in_a_row
        least_s = min(_UNSENT_S * 2**row, _UNSENT_LONGEST_S) if row else 0.0
        unsent = [(one.held, one.outcome) for one in batch if isinstance(one.outcome, Unsent)]
        given = await self._outbox.release([(held, max(outcome.after_s, least_s)) for held, outcome in unsent])
        self._unsent_in_a_row = min(row + 1, 10)
        for (held, outcome), after in zip(unsent, given, strict=True):
            metrics.unsent()
            warn("delivery_unsent", delivery=held.id, turn=held.turn, reason=outcome.reason)
            if after is not None and after.state == "dead":
                _tell(held, after)


def internal_fault(error: Exception) -> Failed:
    """How an attempt ended that a fault of our own has ended."""
    return Failed("ours", "internal_error", f"a fault of Lastword's own: {type(error).__name__}", "perhaps")


def _tell(held: Delivery, settled: Delivery | None) -> None:
    if settled is None:
        warn("delivery_lost", delivery=held.id, turn=held.turn)
        return
    metrics.settled(settled.state, settled.code)
    tell = warn if settled.state == "dead" else info
    tell(
        "delivery_settled",
        delivery=settled.id,
        turn=settled.turn,
        state=settled.state,
        attempts=settled.attempts,
        code=settled.code,
    )


def _now() -> float:
    return asyncio.get_running_loop().time()
