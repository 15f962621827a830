"""The ops of one turn: numbered, one in flight at a time, repeated until they are answered.

What belongs here: nonce, op number, the wait for a flight under way, what a verdict means. What must not be known here:
what a verb writes.

A verb that was answered is done, however often it was sent. While Redis is away the same op is sent again and again,
for as long as the lease may be ours; this is how an outage is survived without a decision.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, TypeVar

import redis.asyncio

from worker import ids
from worker.errors import Fenced, InboxChanged, LocalProtocolError, Rewound, StoreFull, TurnCancelled, TurnSealed
from worker.store.repeat import UNANSWERED, until_answered
from worker.store.script import Argument, Script

STAGE = Script("worker.store", "stage")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Flight:
    """A stage op as it is sent, and sent again: the same number, the same payload."""

    op: int
    keys: tuple[str, ...]
    attempt: tuple[int, int]
    payload: tuple[Argument, ...]


class Ops:
    """The ops that one owner of a turn sends. `op`: the last one that was answered."""

    def __init__(
        self, redis: redis.asyncio.Redis, turn: str, nonce: str, op: int, still_mine: Callable[[], bool]
    ) -> None:
        self._redis = redis
        self._turn = turn
        self._nonce = nonce
        self._op = op
        self._still_mine = still_mine
        self._one = asyncio.Lock()
        self._flight: Flight | None = None
        self._landed = asyncio.Event()
        self._landed.set()

    async def take(  # noqa: PLR0913 - a verb and what it says
        self,
        script: Script,
        keys: Sequence[str],
        attempt: tuple[int, int],
        rest: Sequence[Argument],
        *,
        logged: bool = False,
        durable: bool = False,
    ) -> list[Any]:
        """Take one step and give its reply. `logged`: it puts an event into the log, whose id goes before `rest`.

        Raises `Fenced`, `Rewound`, `TurnSealed`, `TurnCancelled`, `StoreFull`, and `LocalProtocolError` for a step that
        the turn's state does not allow; then nothing was changed.
        """
        async with self._one:
            await self._landed.wait()
            await self._settle_flight()
            while True:
                op = self._op + 1
                args = [
                    *self._fence(op, attempt),
                    *([ids.event_of(self._turn, self._nonce, op)] if logged else []),
                    *rest,
                ]
                reply = await self._answered(partial(script, self._redis, keys, args, durable=durable))
                if reply[0] not in (b"OK", b"TAKEN"):
                    self._refuse(script.name, op, reply)
                self._op = op
                if reply[0] == b"OK":
                    return reply
                # Taken by a verb that was given up before its answer came: this one is the next.

    async def ask(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> list[Any]:
        """Run a script that only looks, and is no op."""
        return await self._answered(partial(script, self._redis, keys, args))

    async def check_wanted(self, record: str) -> None:
        """Raise `TurnCancelled` when somebody wants the turn to end. `record`: the key of its record."""
        read: Callable[[str, str], Awaitable[Any]] = self._redis.hget
        if await self._answered(lambda: read(record, "cancel")):
            raise TurnCancelled(f"{self._turn}: the turn is to end")

    # What the tick sends. Between `take_off` and `land` no verb goes out.

    def free(self) -> bool:
        """Whether nothing is in flight: no verb, no stage op."""
        return self._landed.is_set() and not self._one.locked()

    def take_off(self, keys: tuple[str, ...], attempt: tuple[int, int], payload: tuple[Argument, ...]) -> Flight:
        """Begin a stage op."""
        assert self._flight is None
        self._flight = Flight(self._op + 1, keys, attempt, payload)
        self._landed.clear()
        return self._flight

    def take_off_again(self) -> Flight | None:
        """Begin once more the stage op that was not answered, if there is one."""
        if self._flight is not None:
            self._landed.clear()
        return self._flight

    def stage_args(self, flight: Flight) -> list[Argument]:
        """The arguments with which a flight is sent."""
        return [*self._fence(flight.op, flight.attempt), *flight.payload]

    def land(self, answer: object) -> None:
        """The tick heard `answer` to the flight: a reply, an exception, or None for nothing."""
        if isinstance(answer, list):
            self._close_flight(answer)
        self._landed.set()

    def _close_flight(self, reply: list[Any]) -> None:
        """Any verdict but OK is left to the next verb, which gets the same one."""
        assert self._flight is not None
        if reply[0] == b"TAKEN":
            self._op = self._flight.op
            self._flight = replace(self._flight, op=self._op + 1)
            return
        if reply[0] == b"OK":
            self._op = self._flight.op
        self._flight = None

    async def _settle_flight(self) -> None:
        while (flight := self._flight) is not None:
            args = self.stage_args(flight)
            try:
                reply = await self._answered(partial(STAGE, self._redis, flight.keys, args))
            except StoreFull:
                # The view lags behind, no more; and if the op was taken after all, the next verb hears TAKEN.
                self._flight = None
                return
            self._close_flight(reply)

    async def _answered(self, step: Callable[[], Awaitable[T]]) -> T:
        try:
            return await until_answered(step, self._still_mine)
        except UNANSWERED as error:
            raise Fenced(f"{self._turn}: Redis did not answer for as long as the lease was ours") from error

    def _fence(self, op: int, attempt: tuple[int, int]) -> tuple[Argument, ...]:
        return (self._nonce, self._turn, *attempt, op)

    def _refuse(self, verb: str, op: int, reply: list[Any]) -> NoReturn:
        match reply:
            case [b"FENCED"]:
                raise Fenced(f"{self._turn}: another driver owns the turn")
            case [b"SEALED"]:
                raise TurnSealed(f"{self._turn}: the turn has ended")
            case [b"INBOX"]:
                raise InboxChanged(f"{self._turn}: what the call was to carry waits no more as it did")
            case [b"CANCELLED"]:
                raise TurnCancelled(f"{self._turn}: the turn is to end")
            case [b"REWOUND", last]:
                raise Rewound(f"{self._turn}: op {op} was next, but the store knows {last.decode()}")
            case [b"STATE", why]:
                raise LocalProtocolError(f"{self._turn}: {verb} is not allowed now ({why.decode()})")
            case _:
                raise LocalProtocolError(f"{self._turn}: {verb} as op {op} was answered {reply[0].decode()}")
