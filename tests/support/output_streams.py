"""Streams of outputs to read: short words for each output, and whole turns with dead attempts in them."""

import itertools

from hypothesis import strategies as st

from worker.output.events import (
    CallCompletedOutput,
    Output,
    TextDeltaOutput,
    TextOutput,
    TextStreamDiscardedOutput,
    TurnCompletedOutput,
)


def delta(text: str, call: int = 0, attempt: int = 0, seq: int = 0) -> TextDeltaOutput:
    return TextDeltaOutput(text=text, call=call, attempt=attempt, seq=seq)


def whole(text: str, call: int = 0, attempt: int = 0, seq: int = 0) -> TextOutput:
    return TextOutput(text=text, call=call, attempt=attempt, seq=seq)


def boundary(call: int = 0, attempt: int = 0, seq: int = 0) -> CallCompletedOutput:
    return CallCompletedOutput(call=call, attempt=attempt, seq=seq)


def discard(call: int = 0, attempt: int = 0, seq: int = 0) -> TextStreamDiscardedOutput:
    return TextStreamDiscardedOutput(call=call, attempt=attempt, seq=seq)


def notice(text: str) -> TextOutput:
    return TextOutput(text=text, is_call_boundary=False)


texts = st.text(alphabet="ab \n", max_size=3)
dead_attempt = st.lists(texts, max_size=3)
a_call = st.tuples(st.lists(dead_attempt, max_size=2), st.lists(texts, max_size=3), st.booleans())
a_turn = st.lists(a_call, max_size=4)
Call = tuple[list[list[str]], list[str], bool]


def outputs_of_a_turn(calls: list[Call]) -> list[Output]:
    """Everything that is emitted for calls of dead attempts, then an attempt that completes, streaming or not."""
    outputs: list[Output] = []
    for call, (dead, pieces, streams) in enumerate(calls, start=1):
        for attempt, dead_pieces in enumerate(dead, start=1):
            outputs += [delta(piece, call, attempt) for piece in dead_pieces if piece]
            outputs += [discard(call, attempt), notice("expired")]
        attempt = len(dead) + 1
        if streams:
            outputs += [delta(piece, call, attempt) for piece in pieces if piece]
        if "".join(pieces):
            outputs.append(whole("".join(pieces), call, attempt))
        outputs.append(boundary(call, attempt))
    outputs.append(TurnCompletedOutput())
    numbers = itertools.count(1)
    return [output.model_copy(update={"seq": next(numbers)}) for output in outputs]


def text_of_a_turn(calls: list[Call]) -> str:
    return "".join("".join(pieces) for _, pieces, _ in calls)
