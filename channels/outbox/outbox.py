"""The outbox: what one process claims and settles of all deliveries.

What belongs here: storing what was decided, and only if nobody changed it meanwhile. What must not be known here: which
state follows which (`channels.delivery`), receivers, the log's entries.

A delivery that has not ended stands in a set of its lane, and its lane in `lanes`: whoever looks there next goes on
with it, so none is forgotten. A time there that lies further ahead than any wait is of a clock that was put back since:
it is dealt with now. Each look leaves its time behind: at one that comes before the last, every lane is looked at once,
and what is due there; what was queued by a clock ahead, or waits from an attempt made by one, goes then.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import redis.asyncio

from channels.delivery.backoff import FURTHEST_MS
from channels.delivery.lane import Rules
from channels.delivery.model import Delivery, Outcome
from channels.outbox import attempted, deciding, keys
from channels.outbox.attempted import Known
from channels.outbox.deciding import Look, Terms
from channels.outbox.lanes import SETTLE, TRY_S, read_lanes, tries
from channels.outbox.left_alone import LeftAlone, readable
from channels.outbox.stored import (
    Change,
    LaneStep,
    SeenLane,
    decode,
    decode_lane,
    encode_evidence,
    settle_words,
    words_of,
)
from worker.observability import warn
from worker.store import clock
from worker.store.repeat import UNANSWERED, until_answered
from worker.store.script import Argument, Script

EVIDENCE_LAST = 4
"""The evidence that is kept: of the first attempt, and of so many of the last."""

_PUT_BACK_MS = 1000
"""By more than this the last look was ahead where the clock was put back, as in lua/look.lua."""

_ROUNDS = 20
"""So many times a claim goes on where all it found was to be held, cancelled or counted."""

_LOOK, _CLAIM = (Script("channels.outbox", name) for name in ("look", "claim"))

ReadRules = Callable[[Sequence[str]], Awaitable[Mapping[str, Known]]]
"""The rules of each of these lanes. Withdrawn: its endpoint was deleted. None: it is not known here."""

T = TypeVar("T")
_Ended = Sequence[tuple[Delivery, Outcome]]


class Outbox:
    """The deliveries of all partitions.

    `lease_s`: how long a claim holds what the rules give no timeout for. `rules`: what endpoints let through. `chance`:
    numbers from 0 to 1, which spread the retries.
    """

    def __init__(
        self,
        client: redis.asyncio.Redis,
        *,
        lease_s: float,
        rules: ReadRules,
        chance: Callable[[], float],
    ) -> None:
        self._redis = client
        self._lease_ms = round(lease_s * 1000)
        self._rules = rules
        self._chance = chance
        self._left = LeftAlone()

    async def due_in(self, beside: Collection[str] = ()) -> float | None:
        """Seconds until someone must look at a lane: 0 when that is now, None when there is nothing to look at.

        `beside`: lanes that are left out.
        """
        pipeline = self._redis.pipeline(transaction=False)
        pipeline.time()
        pipeline.get(keys.CLOCK)
        for start, end in ((0, len(beside)), (-1, -1)):
            pipeline.zrange(keys.LANES, start, end, withscores=True)
        time, last_look, first, last = await pipeline.execute()
        first = [one for one in first if one[0].decode() not in beside]
        if not first:
            return None
        was_put_back = int(last_look or 0) > clock.ms(time) + _PUT_BACK_MS
        if was_put_back or last[0][1] > clock.ms(time) + FURTHEST_MS:
            return 0.0
        return max(0.0, float(first[0][1] - clock.ms(time)) / 1000)

    async def claim(self, token: str, limit: int, busy: Collection[str] = (), kept: int = 0) -> list[Delivery]:
        """At most `limit` due deliveries, each with one more attempt begun; on the server's disk where it can tell.

        Repeated with the same token it gives the same batch, under the lease that began with the first claim. On the
        way, attempts whose lease has ended unsettled are counted, and what nobody is to get is held or cancelled.
        `kept`: so many of the limit are there only for a first one of lanes that are not `busy`.
        """
        # Those that get nothing must not hide the others.
        seen_most = limit + len(busy)
        for _ in range(_ROUNDS):
            now_ms, is_made, looks = await self._look(token, seen_most)
            if not (looks or is_made):
                return []
            rules = await self._rules([look.seen.name for look in looks]) if looks else {}
            terms = Terms(token, limit, now_ms, self._lease_ms, self._chance, busy, kept)
            steps = deciding.claimed(looks, rules, terms)
            words = [word for step in steps for word in words_of(step, now_ms)]
            # As long as the longest lease of the batch, it can be claimed again.
            memo_ms = max([self._lease_ms, *(change.new.lease_ms for step in steps for change in step.changes)])
            arguments: list[Argument] = [token, memo_ms, len(steps), *words]
            records = await _CLAIM(self._redis, [], arguments, durable=True)
            self._left.tell(looks, steps)
            batch = [one for one in map(decode, records) if one and one.token == token]
            if is_made or batch or not any(step.changes or step.later for step in steps):
                return batch
        return []

    async def _look(self, token: str, limit: int) -> tuple[int, bool, list[Look]]:
        now_ms, is_made, *found = await _LOOK(self._redis, [], [token, limit])
        looks = []
        for name, mark, record, cap, free, in_flight, ended, due in found:
            seen = SeenLane(name.decode(), mark.decode(), decode_lane(record), cap.decode(), free.decode())
            flying, unreadable = readable(ended, seen.name, {"in_flight"})
            waiting, more = readable(due, seen.name, {"queued", "waiting"})
            looks.append(Look(seen, in_flight, flying, waiting, unreadable + more))
        return now_ms, bool(is_made), looks

    async def settle(self, batch: _Ended) -> list[Delivery | None]:
        """Store how attempts ended. None: another claim has that delivery by now, nothing of it was changed.

        Repeated it changes nothing and answers the same.
        """
        ended = _by_lane(batch)
        now_ms, seen = await read_lanes(self._redis, list(ended))
        known = await self._rules(list(ended))
        rules = {name: each if isinstance(each, Rules) else Rules() for name, each in known.items()}
        steps = []
        for name, of_lane in ended.items():
            changes = attempted.settled(of_lane, rules[name], now_ms, self._chance)
            over = [(change.new, outcome) for change, (_, outcome) in zip(changes, of_lane, strict=True)]
            steps.append(_lane_step(seen[name], rules[name], over, now_ms, changes))
        stored = await self._store(steps, now_ms, _evidence(batch, steps))
        untold: dict[str, _Ended] = {}
        for step, (is_stored, verdicts) in zip(steps, stored, strict=True):
            if step.lane is not None and not is_stored:
                outcomes = [outcome for _, outcome in ended[step.seen.name]]
                untold[step.seen.name] = [
                    (change.new, outcomes[place]) for place, change in enumerate(step.changes) if verdicts[place] == 1
                ]
        await self._tell_lanes({name: over for name, over in untold.items() if over}, rules)
        return _in_order(batch, steps, stored)

    async def _tell_lanes(self, untold: Mapping[str, _Ended], rules: Mapping[str, Rules]) -> None:
        """Let lanes that others changed meanwhile know of the attempts that are stored already.

        Nobody else can tell them: it goes on while the store is away, too.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + TRY_S
        for wait_s in tries():
            if not untold:
                return
            try:
                untold = await self._tell(untold, rules, lambda: loop.time() < ends)
            except UNANSWERED:
                break
            await asyncio.sleep(wait_s if untold else 0)
        for name, over in untold.items():
            warn("lane_not_told", lane=name, attempts=len(over))

    async def _tell(
        self, untold: Mapping[str, _Ended], rules: Mapping[str, Rules], going: Callable[[], bool]
    ) -> Mapping[str, _Ended]:
        """Tell each lane of its attempts. Gives those that somebody else changed meanwhile."""
        now_ms, seen = await until_answered(lambda: read_lanes(self._redis, list(untold)), going)
        steps = [_lane_step(seen[name], rules[name], over, now_ms) for name, over in untold.items()]
        steps = [step for step in steps if step.lane is not None]
        # Decided anew, it would count twice what was stored without an answer; repeated, each lane knows it again.
        words = settle_words(steps, now_ms)
        stored = await until_answered(lambda: SETTLE(self._redis, [], words), going)
        names = [step.seen.name for step, (is_stored, _) in zip(steps, stored, strict=True) if not is_stored]
        return {name: untold[name] for name in names}

    async def release(self, batch: Sequence[tuple[Delivery, float]]) -> list[Delivery | None]:
        """Give deliveries back unsent, each due after so many seconds, and their slots of a rate with them.

        Gives what became of them: one that kept a mailbox waiting for too long is dead. None: another claim has it by
        now, nothing of it was changed.
        """
        by_lane = _by_lane(batch)
        known = await self._rules(list(by_lane))
        now_ms, seen = await read_lanes(self._redis, list(by_lane))
        steps = []
        for name, of_lane in by_lane.items():
            changes = [attempted.released(held, known[name], now_ms, after_s) for held, after_s in of_lane]
            steps.append(attempted.given_back(seen[name], known[name], changes, now_ms))
        stored = await self._store(steps, now_ms)
        for step, (is_stored, verdicts) in zip(steps, stored, strict=True):
            if step.lane is not None and not is_stored:
                given = [change for change, verdict in zip(step.changes, verdicts, strict=True) if verdict == 1]
                await self._give_back(step.seen.name, known[step.seen.name], given)
        return _in_order(batch, steps, stored)

    async def _give_back(self, name: str, known: Known, given: Sequence[Change]) -> None:
        """Free the slots of what is stored as given back already, in a lane that others changed meanwhile."""
        for wait_s in tries():
            now_ms, seen = await read_lanes(self._redis, [name])
            step = attempted.given_back(seen[name], known, given, now_ms, are_stored=True)
            if step.lane is None or (await self._store([step], now_ms))[0][0]:
                return
            await asyncio.sleep(wait_s)

    async def _store(self, steps: Sequence[LaneStep], now_ms: int, evidence: Sequence[Argument] = (0,)) -> list[Any]:
        return await SETTLE(self._redis, [], settle_words(steps, now_ms, evidence))


