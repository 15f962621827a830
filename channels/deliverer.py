"""The deliverer: claims what is due, has it sent, and has each outcome settled.

What belongs here: how many at a time, and that every claimed delivery is sent or given back. What must not be known
here: how a delivery is sent, how its end is stored, which state follows.

It claims again whenever a quarter of its places is free, or some are and a moment has passed, so that a claim pays for
many.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

from channels import metrics
from channels.delivery.model import Delivered, Delivery, Failed, Hopeless, Outcome, Unsent, Withdrawn
from channels.outbox.outbox import Outbox
from channels.settler import Settler, internal_fault
from channels.sweeper import SWEEP_S
from worker import ids
from worker.errors import NewerRecord, StoreUnavailable
from worker.observability import fault, warn
from worker.store.repeat import UNANSWERED, until_answered

_NEWER_S = 5.0
"""For so long a delivery that only a newer release can make is left to others."""

_MOMENT_S, _SHARE = 0.005, 4
"""Between two claims, unless this share of the places is free."""

_STOPPED_SHARE = 4
"""Who stops asks for a claim no longer than this share of its lease: then an attempt could not be made any more."""


class Sender(Protocol):
    """A channel's way of sending. It never raises for what the receiver does.

    `StoreUnavailable` and `NewerRecord` mean that what is to be told could not be read: no attempt was made.
    """

    async def prepare(self, batch: Sequence[Delivery]) -> Sequence[Any | Outcome | Unsent]:
        """Of each delivery, in order: what `send` needs, or how it ends without an attempt."""
        ...

    async def send(self, delivery: Delivery, prepared: Any, lease_ends: float) -> Outcome | Unsent:
        """Make one attempt, unless too little is left of the lease, which ends at `lease_ends` of the loop's clock."""
        ...


