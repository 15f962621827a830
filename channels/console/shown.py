"""What has been seen of a turn that runs in this process, and how it is printed as it comes.

What belongs here: folding outputs into what `lastword run` says of a turn, and its printers. What must not be known
here: where the outputs come from.

Only a terminal sees text that is still streaming; a pipe and `--json` get the text of completed calls alone.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from channels.console.terminal import cleaner, error_line, error_object, for_terminal, open_console
from worker.output.buffer import CommitBuffer
from worker.output.events import (
    ApprovalDecidedOutput,
    ApprovalRequestOutput,
    CompactionOutput,
    ErrorOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    ToolCallOutput,
    ToolResultOutput,
    TurnCompletedOutput,
)


@dataclass(slots=True)
class Shown:
    """What has been seen of the turn so far. `seq`: number of the last output; `waiting`: what nobody has decided."""

    turn: str
    session: str
    started: float = field(default_factory=monotonic)
    buffer: CommitBuffer = field(default_factory=CommitBuffer)
    tools: list[dict[str, Any]] = field(default_factory=list)
    waiting: dict[str, ApprovalRequestOutput] = field(default_factory=dict)
    seq: int = 0
    error: dict[str, str] | None = None
    outcome: str | None = None
    reason: str | None = None
    first_text_s: float | None = None
    unseen: str = ""
    dangling: bool = False

    def take(self, output: Output) -> None:
        """Fold one output. `unseen` is then what this output adds to the text that a terminal has printed."""
        self.unseen = ""
        self.seq = output.seq
        if isinstance(output, TextDeltaOutput):
            self.unseen = output.text
        elif isinstance(output, TextOutput) and output.is_call_boundary:  # the last deltas may never have been staged
            streamed = self.buffer.staged
            self.unseen = output.text[len(streamed) :] if output.text.startswith(streamed) else f"\n{output.text}"
        self.buffer.apply(output)
        match output:
            case TextDeltaOutput() | TextOutput(is_call_boundary=True) if self.first_text_s is None:
                self.first_text_s = monotonic() - self.started
            case ApprovalRequestOutput():
                self.waiting[output.approval] = output
            case ApprovalDecidedOutput():
                self.waiting.pop(output.approval, None)
            case ToolCallOutput():
                self.tools.append({"id": output.tool_call_id, "name": output.name, "arguments": output.arguments})
            case ErrorOutput():
                self.error = error_object(output)
            case TurnCompletedOutput():
                self.outcome, self.reason = output.outcome, output.reason
                self.waiting.clear()

    def summary(self, totals: Mapping[str, int | None]) -> dict[str, Any]:
        """The one object of `--json`. `totals`: tokens of the turn; what nobody reported is left out."""
        usage = {name: tokens for name, tokens in totals.items() if tokens is not None}
        return {
            "schema_version": 1,
            "turn": self.turn,
            "session": self.session,
            "outcome": self.outcome,
            "reason": self.reason,
            "text": self.buffer.committed,
            "tool_calls": self.tools or None,
            "approvals": [_approval(request) for request in self.waiting.values()] or None,
            "usage": usage or None,
            "error": self.error,
            "ttft_ms": None if self.first_text_s is None else round(self.first_text_s * 1000, 1),
            "total_ms": round((monotonic() - self.started) * 1000, 1),
        }


def _approval(request: ApprovalRequestOutput) -> dict[str, Any]:
    shown = request.model_dump(include={"approval", "arguments", "options", "requester", "expires_at_ms"})
    return {"tool": request.name} | shown


class Printer:
    """Prints nothing but errors: what `--json` wants while the turn runs."""

    def __init__(self) -> None:
        self._errors = open_console(stderr=True)

    def show(self, output: Output, shown: Shown) -> None:
        """Print what `output` adds; `shown` has taken it already."""
        del shown
        if isinstance(output, ErrorOutput):
            self._errors.print(cleaner(self._errors)(error_line(output)), markup=False, soft_wrap=True)


class _PipePrinter(Printer):
    """Prints the text of completed calls, and nothing else, to standard output."""

    def show(self, output: Output, shown: Shown) -> None:
        super().show(output, shown)
        if isinstance(output, TextOutput) and output.is_call_boundary:
            sys.stdout.write(output.text)
            sys.stdout.flush()
        elif isinstance(output, TurnCompletedOutput):
            sys.stdout.write("\n" if shown.buffer.committed else "")


class _TerminalPrinter(Printer):
    """Prints text as it streams, says so when it is void, and shows tools."""

    def __init__(self) -> None:
        super().__init__()
        self._out = open_console()

    def show(self, output: Output, shown: Shown) -> None:
        match output:
            case TextOutput(is_call_boundary=False):
                self._note(shown, output.text)
            case TextDeltaOutput() | TextOutput():
                self._out.out(for_terminal(shown.unseen), end="", highlight=False)
                shown.dangling = shown.dangling or bool(shown.unseen)
            case TextStreamDiscardedOutput():
                self._note(shown, f"interrupted ({output.reason}): the text since the last mark is void; asking again")
            case ToolCallOutput():
                self._note(shown, f"tool {output.name} …")
            case ToolResultOutput():
                self._note(shown, f"tool {output.name}: {'failed' if output.failure else 'done'}")
            case ApprovalRequestOutput():
                self._note(shown, f"tool {output.name} waits for a person")
            case ApprovalDecidedOutput():
                self._note(shown, f"decided: {output.option}" + (f" by {output.by}" if output.by else ""))
            case CompactionOutput():
                self._note(shown, "the conversation was made shorter for the model")
            case TurnCompletedOutput():
                self._note(shown, f"{output.outcome}" + (f" ({output.reason})" if output.reason else ""))
            case _:
                super().show(output, shown)

    def _note(self, shown: Shown, words: str) -> None:
        if shown.dangling:
            self._out.print()
            shown.dangling = False
        self._out.print(for_terminal(f"· {words}"), style="dim", markup=False)


def printer_for(*, as_json: bool) -> Printer:
    """The printer for what standard output is."""
    if as_json:
        return Printer()
    return _TerminalPrinter() if sys.stdout.isatty() else _PipePrinter()
