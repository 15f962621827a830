"""The deliverer: claims what is due, has it sent, and settles each outcome.

What belongs here: how many at a time, and that every claimed delivery is settled or left to its lease. What must not be
known here: how a delivery is sent, which state follows.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from channels import metrics
from channels.delivery.model import Deferred, Delivery, Outcome, Unsent
from channels.outbox import Outbox
from worker import ids
from worker.errors import NewerRecord, StoreUnavailable
from worker.observability import fault, info, warn
from worker.store.repeat import UNANSWERED, until_answered

SWEEP_S = 1.0

# A claim's lease holds the attempt, and before it the reading of the turn, and after it the settling. Twice the attempt
# and 10 s leave room for a Redis that goes away for the length of an attempt.
_LEASE_MARGIN_S = 10.0

_NEWER_S = 5.0
"""For so long a delivery that only a newer release can make is left to others."""


def lease_for(deadline_s: float) -> float:
    """The lease of a claim, in seconds, for attempts that last `deadline_s` at most."""
    return 2 * deadline_s + _LEASE_MARGIN_S


class Sender(Protocol):
    """A channel's way of sending. It never raises for what the receiver does.

    `StoreUnavailable` and `NewerRecord` mean that what is to be told could not be read: no attempt was made.
    """

    async def send(self, delivery: Delivery, lease_ends: float) -> Outcome | Unsent:
        """Make one attempt, unless too little is left of the lease, which ends at `lease_ends` of the loop's clock."""
        ...


class Deliverer:
    """What one process sends, at most `concurrency` attempts at a time. `lease_s`: as the outboxes have it."""

    def __init__(self, outboxes: Sequence[Outbox], sender: Sender, *, lease_s: float, concurrency: int) -> None:
        self._outboxes = outboxes
        self._sender = sender
        self._lease_s = lease_s
        self._concurrency = self._free = concurrency
        self._freed = asyncio.Event()
        self._wanted = False
        self._claiming = False
        self._stopping = False

    @property
    def in_flight(self) -> int:
        """How many attempts are under way."""
        return self._concurrency - self._free

    async def drain(self) -> None:
        """Send everything that is due, and return when what this call claimed is settled.

        While another call is claiming, that one looks once more and this one returns at once.
        """
        self._wanted = True
        if self._claiming:
            return
        async with asyncio.TaskGroup() as group:
            self._claiming = True
            try:
                while self._wanted and not self._stopping:
                    self._wanted = False
                    for outbox in self._outboxes:
                        if await self._send_due(group, outbox):
                            self._wanted = True
            except UNANSWERED as error:  # raised on, it would cut off what is in flight
                warn("claim_failed", error=type(error).__name__)
            except Exception as error:  # noqa: BLE001 - the same
                fault("claim_failed", error)
            finally:
                self._claiming = False
                self._freed.set()

    async def idle(self) -> None:
        """Return once nothing is being claimed and nothing is in flight."""
        while self._claiming or self.in_flight:
            self._freed.clear()
            await self._freed.wait()

    def stop(self) -> None:
        """Claim nothing more; what is in flight ends within its deadline."""
        self._stopping = True

    async def _send_due(self, group: asyncio.TaskGroup, outbox: Outbox) -> bool:
        """Start sending what is due and fits. Whether there was any."""
        while not self._free:
            self._freed.clear()
            await self._freed.wait()
        if self._stopping:
            return False
        token, limit = ids.new_nonce(), self._free
        claimed_at = asyncio.get_running_loop().time()
        lease_ends = claimed_at + self._lease_s
        # Asked for longer, the batch would come back with too little of its lease left.
        patience_ends = claimed_at + self._lease_s / 4
        batch = await until_answered(lambda: outbox.claim(token, limit), lambda: _now() < patience_ends)
        for held in batch:
            self._free -= 1
            group.create_task(self._deliver(outbox, held, lease_ends))
        return bool(batch)

    async def _deliver(self, outbox: Outbox, held: Delivery, lease_ends: float) -> None:
        try:
            outcome = await self._attempt(held, lease_ends)
            await self._settle(outbox, held, outcome, lambda: _now() < lease_ends)
        except UNANSWERED as error:
            warn("delivery_not_settled", delivery=held.id, turn=held.turn, error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - its lease runs out; the others go on
            fault("delivery_not_settled", error, delivery=held.id, turn=held.turn)
        finally:
            self._free += 1
            self._freed.set()

    async def _attempt(self, held: Delivery, lease_ends: float) -> Outcome | Unsent:
        began_at = _now()
        try:
            outcome = await self._sender.send(held, lease_ends)
            if not isinstance(outcome, Unsent):
                metrics.attempt_ended(_now() - began_at)
            return outcome
        except StoreUnavailable as error:
            return Unsent(str(error))
        except NewerRecord:
            return Unsent("its turn was written by a newer release: left to a process of that release", _NEWER_S)
        except Exception as error:  # noqa: BLE001 - our own bug must cost this delivery its attempts, not its life
            fault("sender_failed", error, delivery=held.id, turn=held.turn)
            return Deferred(None, "internal_error", f"a fault of Lastword's own: {type(error).__name__}", "perhaps")

    async def _settle(
        self, outbox: Outbox, held: Delivery, outcome: Outcome | Unsent, going: Callable[[], bool]
    ) -> None:
        if isinstance(outcome, Unsent):
            await until_answered(lambda: outbox.release(held, outcome.after_s), going)
            metrics.unsent()
            warn("delivery_unsent", delivery=held.id, turn=held.turn, reason=outcome.reason)
            return
        settled = await until_answered(lambda: outbox.settle(held, outcome), going)
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


class Sweeper:
    """Wakes a deliverer when something is due: a retry whose time has come, or a lease that ended unsettled."""

    def __init__(self, outboxes: Sequence[Outbox], wake: Callable[[], Awaitable[None]]) -> None:
        self._outboxes = outboxes
        self._wake = wake

    async def step(self) -> float:
        """Look once. Gives the seconds to wait before the next look."""
        for outbox in self._outboxes:
            if await outbox.is_due():
                await self._wake()
                break
        return SWEEP_S


def _now() -> float:
    return asyncio.get_running_loop().time()
