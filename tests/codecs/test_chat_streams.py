"""Whole captured streams through `decode_file`: our own transcripts, and the recorded ones where they are at hand."""

import json
from pathlib import Path
from typing import Any

import pytest

from channels.console.decode import decode_file
from worker.errors import ConfigurationError

TRANSCRIPTS = Path(__file__).parent / "streams"
RECORDED = Path(__file__).parents[3] / "shared" / "fixtures" / "chat"
CHUNKS = [None, 1, 7]
FIELDS = ("text", "reasoning", "refusal", "finish_reason", "usage", "error", "complete")
CALL_FIELDS = ("id", "name", "arguments", "arguments_json")
NAMES = sorted(path.stem for path in TRANSCRIPTS.glob("*.sse"))
RECORDED_NAMES = sorted(path.stem for path in RECORDED.glob("*.sse"))


def expectation(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.expected.json").read_text(encoding="utf-8"))


@pytest.mark.requirement("codecs:chat:deviations")
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("name", NAMES)
def test_a_transcript_decodes_as_written_beside_it(name: str, chunk: int | None) -> None:
    data = (TRANSCRIPTS / f"{name}.sse").read_bytes()
    assert decode_file(name, data, chunk) == {"file": name, **expectation(TRANSCRIPTS, name)}


def test_every_transcript_has_its_expectation_and_the_reverse() -> None:
    assert sorted(path.name.removesuffix(".expected.json") for path in TRANSCRIPTS.glob("*.expected.json")) == NAMES
    assert len(NAMES) > 50


@pytest.mark.requirement("codecs:chat:recorded")
@pytest.mark.skipif(not RECORDED_NAMES, reason="the recorded streams are not beside this checkout")
@pytest.mark.parametrize("chunk", CHUNKS)
def test_every_recorded_stream_decodes_as_expected(chunk: int | None) -> None:
    wrong = []
    for name in RECORDED_NAMES:
        expected = expectation(RECORDED, name)["expected"]
        decoded: Any = decode_file(name, (RECORDED / f"{name}.sse").read_bytes(), chunk)
        calls = [{field: call[field] for field in CALL_FIELDS} for call in expected["tool_calls"]]
        wrong += [(name, field) for field in FIELDS if decoded[field] != expected[field]]
        wrong += [(name, "tool_calls")] if decoded["tool_calls"] != calls else []
    assert len(RECORDED_NAMES) == 92
    assert wrong == []


@pytest.mark.requirement("codecs:chat:line-ends")
@pytest.mark.parametrize("chunk", [*CHUNKS, 2, 3])
@pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_change_nothing(mark: bytes, line_end: bytes, chunk: int | None) -> None:
    for name in ("text-then-usage-in-a-chunk-without-choices", "tools-interleaved", "comments-and-unknown-fields"):
        data = mark + (TRANSCRIPTS / f"{name}.sse").read_bytes().replace(b"\n", line_end)
        assert decode_file(name, data, chunk) == {"file": name, **expectation(TRANSCRIPTS, name)}


def test_a_chunk_of_no_bytes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--chunk is 0: give the number of bytes"):
        decode_file("x", b"", 0)
