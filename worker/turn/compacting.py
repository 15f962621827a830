"""Making the conversation shorter for the model before a call is opened, by a call beside the turn where it takes one.

What belongs here: when it is done, and what becomes of a summary that cannot be had. What must not be known here: what
is left out (`compaction`), how the call beside the turn dies and is asked again (`sidecar`).
"""

from collections.abc import Callable
from dataclasses import replace

from worker.codecs.events import Usage
from worker.turn.asking import whom_to_ask
from worker.turn.commands import CloseCall, Command, Failure, RecordCompaction, Warn
from worker.turn.compaction import Plan, Strategy, is_due, with_summary, without_summary
from worker.turn.events import Event, Tick
from worker.turn.facts import Compacted
from worker.turn.sidecar import Sidecar
from worker.turn.start import CallTerms, CompactionTerms
from worker.turn.transcript import Transcript
from worker.turn.usage import Tally

_LATE = Failure("timeout", "timeout", "The summary took too long (compaction.timeout_s).")
_GROWTH = 0.1
"""Share of the context by which the input must have grown since the last time, or it would be done before each call."""


class Compacting:
    """The compactions of a turn, one at a time: `begin`, then `handle` until `is_over`.

    `terms` None: only what the provider forces fails the turn. `told` is called with every fact. `helped`: the last
    `begin` has made the conversation shorter.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what it reads and whom it tells
        self,
        terms: CompactionTerms | None,
        strategy: Strategy,
        transcript: Transcript,
        call_terms: CallTerms,
        tally: Tally,
        told: Callable[[Compacted], None],
    ) -> None:
        self.is_over = True
        self.helped = False
        self._terms = terms
        self._strategy = strategy
        self._transcript = transcript
        self._call_terms = call_terms
        self._tally = tally
        self._told = told
        self._number = 0
        self._forced = False
        self._plan: Plan | None = None
        self._sidecar: Sidecar | None = None
        self._timeout_s = terms.timeout_s if terms is not None else 0.0
        self._until = 0.0
        """When the call beside the turn is given up."""
        self._tried_at: int | None = None
        """The input tokens at which the last summary was asked for."""

    def may_force(self, call: int) -> bool:
        """Whether call number `call` may be asked once more, made shorter, because it overflowed."""
        if self._terms is None:
            return False
        facts = self._transcript.facts
        return not any(isinstance(fact, Compacted) and fact.forced and fact.before_call == call for fact in facts)

    def begin(
        self, call: int, preferred: str, now: float, *, forced: bool = False, draining: bool = False
    ) -> list[Command]:
        """Look whether the conversation must be made shorter before call number `call`, and do it.

        `preferred`: as in `whom_to_ask`. `forced`: the provider has said that the context overflowed. `draining`: this
        process shuts down, so nothing is tried twice.
        """
        self._number, self._forced, self.helped = call, forced, False
        try:
            self._plan = self._planned(preferred, forced=forced)
        except Exception as error:  # noqa: BLE001 - a strategy may be foreign code; the turn goes on without it
            return [Warn("compaction_strategy_failed", (("call", call), ("error", type(error).__name__)))]
        if self._plan is None:
            return []
        if self._plan.summary_request is None:
            return self._record(without_summary(self._plan))
        self.is_over, self._tried_at = False, self._tally.last_input_tokens
        self._until = now + min(self._timeout_s, (self._call_terms.turn_deadline - now) / 2)
        self._sidecar = Sidecar(
            self._plan.summary_request, self._plan.instructions, self._call_terms, draining=draining
        )
        return self._sidecar.open(now, preferred=preferred)

    def listens_to(self, call: int, attempt: int) -> bool:
        """Whether the stream of (`call`, `attempt`) is the one that is read."""
        return self._sidecar is not None and self._sidecar.listens_to(call, attempt)

    def deadline(self) -> float:
        """When the call beside the turn needs a look at the clock."""
        assert self._sidecar is not None, "asked only while it runs"
        return min(self._sidecar.deadline(), self._until)

    def handle(self, event: Event, now: float) -> list[Command]:
        """Take an event of the call beside the turn."""
        sidecar, plan = self._sidecar, self._plan
        assert sidecar is not None, "asked only while it runs"
        assert plan is not None, "asked only while it runs"
        if isinstance(event, Tick) and now >= self._until:
            self._end()
            return [CloseCall(), *self._failed("timeout", Usage()), *self._record(without_summary(plan), None, _LATE)]
        return self._taken(sidecar.handle(event, now), sidecar, plan)

    def drain(self) -> list[Command]:
        """This process is shutting down, and the turn is not handed over."""
        sidecar, plan = self._sidecar, self._plan
        return [] if sidecar is None or plan is None else self._taken(sidecar.drain(), sidecar, plan)

    def _taken(self, commands: list[Command], sidecar: Sidecar, plan: Plan) -> list[Command]:
        result = sidecar.result
        if result is None:
            return commands
        self._end()
        if result.failure is None:
            return commands + self._record(with_summary(plan, result.text), sidecar)
        warning = self._failed(result.failure.code, result.usage or Usage())
        return [*commands, *warning, *self._record(without_summary(plan), sidecar, result.failure)]

    def _failed(self, code: str, usage: Usage) -> list[Command]:
        fields = (
            ("call", self._number),
            ("code", code),
            ("input_tokens", usage.input_tokens),
            ("output_tokens", usage.output_tokens),
        )
        return [Warn("compaction_failed", fields)]

    def abandon(self) -> list[Command]:
        """Stop the call beside the turn, if one runs."""
        if self.is_over:
            return []
        self._end()
        return [CloseCall()]

    def _end(self) -> None:
        self.is_over = True
        self._sidecar = self._plan = None

    def _planned(self, preferred: str, *, forced: bool) -> Plan | None:
        terms, tally = self._terms, self._tally
        if terms is None:
            return None
        providers = self._call_terms.providers
        context = whom_to_ask(providers, self._call_terms.skipped(), preferred=preferred).context_tokens
        tokens = tally.last_input_tokens
        if not forced and not (is_due(tokens, context, terms) and self._has_grown(tokens, context)):
            return None
        messages, begins_at = self._transcript.conversation()
        return self._strategy.plan(messages, begins_at, tokens, context, terms, forced)

    def _has_grown(self, tokens: int | None, context: int | None) -> bool:
        if self._transcript.compacted is not None:
            return False
        after = self._transcript.tokens_after_compaction
        mark = self._tried_at if after is None else after
        return mark is None or (tokens or 0) >= mark + _GROWTH * (context or 0)

    def _record(
        self, fact: Compacted | None, sidecar: Sidecar | None = None, failure: Failure | None = None
    ) -> list[Command]:
        if fact is None:
            return []
        self.helped = True
        fact = replace(fact, before_call=self._number, forced=self._forced)
        self._told(fact)
        usage = sidecar.result.usage if sidecar is not None and sidecar.result is not None else None
        return [RecordCompaction(self._number, fact, self._tally.totals, usage, failure)]
