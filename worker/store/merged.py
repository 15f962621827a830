"""Several sorted sets read as one, page by page, in the order of their scores.

What belongs here: going on where the last page ended. What must not be known here: what the members are, who asks.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import redis.asyncio

_PAGE = 200


class Merged:
    """The members of several sorted sets, from the score `least` on, by score and then by name.

    A page begins at the score at which the one before it ended: places shift while members come and go.
    """

    def __init__(self, redis: redis.asyncio.Redis, names: Sequence[str], least: int, *, greatest_first: bool) -> None:
        self._redis = redis
        self._least = least
        self._sign = -1 if greatest_first else 1
        self._ends: dict[str, tuple[float | None, set[bytes]]] = dict.fromkeys(names, (None, set()))
        """Of each set that goes on: the score at which its last page ended, and the members there that were read."""
        self._left = dict.fromkeys(names, 0)
        self._empty = set(names)
        self._heap: list[tuple[float, str, str]] = []

    async def take(self, count: int) -> list[tuple[int, str]]:
        """The next members, at most `count`, each with its score; none: there are no more."""
        taken: list[tuple[int, str]] = []
        while len(taken) < count:
            await self._refill()
            if not self._heap:
                break
            order, member, name = heappop(self._heap)
            taken.append((int(self._sign * order), member))
            self._left[name] -= 1
            if not self._left[name] and name in self._ends:
                self._empty.add(name)
        return taken

    async def _refill(self) -> None:
        """A page of each set of which nothing is left: only then is it known which member comes next."""
        if not self._empty:
            return
        names = sorted(self._empty)
        self._empty.clear()
        pipeline = self._redis.pipeline(transaction=False)
        for name in names:
            self._ask(pipeline, name)
        for name, page in zip(names, await pipeline.execute(), strict=True):
            last, read = self._ends.pop(name)
            fresh = [(member, score) for member, score in page if score != last or member not in read]
            self._left[name] = len(fresh)
            for member, score in fresh:
                heappush(self._heap, (self._sign * score, member.decode(), name))
            if len(page) == _PAGE + len(read):
                end = page[-1][1]
                self._ends[name] = (end, {member for member, score in page if score == end})

    def _ask(self, pipeline: Any, name: str) -> None:
        last, read = self._ends[name]
        place = {"start": 0, "num": _PAGE + len(read), "withscores": True}
        if self._sign < 0:
            pipeline.zrevrangebyscore(name, "+inf" if last is None else last, self._least, **place)
        else:
            pipeline.zrangebyscore(name, self._least if last is None else last, "+inf", **place)
