"""What a store keeps of a turn: enough to begin another machine where one stopped, and all that readers were told."""

from dataclasses import replace

from worker.output.buffer import CommitBuffer
from worker.output.events import Output, TextDeltaOutput
from worker.turn import outputs
from worker.turn.batch import arguments_hash
from worker.turn.commands import (
    AskApproval,
    Command,
    CommitCall,
    DiscardCall,
    HandOff,
    OpenCall,
    RecordCompaction,
    RecordToolResult,
    RunTools,
    Seal,
    StageText,
)
from worker.turn.facts import ApprovalAsked, ApprovalDecided, Committed, Fact, Progress, ToolEnded, ToolStarted


class StoredTurn:
    """The record, the journal and the outputs of one turn, kept in step with the commands."""

    def __init__(self) -> None:
        self.progress = Progress()
        self.facts: list[Fact] = []
        self.outputs: list[Output] = []
        self.seal: Seal | None = None

    @property
    def text(self) -> str:
        """What a reader of the outputs ends with."""
        buffer = CommitBuffer()
        for output in self.outputs:
            buffer.apply(output)
        assert buffer.committed == "".join(fact.text for fact in self.facts if isinstance(fact, Committed))
        return buffer.committed

    def perform(self, command: Command) -> None:
        """One verb of the store, in one step. Tools are started by `start_tool`."""
        match command:
            case OpenCall():
                self.progress = replace(
                    self.progress,
                    call=command.call,
                    attempt=command.attempt,
                    is_open=True,
                    provider=command.provider,
                    died="",
                    resumes_spent=command.resumes_spent,
                    calls=self.progress.calls + command.is_new_call,
                )
            case StageText(text=text):
                self._emit(TextDeltaOutput(call=self.progress.call, attempt=self.progress.attempt, text=text))
            case CommitCall():
                self._commit(command)
            case DiscardCall():
                spent = self.progress.resumes_spent if command.resumes_spent is None else command.resumes_spent
                self.progress = replace(
                    self.progress,
                    is_open=False,
                    totals=command.totals,
                    resumes_spent=spent,
                    streamed=command.streamed,
                    died="" if command.resumes_spent is None else command.provider,
                )
                self._emit(*outputs.of_discard(command))
            case RecordToolResult():
                self.facts.append(ToolEnded(command.call, command.index, command.result, command.failure))
                self._emit(*outputs.of_tool_result(command))
            case RecordCompaction():
                self.facts.append(command.fact)
                self._emit(*outputs.of_compaction(command))
            case AskApproval(call=call, index=index, tool_call=tool_call):
                self.facts.append(ApprovalAsked(call, index, arguments_hash(tool_call)))
            case Seal():
                assert self.seal is None
                self.seal = command
                self._emit(*outputs.of_seal(command, "c0ffee"))
            case HandOff():
                assert not self.progress.is_open
            case _:
                pass  # nothing of it is kept

    def start_tool(self, command: RunTools, index: int) -> None:
        """Record that a tool is about to run."""
        self.facts.append(ToolStarted(command.call, index))
        self._emit(*outputs.of_tool_start(command.call, dict(command.tool_calls)[index], command.attempt))

    def decide(self, decision: ApprovalDecided) -> None:
        """A person has decided."""
        self.facts.append(decision)

    def lose_driver(self) -> None:
        """The driver vanished; another one will claim the turn."""
        self.progress = replace(self.progress, crashes=self.progress.crashes + 1)

    def _commit(self, command: CommitCall) -> None:
        self.facts += command.joined
        self.facts.append(
            Committed(
                command.call,
                command.attempt,
                command.text,
                command.tool_calls,
                command.finish_reason,
                command.usage,
                command.provider,
                command.echo,
            )
        )
        reported = command.usage.input_tokens if command.usage is not None else None
        self.progress = replace(
            self.progress,
            is_open=False,
            totals=command.totals,
            last_input_tokens=self.progress.last_input_tokens if reported is None else reported,
        )
        self._emit(*outputs.of_commit(command))

    def _emit(self, *emitted: Output) -> None:
        for output in emitted:
            self.outputs.append(output.model_copy(update={"seq": len(self.outputs) + 1}))