def _by_lane(batch: Sequence[tuple[Delivery, T]]) -> dict[str, list[tuple[Delivery, T]]]:
    lanes: defaultdict[str, list[tuple[Delivery, T]]] = defaultdict(list)
    for held, what in batch:
        lanes[held.lane].append((held, what))
    return lanes


def _lane_step(seen: SeenLane, rules: Rules, over: _Ended, now_ms: int, changes: Sequence[Change] = ()) -> LaneStep:
    if not seen.is_readable:
        return LaneStep(seen, changes)
    lane, told = attempted.after(seen.name, seen.lane, rules, over, now_ms)
    cap, free_ms = attempted.looked_at(lane, rules)
    return LaneStep(seen, changes, lane=lane if lane != seen.lane else None, cap=cap, free_ms=free_ms, told=told)


def _evidence(batch: _Ended, steps: Sequence[LaneStep]) -> list[Argument]:
    """What attempts showed, as lua/settle.lua takes it."""
    after = {_attempt(change.old or change.new): change.new for step in steps for change in step.changes}
    words: list[Argument] = []
    count = 0
    for held, outcome in batch:
        log = after[_attempt(held)].log
        if log == held.log:
            continue
        number, shown = log[-1].number, getattr(outcome, "evidence", None)
        former = number - EVIDENCE_LAST
        words += [held.id, number, b"" if shown is None else encode_evidence(shown), former if former > 1 else ""]
        count += 1
    return [count, *words]


def _in_order(
    batch: Sequence[tuple[Delivery, object]], steps: Sequence[LaneStep], stored: Any
) -> list[Delivery | None]:
    """What became of each delivery of a batch: as it is stored now, or None where another has it."""
    found: dict[tuple[str, str], Delivery | None] = {}
    for step, (_, verdicts) in zip(steps, stored, strict=True):
        for change, verdict in zip(step.changes, verdicts, strict=True):
            is_new = verdict == 1
            after = change.new if is_new else decode(verdict) if isinstance(verdict, bytes) else None
            found[_attempt(change.old or change.new)] = after
    return [found[_attempt(held)] for held, _ in batch]


def _attempt(held: Delivery) -> tuple[str, str]:
    """Which attempt: of one delivery two may end at once, and only the later is anybody's."""
    return held.id, held.token
