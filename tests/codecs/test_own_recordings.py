"""Streams that we recorded from llama-server, llmock and aimock, beside what a plain reader made of them.

`tests/real/record_streams.py` records them and works out the expectations, without any code of ours in between.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.codecs.events import Completed, Failed, ReasoningDelta, StreamEvent, TextDelta
from worker.codecs.wires import WIRES, codec_of

RECORDED = Path(__file__).parent / "streams" / "recorded"
STREAMS = sorted((path.parent.name, path.stem) for path in RECORDED.glob("*/*.sse"))
SIZES = (None, 1, 2, 3, 5, 7, 64, 1000)


def decode(wire: str, parts: list[bytes]) -> tuple[dict[str, Any], list[StreamEvent]]:
    """What our decoder makes of a stream in these parts."""
    decoder = codec_of(wire).decoder()
    events = [event for part in parts for event in decoder.feed(part)] + decoder.close()
    ends = [event for event in events if isinstance(event, Completed | Failed)]
    assert len(ends) <= 1
    end = ends[0] if ends else None
    usage = end.usage if isinstance(end, Completed) else None
    decoded: dict[str, Any] = {
        "text": "".join(event.text for event in events if isinstance(event, TextDelta)),
        "reasoning": "".join(event.text for event in events if isinstance(event, ReasoningDelta)),
        "meaning": end.finish_reason if isinstance(end, Completed) else None,
        "complete": isinstance(end, Completed),
        "broken": isinstance(end, Failed) and end.failure == "protocol",
        "input_tokens": usage.input_tokens if usage else None,
        "output_tokens": usage.output_tokens if usage else None,
    }
    if isinstance(end, Completed):
        calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in end.tool_calls]
        decoded["tool_calls"] = calls
        assert all((call.arguments_json is not None) is _is_object(call.arguments) for call in end.tool_calls)
    return decoded, events


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text or "{}"), dict)
    except ValueError:
        return False


def expectation(wire: str, name: str, decoded: dict[str, Any]) -> dict[str, Any]:
    """What was written down, as far as a decoder says it."""
    told = json.loads((RECORDED / wire / f"{name}.json").read_text(encoding="utf-8"))["expected"]
    if not told["complete"]:
        told |= {"input_tokens": None, "output_tokens": None}
    return {key: told[key] for key in decoded}


@pytest.mark.requirement("real:streams:recorded")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("wire", "name"), STREAMS)
def test_a_stream_of_a_real_server_decodes_as_a_plain_reader_reads_it(wire: str, name: str, size: int | None) -> None:
    data = (RECORDED / wire / f"{name}.sse").read_bytes()
    step = size or len(data)
    decoded, _ = decode(wire, [data[at : at + step] for at in range(0, len(data), step)])
    assert decoded == expectation(wire, name, decoded)


@pytest.mark.requirement("real:streams:recorded")
@given(st.data())
def test_it_decodes_the_same_however_it_is_cut(data: st.DataObject) -> None:
    wire, name = data.draw(st.sampled_from(STREAMS))
    stream = (RECORDED / wire / f"{name}.sse").read_bytes()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=20)))
    bounds = [0, *cuts, len(stream)]
    decoded, _ = decode(wire, [stream[start:end] for start, end in pairwise(bounds)])
    assert decoded == expectation(wire, name, decoded)


@pytest.mark.requirement("real:streams:recorded")
def test_every_stream_has_its_expectation_its_server_and_its_request() -> None:
    assert len(STREAMS) >= 54
    assert {wire for wire, _ in STREAMS} == set(WIRES)
    for path in RECORDED.glob("*/*.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        assert path.with_suffix(".sse").is_file()
        assert told["server"].split(" ")[0] in {"llama-server", "llmock", "aimock"}
        assert told["request"]["stream"] is True
