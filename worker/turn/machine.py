"""What a turn does next: one event in, the commands that follow from it out.

What belongs here: the decisions of a turn. What must not be known here: sockets, Redis, clocks, wire formats, Celery.

Text reaches the answer by `CommitCall` alone, and a tool runs only after one. What became of a call is judged from
the committed facts, so a driver that takes over comes to what the one before it would have done.
"""

from collections.abc import Callable, Collection

from worker.errors import LocalProtocolError
from worker.turn import failures, verdict
from worker.turn.batch import ToolBatch
from worker.turn.call import Call
from worker.turn.commands import Command, Failure, HandOff, Park, Seal
from worker.turn.compacting import Compacting
from worker.turn.compaction import DEFAULT, Strategy
from worker.turn.ends import has_untold_discards, void
from worker.turn.events import (
    Begin,
    Cancel,
    Decided,
    Died,
    Drain,
    Event,
    Heard,
    InboxMoved,
    InboxRead,
    NotAnswered,
    Sent,
    Tick,
    ToolFinished,
)
from worker.turn.facts import Committed, Compacted, Fact
from worker.turn.opening import Calls
from worker.turn.recurrence import Recurrence
from worker.turn.start import CallTerms, TurnLimits, TurnStart
from worker.turn.states import TRANSITIONS, Kind, State, kind_of
from worker.turn.transcript import Transcript
from worker.turn.usage import Tally
from worker.turn.verdict import Ending

_OVER = (State.READY, State.PARKED, State.SEALED, State.HANDED_OFF)


