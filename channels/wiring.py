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

from channels.addressing import Addressing
from channels.contents import Contents
from channels.deliverer import Deliverer
from channels.delivery.lane import lease_for
from channels.descriptors import raised
from channels.endpoints import rings
from channels.endpoints.directory import Directory
from channels.endpoints.registry import Registry
from channels.endpoints.vault import Vault, check_stored
from channels.loops import keep_going
from channels.outbox import keys, oldest, replaying, reviewing, upkeep
from channels.outbox.log import RelayLog
from channels.outbox.outbox import Outbox
from channels.relay import BLOCK_S, Relay
from channels.replays.taking import Replays
from channels.settings import Settings
from channels.sweeper import Sweeper
from channels.vault_section import open_vault
from channels.webhook.attempt import Attempts
from channels.webhook.proxied import Judge
from channels.webhook.sender import WebhookSender
from channels.webhook.sessions import Sessions
from worker import ids
from worker.connector import MOST_CONNECTIONS, Room
from worker.errors import ConfigurationError
from worker.guard import MOST_DIALLED, guard_operator, guard_outsiders
from worker.http import trusting_context
from worker.observability import warn
from worker.store import connect, lease
from worker.store.inbox import ensure_meta
from worker.store.log import read_aside, read_log
from worker.store.reads import read_all
from worker.store.repeat import until_answered
from worker.store.server import warn_of_shortcomings
from worker.transport import open_session

_IDLE_S = 4.0
"""An unused connection is kept for less than the 5 s after which many servers drop one."""
_RESERVED = 128
"""Descriptors for Redis, the broker, files and lookups."""

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
        self._process = ids.new_nonce()
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
        settings = self._settings
        self._redis = connect.open_redis(settings.redis())
        # Each relay reads all the time: without a connection of its own it would wait until another's read ends.
        self._log = connect.open_redis(settings.redis(), block_s=BLOCK_S, connections=settings.partitions)
        for client in (self._redis, self._log):
            self._open.push_async_callback(client.aclose)
        vault = open_vault(settings.vault, settings.data_dir)
        self._tell_ring = partial(rings.tell_ring, self._redis, self._process, vault.key_ids)
        patience_ends = monotonic() + _START_PATIENCE_S
        await until_answered(lambda: self._enter(vault), lambda: monotonic() < patience_ends)
        self._open.push_async_callback(rings.withdraw_ring, self._redis, self._process, vault.key_ids)
        await warn_of_shortcomings(self._redis)
        self._check_signing()
        self._directory = Directory(self._redis, vault, settings)
        lease_s = lease_for(settings.delivery.timeout_s)
        chance = random.SystemRandom().random
        self._outbox = Outbox(self._redis, lease_s=lease_s, rules=self._directory.rules, chance=chance)
        concurrency = settings.delivery.concurrency
        self._deliverer = Deliverer(self._outbox, self._sender(), lease_s=lease_s, concurrency=concurrency)

    @property
    def in_flight(self) -> int:
        """How many deliveries it attempts."""
        return self._deliverer.in_flight

    @property
    def draining(self) -> bool:
        """Whether `drain` was called."""
        return self._stop.is_set()

    def begin(self) -> None:
        """Start the relays, the sweeper and all else that goes on. To be called on the event loop; `stop` ends them."""
        loop = asyncio.get_running_loop()
        for partition in range(self._settings.partitions):
            self._loops.append(loop.create_task(self._relay(partition).run(self._stop)))
        replays = Replays(self._redis, partial(oldest.page_of, self._redis), self._replay_some, self._wake)
        for going in (
            keep_going("sweeper", Sweeper(self._outbox, self._wake).step, self._stop),
            replays.run(self._stop),
            keep_going("upkeep", self._keep_up, self._stop),
            keep_going("review", self._review, self._stop),
            keep_going("pulse", self._beat, self._stop),
        ):
            self._loops.append(loop.create_task(going))

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

    async def _enter(self, vault: Vault) -> None:
        """See that the store is ours, that what it keeps opens, and tell of our keys."""
        await ensure_meta(self._redis, self._settings.partitions)
        check_stored(vault, await Registry(self._redis, vault).sealed())
        await self._tell_ring()

    def _check_signing(self) -> None:
        """Say at once what every delivery to a plain URL would be told."""
        try:
            self._settings.common_secret()
        except (OSError, ConfigurationError) as error:
            warn("plain_urls_cannot_be_signed", reason=str(error))

    def _sender(self) -> WebhookSender:
        egress = self._settings.egress
        receivers, proxies = guard_outsiders(egress), guard_operator(egress)
        room = self._room()
        sessions = Sessions(
            direct=partial(open_session, _IDLE_S, None, receivers, room=room),
            proxied=partial(open_session, _IDLE_S, None, proxies, room=room),
            context=trusting_context,
        )
        sender = WebhookSender(
            Attempts(sessions, judge=Judge(receivers.addresses, looks_up=egress.proxy_looks_up)),
            find=self._directory.look_up,
            bodies=Contents(self._redis, self._settings.payload_form(), keys.content_of).bodies,
            clock=lambda: datetime.now(UTC).timestamp(),  # noqa: TID251 - receivers compare it with their own clocks
        )
        self._open.push_async_callback(sender.close)
        return sender

    def _room(self) -> Room:
        """For as many connections as this process has descriptors beside those of attempts that dial all they may."""
        reserved = _RESERVED + MOST_DIALLED * self._settings.delivery.concurrency
        most = MOST_CONNECTIONS + self._settings.delivery.concurrency
        return Room(max(0, raised(most + reserved) - reserved))

    def _relay(self, partition: int) -> Relay:
        return Relay(
            RelayLog(self._redis, partition),
            read=partial(read_log, self._log, partition),
            read_aside=partial(read_aside, self._redis, partition),
            addressing=Addressing(partition, partial(read_all, self._redis), self._directory.audience),
            wake=self._wake,
        )

    async def _replay_some(self, deliveries: Sequence[str]) -> int:
        return len(await replaying.replay_some(self._redis, deliveries))

    async def _keep_up(self) -> float:
        await self._tell_ring()
        return await upkeep.keep_up(self._redis, self._settings.partitions, self._settings.endpoints)

    async def _review(self) -> float:
        await reviewing.review(self._redis, self._directory.rules)
        return reviewing.REVIEW_S

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
