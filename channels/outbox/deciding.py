"""What a claim makes of lanes and deliveries: pure.

What belongs here: the decisions of `channels.delivery`, put together for several lanes at once. What must not be known
here: Redis, the clock.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from channels.delivery import lane as lanes
from channels.delivery import machine
from channels.delivery.backoff import GIVE_UP_S
from channels.delivery.faring import asked_ms
from channels.delivery.lane import Lane, Rules
from channels.delivery.model import Delivery, Withdrawn
from channels.outbox.attempted import Known, after, looked_at, with_dead
from channels.outbox.stored import UNBOUNDED, Change, LaneStep, SeenLane, Told

NEWER_MS = 2000
"""For so long a delivery that only a newer release can read is not looked at here."""

UNKNOWN_MS = 10_000
"""For so long nobody looks at a lane of which this process knows nothing: another may know the endpoint, as while
processes are started anew with new settings, and this one must take nothing from it."""

_UNKNOWN_LONGEST_MS = round(GIVE_UP_S * 1000)
"""A delivery that is older and whose endpoint still is not known has nobody who is to get it."""


@dataclass(frozen=True, slots=True)
class Look:
    """A lane that someone must look at. `ended`: in flight behind their lease; `due`: queued or waiting.

    `in_flight`: how many are, the ended ones too. `unreadable`: ids of those that are left alone, as where a newer
    release has stored them.
    """

    seen: SeenLane
    in_flight: int
    ended: Sequence[Delivery]
    due: Sequence[Delivery]
    unreadable: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Terms:
    """Of a claim. `chance`: from 0 to 1, spreads retries.

    `lease_ms`: where the rules of a lane tell of no other. `kept`: so many of `limit` are there only for the first of
    lanes that are not `busy`.
    """

    token: str
    limit: int
    now_ms: int
    lease_ms: int
    chance: Callable[[], float]
    busy: Collection[str] = ()
    kept: int = 0

    def lease_of(self, rules: Rules) -> int:
        """How long a claim holds what is attempted by these rules, in milliseconds."""
        return self.lease_ms if rules.timeout_s is None else round(lanes.lease_for(rules.timeout_s) * 1000)


T = TypeVar("T")


@dataclass(slots=True)
class _Open:
    """A lane whose step is being decided. `later`: deliveries that are looked at only then (ms)."""

    look: Look
    rules: Rules
    lane: Lane
    changes: list[Change]
    told: Sequence[Told]
    in_flight: int
    due: Sequence[Delivery]
    later: dict[str, int]
    room: int = 0
    is_left: bool = False


def claimed(looks: Sequence[Look], rules: Mapping[str, Known], terms: Terms) -> list[LaneStep]:
    """What a claim stores: of each lane what is behind its lease, what nobody is to get, and its share of the limit.

    A lane of which nothing can be decided, whatever the reason, is left as it is, and the others have their turn.
    """
    opened = [_tried(partial(_opened, look, rules[look.seen.name], terms), look, terms) for look in looks]
    wanted = [0 if isinstance(one, LaneStep) else one.room for one in opened]
    shares = shared(terms.limit, wanted, [look.seen.name in terms.busy for look in looks], terms.kept)
    return [
        one if isinstance(one, LaneStep) else _tried(partial(_begun, one, share, terms), one.look, terms)
        for one, share in zip(opened, shares, strict=True)
    ]


def _tried(decide: Callable[[], T], look: Look, terms: Terms) -> T | LaneStep:
    """What is decided of a lane, or the step that leaves it alone."""
    if not look.seen.is_readable:
        return _left(look, terms, None)
    try:
        return decide()
    except Exception as error:  # noqa: BLE001 - told with the step; what a record holds must not stop other lanes
        return _left(look, terms, error)


def _left(look: Look, terms: Terms, fault: Exception | None) -> LaneStep:
    """The step of a lane that is left as it is for a while: another process may know what to make of it."""
    then_ms = terms.now_ms + UNKNOWN_MS
    later = {**dict.fromkeys(look.unreadable, then_ms), **{each.id: then_ms for each in look.ended}}
    cap = int(look.seen.cap or UNBOUNDED)
    return LaneStep(look.seen, (), cap=cap, free_ms=then_ms, lease_ms=terms.lease_ms, later=later, fault=fault)


def _begun(one: _Open, share: int, terms: Terms) -> LaneStep:
    """The step of a lane of which so many attempts begin."""
    begin = one.due[:share]
    lease_ms = terms.lease_of(one.rules)
    one.changes += [
        Change(each, machine.claim(_right(each, terms), terms.token, terms.now_ms, lease_ms)) for each in begin
    ]
    waiting_ms = _waiting_ms(one.due, terms.now_ms)
    one.lane = lanes.taken(one.lane, one.rules.limits, len(begin), terms.now_ms, waiting_ms)
    return _step(one, terms.now_ms, lease_ms)


def shared(limit: int, wanted: Sequence[int], busy: Sequence[bool] = (), kept: int = 0) -> list[int]:
    """How many each gets: none a second before each has one, nobody more than wanted, not more than the limit.

    `kept`: so many of the limit are there only for a first one of those that are not `busy`.
    """
    fresh = [want > 0 and not (busy and busy[place]) for place, want in enumerate(wanted)]
    given = [0] * len(wanted)
    for place in [place for place, is_fresh in enumerate(fresh) if is_fresh][:limit]:
        given[place] = 1
    limit -= sum(given) + kept
    while limit > 0 and (open_ := [place for place, want in enumerate(wanted) if given[place] < want]):
        each = max(1, limit // len(open_))
        for place in open_[:limit]:
            more = min(each, wanted[place] - given[place])
            given[place] += more
            limit -= more
    return given


def _opened(look: Look, known: Known, terms: Terms) -> _Open:
    """What of a lane is decided before it is known how many of its due ones may go."""
    rules = known if isinstance(known, Rules) else Rules()
    later = dict.fromkeys(look.unreadable, terms.now_ms + NEWER_MS)
    if early := {each.id: each.due_ms for each in look.due if machine.is_early(each, terms.now_ms)}:
        later |= early
        look = replace(look, due=[each for each in look.due if each.id not in early])
    if known is None:
        others = [each for each in look.ended if not _is_forlorn(each, terms)]
        later |= {each.id: terms.now_ms + UNKNOWN_MS for each in others}
        look = replace(look, ended=[each for each in look.ended if each.id not in later])
    lane = lanes.put_right(look.seen.lane, rules.limits, terms.now_ms)
    if lane != look.seen.lane:  # stored, so that the time at which to look at it is right, too
        lane = replace(lane, version=lane.version + 1)
    changes, lane, told = _ended(look, lane, rules, terms)
    over = sum(change.new.state != "in_flight" for change in changes)
    one = _Open(look, rules, lane, changes, told, look.in_flight - over, look.due, later)
    if isinstance(known, Withdrawn):
        one.changes += [
            Change(each, machine.cancel(each, terms.now_ms, known.code, known.message)) for each in look.due
        ]
    elif lane.standing != "active":
        why = (f"endpoint_{lane.standing}", f"endpoint {look.seen.name} is {lane.standing}: {lane.why}")
        one.changes += [Change(each, machine.hold(each, *why)) for each in look.due]
    elif known is None:
        gone = ("endpoint_removed", f"for long there has been no endpoint {look.seen.name}")
        forlorn = [each for each in look.due if _is_forlorn(each, terms)]
        one.changes += [Change(each, machine.cancel(each, terms.now_ms, *gone)) for each in forlorn]
        one.is_left = len(forlorn) < len(look.due)
    else:
        if lane.shut_since_ms:
            _give_up(one, terms.now_ms)
        waiting_ms = _waiting_ms(one.due, terms.now_ms)
        one.room = lanes.room(one.lane, rules.limits, one.in_flight, len(one.due), terms.now_ms, waiting_ms)
    return one


def _give_up(one: _Open, now_ms: int) -> None:
    """End what is due and has waited too long for a receiver that took nothing: behind a breaker few are attempted."""
    since_ms, until_ms = one.lane.shut_since_ms, min(now_ms, asked_ms(one.lane))
    over = [(each, machine.give_up(each, since_ms, until_ms, now_ms, one.rules.backoff)) for each in one.due]
    changes = [Change(old, new) for old, new in over if new is not None]
    one.changes += changes
    one.due = [old for old, new in over if new is None]
    one.lane, told = with_dead(one.look.seen.name, one.lane, one.rules, changes, now_ms)
    one.told = [*one.told, *told]


def _waiting_ms(due: Sequence[Delivery], now_ms: int) -> int:
    return min([now_ms, *(each.due_ms for each in due)])


def _is_forlorn(one: Delivery, terms: Terms) -> bool:
    return terms.now_ms - max(one.created_ms, one.replayed_ms) > _UNKNOWN_LONGEST_MS


def _ended(look: Look, lane: Lane, rules: Rules, terms: Terms) -> tuple[list[Change], Lane, Sequence[Told]]:
    """What becomes of attempts whose lease has ended, or ends by another clock's time."""
    changes = [
        Change(
            each,
            machine.put_right(each, terms.now_ms, each.lease_ms or terms.lease_of(rules))
            if each.due_ms > terms.now_ms
            else machine.expire(each, terms.now_ms, terms.chance(), rules.backoff),
        )
        for each in look.ended
    ]
    over = [change.new for change in changes if change.new.state != "in_flight"]
    if not over:
        return changes, lane, ()
    lane, told = after(look.seen.name, lane, rules, [(each, machine.LEASE_EXPIRED) for each in over], terms.now_ms)
    return changes, lane, told


def _right(delivery: Delivery, terms: Terms) -> Delivery:
    if delivery.due_ms <= terms.now_ms:
        return delivery
    return machine.put_right(delivery, terms.now_ms, terms.lease_ms)


def _step(one: _Open, now_ms: int, lease_ms: int) -> LaneStep:
    limits, before = one.rules.limits, one.look.seen.lane
    cap, free_ms = looked_at(one.lane, one.rules)
    if one.is_left:
        free_ms = max(free_ms, now_ms + UNKNOWN_MS)
    return LaneStep(
        one.look.seen,
        one.changes,
        lane=one.lane if one.lane != before else None,
        cap=cap,
        free_ms=free_ms,
        most=lanes.most_in_flight(one.lane, limits),
        lease_ms=lease_ms,
        told=one.told,
        later=one.later,
    )
