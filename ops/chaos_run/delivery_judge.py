"""What is right in a run of deliveries: each told at least once, under one id, and again only where a kill explains it.

What belongs here: judging what the receiver wrote down. What must not be known here: processes, Redis.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

EXPLAINED_S = 0.5
"""A process that was killed so soon behind an acknowledgement may not have recorded it."""


@dataclass(frozen=True, slots=True)
class Post:
    """One POST. `acknowledged`: 2xx was handed to the network. Times in seconds of the run."""

    id: str
    turn: str
    process: str
    came: float
    ended: float
    acknowledged: bool
    verified: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """A process was killed, which happens to each but once.

    `in_flight`: POSTs of it that were open, or had been within `EXPLAINED_S`; no more than it makes at once.
    """

    process: str
    at: float
    in_flight: int


@dataclass(slots=True)
class DeliveryVerdict:
    """The figures of a run. `duplicates`: acknowledged POSTs beyond the first of a delivery.

    `missed_kills`: those that were asked for and did not strike; a run without them shows less than it was asked to.
    """

    deliveries: int
    delivered: int = 0
    lost: int = 0
    posts: int = 0
    refused: int = 0
    kills: int = 0
    missed_kills: int = 0
    in_flight_at_kills: int = 0
    duplicates: int = 0
    unexplained_duplicates: int = 0
    several_ids: int = 0
    bad_signatures: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """Nothing was found, and there were no more duplicates than deliveries in flight at kills."""
        return not self.findings and self.duplicates <= self.in_flight_at_kills

    def figures(self) -> dict[str, Any]:
        """All but the findings."""
        return {name: value for name, value in asdict(self).items() if name != "findings"}


def judge(turns: Sequence[str], posts: Sequence[Post], kills: Sequence[Kill], asked: int = 0) -> DeliveryVerdict:
    """The verdict on a run in which these turns ended. `asked`: so many kills were to strike."""
    verdict = DeliveryVerdict(len(turns), posts=len(posts), kills=len(kills))
    verdict.refused = sum(not post.acknowledged for post in posts)
    verdict.in_flight_at_kills = sum(kill.in_flight for kill in kills)
    of_turn: defaultdict[str, list[Post]] = defaultdict(list)
    for post in sorted(posts, key=lambda one: one.came):
        of_turn[post.turn].append(post)
        if not post.verified:
            verdict.bad_signatures += 1
            verdict.findings.append(f"bad_signatures: {post.id}")
    if len(kills) < asked:
        verdict.missed_kills = asked - len(kills)
        verdict.findings.append(
            f"missed_kills: {len(kills)} of {asked} struck before all was taken: give more deliveries"
        )
    for turn in turns:
        _judge_turn(verdict, turn, of_turn[turn], kills)
    return verdict


def _judge_turn(verdict: DeliveryVerdict, turn: str, posts: Sequence[Post], kills: Sequence[Kill]) -> None:
    if len({post.id for post in posts}) > 1:
        verdict.several_ids += 1
        verdict.findings.append(f"several_ids: {turn} was told under {sorted({post.id for post in posts})}")
    taken = [post for post in posts if post.acknowledged]
    if not taken:
        verdict.lost += 1
        verdict.findings.append(f"lost: {turn}")
        return
    verdict.delivered += 1
    for earlier, later in pairwise(taken):
        verdict.duplicates += 1
        if not any(_explains(kill, earlier) for kill in kills):
            verdict.unexplained_duplicates += 1
            verdict.findings.append(
                f"unexplained_duplicates: {turn} was taken from {earlier.process} at {earlier.ended:.2f} and again "
                f"from {later.process} at {later.came:.2f}"
            )


def _explains(kill: Kill, post: Post) -> bool:
    # What it had written before may be read after its death: its bytes are with the receiver's system by then.
    return kill.process == post.process and kill.at <= post.ended + EXPLAINED_S
