"""What a claim and a settle make of lanes and deliveries: pure.

What belongs here: the decisions of `channels.delivery`, put together for several lanes at once, and what operators are
told of it. What must not be known here: Redis, the clock.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from channels.delivery import lane as lanes
from channels.delivery import machine
from channels.delivery.backoff import GIVE_UP_S
from channels.delivery.lane import Lane, Notice, Rules
from channels.delivery.model import Delivery, Outcome, Withdrawn
from channels.events.content import ABOUT_DELIVERIES
from channels.events.notices import notice_of
from channels.outbox.keys import partition_of
from channels.outbox.stored import UNBOUNDED, Change, LaneStep, SeenLane, Told
from channels.webhook.outsiders import told_of_delivery
from worker.store import keys
from worker.store.log import event_words

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

    `in_flight`: how many are, the ended ones too. `unreadable`: ids of those that a newer release has stored.
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


Known = Rules | Withdrawn | None
"""What is known of a lane. Withdrawn: its endpoint was deleted. None: nothing here; another process may know it."""


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
    """What a claim stores: of each lane what is behind its lease, what nobody is to get, and its share of the limit."""
    opened = [_opened(look, rules[look.seen.name], terms) for look in looks]
    busy = [look.seen.name in terms.busy for look in looks]
    shares = shared(terms.limit, [each.room for each in opened], busy, terms.kept)
    for one, share in zip(opened, shares, strict=True):
        begin = one.due[:share]
        one.changes += [
            Change(each, machine.claim(_right(each, terms), terms.token, terms.now_ms, terms.lease_of(one.rules)))
            for each in begin
        ]
        waiting_ms = _waiting_ms(one.due, terms.now_ms)
        one.lane = lanes.taken(one.lane, one.rules.limits, len(begin), terms.now_ms, waiting_ms)
    return [_step(one, terms.now_ms, terms.lease_of(one.rules)) for one in opened]


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
        waiting_ms = _waiting_ms(look.due, terms.now_ms)
        one.room = lanes.room(lane, rules.limits, one.in_flight, len(look.due), terms.now_ms, waiting_ms)
    return one


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


def after(
    name: str, lane: Lane, rules: Rules, ended: Sequence[tuple[Delivery, Outcome]], now_ms: int
) -> tuple[Lane, Sequence[Told]]:
    """The lane after attempts ended so; `ended`: the deliveries as they are then. And what is told of it."""
    # What tells of deliveries must not tell of itself, except that its endpoint was disabled: that happens once, is not
    # told to that endpoint, and holds whatever else is for it.
    worth = [each for each, _ in ended if not each.event_type.startswith(ABOUT_DELIVERIES)]
    died = any(each.state == "dead" for each in worth)
    following, notices = lanes.after(lane, rules.limits, [outcome for _, outcome in ended], now_ms, died=died)
    if not worth:
        notices = tuple(notice for notice in notices if notice == "disabled")
        following = _as_untold(lane, following)
    about = worth or [each for each, _ in ended]
    return following, [_told(name, following, notice, about, now_ms) for notice in notices]


def _as_untold(before: Lane, following: Lane) -> Lane:
    """The lane that follows, of which nothing was told that was not told before."""
    untold = replace(following, told_ms=before.told_ms, told_dead_ms=before.told_dead_ms, alarmed=before.alarmed)
    return before if replace(untold, version=before.version) == before else untold


def _told(name: str, lane: Lane, notice: Notice, ended: Sequence[Delivery], now_ms: int) -> Told:
    about = next((each for each in reversed(ended) if notice != "dead" or each.state == "dead"), ended[-1])
    # Who subscribes may own an endpoint and no more: he must not learn what is where inside of this network.
    code, _ = told_of_delivery(about)
    event_type, data = notice_of(notice, name, replace(about, code=code), lane, now_ms)
    digest = hashlib.sha256(f"{name}\n{notice}\n{lane.version}\n{about.id}".encode()).hexdigest()
    return Told(keys.log(partition_of(about.id)), event_words(f"evt_{digest[:24]}", event_type, data))


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


def looked_at(lane: Lane, rules: Rules) -> tuple[int, int]:
    """Below how many in flight, and from which moment on (ms), someone must look at what is due in a lane."""
    if lane.standing != "active":
        return UNBOUNDED, 0
    return lanes.most_in_flight(lane, rules.limits), lanes.free_ms(lane, rules.limits)


def given_back(seen: SeenLane, known: Known, count: int, changes: Sequence[Change] = ()) -> LaneStep:
    """The step of a lane of which so many attempts were not made; `changes`: these, where they are stored with it."""
    rules = known if isinstance(known, Rules) else Rules()
    lane = lanes.given_back(seen.lane, rules.limits, count)
    if lane == seen.lane:
        return LaneStep(seen, changes)
    cap, free_ms = looked_at(lane, rules)
    return LaneStep(seen, changes, lane=lane, cap=cap, free_ms=free_ms)


def settled(
    ended: Sequence[tuple[Delivery, Outcome]], rules: Rules, now_ms: int, chance: Callable[[], float]
) -> list[Change]:
    """The deliveries of one lane after their attempts."""
    return [Change(held, machine.settle(held, outcome, now_ms, chance(), rules.backoff)) for held, outcome in ended]