class Deliverer:
    """What one process sends, at most `concurrency` attempts at a time.

    A quarter of its places is kept for lanes of which it has none in flight, one for each: lanes that answer slowly can
    hold the others, but never all.
    `lease_s`: a usual lease; a claim that is not answered for so long holds nothing any more.
    """

    def __init__(self, outbox: Outbox, sender: Sender, *, lease_s: float, concurrency: int) -> None:
        self._outbox = outbox
        self._sender = sender
        self._lease_s = lease_s
        self._concurrency = self._free = concurrency
        self._kept = concurrency // _SHARE
        self._busy: Counter[str] = Counter()
        self._stirred = asyncio.Event()
        self._freed = asyncio.Event()
        self._idle = asyncio.Condition()
        self._wanted = False
        self._claiming = False
        self._stopping = False
        self._settler = Settler(outbox, lease_s=lease_s)

    @property
    def in_flight(self) -> int:
        """How many attempts are under way."""
        return self._concurrency - self._free

    async def drain(self) -> None:
        """Send everything that is due or will be within a second, and return when what this call claimed is settled.

        While another call is claiming, that one looks once more and this one returns at once.
        """
        self._wanted = True
        self._stirred.set()
        if self._claiming:
            return
        async with asyncio.TaskGroup() as group:
            self._claiming = True
            try:
                await self._claim_all(group)
            except UNANSWERED as error:  # raised on, it would cut off what is in flight
                warn("claim_failed", error=type(error).__name__)
            except Exception as error:  # noqa: BLE001 - the same
                fault("claim_failed", error)
            finally:
                self._claiming = False
                await self._tell_idle()

    async def idle(self) -> None:
        """Return once nothing is being claimed and nothing is in flight."""
        async with self._idle:
            await self._idle.wait_for(lambda: not (self._claiming or self.in_flight))

    def stop(self) -> None:
        """Claim nothing more; what is in flight ends within its deadline."""
        self._stopping = True
        self._settler.stop()
        self._freed.set()
        self._stirred.set()

    async def _claim_all(self, group: asyncio.TaskGroup) -> None:
        while not self._stopping:
            await self._have_room()
            self._wanted = False
            self._stirred.clear()
            if await self._send_due(group) or self._is_stirred():
                continue
            # Lanes that have a place here get none of those that are kept, so that they are due means nothing.
            beside = tuple(self._busy) if self._free <= self._kept else ()
            due_in_s = await self._outbox.due_in(beside)
            is_near = due_in_s is not None and due_in_s < SWEEP_S
            # What ended since the claim may have made room for more.
            if not (self.in_flight or is_near or self._stirred.is_set()):
                return
            await _came(self._stirred, max(_MOMENT_S, SWEEP_S if due_in_s is None else min(due_in_s, SWEEP_S)))

    async def _have_room(self) -> None:
        """Return when a quarter of the places is free, or some are and no more became so within a moment."""
        while not self._stopping and self._free < max(1, self._concurrency // _SHARE):
            self._freed.clear()
            if not await _came(self._freed, _MOMENT_S if self._free else None):
                return

    def _is_stirred(self) -> bool:
        """Whether there is another reason to look than that time has passed."""
        return self._wanted or self._stopping

    async def _send_due(self, group: asyncio.TaskGroup) -> bool:
        """Start sending what is due and fits. Whether there was any."""
        await self._settler.answered()
        if self._stopping:
            return False
        asked_at = _now()
        batch = await self._claimed(asked_at)
        if batch:
            self._free -= len(batch)
            self._busy.update(held.lane for held in batch)
            group.create_task(self._deliver_all(group, batch, asked_at))
        return bool(batch)

    async def _claimed(self, asked_at: float) -> Sequence[Delivery]:
        """What a new claim holds. It is asked for by its token until the store answers, or its lease is over.

        Unanswered it may hold deliveries all the same: an answer that comes late has those given back of whose lease
        too little is left, instead of each being charged for an attempt that nobody made.
        """
        token, limit, busy = ids.new_nonce(), self._free, tuple(self._busy)

        def going() -> bool:
            return _now() < asked_at + self._lease_s / (_STOPPED_SHARE if self._stopping else 1)

        return await until_answered(lambda: self._outbox.claim(token, limit, busy, self._kept), going)

    async def _deliver_all(self, group: asyncio.TaskGroup, batch: Sequence[Delivery], claimed_at: float) -> None:
        prepared = await self._prepared(batch)
        for held, what in zip(batch, prepared, strict=True):
            group.create_task(self._deliver(group, held, what, claimed_at + held.lease_ms / 1000))

    async def _prepared(self, batch: Sequence[Delivery]) -> Sequence[Any]:
        try:
            prepared = await self._sender.prepare(batch)
            assert len(prepared) == len(batch), "a sender has prepared another number of deliveries"
            return prepared
        except Exception as error:  # noqa: BLE001 - as in an attempt
            return [_of_fault(error, held) for held in batch]

    async def _deliver(self, group: asyncio.TaskGroup, held: Delivery, prepared: Any, lease_ends: float) -> None:
        try:
            ended = prepared
            if not isinstance(prepared, Delivered | Failed | Hopeless | Withdrawn | Unsent):
                ended = await self._attempt(held, prepared, lease_ends)
            await self._settler.settle(group, held, ended, lease_ends)
        finally:
            self._free += 1
            self._busy[held.lane] -= 1
            if not self._busy[held.lane]:
                del self._busy[held.lane]
            self._freed.set()
            self._stirred.set()
            await self._tell_idle()

    async def _attempt(self, held: Delivery, prepared: Any, lease_ends: float) -> Outcome | Unsent:
        began_at = _now()
        try:
            outcome = await self._sender.send(held, prepared, lease_ends)
        except Exception as error:  # noqa: BLE001 - our own bug must cost this delivery its attempts, not its life
            return _of_fault(error, held)
        if not isinstance(outcome, Unsent):
            metrics.attempt_ended(_now() - began_at)
        return outcome

    async def _tell_idle(self) -> None:
        if not self.in_flight:
            async with self._idle:
                self._idle.notify_all()


async def _came(event: asyncio.Event, limit_s: float | None) -> bool:
    """Whether an event came within so many seconds."""
    try:
        async with asyncio.timeout(limit_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def _of_fault(error: Exception, held: Delivery) -> Outcome | Unsent:
    """How an attempt ended that a fault of our own has ended."""
    if isinstance(error, StoreUnavailable):
        return Unsent(str(error))
    if isinstance(error, NewerRecord):
        return Unsent("its turn was written by a newer release: left to a process of that release", _NEWER_S)
    fault("sender_failed", error, delivery=held.id, turn=held.turn)
    return internal_fault(error)


def _now() -> float:
    return asyncio.get_running_loop().time()
