"""One look at the whole: turns, deliveries, the log, processes, the broker, Redis.

What belongs here: what is asked, and how the answers of the partitions add up. What must not be known here: who looks,
what is wrong (`channels.faults`).

The look is bounded: a few pipelines a partition, and no more than some thousand records of turns.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import redis.asyncio

from channels.delivery.faring import Faring, faring, keeps_failing
from channels.delivery.lane import Standing
from channels.delivery.model import State
from channels.endpoints.record import INDEX
from channels.outbox import keys, lanes
from channels.outbox.reading import counts
from channels.replays import stored as replays
from channels.settings import Settings
from worker.app import queue_depths
from worker.store import clock, health, log, processes
from worker.store import survey as turns
from worker.store.processes import LivingProcess
from worker.store.survey import TurnsSurvey

_BROKER_LIMIT_S = 2.0

_ENDPOINTS = 1_000
"""Of those that are stored, and of those for which something waits, no more are looked at."""

HANGS_S = 10.0
"""A loop that has not answered for so long hangs; only a restart helps."""

LATELY_S = 86400.0
"""Ended turns and dead letters that are younger count as late ones."""


@dataclass(frozen=True, slots=True)
class DeliveriesSurvey:
    """The outbox. `by_state`: deliveries that have not ended; `held`: those that are, by endpoint (lane).

    `ripe`: endpoints at which someone should look now, the first of them since `ripe_oldest_s` seconds (0: there is
    none). `dead`: dead letters, `lately` those of the last day. `stopped`: paused and disabled endpoints (lanes), and
    which of both. `replays`: bulk replays that run. Of endpoints (lanes) for which something waits, `failing`: those
    that keep failing; `asked_to_wait`: those whose receiver asked for a pause, and until when (UTC ms).
    """

    by_state: Mapping[State, int]
    held: Mapping[str, int]
    ripe: int
    ripe_oldest_s: float
    dead: int
    lately: int
    stopped: Mapping[str, Standing] = field(default_factory=dict)
    replays: int = 0
    failing: Mapping[str, Faring] = field(default_factory=dict)
    asked_to_wait: Mapping[str, int] = field(default_factory=dict)

    @property
    def open(self) -> int:
        """How many have not ended."""
        return sum(self.by_state.values())


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The log of a partition. Ages in seconds; 0: there is none.

    `entries`: in the log, a few of them relayed already. `relay_lag_s`: how long the first entry that is not has
    waited. `aside`: entries that were put aside for a newer release, the first of them `aside_oldest_s` ago.
    """

    entries: int
    relay_lag_s: float
    aside: int = 0
    aside_oldest_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RedisState:
    """`persists`: an append-only file is written, and the last write went well. `limit_bytes` 0: there is none."""

    persists: bool
    memory_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Survey:
    """All of it.

    `broker`: wake-ups that wait, by queue; None: it did not answer. `skipped_s`: providers that are left alone, and for
    how many more seconds.
    """

    turns: Sequence[TurnsSurvey]
    logs: Sequence[LogSurvey]
    deliveries: DeliveriesSurvey
    processes: Sequence[LivingProcess]
    broker: Mapping[str, int] | None
    redis: RedisState
    skipped_s: Mapping[str, float]
    now_ms: int

    def states(self) -> dict[str, int]:
        """Turns that have not ended, by their state."""
        return _sum(each.states for each in self.turns)

    def kept(self) -> dict[str, int]:
        """Stored turns that have ended, by outcome."""
        return _sum(each.kept for each in self.turns)

    def lately(self) -> dict[str, int]:
        """Turns that ended within the last day, by outcome."""
        return _sum(each.lately for each in self.turns)

    def living(self, role: str) -> list[LivingProcess]:
        """The processes of that role that take work, or still do what they had taken."""
        return [each for each in self.processes if each.told.role == role and not each.told.stopped]

    def taking(self, role: str) -> list[LivingProcess]:
        """The processes of that role that take work."""
        return [each for each in self.living(role) if not each.told.draining and not hangs(each)]


def hangs(process: LivingProcess) -> bool:
    """Whether its event loop does not answer."""
    return process.told.loop_lag_s >= HANGS_S


async def look(client: redis.asyncio.Redis, settings: Settings) -> Survey:
    """Look at everything. Raises what redis-py raises."""
    partitions = range(settings.partitions)
    rules = health.HealthRules(
        settings.provider_health.deaths, settings.provider_health.window_s, settings.provider_health.skip_s
    )
    broker = asyncio.ensure_future(_broker.depths(settings.broker()))
    try:
        now_ms = await clock.now_ms(client)
        standings = await health.standings(client, settings.providers, rules)
        return Survey(
            turns=[await turns.survey(client, partition, LATELY_S) for partition in partitions],
            logs=[await _log(client, partition) for partition in partitions],
            deliveries=await _deliveries(client, list(settings.endpoints)),
            processes=await processes.living(client),
            redis=await _redis(client),
            skipped_s={name: one.left_s for name, one in standings.items() if one.left_s is not None},
            now_ms=now_ms,
            broker=await broker,
        )
    finally:
        broker.cancel()


