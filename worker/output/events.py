"""The outputs of a turn and their wire form.

What belongs here: the output types, their wire names and what a missing field of an older payload means.
What must not be known here: filters, Redis, turns, channels.

Wire form: one JSON object, discriminated by `type`, with the schema version `v`. A reader takes every version it
can parse; an output whose type it does not know is skipped and counted, never shown as an error.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

SCHEMA_VERSION = 1

Outcome = Literal["completed", "incomplete", "failed", "cancelled", "skipped", "merged", "dead"]
"""How a turn ended. `incomplete` has a reason (`length`, `content_filter`, `refusal`). `dead`: it crashed too often."""

ErrorCategory = Literal["timeout", "provider_failure", "stream_failure", "tool_failure", "input", "internal", "unknown"]


class Output(BaseModel):
    """What every output carries.

    `seq` is contiguous within a turn, from 1; 0 until the store has numbered the output. `call` and `attempt` are
    counted from 1; 0 where the output belongs to no call. `at_ms`: UTC milliseconds of the store's clock.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    v: int = SCHEMA_VERSION
    turn: str = ""
    seq: int = 0
    call: int = 0
    attempt: int = 0
    at_ms: int = 0


class TextOutput(Output):
    """The whole text of a completed call, or a notice.

    `is_call_boundary` false: a notice, never part of the answer, never a commit. Older payloads without the field
    are boundaries. `notice` says which notice it is.
    """

    type: Literal["text"] = "text"
    text: str
    is_call_boundary: bool = True
    notice: str | None = None


class TextDeltaOutput(Output):
    """A piece of text that is streaming: staged, and perhaps to be discarded."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingOutput(Output):
    """The whole thinking of a completed call."""

    type: Literal["thinking"] = "thinking"
    text: str


class ThinkingDeltaOutput(Output):
    """A piece of the model's thinking."""

    type: Literal["thinking_delta"] = "thinking_delta"
    text: str


class ToolCallOutput(Output):
    """A tool is about to run. `arguments` is the JSON text that the model wrote."""

    type: Literal["tool_call"] = "tool_call"
    tool_call_id: str
    name: str
    arguments: str | None = None


class ToolResultOutput(Output):
    """A tool has ended. `result` is what the model will read; `failure` names why it did not succeed."""

    type: Literal["tool_result"] = "tool_result"
    tool_call_id: str
    name: str
    result: str
    failure: str | None = None


class UsageOutput(Output):
    """Tokens of one completed call, as the provider reported them, and what resumes cost this turn so far.

    `discarded_resume_attempts` and `discarded_resume_estimated_input_tokens` are cumulative for the turn and both
    null while nothing was resumed. The estimate adds, per discarded attempt, the input tokens of the session's last
    completed call; null when no call of the session has completed. Never mixed into the other fields.
    `cached_input_tokens` and `cache_write_input_tokens` are parts of `input_tokens`, `reasoning_tokens` of
    `output_tokens`. `first_delta_ms`: from the call's first request to the first content of any attempt;
    `surviving_first_delta_ms`: from the request of the attempt that completed to its own. `purpose` names a call beside
    the turn; null: one of the turn's own.
    """

    type: Literal["usage"] = "usage"
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_input_tokens: int | None = None
    first_delta_ms: int | None = None
    surviving_first_delta_ms: int | None = None
    purpose: Literal["compaction"] | None = None
    discarded_resume_attempts: int | None = None
    discarded_resume_estimated_input_tokens: int | None = None


class ProcessingStateOutput(Output):
    """Whether the turn is at work right now, for a channel's indicator."""

    type: Literal["processing_state"] = "processing_state"
    is_processing: bool


class CallCompletedOutput(Output):
    """The boundary: a call completed, with or without text. Emitted after the call's text."""

    type: Literal["call_completed"] = "call_completed"
    finish_reason: str | None = None


class TextStreamDiscardedOutput(Output):
    """What the attempt streamed is void: cut back to the marker. Emitted for every dead attempt, also a silent one.

    `discarded_bytes`: UTF-8 bytes that the attempt had streamed, seen by a reader or not.
    """

    type: Literal["text_stream_discarded"] = "text_stream_discarded"
    reason: str = "unknown"
    discarded_bytes: int = 0


class ApprovalOption(BaseModel):
    """One answer that may be given to an approval request. `key` is stable, `label` is for a person."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    key: str
    label: str


class ApprovalRequestOutput(Output):
    """A tool call waits for a person. `requester`: who alone may decide; null: anyone may.

    `arguments` is the JSON text that the model wrote, and what runs if it is approved. `expires_at_ms`: UTC
    milliseconds of the store's clock; after that nobody can approve it any more.
    """

    type: Literal["approval_request"] = "approval_request"
    approval: str
    tool_call_id: str
    name: str
    arguments: str
    options: tuple[ApprovalOption, ...] = ()
    requester: str | None = None
    expires_at_ms: int = 0
    is_call_boundary: Literal[False] = False


class ApprovalDecidedOutput(Output):
    """An approval request has its answer. `option`: its key, or `expired`. `by`: who decided; null: nobody did."""

    type: Literal["approval_decided"] = "approval_decided"
    approval: str
    option: str
    by: str | None = None


class CompactionOutput(Output):
    """The conversation was made shorter for the model; what people have read stands. Counts are of messages.

    `forced`: the provider had said that the context overflowed. `failure`: why no summary could be had, if one was
    wanted; the turn goes on.
    """

    type: Literal["compaction"] = "compaction"
    messages_before: int = 0
    messages_after: int = 0
    results_cleared: int = 0
    summarised: bool = False
    forced: bool = False
    failure: str | None = None


class ErrorOutput(Output):
    """Something failed. `message` is written for a person and holds no text of prompts or answers."""

    type: Literal["error"] = "error"
    message: str = "the turn failed"
    category: ErrorCategory = "unknown"
    code: str = "unknown"
    correlation_id: str = ""
    terminal: bool = True


class TurnCompletedOutput(Output):
    """The turn has ended; nothing follows. `merged_into`: the turn that it joined, whose answer is its own too."""

    type: Literal["turn_completed"] = "turn_completed"
    outcome: Outcome = "completed"
    reason: str | None = None
    merged_into: str | None = None


AnyOutput = Annotated[
    TextOutput
    | TextDeltaOutput
    | ThinkingOutput
    | ThinkingDeltaOutput
    | ToolCallOutput
    | ToolResultOutput
    | UsageOutput
    | ProcessingStateOutput
    | CallCompletedOutput
    | TextStreamDiscardedOutput
    | ApprovalRequestOutput
    | ApprovalDecidedOutput
    | CompactionOutput
    | ErrorOutput
    | TurnCompletedOutput,
    Field(discriminator="type"),
]

_adapter: TypeAdapter[AnyOutput] = TypeAdapter(AnyOutput)


def encode(output: Output) -> bytes:
    """The wire form of one output. Fields that are null are left out."""
    return output.model_dump_json(exclude_none=True).encode()


def decode(data: bytes | str) -> Output | None:
    """Read one output, or None when its type is unknown or it cannot be read: skip it and count it."""
    try:
        return _adapter.validate_json(data)
    except ValidationError:
        return None
