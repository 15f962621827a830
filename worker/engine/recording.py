"""What a driver records of its turn: in the store, in the log, and of the health of providers.

What belongs here: each recording command as a step of the store, and the line that tells of it (ids, counts and times).
What must not be known here: what comes before and after it.
"""

from dataclasses import dataclass
from time import monotonic

from worker import metrics
from worker.codecs.events import Usage
from worker.engine.health import ProviderHealth
from worker.ids import approval_of, correlation_of
from worker.observability import info, warn
from worker.store.accumulator import ExecutionOutputAccumulator
from worker.store.lease import Grant
from worker.turn import commands as c
from worker.turn import outputs
from worker.turn.batch import arguments_hash
from worker.turn.facts import ApprovalAsked, Committed, ToolEnded, ToolStarted
from worker.turn.resume import is_the_providers


def tell_of_claim(grant: Grant) -> None:
    """Count it; one line about one that some driver had before: taken over from one that vanished, or given back."""
    metrics.turn_claimed(grant.came, grant.age_s)
    if grant.came == "first":
        return
    progress = grant.progress
    ended = {(fact.call, fact.index) for fact in grant.facts if isinstance(fact, ToolEnded)}
    started = {(fact.call, fact.index) for fact in grant.facts if isinstance(fact, ToolStarted)}
    tell = warn if grant.came == "takeover" else info
    tell(
        "turn_taken_over" if grant.came == "takeover" else "turn_resumed",
        turn=grant.turn,
        session=grant.session,
        epoch=grant.epoch,
        crashes=progress.crashes,
        suspect=grant.suspect,
        suspect_crashes=progress.suspect_crashes,
        call=progress.call,
        attempt=progress.attempt,
        call_open=progress.is_open,
        tools_open=len(started - ended),
        remaining_s=round(grant.remaining_s, 3),
    )


@dataclass(slots=True)
class Asked:
    """A request that is out. `at`: since when, by the monotonic clock. `longest_gap_s`: between two of its chunks."""

    at: float
    longest_gap_s: float = 0.0


