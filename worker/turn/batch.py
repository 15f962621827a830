"""The tool calls of the last completed call: which run, which are answered without running, which wait for a person.

What belongs here: the way of each tool call of one answer, from the committed facts. What must not be known here: the
calls before and after, streams, how a tool is run or a person is asked.
"""

import hashlib

from worker.codecs.events import ToolCall
from worker.errors import LocalProtocolError
from worker.output.approvals import APPROVE_ONCE, APPROVE_SESSION, EXPIRED
from worker.turn import verdict
from worker.turn.commands import AskApproval, Command, RecordToolResult, RunTools, StopTools
from worker.turn.events import ToolFinished
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed, ToolEnded, ToolStarted
from worker.turn.recurrence import REPEATED, Recurrence
from worker.turn.start import TurnStart
from worker.turn.transcript import Transcript
from worker.turn.verdict import ToolRefusal


def arguments_hash(tool_call: ToolCall) -> str:
    """What a person approves, as a SHA-256 in hex: the raw arguments, as they were shown."""
    return hashlib.sha256(tool_call.arguments.encode()).hexdigest()


class ToolBatch:
    """The tool calls of `committed`. Results and questions are added to `transcript` as they are ordered.

    `running`: indices of those that run; `waiting`: of those that a person must decide about. `repeated`: the tool call
    that ends the turn, because it was repeated although the model had been told; set by `begin`.
    """

    def __init__(
        self, committed: Committed, start: TurnStart, granted: set[str], transcript: Transcript, recurrence: Recurrence
    ) -> None:
        self.running: set[int] = set()
        self.waiting: set[int] = set()
        self.repeated: ToolCall | None = None
        self._committed = committed
        self._start = start
        self._granted = granted
        self._offered = tuple(tool.name for tool in start.tools)
        self._transcript = transcript
        self._recurrence = recurrence

    def begin(self) -> list[Command]:
        """Take up every tool call that has no result yet."""
        todo = [each for each in enumerate(self._committed.tool_calls) if each[0] not in self._transcript.ended]
        for index, tool_call in todo:
            if index not in self._transcript.started and self._recurrence.judge(tool_call) == "settle":
                self.repeated = tool_call
                return []
        return self._take_up(todo)

    def finished(self, event: ToolFinished) -> list[Command]:
        """A tool has ended. Raises `LocalProtocolError` for one that does not run."""
        if event.call != self._committed.call or event.index not in self.running:
            raise LocalProtocolError(f"tool {event.index} of call {event.call} does not run")
        self.running.discard(event.index)
        return [self._record(event.index, event.result, event.failure)]

    def decided(self, decisions: tuple[ApprovalDecided, ...]) -> list[Command]:
        """People have decided."""
        todo: list[tuple[int, ToolCall]] = []
        for decision in decisions:
            if decision.call != self._committed.call or decision.index not in self.waiting:
                continue
            self._transcript.add(decision)
            self.waiting.discard(decision.index)
            todo.append((decision.index, self._committed.tool_calls[decision.index]))
        return self._take_up(todo)

    def cut_off(self) -> list[Command]:
        """The tools that run are stopped. Who goes on is told what a takeover would tell: see `_refusal`."""
        running, self.running = sorted(self.running), set()
        commands: list[Command] = [StopTools()] if running else []
        for index in running:
            unknown = self._refusal(index, self._committed.tool_calls[index])
            if unknown is not None:
                commands.append(self._record(index, unknown.result, unknown.failure))
        return commands

    def _take_up(self, todo: list[tuple[int, ToolCall]]) -> list[Command]:
        commands: list[Command] = []
        runnable: list[tuple[int, ToolCall]] = []
        for index, tool_call in todo:
            refusal = self._refusal(index, tool_call)
            if refusal is not None:
                commands.append(self._record(index, refusal.result, refusal.failure))
            elif self._needs_a_person(index, tool_call):
                self.waiting.add(index)
                if index not in self._transcript.asked:
                    asked = ApprovalAsked(self._committed.call, index, arguments_hash(tool_call))
                    self._transcript.add(asked)
                    commands.append(AskApproval(asked.call, index, tool_call, self._committed.attempt))
            else:
                self.running.add(index)
                self._transcript.add(ToolStarted(self._committed.call, index))
                runnable.append((index, tool_call))
        if runnable:
            commands.append(RunTools(self._committed.call, tuple(runnable), self._committed.attempt))
        return commands

    def _refusal(self, index: int, tool_call: ToolCall) -> ToolRefusal | None:
        if refusal := verdict.refusal_to_run(tool_call, self._offered):
            return refusal
        if index in self._transcript.started:
            return None if tool_call.name in self._start.retry_safe else verdict.OUTCOME_UNKNOWN
        decision = self._transcript.decided.get(index)
        if decision is not None:
            return self._refusal_after(decision, tool_call)
        return REPEATED if self._recurrence.judge(tool_call) == "correct" else None

    def _refusal_after(self, decision: ApprovalDecided, tool_call: ToolCall) -> ToolRefusal | None:
        if decision.option == EXPIRED:
            return verdict.NOBODY_DECIDED
        if decision.option not in (APPROVE_ONCE, APPROVE_SESSION):  # nor one that this version does not know
            return verdict.NOT_APPROVED
        asked = self._transcript.asked.get(decision.index)
        if asked is None or asked.arguments_sha256 != arguments_hash(tool_call):
            return verdict.NOT_WHAT_WAS_SHOWN
        if decision.option == APPROVE_SESSION:
            self._granted.add(tool_call.name)
        return None

    def _needs_a_person(self, index: int, tool_call: ToolCall) -> bool:
        if index in self._transcript.decided or index in self._transcript.started:
            return False
        if (
            index in self._transcript.asked
        ):  # a question once asked needs its own answer, whatever was granted meanwhile
            return True
        return tool_call.name in self._start.asks and tool_call.name not in self._granted

    def _record(self, index: int, result: str, failure: str | None) -> RecordToolResult:
        call, tool_call = self._committed.call, self._committed.tool_calls[index]
        ended = ToolEnded(call, index, result, failure)
        self._transcript.add(ended)
        self._recurrence.add(ended)
        return RecordToolResult(call, index, tool_call, result, failure, self._committed.attempt)
