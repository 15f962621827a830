"""The wire form of the outputs, towards older and newer readers and writers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from worker.output import events
from worker.output.events import (
    AnyOutput,
    CallCompletedOutput,
    ErrorOutput,
    Output,
    TextOutput,
    TextStreamDiscardedOutput,
    TurnCompletedOutput,
    UsageOutput,
    decode,
    encode,
)

OUTPUT_TYPES = [
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Output) and kind is not Output
]

WIRE_NAMES = {
    "approval_decided",
    "approval_request",
    "compaction",
    "text", "text_delta", "thinking", "thinking_delta", "tool_call", "tool_result", "usage", "processing_state",
    "call_completed", "text_stream_discarded", "error", "turn_completed",
}  # fmt: skip

any_output: st.SearchStrategy[Output] = st.one_of(*(st.builds(kind) for kind in OUTPUT_TYPES))


def test_the_wire_names_are_frozen() -> None:
    assert {kind.model_fields["type"].default for kind in OUTPUT_TYPES} == WIRE_NAMES


def test_every_output_is_part_of_the_union() -> None:
    schema = TypeAdapter(AnyOutput).json_schema()
    assert set(schema["discriminator"]["mapping"]) == WIRE_NAMES


@pytest.mark.requirement("output:wire:round-trip")
@pytest.mark.parametrize("kind", OUTPUT_TYPES)
@given(data=st.data())
def test_every_output_survives_the_wire(kind: type[Output], data: st.DataObject) -> None:
    output = data.draw(st.builds(kind))
    assert decode(encode(output)) == output
    assert decode(encode(output).decode()) == output


@pytest.mark.requirement("output:wire:newer-payload")
@given(any_output)
def test_a_newer_payload_with_fields_that_we_do_not_know_is_read(output: Output) -> None:
    payload = json.loads(encode(output)) | {"v": 2, "colour": "red", "nested": {"a": [1]}}
    read = decode(json.dumps(payload))
    assert read is not None
    assert read.v == 2
    assert read.model_copy(update={"v": output.v}) == output


OLD_PAYLOADS: list[tuple[dict[str, object], Output]] = [
    ({"type": "text", "text": "a"}, TextOutput(text="a", is_call_boundary=True)),
    ({"type": "text", "text": "a", "is_call_boundary": False}, TextOutput(text="a", is_call_boundary=False)),
    ({"type": "turn_completed"}, TurnCompletedOutput(outcome="completed")),
    ({"type": "error"}, ErrorOutput(message="the turn failed", category="unknown", terminal=True)),
    ({"type": "text_stream_discarded"}, TextStreamDiscardedOutput(reason="unknown", discarded_bytes=0)),
    ({"type": "call_completed"}, CallCompletedOutput()),
    ({"type": "usage", "input_tokens": 7}, UsageOutput(input_tokens=7)),
]


@pytest.mark.requirement("output:wire:older-payload")
@pytest.mark.parametrize(("payload", "output"), OLD_PAYLOADS)
def test_an_older_payload_is_read_with_the_defaults_of_its_time(payload: dict[str, object], output: Output) -> None:
    assert decode(json.dumps(payload)) == output


@pytest.mark.requirement("output:wire:missing-boundary-flag")
def test_a_text_without_the_boundary_flag_is_a_boundary() -> None:
    read = decode('{"type": "text", "text": "a"}')
    assert isinstance(read, TextOutput)
    assert read.is_call_boundary


@pytest.mark.requirement("output:wire:older-reader")
def test_an_older_reader_finds_the_same_fields_as_ever() -> None:
    """What a reader of the first version relies on: names and plain values."""
    output = TextOutput(turn="turn_00", seq=3, call=1, attempt=2, at_ms=5, text="a")
    assert json.loads(encode(output)) == {
        "v": 1,
        "turn": "turn_00",
        "seq": 3,
        "call": 1,
        "attempt": 2,
        "at_ms": 5,
        "type": "text",
        "text": "a",
        "is_call_boundary": True,
    }


@pytest.mark.requirement("output:wire:unknown-type")
@pytest.mark.parametrize(
    "data",
    [
        b'{"type": "hologram", "seq": 4}',
        b"{}",
        b"[]",
        b"",
        b'{"type": "text"}',
        b"\xff",
        b'{"type": "text", "text": 1}',
    ],
)
def test_what_cannot_be_read_is_none_and_no_error(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.requirement("output:wire:discarded-fields-absent")
def test_the_discarded_fields_are_absent_without_a_resume_and_present_with_one() -> None:
    plain = json.loads(encode(UsageOutput(input_tokens=7)))
    assert not [name for name in plain if name.startswith("discarded")]
    resumed = UsageOutput(input_tokens=7, discarded_resume_attempts=1, discarded_resume_estimated_input_tokens=7)
    assert (
        json.loads(encode(resumed)).items()
        >= {
            "discarded_resume_attempts": 1,
            "discarded_resume_estimated_input_tokens": 7,
        }.items()
    )
    unknown_price = json.loads(encode(UsageOutput(discarded_resume_attempts=1)))
    assert unknown_price["discarded_resume_attempts"] == 1
    assert "discarded_resume_estimated_input_tokens" not in unknown_price
