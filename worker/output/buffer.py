"""The one fold over a turn's outputs: what every consumer knows of the text.

What belongs here: the four verbs on the text of a turn, and how each output maps to one of them. What must not be
known here: who reads, what is shown, Redis, filters.

    stage    text of an attempt that still streams: behind the marker, perhaps to be discarded
    commit   a call completed: its whole text stands, the marker moves behind it
    discard  the attempt died: the buffer is cut back to the marker
    seal     the turn ended: nothing changes any more

The text before the marker is the answer, and nothing else is. Both halves are lists of pieces, so that a delta costs
its own length and a discard costs nothing of what is committed.
"""

from worker.output.events import (
    CallCompletedOutput,
    Outcome,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    TurnCompletedOutput,
)
from worker.output.snapshot import Snapshot

_NOBODY = (0, 0)
"""The (call, attempt) of outputs that name none, as older writers sent them."""


class CommitBuffer:
    """The text of one turn: `committed` stands, `staged` may still be discarded.

    The verbs do what they are told; `apply` decides from an output's ids which verb it means. A reader that joins a
    running turn, or is told to forget what it has, begins anew with `of` its snapshot and applies what follows.

    Counters: `commits` calls that completed, `discards` attempts said to be dead, `notices` texts that are no part of
    the answer, `repeated` outputs seen before or come after the seal, `stale` outputs of attempts already over,
    `unknown` outputs that could not be read.
    """

    def __init__(self) -> None:
        self.marker = 0
        """UTF-8 bytes of the committed text."""
        self.outcome: Outcome | None = None
        self.reason: str | None = None
        self.commits = 0
        self.discards = 0
        self.notices = 0
        self.repeated = 0
        self.stale = 0
        self.unknown = 0
        self._committed: list[str] = []
        self._staged: list[str] = []
        self._last_seq = 0
        self._staging = _NOBODY
        self._dead = _NOBODY
        self._completed_call = 0

    @classmethod
    def of(cls, snapshot: Snapshot) -> "CommitBuffer":
        """The buffer of a reader that joins with a snapshot, or starts afresh with one."""
        buffer = cls()
        buffer.marker = snapshot.marker
        buffer._committed = [snapshot.text] if snapshot.text else []
        buffer._staged = [snapshot.open_text] if snapshot.open_text else []
        buffer._last_seq = snapshot.seq
        if snapshot.call:
            buffer._staging = (snapshot.call, snapshot.attempt)
        return buffer

    @property
    def committed(self) -> str:
        """The text of the calls that completed, in order."""
        self._committed = ["".join(self._committed)]
        return self._committed[0]

    @property
    def staged(self) -> str:
        """The text of the open attempt."""
        self._staged = ["".join(self._staged)]
        return self._staged[0]

    @property
    def sealed(self) -> bool:
        """Whether the turn has ended."""
        return self.outcome is not None

    def stage(self, text: str) -> None:
        """Add a delta behind what is staged."""
        if not self.sealed:
            self._staged.append(text)

    def commit(self, text: str | None = None) -> None:
        """Let a completed call's text stand: `text`, whatever was staged; or, when None, exactly what was staged."""
        if self.sealed:
            return
        pieces = self._staged if text is None else [text]
        self._committed += pieces
        self.marker += sum(len(piece.encode()) for piece in pieces)
        self._staged = []
        self.commits += 1

    def discard(self) -> None:
        """Cut back to the marker. Harmless when nothing is staged."""
        if not self.sealed:
            self._staged = []
            self.discards += 1

    def seal(self, outcome: Outcome, reason: str | None = None) -> None:
        """End the turn. What is still staged was never committed and goes; a second seal changes nothing."""
        if not self.sealed:
            self._staged = []
            self.outcome = outcome
            self.reason = reason

    def apply(self, output: Output | None) -> bool:
        """Fold one output in; None stands for one that could not be read. Returns whether it said anything new.

        Outputs come in the order of their `seq`, with gaps where a filter took some out. One that was seen before,
        one of an attempt that is already over and one that comes after the seal change nothing.
        """
        if output is None:
            self.unknown += 1
            return False
        if self.sealed or 0 < output.seq <= self._last_seq:
            self.repeated += 1
            return False
        self._last_seq = max(self._last_seq, output.seq)
        return self._fold(output)

    def _fold(self, output: Output) -> bool:
        match output:
            case TextDeltaOutput():
                return self._take_delta(output)
            case TextOutput(is_call_boundary=False):
                self.notices += 1
            case TextOutput(text=text):
                return self._take_boundary(output, text)
            case CallCompletedOutput():
                return self._take_boundary(output, None)
            case TextStreamDiscardedOutput():
                return self._take_discard(output)
            case TurnCompletedOutput(outcome=outcome, reason=reason):
                self.seal(outcome, reason)
            case _:
                pass  # no part of the text; an error is no end either, the turn says itself when it ends
        return True

    def _take_delta(self, output: TextDeltaOutput) -> bool:
        if self._is_over(output):
            self.stale += 1
            return False
        self._begin(output)
        self.stage(output.text)
        return True

    def _take_boundary(self, output: Output, text: str | None) -> bool:
        if output.call and output.call == self._completed_call:
            return False  # the other half of a boundary that was already taken
        if self._is_over(output):
            self.stale += 1
            return False
        self._begin(output)
        if text is not None or self._staged or output.call:
            self.commit(text)
        self._completed_call = output.call or self._completed_call
        self._staging = _NOBODY
        return True

    def _take_discard(self, output: TextStreamDiscardedOutput) -> bool:
        attempt = (output.call, output.attempt)
        if output.call and (output.call <= self._completed_call or attempt < self._staging):
            self.stale += 1
            return False
        self._dead = max(self._dead, attempt)
        self._staging = _NOBODY
        self.discard()
        return True

    def _is_over(self, output: Output) -> bool:
        attempt = (output.call, output.attempt)
        return output.call > 0 and (
            output.call <= self._completed_call or attempt <= self._dead or attempt < self._staging
        )

    def _begin(self, output: Output) -> None:
        """Make room for an attempt: what an earlier one staged can never be committed any more."""
        attempt = (output.call, output.attempt)
        if _NOBODY < self._staging < attempt:
            self._staged = []
        self._staging = max(self._staging, attempt)