class TurnMachine:
    """One turn in one process. Feed it every event with the time `now`; perform the commands in order.

    `deadline`: when the turn must have ended. `jitter` gives numbers from 0 to 1. Both times are seconds of one
    monotonic clock. `skipped` gives the names of providers that are better left alone right now. `strategy`: how the
    conversation is made shorter. Feed a `Tick` once `deadline()` has passed. After a `Seal` or a `HandOff` nothing may
    be fed.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - what a turn is told from outside, each by its name
        self,
        start: TurnStart,
        limits: TurnLimits,
        deadline: float,
        jitter: Callable[[], float],
        skipped: Callable[[], Collection[str]] = frozenset,
        strategy: Strategy = DEFAULT,
    ) -> None:
        self.state = State.READY
        self._start = start
        self._limits = limits
        self._turn_deadline = deadline
        self._terms = CallTerms(start.providers, limits, deadline, jitter, skipped)
        self._transcript = Transcript(start.history, start.message, start.facts)
        self._recurrence = Recurrence(start.facts)
        self._granted = set(start.progress.granted)
        completed = sum(isinstance(fact, Committed) for fact in start.facts)
        self._tally = Tally(
            start.progress.totals,
            start.progress.last_input_tokens,
            completed,
            has_untold_discards=has_untold_discards(start.progress, self._transcript.last),
        )
        self._compacting = Compacting(
            limits.compaction, strategy, self._transcript, self._terms, self._tally, self._compacted
        )
        self._calls = Calls(start, self._terms, self._tally, self._transcript)
        self._batch: ToolBatch | None = None
        """The tools of the last call, while any is without a result."""
        self._draining = False

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take one event. Raises `LocalProtocolError`, with nothing changed, where the table has no such pair."""
        kind = kind_of(event, is_current=self._is_current(event))
        allowed = TRANSITIONS[self.state].get(kind)
        if allowed is None:
            raise LocalProtocolError(f"a turn that is {self.state.value} cannot take the event {kind.value}")
        commands = [] if kind is Kind.STALE else self._react(event, now)
        assert self.state in allowed, (kind, self.state)
        return tuple(commands)

    def deadline(self) -> float | None:
        """When a `Tick` is due; None where only other events can follow."""
        if self.state in _OVER:
            return None
        listener = self._listener()
        return self._turn_deadline if listener is None else min(listener.deadline(), self._turn_deadline)

    def _listener(self) -> Call | Compacting | None:
        return self._compacting if self.state is State.COMPACTING else self._calls.current

    def _is_current(self, event: Event) -> bool:
        if not isinstance(event, Sent | Heard | NotAnswered | Died):
            return False
        listener = self._listener()
        return listener is not None and listener.listens_to(event.call, event.attempt)

    def _react(self, event: Event, now: float) -> list[Command]:  # noqa: C901, PLR0911 - one arm an event
        match event:
            case Begin():
                return self._begin(now)
            case ToolFinished():
                return self._of_the_batch(lambda batch: batch.finished(event), now)
            case Decided() if now >= self._turn_deadline:
                return [self._fail(failures.turn_deadline())]
            case Decided(decisions):
                return self._of_the_batch(lambda batch: batch.decided(decisions), now)
            case Cancel(reason):
                return self._cancel(reason)
            case InboxRead(messages):
                return self._opened(self._calls.open(now, messages, draining=self._draining))
            case InboxMoved():
                return self._opened(self._calls.look_again())
            case Drain(is_over):
                return self._drain(now, is_over=is_over)
            case Tick() if now >= self._turn_deadline and self.state is not State.PARKED:
                return [*self._abandon("turn_deadline"), self._fail(failures.turn_deadline())]
            case _ if self.state is State.COMPACTING:
                return self._compacting.handle(event, now) + self._after_compacting(now)
            case _:
                return self._of_the_call(event, now)

    def _begin(self, now: float) -> list[Command]:
        progress = self._start.progress
        commands: list[Command] = [*void(progress, self._tally)]
        last = self._transcript.last
        has_completed = last is not None and last.call >= progress.call
        ending = self._ending(last) if last is not None and has_completed else None
        if ending is not None:
            return [*commands, self._seal(ending)]
        if dead := verdict.death(progress, self._limits.crash_cap):
            return [*commands, self._seal(dead)]
        if last is not None and has_completed:
            return commands + self._settle(last, now)
        return commands + self._next_call(now)

    def _ending(self, committed: Committed) -> Ending | None:
        offered = tuple(tool.name for tool in self._start.tools)
        return verdict.ending(committed, offered, may_nudge=self._may_nudge())

    def _settle(self, committed: Committed, now: float) -> list[Command]:
        """What follows from the last call that completed, heard just now or read in the journal."""
        ending = self._ending(committed)
        if ending is not None:
            return [self._seal(ending)]
        if now >= self._turn_deadline:
            return [self._fail(failures.turn_deadline())]
        if verdict.is_empty(committed) or verdict.is_paused(committed):
            return self._next_call(now)
        self._batch = ToolBatch(committed, self._start, self._granted, self._transcript, self._recurrence)
        commands = self._batch.begin()
        if self._batch.repeated is not None:
            return [self._fail(failures.tool_loop(self._batch.repeated.name))]
        return commands + self._after_tools(now)

    def _may_nudge(self) -> bool:
        limits, after_tools = self._limits, self._transcript.has_run_tools
        return self._transcript.empties <= (limits.empty_nudges_after_tools if after_tools else limits.empty_nudges)

    def _after_tools(self, now: float) -> list[Command]:
        batch = self._batch
        assert batch is not None, "asked only while there is one"
        if batch.running:
            self.state = State.RUNNING_TOOLS
            return []
        if batch.waiting:
            self.state = State.PARKED
            return [Park()]
        self._batch = None
        return self._next_call(now)

    def _next_call(self, now: float) -> list[Command]:
        if now >= self._turn_deadline:
            return [self._fail(failures.turn_deadline())]
        number, is_new = self._calls.next()
        if is_new and self._calls.opened >= self._limits.max_calls:
            return [self._fail(failures.max_calls(self._limits.max_calls))]
        if self._draining and self._limits.on_drain == "handoff":
            return self._hand_off()
        if not is_new:  # reissued, so unchanged
            return self._opened(self._calls.open(now, draining=self._draining))
        commands = self._compacting.begin(number, self._calls.preferred(), now, draining=self._draining)
        return commands + self._after_compacting(now)

    def _compacted(self, fact: Compacted) -> None:
        self._transcript.add(fact)
        self._recurrence.add(fact)

    def _after_compacting(self, now: float) -> list[Command]:
        if not self._compacting.is_over:
            self.state = State.COMPACTING
            return []
        overflow = self._calls.current.overflow if self._calls.current is not None else None
        if overflow is not None and not self._compacting.helped:
            return [self._fail(failures.still_too_long(overflow))]
        return self._opened(self._calls.begin(now, draining=self._draining))

    def _opened(self, commands: list[Command]) -> list[Command]:
        self.state = self._calls.state
        return commands

    # The call, the tools, the process.

    def _of_the_call(self, event: Event, now: float) -> list[Command]:
        call = self._calls.current
        if call is None or self.state is State.PARKED:
            return []  # a look at the clock while tools run: the watchdog ended with its call
        match event:
            case Sent():
                call.sent(now)
                return []
            case Heard():
                commands = call.hear(event.event, now)
            case NotAnswered():
                commands = call.not_answered(event, now)
            case Died():
                commands = call.died(event, now)
            case _:
                commands = call.tick(now)
        return self._after(call, commands, now)

    def _after(self, call: Call, commands: list[Command], now: float) -> list[Command]:
        self.state = call.state
        if call.ending is not None:
            return [*commands, self._seal(call.ending)]
        if call.overflow is not None:
            if not self._compacting.may_force(call.number):
                return [*commands, self._fail(failures.still_too_long(call.overflow))]
            commands += self._compacting.begin(call.number, call.asked, now, forced=True, draining=self._draining)
            return commands + self._after_compacting(now)
        if call.committed is None:
            return commands
        commands = self._calls.completed(commands)
        facts: tuple[Fact, ...] = (*self._transcript.carried, call.committed)
        for fact in facts:
            self._transcript.add(fact)
            self._recurrence.add(fact)
        return commands + self._settle(call.committed, now)

    def _of_the_batch(self, take: Callable[[ToolBatch], list[Command]], now: float) -> list[Command]:
        if self._batch is None:
            raise LocalProtocolError("no tool of this turn runs or waits")
        return take(self._batch) + self._after_tools(now)

    def _drain(self, now: float, *, is_over: bool) -> list[Command]:
        self._draining, hands_over = True, self._limits.on_drain == "handoff"
        if self.state is State.PARKED or (hands_over and self._batch and not is_over):
            return []
        if not hands_over and not is_over:
            if self.state is State.COMPACTING:
                return self._compacting.drain() + self._after_compacting(now)
            call = self._calls.current
            return [] if call is None else self._after(call, call.drain(), now)
        commands: list[Command] = self._batch.cut_off() if self._batch else []
        self._batch = None
        if self.state is State.READY and self._start.progress.is_open:
            commands += void(self._start.progress, self._tally)
        if hands_over:
            return commands + self._hand_off()
        return [*commands, *self._abandon("drain"), self._fail(failures.drain_over())]

    def _cancel(self, reason: str) -> list[Command]:
        if self.state is not State.READY:
            return [*self._abandon("cancelled"), self._seal(Ending("cancelled", reason))]
        last = self._transcript.last  # an answer that was committed before stands
        ending = self._ending(last) if last is not None and last.call >= self._start.progress.call else None
        discards = void(self._start.progress, self._tally, "cancelled")
        return [*discards, self._seal(ending or Ending("cancelled", reason))]

    def _hand_off(self) -> list[Command]:
        commands = self._compacting.abandon()
        commands += self._calls.current.hand_off() if self._calls.current is not None else []
        self.state = State.HANDED_OFF
        return [*commands, HandOff()]

    def _abandon(self, reason: str) -> list[Command]:
        commands = self._compacting.abandon()
        return commands + (self._calls.current.abandon(reason) if self._calls.current is not None else [])

    def _fail(self, failure: Failure) -> Seal:
        return self._seal(Ending("failed", None, failure))

    def _seal(self, ending: Ending) -> Seal:
        self.state, tally = State.SEALED, self._tally
        return Seal(ending.outcome, ending.reason, ending.failure, tally.totals, tally.has_untold_discards)
