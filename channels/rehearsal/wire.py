"""What the stand-in provider needs of a wire format, and how server-sent events are written.

What belongs here: the contract. What must not be known here: any wire format, scripts, HTTP, time.

Usage is spoken of in the words of Chat Completions (`prompt_tokens`, `completion_tokens`, ...), as in scripts; each
wire format translates it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Question:
    """What a request asks, in no wire format's words.

    `prompt`: the first user message. `words`: of all messages. `message`: the last user message. `answers`: how many
    answers of the model follow it. `wants_usage`: the answer ends with usage even where the script names none.
    `wants_sealed_reasoning`: reasoning comes with a form that the client may send back.
    """

    model: str
    prompt: str
    words: int
    message: str = field(default="", repr=False)
    answers: int = 0
    wants_usage: bool = True
    wants_sealed_reasoning: bool = False


NO_QUESTION = Question("", "", 0)


class RequestRefused(Exception):
    """The request is answered with an error status. The message is for a person, `code` for a program."""

    def __init__(self, message: str, status: int = 400, code: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Answer(Protocol):
    """One streamed answer: each method gives the bytes that say so, with all that the wire format wants before them.

    `usage`: as it went out; None while it has not. `is_whole_at_finish`: a client need not wait for the end mark.
    """

    usage: JsonObject | None
    is_whole_at_finish: bool

    def text(self, piece: str) -> bytes:
        """A piece of the answer."""
        ...

    def reasoning(self, piece: str) -> bytes:
        """A piece of the model's thinking."""
        ...

    def open_tool(self, call_id: str, name: str) -> bytes:
        """The head of a tool call."""
        ...

    def arguments(self, piece: str) -> bytes:
        """A piece of the arguments of the tool call that is open."""
        ...

    def close_tool(self) -> bytes:
        """The tool call is whole."""
        ...

    def keepalive(self, comment: str | None) -> bytes:
        """Bytes without content: a comment with these words; None: what the wire format's own servers send."""
        ...

    def error(self, error: JsonObject, event: str | None) -> bytes:
        """An error inside the stream; under an event name it stands alone, as some servers send it."""
        ...

    def finish(self, reason: str, usage: JsonObject) -> bytes:
        """The finish reason, in the words of Chat Completions or the wire format's own; with usage where it belongs."""
        ...

    def report_usage(self, usage: JsonObject) -> bytes:
        """Usage after the finish reason; nothing where `finish` had it."""
        ...

    def end(self) -> bytes:
        """The end mark; nothing where `finish` was it."""
        ...


class Wire(Protocol):
    """One wire format. `name`: as in the settings. `path`: the end of the paths that it is asked at.

    `call_id_prefix`: what the ids of its tool calls begin with.
    """

    name: str
    path: str
    call_id_prefix: str

    def question(self, asked: JsonObject, headers: Mapping[str, str]) -> Question:
        """Read and check a request. Raises RequestRefused as the wire format's own server would refuse it."""
        ...

    def answer(self, number: int, question: Question, usage: JsonObject) -> Answer:
        """A new answer. `number` makes its ids; `usage`: what can be said of it before it begins."""
        ...

    def refusal(self, status: int, message: str, code: str | None) -> bytes:
        """The body of an answer with an error status. `code` None: it was rehearsed."""
        ...


def framed(event: str | None, data: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def comment(words: str) -> bytes:
    """A comment, which proves that the connection lives and no more."""
    return b": " + words.encode() + b"\n\n"


def token_count(usage: Mapping[str, Any], *path: str) -> int:
    """A number of tokens inside a usage object of Chat Completions; 0 where it is not there."""
    found: Any = usage
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if type(found) is int else 0