async def _deliveries(client: redis.asyncio.Redis, defined: Sequence[str]) -> DeliveriesSurvey:
    """`defined`: endpoints of the settings."""
    counted = await counts(client)
    by_state = counted.pop("")
    held = {lane: states["held"] for lane, states in counted.items() if "held" in states}
    stored: Any = await client.zrange(INDEX, 0, _ENDPOINTS - 1)
    names = {*defined, *held, *(name.decode() for name in stored)}
    waits = {lane: sum(states.values()) - states.get("held", 0) for lane, states in counted.items()}
    wanted = [lane for lane in sorted(waits, key=lambda one: -waits[one]) if waits[lane]][:_ENDPOINTS]
    now_ms = await clock.now_ms(client)
    pipeline = client.pipeline(transaction=False)
    pipeline.zcount(keys.LANES, "-inf", now_ms)
    pipeline.zrangebyscore(keys.LANES, "-inf", now_ms, start=0, num=1, withscores=True)
    pipeline.zcard(keys.DEAD)
    pipeline.zcount(keys.DEAD, now_ms - LATELY_S * 1000, "+inf")
    ripe, first, dead, lately = await pipeline.execute()
    _, seen = await lanes.read_lanes(client, sorted({*names, *wanted}))
    fares = {name: faring(seen[name].lane, now_ms) for name in wanted}
    return DeliveriesSurvey(
        by_state=by_state,
        held=held,
        ripe=ripe,
        ripe_oldest_s=(now_ms - first[0][1]) / 1000 if first else 0.0,
        dead=dead,
        lately=lately,
        stopped={name: seen[name].lane.standing for name in names if seen[name].lane.standing != "active"},
        replays=len(await replays.running(client)),
        failing={name: one for name, one in fares.items() if keeps_failing(seen[name].lane)},
        asked_to_wait={name: one.not_before_ms for name, one in fares.items() if one.not_before_ms is not None},
    )


async def _log(client: redis.asyncio.Redis, partition: int) -> LogSurvey:
    cursor: Any = await client.hget(keys.relay(partition), "cursor")
    now_ms = await clock.now_ms(client)
    entries, waits_since_ms = await log.behind(client, partition, (cursor or b"0-0").decode())
    aside, aside_since_ms = await log.waits_aside(client, partition)
    return LogSurvey(
        entries=entries,
        relay_lag_s=0.0 if waits_since_ms is None else max(0, now_ms - waits_since_ms) / 1000,
        aside=aside,
        aside_oldest_s=0.0 if aside_since_ms is None else max(0, now_ms - aside_since_ms) / 1000,
    )


class _BrokerLook:
    """Asks the broker in a thread of its own, one at a time: one that accepts and is silent holds up nobody.

    Not a thread of the loop's own pool, whose threads a process waits for before it ends.
    """

    def __init__(self) -> None:
        self._asked: tuple[str, float, Future[dict[str, int]]] | None = None

    async def depths(self, url: str) -> dict[str, int] | None:
        """How many wake-ups wait in each queue; None: the broker did not answer within 2 s."""
        if self._asked is None or self._asked[0] != url or self._asked[2].done():
            self._asked = (url, monotonic(), self._ask(url))
        _, at, answer = self._asked
        try:
            async with asyncio.timeout(max(0.0, at + _BROKER_LIMIT_S - monotonic())):
                waiting = asyncio.wrap_future(answer)
                waiting.add_done_callback(_heard)
                return await asyncio.shield(waiting)
        except Exception:  # noqa: BLE001 - whatever the broker's client says, it may name the URL with its password
            return None

    @staticmethod
    def _ask(url: str) -> "Future[dict[str, int]]":
        answer: Future[dict[str, int]] = Future()

        def ask() -> None:
            try:
                answer.set_result(queue_depths(url))
            except BaseException as error:  # noqa: BLE001 - it is told to who waits
                answer.set_exception(error)

        threading.Thread(target=ask, name="lastword-broker-look", daemon=True).start()
        return answer


def _heard(answer: asyncio.Future[dict[str, int]]) -> None:
    """Why the broker did not answer is of no interest, and of no fault of ours, when nobody waits any more."""
    if not answer.cancelled():
        answer.exception()


_broker = _BrokerLook()


async def _redis(client: redis.asyncio.Redis) -> RedisState:
    told: dict[str, Any] = await client.info("memory") | await client.info("persistence")
    writes_well = told.get("aof_last_write_status") == "ok" and told.get("aof_last_bgrewrite_status") == "ok"
    return RedisState(
        persists=bool(told.get("aof_enabled")) and writes_well,
        memory_bytes=int(told.get("used_memory", 0)),
        limit_bytes=int(told.get("maxmemory", 0)),
    )


def _sum(counts: Any) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)
