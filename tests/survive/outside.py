"""The other half of the house, beside a session: relay, outbox, and a receiver that takes everything.

What belongs here: making deliveries of the log and sending them, without processes. What must not be known here: who
drives turns.
"""

from collections.abc import Sequence
from functools import partial

from channels.deliverer import Deliverer
from channels.delivery.backoff import SCHEDULE_S, Backoff
from channels.delivery.lane import Rules
from channels.delivery.model import Delivered, Delivery
from channels.outbox.log import RelayLog
from channels.outbox.outbox import Outbox
from channels.outbox.upkeep import adopt
from channels.relay import Relay
from tests.delivery.outboxes import KnownRules
from tests.delivery.subscribers import addressing_of
from tests.store.turns import Redis
from tests.survive.mortal import Fate
from worker.store.log import Entry, read_aside, read_log
from worker.store.records import read_text

DESTINATION = "there"
LEASE_S = 60.0
_LOOKS = 5
"""As often in a row may a look find no more than that an attempt was lost with its process."""


class Outside:
    """Relay and deliveries of the first partition. `wait_s`: after which what failed is due again."""

    def __init__(self, client: Redis, wait_s: float = 0) -> None:
        self._client = client
        backoff = Backoff((wait_s,) * len(SCHEDULE_S))
        rules = KnownRules(usual=Rules(backoff=backoff))
        self.outbox = Outbox(client, lease_s=LEASE_S, rules=rules, chance=lambda: 0.5)
        self.log = RelayLog(client, 0)
        self._has_more = True

    async def relayed(self) -> None:
        """Make deliveries of all that is in the log."""
        relay = Relay(
            self.log,
            read=self._read,
            read_aside=partial(read_aside, self._client, 0),
            addressing=addressing_of(self._client),
            wake=_nobody,
        )
        self._has_more = True
        while self._has_more:
            await relay.step()
        await self.log.leave_log(relay._nonce)

    async def delivered(self) -> list[tuple[str, str, str]]:
        """Send what is due. Gives what the receiver got: turn, event and text of each."""
        receiver = Receiver(self._client)
        await self.sent(receiver)
        return receiver.got

    async def sent(self, receiver: "Receiver") -> None:
        """Send what is due to a receiver, also what an earlier release has stored."""
        while await adopt(self._client, 0):
            pass
        idle = 0
        while idle < _LOOKS:
            before = len(receiver.got)
            await Deliverer(self.outbox, receiver, lease_s=LEASE_S, concurrency=1).drain()
            idle = idle + 1 if len(receiver.got) == before else 0

    async def _read(self, after: str, count: int, block_ms: int) -> list[Entry]:
        del block_ms  # nobody else writes: what is not there now does not come
        entries = await read_log(self._client, 0, after, count, 0)
        self._has_more = bool(entries)
        return entries


class Receiver:
    """Takes every delivery, and reads its text as a sender does. `got`: turn, event and text; `ids`: what it was told.

    `fate`: of the process that sends.
    """

    def __init__(self, client: Redis, fate: Fate | None = None) -> None:
        self.got: list[tuple[str, str, str]] = []
        self.ids: list[str] = []
        self._client = client
        self._fate = fate or Fate()

    async def prepare(self, batch: Sequence[Delivery]) -> Sequence[None]:
        return [None] * len(batch)

    async def send(self, delivery: Delivery, prepared: None, lease_ends: float) -> Delivered:
        del prepared, lease_ends
        text = await read_text(self._client, delivery.turn)
        await self._fate.passes("delivery: to go")
        self.got.append((delivery.turn, delivery.event_type, text))
        self.ids.append(delivery.id)
        await self._fate.passes("delivery: gone")
        return Delivered(200)


async def _nobody() -> None:
    """Nobody need be woken."""
