"""Whole turns over streams that something happened to, in every wire format."""

import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.mutations import QUIET, Recording, mutated, quieter, recordings
from tests.support.streamed_turn import Answer, StreamedTurn
from worker.codecs.codec import Codec
from worker.codecs.events import Completed, StreamEvent, TextDelta
from worker.codecs.limits import StreamLimits
from worker.codecs.wires import WIRES, codec_of

stable = settings(max_examples=75, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
ENDS = ["close", "close", "reset", "hangs"]
MOST_CUTS = 1500
"""Recordings of more bytes are cut at some places only."""
wires = pytest.mark.parametrize("wire", WIRES)


def decoded(codec: Codec, data: bytes) -> list[StreamEvent]:
    decoder = codec.decoder()
    return [*decoder.feed(data), *decoder.close()]


def completion(recording: Recording) -> Completed | None:
    """How the recording completes by itself, if it does."""
    last = decoded(codec_of(recording.wire), recording.data)[-1:]
    return last[0] if last and isinstance(last[0], Completed) else None


@cache
def offered(wire: str) -> frozenset[str]:
    """The names of all tools that are called in the recordings."""
    completions = [completion(recording) for recording in recordings(wire)]
    return frozenset(call.name for completed in completions if completed for call in completed.tool_calls if call.name)


@cache
def samples(wire: str) -> tuple[Recording, Recording]:
    """The shortest recordings that complete: one that says something in several pieces, one with a tool call."""
    texts, tools = [], []
    for recording in sorted(recordings(wire), key=lambda each: len(each.data)):
        completed = completion(recording)
        if completed is None or completed.choices > 1 or len(recording.events) < 3:
            continue
        if sum(gives_text(recording, at) for at in range(len(recording.events))) > 1:
            texts.append(recording)
        if any(tool_call.arguments_json for tool_call in completed.tool_calls):
            tools.append(recording)
        if texts and tools:
            break
    return texts[0], tools[0]


def gives_text(recording: Recording, at: int) -> bool:
    """Whether this event of a recording, behind those before it, gives a piece of text."""
    decoder = codec_of(recording.wire).decoder()
    decoder.feed(b"".join(recording.events[:at]))
    return any(isinstance(event, TextDelta) for event in decoder.feed(recording.events[at]))


@wires
def test_there_are_recordings_of_every_wire_format(wire: str) -> None:
    assert len(recordings(wire)) > 10
    assert len(samples(wire)) == 2
    assert offered(wire)


@pytest.mark.requirement("mutation:any")
@wires
@stable
@given(st.data())
def test_whatever_happens_to_a_stream_no_half_answer_stands_and_no_half_tool_call_runs(
    wire: str, data: st.DataObject
) -> None:
    """The promises themselves are in `StreamedTurn`, checked after every command."""
    codec = codec_of(wire, profile=data.draw(st.sampled_from(["compat", "compat", "strict"])))
    answers = [
        Answer(stream, data.draw(st.sampled_from([0, 0, 1, 7, 100])), data.draw(st.sampled_from(ENDS)))
        for stream in data.draw(st.lists(mutated(wire), min_size=1, max_size=4))
    ]
    StreamedTurn(codec, answers, offered(wire)).live()


@pytest.mark.requirement("mutation:cut")
@wires
@pytest.mark.parametrize("kind", [0, 1], ids=["text", "tool"])
def test_a_stream_that_is_cut_anywhere_completes_as_a_whole_or_is_discarded_and_asked_again(
    wire: str, kind: int
) -> None:
    recording, codec = samples(wire)[kind], codec_of(wire)
    whole, last = Answer(recording.data), Answer(samples(wire)[0].data)
    expected = StreamedTurn(codec, [whole, last], offered(wire)).live().commits[0]
    for place in range(0, len(recording.data), 1 + len(recording.data) // MOST_CUTS):
        cut = Answer(recording.data[:place], 0, ENDS[place % len(ENDS)])
        turn = StreamedTurn(codec, [cut, whole, last], offered(wire)).live()
        first = turn.commits[0]
        assert (first.text, first.tool_calls) == (expected.text, expected.tool_calls), (recording.name, place)
        assert [discard.attempt for discard in turn.discards if discard.call == 1] == [1] * (first.attempt - 1)


@pytest.mark.requirement("mutation:signs-of-life")
@wires
@stable
@given(st.data())
def test_signs_of_life_between_the_events_change_nothing(wire: str, data: st.DataObject) -> None:
    recording = data.draw(st.sampled_from([each for each in recordings(wire) if each.is_stream]))
    said = b"".join(quieter(data.draw, recording.events, wire))
    chunk = data.draw(st.sampled_from([0, 1, 7]))
    plain = StreamedTurn(codec_of(wire), [Answer(recording.data)], offered(wire)).live()
    lively = StreamedTurn(codec_of(wire), [Answer(said, chunk)], offered(wire)).live()
    assert [(c.text, c.thinking, c.tool_calls, c.finish_reason, c.usage) for c in lively.commits] == [
        (c.text, c.thinking, c.tool_calls, c.finish_reason, c.usage) for c in plain.commits
    ]
    assert lively.seal == plain.seal


SMALL = StreamLimits(line_bytes=20_000, event_bytes=40_000, stream_bytes=100_000, text_chars=9_000)


MOST_MEMORY = 10_000_000
"""Bytes; most of them are what the test's own store keeps of the outputs."""


@dataclass(frozen=True, slots=True)
class Endless(Answer):
    """The answer's bytes, and then the same piece for ever."""

    piece: bytes = b""

    def chunks(self) -> Iterator[bytes]:
        return chain([self.data], repeat(self.piece * (1 + 8_000 // len(self.piece))))


@pytest.mark.requirement("mutation:endless")
@wires
@pytest.mark.parametrize("what", ["text", "a line", "signs of life", "an event without its end"])
def test_a_stream_that_never_ends_is_ended_by_its_limits_and_leaves_nothing_in_memory(wire: str, what: str) -> None:
    recording, _ = samples(wire)
    text_at = next(at for at in range(len(recording.events)) if gives_text(recording, at))
    begun, text = b"".join(recording.events[:text_at]), recording.events[text_at]
    piece = {
        "text": text,
        "a line": b"x" * 8_000,
        "signs of life": QUIET[wire][0],
        "an event without its end": b"data: {\n",
    }[what]
    tracemalloc.start()
    try:
        turn = StreamedTurn(codec_of(wire, SMALL), [Endless(begun, piece=piece)]).live()
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY
    finally:
        tracemalloc.stop()
    assert turn.seal is not None
    assert turn.seal.outcome == "failed"
    assert turn.commits == []
    assert len(turn.discards) == 3
    assert turn.taken < 3 * (SMALL.stream_bytes + 2 * 8_000 + len(recording.data))
