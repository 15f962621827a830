"""What attempts that have ended, or were not made, make of deliveries and their lane: pure.

What belongs here: the decisions of `channels.delivery` for one lane, and what operators are told of it. What must not
be known here: Redis, the clock.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby

from channels.delivery import lane as lanes
from channels.delivery import machine
from channels.delivery.lane import Lane, Notice, Rules
from channels.delivery.model import Delivered, Delivery, Failed, Hopeless, Outcome, Withdrawn
from channels.events.content import ABOUT_DELIVERIES
from channels.events.notices import notice_of
from channels.outbox.keys import partition_of
from channels.outbox.stored import UNBOUNDED, Change, LaneStep, SeenLane, Told
from channels.webhook.outsiders import told_of_delivery
from worker.store import keys
from worker.store.log import event_words

Known = Rules | Withdrawn | None
"""What is known of a lane. Withdrawn: its endpoint was deleted. None: nothing here; another process may know it."""


def settled(
    ended: Sequence[tuple[Delivery, Outcome]], rules: Rules, now_ms: int, chance: Callable[[], float]
) -> list[Change]:
    """The deliveries of one lane after their attempts."""
    return [Change(held, machine.settle(held, outcome, now_ms, chance(), rules.backoff)) for held, outcome in ended]


def released(held: Delivery, known: Known, now_ms: int, after_s: float) -> Change:
    """A delivery that is given back unsent, due after so many seconds."""
    backoff = known.backoff if isinstance(known, Rules) else None
    return Change(held, machine.release(held, now_ms, round(after_s * 1000), backoff))


def given_back(
    seen: SeenLane, known: Known, given: Sequence[Change], now_ms: int, *, are_stored: bool = False
) -> LaneStep:
    """The step of a lane of which attempts were not made. `are_stored`: these are; what is left is to tell the lane."""
    rules, changes = known if isinstance(known, Rules) else Rules(), () if are_stored else given
    if not seen.is_readable:
        return LaneStep(seen, changes)
    lane = lanes.given_back(seen.lane, rules.limits, len(given))
    lane, told = with_dead(seen.name, lane, rules, given, now_ms)
    if lane == seen.lane:
        return LaneStep(seen, changes)
    cap, free_ms = looked_at(lane, rules)
    return LaneStep(seen, changes, lane=lane, cap=cap, free_ms=free_ms, told=told)


def with_dead(
    name: str, lane: Lane, rules: Rules, changes: Sequence[Change], now_ms: int
) -> tuple[Lane, Sequence[Told]]:
    """The lane after what died of these without an attempt, and what is told of it."""
    dead = [(change.new, Hopeless(change.new.code, change.new.message)) for change in changes]
    dead = [(each, outcome) for each, outcome in dead if each.state == "dead"]
    return after(name, lane, rules, dead, now_ms) if dead else (lane, ())


def after(
    name: str, lane: Lane, rules: Rules, ended: Sequence[tuple[Delivery, Outcome]], now_ms: int
) -> tuple[Lane, Sequence[Told]]:
    """The lane after attempts ended so; `ended`: the deliveries as they are then. And what is told of it."""
    # What tells of deliveries must not tell of itself, except that its endpoint was disabled: that happens once, is not
    # told to that endpoint, and holds whatever else is for it. So runs of either kind are decided one after the other.
    told: list[Told] = []
    for is_of_itself, run in groupby(ended, lambda one: one[0].event_type.startswith(ABOUT_DELIVERIES)):
        some = list(run)
        died = not is_of_itself and any(each.state == "dead" for each, _ in some)
        following, notices = lanes.after(lane, rules.limits, [outcome for _, outcome in some], now_ms, died=died)
        if is_of_itself:
            notices = tuple(notice for notice in notices if notice == "disabled")
            following = _as_untold(lane, following)
        told += [_told(name, following, notice, some, now_ms) for notice in notices]
        lane = following
    return lane, told


def _as_untold(before: Lane, following: Lane) -> Lane:
    """The lane that follows, of which nothing was told that was not told before."""
    untold = replace(following, told_ms=before.told_ms, told_dead_ms=before.told_dead_ms, alarmed=before.alarmed)
    return before if replace(untold, version=before.version) == before else untold


def _told(name: str, lane: Lane, notice: Notice, ended: Sequence[tuple[Delivery, Outcome]], now_ms: int) -> Told:
    about = next(one for one, outcome in reversed(ended) if _shows(notice, lane, one, outcome))
    # Who subscribes may own an endpoint and no more: he must not learn what is where inside of this network.
    code, _ = told_of_delivery(about)
    event_type, data = notice_of(notice, name, replace(about, code=code), lane, now_ms)
    digest = hashlib.sha256(f"{name}\n{notice}\n{lane.version}\n{about.id}".encode()).hexdigest()
    return Told(keys.log(partition_of(about.id)), event_words(f"evt_{digest[:24]}", event_type, data))


def _shows(notice: Notice, lane: Lane, one: Delivery, outcome: Outcome) -> bool:
    """Whether this attempt is what is told: one that arrived shows no failure."""
    if notice == "dead":
        return one.state == "dead"
    if notice == "recovered":
        return isinstance(outcome, Delivered)
    if notice == "disabled" and lane.why == "gone":
        return isinstance(outcome, Failed) and outcome.gone
    return (
        isinstance(outcome, Failed)
        and outcome.kind in {"transient", "permanent"}
        and outcome.code != machine.LEASE_EXPIRED.code
    )


def looked_at(lane: Lane, rules: Rules) -> tuple[int, int]:
    """Below how many in flight, and from which moment on (ms), someone must look at what is due in a lane."""
    if lane.standing != "active":
        return UNBOUNDED, 0
    return lanes.most_in_flight(lane, rules.limits), lanes.free_ms(lane, rules.limits)
