"""The tool calls of one answer as events, with the limits on them.

What belongs here: what is told while calls are written, and how many and how long they may be. What must not be known
here: to which call a piece belongs (`toolargs`), wire formats.
"""

from worker.codecs.events import StreamEvent, ToolCall, ToolCallArguments, ToolCallCompleted, ToolCallOpened
from worker.codecs.limits import LimitPassedError, StreamLimits
from worker.codecs.toolargs import SaidCall, ToolCallPieces, bounded_name
from worker.codecs.wirejson import HalfCharacter


class AnswerCalls:
    """The tool calls of one answer. `repairs` as in `ToolCallPieces`.

    In events a call's index is its place in the order in which the calls were opened: no two calls share it.
    """

    def __init__(self, limits: StreamLimits, *, repairs: bool) -> None:
        self._limits = limits
        self._pieces = ToolCallPieces(repairs=repairs)
        self._halves: dict[int, HalfCharacter] | None = None
        self._completed: set[int] = set()

    def __len__(self) -> int:
        return len(self._pieces)

    def calls(self, answer_id: str) -> tuple[ToolCall, ...]:
        """The calls as far as they have come, see `ToolCallPieces.calls`."""
        return self._pieces.calls(answer_id)

    def expect_half_characters(self) -> None:
        """From now on a piece of arguments may end in the first half of a character."""
        if self._halves is None:
            self._halves = {}

    def take(
        self, index: int | None, call_id: str | None, name: str | None, arguments: str, events: list[StreamEvent]
    ) -> int:
        """Take one piece, see `ToolCallPieces.add`; the call's place. Raises LimitPassedError."""
        pieces, limits = self._pieces, self._limits
        count, size = len(pieces), pieces.size
        place = pieces.add(index, call_id, name, arguments)
        if len(pieces) > limits.tool_calls:
            raise LimitPassedError("too_many_tool_calls", f"the answer has more than {limits.tool_calls} tool calls")
        self._check_size()
        if len(pieces) > count:
            events.append(ToolCallOpened(place, bounded_name(name or "")))
        if pieces.size > size:
            self._tell(place, arguments, events)
        return place

    def said(self) -> list[SaidCall]:
        """The calls as the pieces said them, by their places."""
        return self._pieces.said()

    def take_rest(
        self, place: int, call_id: str | None, name: str | None, rest: str, events: list[StreamEvent]
    ) -> None:
        """Take what the call at `place` lacked. Raises LimitPassedError."""
        self._pieces.add_rest(place, call_id, name, rest)
        self._check_size()
        self._tell(place, rest, events)

    def _check_size(self) -> None:
        if self._pieces.size > self._limits.argument_chars:
            message = f"the tool arguments are longer than {self._limits.argument_chars} characters"
            raise LimitPassedError("arguments_too_long", message)

    def _tell(self, place: int, arguments: str, events: list[StreamEvent]) -> None:
        if self._halves is not None:
            arguments = self._halves.setdefault(place, HalfCharacter()).join(arguments)
        if arguments:
            events.append(ToolCallArguments(place, arguments))

    def complete(self, place: int, events: list[StreamEvent]) -> None:
        """The call at `place` is whole: say so, once."""
        if place in self._completed:
            return
        self._completed.add(place)
        half = (self._halves or {}).get(place)
        if half is not None and (rest := half.rest()):
            events.append(ToolCallArguments(place, rest))
        events.append(ToolCallCompleted(place))

    def end(self, events: list[StreamEvent]) -> None:
        """The answer is whole, and so are all its calls."""
        for place in range(len(self._pieces)):
            self.complete(place, events)
