"""However a chat stream is cut or mutilated: the same events, no exception, nothing after the end."""

import json
from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.chat_stream import DONE, PROFILES, STREAMS, chunk, raw, read, tool
from worker.codecs.events import Completed, Failed, StreamEvent, TextDelta, ToolCallArguments
from worker.codecs.limits import Profile, StreamLimits
from worker.codecs.openai_chat import ChatCodec


@pytest.mark.requirement("codecs:chat:any-cut")
@settings(deadline=None)
@given(st.sampled_from(sorted(STREAMS)), st.sampled_from(PROFILES), st.data())
def test_however_a_stream_is_cut_it_gives_the_same_events(name: str, profile: Profile, draw: st.DataObject) -> None:
    data = STREAMS[name]
    cuts = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=10)))
    decoder = ChatCodec(profile=profile).decoder()
    events: list[StreamEvent] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        events += decoder.feed(data[start:end])
    assert events + decoder.close() == read(data, ChatCodec(profile=profile).decoder())


@pytest.mark.requirement("codecs:chat:any-cut")
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_byte_by_byte_a_stream_gives_the_same_events(name: str, profile: Profile) -> None:
    decoder = ChatCodec(profile=profile).decoder()
    events = [event for byte in STREAMS[name] for event in decoder.feed(bytes([byte]))]
    assert events + decoder.close() == read(STREAMS[name], ChatCodec(profile=profile).decoder())


def listened_to(data: bytes, size: int, profile: Profile = "compat") -> None:
    """Feed everything, whatever comes; after a terminal event nothing more may come."""
    limits = StreamLimits(line_bytes=2000, event_bytes=4000, text_chars=500, argument_chars=500, tool_calls=5)
    decoder = ChatCodec(limits, profile).decoder()
    events: list[StreamEvent] = []
    for start in range(0, len(data), size):
        events += decoder.feed(data[start : start + size])
        assert isinstance(decoder.tool_calls, tuple)
    events += decoder.close()
    events += decoder.feed(data) + decoder.close()
    terminal = [number for number, event in enumerate(events) if isinstance(event, Completed | Failed)]
    assert terminal in ([], [len(events) - 1])
    said = [asdict(event) for event in events]
    json.dumps([said, decoder.raw_usage, decoder.raw_error], ensure_ascii=False).encode()  # raises on half a character


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(1, 64), st.sampled_from(PROFILES))
def test_random_bytes_never_raise(data: bytes, size: int, profile: Profile) -> None:
    listened_to(data, size, profile)


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(
    st.sampled_from(sorted(STREAMS)),
    st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=6)), max_size=6),
    st.integers(1, 64),
    st.sampled_from(PROFILES),
)
def test_mutated_streams_never_raise_and_say_nothing_after_their_end(
    name: str, changes: list[tuple[int, bytes]], size: int, profile: Profile
) -> None:
    data = STREAMS[name]
    for place, piece in changes:
        cut = place % (len(data) + 1)
        data = data[:cut] + piece + data[cut + len(piece) // 2 :]
    listened_to(data, size, profile)


STREAM_KEYS = ["choices", "index", "delta", "message", "content", "type", "text", "thinking", "reasoning", "refusal"]
CALL_KEYS = [
    "tool_calls",
    "function",
    "function_call",
    "id",
    "name",
    "arguments",
    "finish_reason",
    "usage",
    "error",
    "code",
    "status",
]
LEAVES = [
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["\ud83e", "\udddc"]),
]
JSON = st.recursive(
    st.one_of(LEAVES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(STREAM_KEYS + CALL_KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(st.lists(JSON, max_size=4), st.lists(JSON, max_size=3), st.sampled_from(PROFILES))
def test_chunks_of_any_json_never_raise(bodies: list[object], deltas: list[object], profile: Profile) -> None:
    data = b"".join(map(raw, bodies)) + b"".join(raw({"choices": [{"delta": delta}]}) for delta in deltas) + DONE
    listened_to(data, 50, profile)


@pytest.mark.requirement("codecs:chat:never-raises")
@settings(deadline=None)
@given(st.lists(JSON, max_size=3), st.sampled_from([None, 2]))
def test_documents_of_any_json_never_raise(messages: list[object], indent: int | None) -> None:
    document = {"choices": [{"message": message} for message in messages], "id": "d"}
    listened_to(json.dumps(document, indent=indent).encode(), 50)


@pytest.mark.requirement("codecs:chat:half-characters")
@settings(deadline=None)
@given(st.lists(st.sampled_from(["a", "\ud83e", "\udddc", "é"]), min_size=1, max_size=12), st.integers(1, 12))
def test_halves_of_a_character_are_joined_and_lone_halves_replaced(units: list[str], size: int) -> None:
    pieces = ["".join(units[start : start + size]) for start in range(0, len(units), size)]
    data = b'data: {"choices":[],"logprob":NaN}\n\n' + b"".join(chunk({"content": piece}) for piece in pieces) + DONE
    text = "".join(event.text for event in read(data) if isinstance(event, TextDelta))
    assert text == "".join(units).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


@pytest.mark.requirement("codecs:chat:half-characters")
@settings(deadline=None)
@given(st.lists(st.sampled_from(['{"', "\ud83e", "\udddc", "é"]), min_size=1, max_size=9))
def test_pieces_of_arguments_add_up_to_the_arguments_whatever_was_cut(units: list[str]) -> None:
    pieces = [tool(index=0, id="a", function={"arguments": unit}) for unit in units]
    *events, completed = read(b'data: {"choices":[],"logprob":NaN}\n\n' + b"".join(pieces) + DONE)
    assert isinstance(completed, Completed)
    told = "".join(event.text for event in events if isinstance(event, ToolCallArguments))
    assert told == completed.tool_calls[0].arguments
