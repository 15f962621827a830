"""Becoming the driver of a session's next turn.

What belongs here: claiming it, what becomes of a claim that is not answered, and who starts a process for a suspect.
What must not be known here: how a turn is driven.
"""

from collections.abc import Callable
from time import monotonic

import redis.asyncio

from worker.engine.suspects import Suspects
from worker.observability import warn
from worker.settings import WorkerSettings
from worker.store import claims, lease
from worker.store.lease import Grant, Suspected
from worker.store.repeat import is_unanswered, until_answered


class Claimant:
    """Claims for one process.

    `may_claim`: whether living drivers have had the time to renew since the store was last away. `has_time`: whether
    this process may still wait for the store. `suspects`: those that it starts; None: it runs suspects itself.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        client: redis.asyncio.Redis,
        may_claim: Callable[[], bool],
        has_time: Callable[[], bool],
        suspects: Suspects | None,
    ) -> None:
        self._settings = settings
        self._redis = client
        self._may_claim = may_claim
        self._has_time = has_time
        self._suspects = suspects

    async def granted(self, session: str, nonce: str) -> tuple[Grant, float] | None:
        """The session's next turn, and the monotonic time before its claim was sent. None: it is not ours to drive.

        A claim that the store took though it could not answer is made again with the same nonce once it is back: nobody
        else knows of it, and would take the turn for one whose driver has vanished.
        """
        while True:
            asked_at = monotonic()
            try:
                grant = await self._claim(session, nonce, asked_at + self._settings.lease.ttl_s)
            except Exception as error:
                if not is_unanswered(error):
                    raise
                warn("session_not_claimed", session=session, error=type(error).__name__)
            else:
                return None if grant is None else (grant, asked_at)
            if not await self._was_taken(session, nonce):
                return None  # the due set knows the session; someone will look again

    async def _claim(self, session: str, nonce: str, patience_ends: float) -> Grant | None:
        settings, suspects = self._settings, self._suspects
        terms = (self._redis, session, nonce, settings.lease.ttl_s, settings.partitions, settings.turns.suspect_after)

        def going() -> bool:
            # Once the heartbeat has seen an outage, living drivers renew before anyone claims.
            return monotonic() < patience_ends and self._may_claim()

        if suspects is None:
            return await until_answered(lambda: lease.claim(*terms), going)
        may_start_one = suspects.promise()
        claimed: Grant | Suspected | None = None
        try:
            claimed = await until_answered(lambda: lease.claim_among_others(*terms, may_start_one=may_start_one), going)
        finally:
            if may_start_one and not isinstance(claimed, Suspected):
                suspects.unneeded()
        if not isinstance(claimed, Suspected):
            return claimed
        is_news = suspects.start(session, nonce, claimed) if may_start_one else suspects.wait(session, claimed)
        if is_news:
            warn("turn_suspected", turn=claimed.turn, session=session, crashes=claimed.crashes, has_room=may_start_one)
        return None

    async def _was_taken(self, session: str, nonce: str) -> bool:
        """Whether the store took a claim that it did not answer, asked as soon as it answers again."""
        try:
            return await until_answered(
                lambda: claims.was_taken(self._redis, session, nonce, self._settings.partitions), self._has_time
            )
        except Exception as error:
            if not is_unanswered(error):
                raise
            return False
