"""The composition root of a delivery process: settings become the parts, and the parts meet.

What belongs here: building and owning connections, outboxes, relays and senders. What must not be known here: which
state follows which, Celery.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from functools import partial
from time import monotonic

from channels.deliverer import Deliverer, Sweeper, lease_for
from channels.delivery.backoff import Backoff
from channels.loops import keep_going
from channels.outbox import Outbox
from channels.relay import BLOCK_S, Relay
from channels.settings import Settings
from channels.webhook.payload import Resume, TokensUsed, TurnEnd, TurnError
from channels.webhook.sender import Sealed, Target, WebhookSender
from channels.webhook.signature import decode_secret
from worker.errors import ConfigurationError, StoreUnavailable
from worker.http import open_client
from worker.observability import warn
from worker.store import connect, lease
from worker.store.inbox import ensure_meta
from worker.store.log import read_aside, read_log
from worker.store.records import TurnRecord, read_text, read_turn
from worker.store.repeat import is_unanswered, until_answered
from worker.store.server import warn_of_shortcomings

_CONNECT_TIMEOUT_S = 10.0
_START_PATIENCE_S = 30.0
_WAKE_PATIENCE_S = 1.0
"""After so long this process delivers by itself what it could tell nobody."""


class DeliveryProcess:
    """Everything of one process that delivers. Made anywhere; started and stopped on one event loop.

    `wake`: asks any delivery process to look at its outboxes; called from a thread of its own, and may block.
    """

    def __init__(self, settings: Settings, wake: Callable[[], None]) -> None:
        self._settings = settings
        self._wake_up = wake
        self._stop = asyncio.Event()
        self._open = AsyncExitStack()
        self._loops: list[asyncio.Task[None]] = []
        self._here: set[asyncio.Task[None]] = set()
        self._waking: asyncio.Task[None] | None = None
        self._wanted = self._is_late = False

    async def start(self) -> None:
        """Connect, so that `deliver` can be called; wait up to 30 s for Redis.

        Raises `ConfigurationError` for a store of other settings.
        """
        settings, delivery = self._settings, self._settings.delivery
        self._redis = connect.open_redis(settings.redis())
        # Each relay reads all the time: without a connection of its own it would wait until another's read ends.
        self._log = connect.open_redis(settings.redis(), block_s=BLOCK_S, connections=settings.partitions)
        self._http = open_client(connect_timeout_s=min(_CONNECT_TIMEOUT_S, delivery.timeout_s))
        for client in (self._redis, self._log, self._http):
            self._open.push_async_callback(client.aclose)
        patience_ends = monotonic() + _START_PATIENCE_S
        await until_answered(lambda: ensure_meta(self._redis, settings.partitions), lambda: monotonic() < patience_ends)
        await warn_of_shortcomings(self._redis)
        self._check_signing()
        lease_s = lease_for(delivery.timeout_s)
        chance = random.SystemRandom().random
        backoff = Backoff(delivery.retry_waits_s)
        self._outboxes = [
            Outbox(self._redis, partition, lease_s=lease_s, backoff=backoff, chance=chance)
            for partition in range(settings.partitions)
        ]
        self._deliverer = Deliverer(self._outboxes, self._sender(), lease_s=lease_s, concurrency=delivery.concurrency)

    @property
    def in_flight(self) -> int:
        """How many deliveries it attempts."""
        return self._deliverer.in_flight

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._stop.is_set()

    def begin(self) -> None:
        """Start the relays, the sweeper and the pulse. To be called on the event loop; `stop` ends them."""
        loop = asyncio.get_running_loop()
        for outbox in self._outboxes:
            relay = Relay(
                outbox,
                read=partial(read_log, self._log, outbox.partition),
                read_aside=partial(read_aside, self._redis, outbox.partition),
                destinations=self._destinations,
                wake=self._wake,
            )
            self._loops.append(loop.create_task(relay.run(self._stop)))
        sweeper = Sweeper(self._outboxes, self._wake)
        self._loops.append(loop.create_task(keep_going("sweeper", sweeper.step, self._stop)))
        self._loops.append(loop.create_task(keep_going("pulse", self._beat, self._stop)))

    async def stop(self) -> None:
        """End the loops and close what `start` opened, whether it came to its end or not."""
        self._stop.set()
        await asyncio.gather(*self._loops)
        await asyncio.gather(*self._here, *([] if self._waking is None else [self._waking]))
        await self._open.aclose()

    def drain(self) -> None:
        """Claim nothing more and relay nothing more. To be called on the event loop."""
        self._deliverer.stop()
        self._stop.set()

    async def drained(self) -> None:
        """Return once `drain` was called, and what was in flight then is settled."""
        await self._stop.wait()
        await self._deliverer.idle()

    async def deliver(self) -> None:
        """Send what is due."""
        await self._deliverer.drain()

    def _check_signing(self) -> None:
        """Say at once what every delivery to a plain URL would be told."""
        try:
            self._settings.common_secret()
        except (OSError, ConfigurationError) as error:
            warn("plain_urls_cannot_be_signed", reason=str(error))

    def _sender(self) -> WebhookSender:
        return WebhookSender(
            self._http,
            deadline_s=self._settings.delivery.timeout_s,
            target=self._target,
            sealed=self._sealed,
            clock=lambda: datetime.now(UTC).timestamp(),  # noqa: TID251 - receivers compare it with their own clocks
        )

    async def _beat(self) -> float:
        """While the last turns process is started again, show that Redis was there: see `worker.store.lease.pulse`."""
        lives = self._settings.lease
        await lease.beat(self._redis, self._settings.partitions, lives.ttl_s)
        return lives.renew_s

    async def _wake(self) -> None:
        """Returns at once: a broker that is silent must hold up neither the relay nor the sweeper."""
        self._wanted = True
        if self._is_late:
            self._deliver_here()
        if self._waking is None or self._waking.done():
            self._waking = asyncio.get_running_loop().create_task(self._wake_others())

    async def _wake_others(self) -> None:
        while self._wanted:
            self._wanted = False
            sending = asyncio.ensure_future(asyncio.to_thread(self._wake_up))
            await asyncio.wait([sending], timeout=_WAKE_PATIENCE_S)
            if not sending.done():
                self._is_late = True
                self._deliver_here()
            try:
                await sending
            except Exception as error:  # noqa: BLE001 - whatever the broker says: the outbox knows, the sweeper asks again
                warn("wake_up_not_sent", error=type(error).__name__)
                self._deliver_here()
            finally:
                self._is_late = False

    def _deliver_here(self) -> None:
        """Without a broker nobody else hears of it, and what is not delivered fills a store that is full already."""
        task = asyncio.get_running_loop().create_task(self.deliver())
        self._here.add(task)
        task.add_done_callback(self._here.discard)

    async def _destinations(self, turn: str) -> Sequence[str] | None:
        record = await read_turn(self._redis, turn)
        return None if record is None else record.destinations

    async def _sealed(self, turn: str) -> Sealed | None:
        try:
            record = await read_turn(self._redis, turn)
            if record is None or record.sealed_ms is None:
                return None
            text = await read_text(self._redis, turn)
        except Exception as error:
            if not is_unanswered(error):
                raise
            raise StoreUnavailable("Redis did not answer") from error
        return Sealed(record.sealed_ms, turn_end(record, text))

    def _target(self, destination: str) -> Target:
        subscriber = self._settings.subscriber(destination)
        secret = self._settings.signing_secret(subscriber)
        headers = {name: value.get_secret_value() for name, value in subscriber.headers.items()}
        return Target(subscriber.url, (decode_secret("secret", secret),), headers)


def turn_end(record: TurnRecord, text: str) -> TurnEnd:
    """What receivers are told of a sealed turn."""
    totals, failure = record.totals, record.failure
    return TurnEnd(
        turn=record.turn,
        session=record.session,
        agent=record.agent,
        source=record.source,
        outcome=record.outcome or "",
        reason=record.reason,
        text=text,
        usage=TokensUsed(
            totals.input_tokens,
            totals.output_tokens,
            totals.total_tokens,
            totals.cached_input_tokens,
            totals.reasoning_tokens,
            totals.cache_write_input_tokens,
        ),
        resume=Resume(
            discarded_attempts=record.discards,
            discarded_estimated_input_tokens=totals.discarded_resume_estimated_input_tokens,
            resumes=totals.discarded_resume_attempts or 0,
        ),
        labels=record.labels,
        error=None
        if failure is None
        else TurnError(failure.category, failure.code, failure.message, record.correlation_id or ""),
    )