class Recording:
    """Records the commands of one granted turn. Raises what the accumulator raises.

    `asked`: the last request of a call that went out here; None: none has.
    """

    def __init__(self, grant: Grant, accumulator: ExecutionOutputAccumulator, health: ProviderHealth) -> None:
        self._grant = grant
        self._accumulator = accumulator
        self._health = health
        self._began_at = monotonic()
        self._completed = sum(isinstance(fact, Committed) for fact in grant.facts)
        self._discarded = grant.discards
        self._provider = grant.progress.provider
        self.asked: Asked | None = None

    async def open(self, command: c.OpenCall) -> None:
        """An attempt begins. Raises `InboxChanged` where the messages that it carries wait no more as they did."""
        await self._accumulator.open_call(
            command.call,
            command.attempt,
            command.resumes_spent,
            command.is_new_call,
            command.provider,
            streamed=command.streamed,
            carries=command.carries,
        )

    async def commit(self, command: c.CommitCall) -> None:
        """A call completed."""
        asked = self.asked or Asked(monotonic())
        took_s, gap_s = monotonic() - asked.at, asked.longest_gap_s
        sent_at = monotonic()
        await self._accumulator.commit(_fact(command), command.totals, outputs.of_commit(command), command.joined)
        commit_s = monotonic() - sent_at
        self._health.completed(command.provider)
        self._completed += 1
        self._provider = command.provider
        first_content_s = command.timing.surviving_first_delta_s
        metrics.call_completed(command.provider, took_s, first_content_s, gap_s, commit_s)
        if command.usage is not None:
            metrics.tokens_used(command.provider, _tokens(command.usage))
        info(
            "call_completed",
            turn=self._grant.turn,
            session=self._grant.session,
            call=command.call,
            attempt=command.attempt,
            provider=command.provider,
            finish_reason=command.finish_reason,
            tool_calls=len(command.tool_calls),
            joined=len(command.joined),
            characters=len(command.text),
            input_tokens=command.usage.input_tokens if command.usage else None,
            output_tokens=command.usage.output_tokens if command.usage else None,
            first_content_s=_ms(first_content_s),
            took_s=_ms(took_s),
            longest_gap_s=_ms(gap_s),
            commit_s=_ms(commit_s),
        )

    async def discard(self, command: c.DiscardCall) -> None:
        """An attempt died."""
        if command.provider and is_the_providers(command.reason):
            self._health.died(command.provider)
        await self._accumulator.discard(
            command.call,
            command.attempt,
            command.totals,
            outputs.of_discard(command),
            resumes_spent=command.resumes_spent,
            streamed=command.streamed,
            died="" if command.resumes_spent is None else command.provider,
        )
        is_others = self.asked is None
        if is_others and not self._grant.progress.is_open:
            return  # whoever begins or ends a turn discards in any case; there was nothing
        asked = None if is_others else self.asked
        self._discarded += 1
        self._provider = command.provider or self._provider
        metrics.attempt_discarded(
            self._provider,
            command.reason,
            asked.longest_gap_s if asked else None,
            resumed=command.resumes_spent is not None,
        )
        warn(
            "call_discarded",
            turn=self._grant.turn,
            session=self._grant.session,
            call=command.call,
            attempt=command.attempt,
            provider=self._provider or None,
            reason=command.reason,
            bytes=command.streamed_bytes,
            resumes_spent=command.resumes_spent,
            took_s=_ms(monotonic() - asked.at) if asked else None,
            longest_gap_s=_ms(asked.longest_gap_s) if asked else None,
        )

    async def fact(self, command: c.RecordToolResult | c.RecordCompaction) -> None:
        """A tool has ended, or was answered without running; or the conversation was made shorter."""
        if isinstance(command, c.RecordCompaction):
            await self._accumulator.record(command.fact, outputs.of_compaction(command))
        else:
            fact = ToolEnded(command.call, command.index, command.result, command.failure)
            await self._accumulator.record(fact, outputs.of_tool_result(command))
            metrics.tool_ended(command.failure)

    async def ask(self, command: c.AskApproval, expire_s: float) -> None:
        """A person is asked, and has `expire_s` seconds to decide."""
        fact = ApprovalAsked(command.call, command.index, arguments_hash(command.tool_call))
        approval = approval_of(self._grant.turn, command.call, command.index)
        request = outputs.of_ask(command, approval, self._grant.requester)
        await self._accumulator.ask_approval(fact, request, expire_s)
        metrics.approval_asked()

    async def hand_off(self) -> None:
        """Another process goes on with the turn."""
        await self._accumulator.release()
        metrics.turn_handed_off()
        info("turn_handed_off", turn=self._grant.turn, session=self._grant.session, **self._so_far())

    async def seal(self, command: c.Seal) -> None:
        """The turn has ended."""
        correlation = correlation_of(self._grant.turn, self._grant.nonce)
        failure = command.failure
        await self._accumulator.seal(
            command.outcome, command.reason, failure, correlation, command.totals, outputs.of_seal(command, correlation)
        )
        code = failure.code if failure else None
        metrics.turn_sealed(command.outcome, code, self._grant.agent, self._age_s())
        totals = command.totals
        info(
            "turn_sealed",
            turn=self._grant.turn,
            session=self._grant.session,
            outcome=command.outcome,
            reason=command.reason,
            code=code,
            correlation_id=correlation if failure else None,
            discarded_resume_attempts=totals.discarded_resume_attempts,
            input_tokens=totals.input_tokens,
            output_tokens=totals.output_tokens,
            total_tokens=totals.total_tokens,
            agent=self._grant.agent,
            source=self._grant.source,
            **self._so_far(),
        )

    def _age_s(self) -> float:
        return self._grant.age_s + monotonic() - self._began_at

    def _so_far(self) -> dict[str, float | str | None]:
        """What the turn has come to. `duration_s`: since its submit; `calls` completed, of `attempts` that ended."""
        return {
            "duration_s": _ms(self._age_s()),
            "calls": self._completed,
            "attempts": self._completed + self._discarded,
            "crashes": self._grant.progress.crashes,
            "epoch": self._grant.epoch,
            "provider": self._provider or None,
        }


def _tokens(usage: Usage) -> dict[str, int | None]:
    return {
        "input": usage.input_tokens,
        "output": usage.output_tokens,
        "cached_input": usage.cached_input_tokens,
        "cache_write_input": usage.cache_write_input_tokens,
        "reasoning": usage.reasoning_tokens,
    }


def _ms(seconds: float | None) -> float | None:
    """To the millisecond."""
    return None if seconds is None else round(seconds, 3)


def _fact(command: c.CommitCall) -> Committed:
    return Committed(
        command.call,
        command.attempt,
        command.text,
        command.tool_calls,
        command.finish_reason,
        command.usage,
        command.provider,
        command.echo,
    )
