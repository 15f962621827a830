"""What a call asks of a model, in words that no wire format owns.

What belongs here: the request and its parts. What must not be known here: wire formats, HTTP, turns.
"""

from dataclasses import dataclass, field

from worker.codecs.events import ToolCall


@dataclass(frozen=True, slots=True)
class UserMessage:
    """What a person (or a job) wrote. `joined`: to a turn that ran; no wire format tells it."""

    text: str
    joined: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Echo:
    """Items of an answer that its provider wants back, in its wire format's own form. Nobody else can read them.

    `provider`: its name in the settings; `wire`: the wire format that it spoke then.
    """

    provider: str
    wire: str
    items: tuple[dict[str, object], ...]


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """What a completed call answered: its text and the tool calls it asked for.

    `echo`: set only when the request goes to the provider that gave it; a codec leaves aside that of another format.
    """

    text: str
    tool_calls: tuple[ToolCall, ...] = ()
    echo: Echo | None = None


@dataclass(frozen=True, slots=True)
class ToolMessage:
    """The result of one tool call, as the model reads it."""

    tool_call_id: str
    name: str
    text: str


Message = UserMessage | AssistantMessage | ToolMessage


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as it is offered to the model. `parameters` is a JSON Schema object."""

    name: str
    description: str
    parameters: dict[str, object]


@dataclass(frozen=True, slots=True)
class Request:
    """One call's question. Reissued unchanged when an attempt dies.

    `max_tokens`: tokens. `extra_body` is merged over the encoded body, key by key.
    """

    model: str
    messages: tuple[Message, ...]
    instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    max_tokens: int | None = None
    temperature: float | None = None
    extra_body: dict[str, object] = field(default_factory=dict)
