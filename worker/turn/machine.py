"""What a turn does next: one event in, the commands that follow from it out.

What belongs here: the decisions of a turn. What must not be known here: sockets, Redis, clocks, wire formats, Celery.

Text reaches the answer by `CommitCall` alone, and a tool runs only after one. What became of a call is judged from
the committed facts, so a driver that takes over comes to what the one before it would have done.
"""

from collections.abc import Callable

from worker.codecs.messages import Request
from worker.errors import LocalProtocolError
from worker.turn import failures, verdict
from worker.turn.call import Call, CallTerms
from worker.turn.commands import Command, DiscardCall, HandOff, RecordToolResult, RunTools, Seal
from worker.turn.events import Begin, Died, Drain, Event, Heard, NotAnswered, Tick, ToolFinished
from worker.turn.facts import Committed, ToolEnded
from worker.turn.start import TurnLimits, TurnStart
from worker.turn.states import TRANSITIONS, Kind, State, kind_of
from worker.turn.transcript import Transcript
from worker.turn.usage import Tally
from worker.turn.verdict import Ending


class TurnMachine:
    """One turn in one process. Feed it every event with the time `now`; perform the commands in order.

    `deadline`: when the turn must have ended. `jitter` gives numbers from 0 to 1. Both times are seconds of one
    monotonic clock. Feed a `Tick` once `deadline()` has passed. After a `Seal` or a `HandOff` nothing may be fed.
    """

    def __init__(self, start: TurnStart, limits: TurnLimits, deadline: float, jitter: Callable[[], float]) -> None:
        self.state = State.READY
        self._start = start
        self._limits = limits
        self._turn_deadline = deadline
        self._terms = CallTerms(start.provider, limits, deadline, jitter)
        self._transcript = Transcript(start.history, start.message, start.facts)
        self._offered = tuple(tool.name for tool in start.tools)
        completed = sum(isinstance(fact, Committed) for fact in start.facts)
        self._tally = Tally(start.progress.totals, start.progress.last_input_tokens, completed)
        self._calls = start.progress.calls
        self._call: Call | None = None
        """The call that is waited for."""
        self._running: set[int] = set()
        """Indices of the tools that run."""
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
        if self.state in (State.READY, State.SEALED, State.HANDED_OFF):
            return None
        if self._call is None:
            return self._turn_deadline
        return min(self._call.deadline(), self._turn_deadline)

    def _is_current(self, event: Event) -> bool:
        if self._call is None or not isinstance(event, Heard | NotAnswered | Died):
            return False
        return self._call.listens_to(event.call, event.attempt)

    def _react(self, event: Event, now: float) -> list[Command]:
        match event:
            case Begin():
                return self._begin(now)
            case ToolFinished():
                return self._tool_finished(event, now)
            case Drain():
                return self._drain()
            case Tick() if now >= self._turn_deadline:
                abandoned = self._call.abandon("turn_deadline") if self._call is not None else []
                return [*abandoned, self._seal(Ending("failed", None, failures.turn_deadline()))]
            case _:
                return self._of_the_call(event, now)

    # Beginning, and going on from the facts.

    def _begin(self, now: float) -> list[Command]:
        progress = self._start.progress
        commands: list[Command] = []
        if progress.call:  # some driver came before: whatever it staged is void, known to be open or not
            if progress.is_open:
                self._tally.discarded()
            commands.append(DiscardCall(progress.call, progress.attempt, "takeover", 0, self._tally.totals))
        if progress.crashes > self._limits.crash_cap:
            failure = failures.crash_cap(progress.crashes, self._limits.crash_cap)
            return [*commands, self._seal(Ending("dead", None, failure))]
        last = self._transcript.last
        if last is not None and last.call >= progress.call:
            return commands + self._settle(last, now)
        return commands + self._next_call(now)

    def _settle(self, committed: Committed, now: float) -> list[Command]:
        """What follows from the last call that completed, heard just now or read in the journal."""
        ending = verdict.ending(committed, self._offered, self._start.provider)
        if ending is not None:
            return [self._seal(ending)]
        if now >= self._turn_deadline:
            return [self._seal(Ending("failed", None, failures.turn_deadline()))]
        commands: list[Command] = []
        runnable = []
        for index, tool_call in enumerate(committed.tool_calls):
            if index in self._transcript.ended:
                continue
            refusal = verdict.refusal_to_run(tool_call, self._offered)
            if refusal is None and index in self._transcript.started and tool_call.name not in self._start.retry_safe:
                refusal = verdict.OUTCOME_UNKNOWN
            if refusal is None:
                runnable.append((index, tool_call))
            else:
                commands.append(self._record(committed, index, refusal.result, refusal.failure))
        if not runnable:
            return commands + self._next_call(now)
        self._running = {index for index, _ in runnable}
        self.state = State.RUNNING_TOOLS
        return [*commands, RunTools(committed.call, tuple(runnable), committed.attempt)]

    def _next_call(self, now: float) -> list[Command]:
        last, progress = self._transcript.last, self._start.progress
        number = last.call + 1 if last is not None else 1
        is_new = number > progress.call
        if now >= self._turn_deadline:
            return [self._seal(Ending("failed", None, failures.turn_deadline()))]
        if is_new and self._calls >= self._limits.max_calls:
            return [self._seal(Ending("failed", None, failures.max_calls(self._limits.max_calls)))]
        if self._draining and self._limits.on_drain == "handoff":
            return self._hand_off()
        self._call = Call(number, self._request(), self._terms, self._tally, draining=self._draining)
        self.state = State.CALLING
        if not is_new:  # a driver that came before had opened it; its attempts and resumes are not forgotten
            return self._call.open(progress.attempt + 1, progress.resumes_spent, now)
        self._calls += 1
        return self._call.open(1, 0, now)

    def _request(self) -> Request:
        start = self._start
        return Request(
            model=start.model,
            messages=self._transcript.messages(),
            instructions=start.instructions,
            tools=start.tools,
            max_tokens=start.max_tokens,
            temperature=start.temperature,
            extra_body=start.extra_body,
        )

    # The call, the tools, the process.

    def _of_the_call(self, event: Event, now: float) -> list[Command]:
        call = self._call
        if call is None:
            return []  # a look at the clock while tools run: the watchdog ended with its call
        match event:
            case Heard():
                commands = call.hear(event.event, now)
            case NotAnswered():
                commands = call.not_answered(event, now)
            case Died():
                commands = call.died(event, now)
            case _:
                commands = call.tick(now)
        return commands + self._after(call, now)

    def _after(self, call: Call, now: float) -> list[Command]:
        self.state = call.state
        if call.ending is not None:
            return [self._seal(call.ending)]
        if call.committed is None:
            return []
        self._call = None
        self._transcript.add(call.committed)
        return self._settle(call.committed, now)

    def _tool_finished(self, finished: ToolFinished, now: float) -> list[Command]:
        last = self._transcript.last
        if last is None or finished.call != last.call or finished.index not in self._running:
            raise LocalProtocolError(f"tool {finished.index} of call {finished.call} does not run")
        self._running.discard(finished.index)
        record = self._record(last, finished.index, finished.result, finished.failure)
        return [record] if self._running else [record, *self._next_call(now)]

    def _record(self, committed: Committed, index: int, result: str, failure: str | None) -> RecordToolResult:
        self._transcript.add(ToolEnded(committed.call, index, result, failure))
        return RecordToolResult(committed.call, index, committed.tool_calls[index], result, failure, committed.attempt)

    def _drain(self) -> list[Command]:
        self._draining = True
        if self._limits.on_drain == "handoff":
            return [] if self.state is State.RUNNING_TOOLS else self._hand_off()
        if self._call is None:
            return []
        commands = self._call.drain()
        return commands + ([self._seal(self._call.ending)] if self._call.ending is not None else [])

    def _hand_off(self) -> list[Command]:
        commands = self._call.hand_off() if self._call is not None else []
        self.state = State.HANDED_OFF
        return [*commands, HandOff()]

    def _seal(self, ending: Ending) -> Seal:
        self.state = State.SEALED
        return Seal(ending.outcome, ending.reason, ending.failure, self._tally.totals)
