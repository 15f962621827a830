"""What a model's stream says, in words that no wire format owns.

What belongs here: the events a decoder gives. What must not be known here: wire formats, HTTP, turns.

`SUBSTANTIVE` events prove that the model works (text, reasoning, tool-call content); all others only prove
that the connection lives. A stream's events are the same however its bytes were cut.
"""

from dataclasses import dataclass
from typing import Literal

FailureClass = Literal["retryable", "refused", "context_overflow", "content_filter", "protocol"]
"""`retryable`: the same request may succeed later. `refused`: it never will. `protocol`: the peer broke its wire
format (resumable). The others are what they say."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the answer. `text` is never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """A piece of the model's thinking. Never part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class RefusalDelta:
    """A piece of the model's own refusal. Never part of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallOpened:
    """The model began a tool call. `index` tells the calls of one answer apart; `name` is empty where it comes later.

    Nothing may run before `Completed`, which has the whole calls.
    """

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """A piece of a tool call's arguments, as raw text."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCallCompleted:
    """The model has written the whole tool call; the answer goes on, and may still die."""

    index: int


@dataclass(frozen=True, slots=True)
class Keepalive:
    """Proves that the connection lives, not that the model works: a comment, an empty chunk, a role."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call as the model wrote it.

    `arguments` is the raw text; `arguments_json` is the object it parses to, or None when it is not whole JSON or the
    provider did not say that the call is whole (then it is never repaired and never run). An empty text or `null` reads
    as `{}`. `id`: no two calls of one answer share it.
    """

    id: str
    name: str
    arguments: str
    arguments_json: dict[str, object] | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the provider reported them. None: it did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_write_input_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class UsageReported:
    """The provider reported the call's tokens so far. The last report counts; `Completed` has it too."""

    usage: Usage


@dataclass(frozen=True, slots=True)
class Completed:
    """The terminal mark of the wire format was seen: the call is whole. Nothing after it is read.

    `finish_reason` in one vocabulary for all wire formats: `stop`, `tool_calls`, `length`, `content_filter`, `refusal`
    where the provider's word means one of these, else its own word; None when only the end mark came. `choices` counts
    the answers in the stream; the events carry the first one. `echo`: items of the answer, in the wire format's own
    form and order, that the provider wants back in later requests (signed thinking, encrypted reasoning).
    """

    finish_reason: str | None
    tool_calls: tuple[ToolCall, ...]
    usage: Usage | None
    choices: int = 1
    refusal: str | None = None
    echo: tuple[dict[str, object], ...] = ()


@dataclass(frozen=True, slots=True)
class Failed:
    """The stream ended in an error, or broke its format. Nothing after it is read.

    `message` is the peer's own text, or names the rule that it broke; it is never logged. `retry_after` in seconds.
    """

    failure: FailureClass
    message: str
    code: str | None = None
    retry_after: float | None = None


StreamEvent = (
    TextDelta
    | ReasoningDelta
    | RefusalDelta
    | ToolCallOpened
    | ToolCallArguments
    | ToolCallCompleted
    | UsageReported
    | Keepalive
    | Completed
    | Failed
)
SUBSTANTIVE = (TextDelta, ReasoningDelta, RefusalDelta, ToolCallOpened, ToolCallArguments, ToolCallCompleted)
