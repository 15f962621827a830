"""What a script holds: calls, and the steps of their answers.

What belongs here: values. What must not be known here: files, HTTP, time. Waits are in seconds; FOREVER never ends.
"""

from dataclasses import dataclass, field
from typing import Literal

FOREVER = float("inf")

AfterLast = Literal["repeat", "last", "refuse"]
"""What follows a conversation's last call: the first again, the last again, or an error status."""


@dataclass(frozen=True, slots=True)
class Say:
    """Send text (or reasoning) in `pieces`, a chunk each, `every_s` apart."""

    pieces: tuple[str, ...]
    every_s: float = 0.0
    is_reasoning: bool = False


@dataclass(frozen=True, slots=True)
class CallTool:
    """Send a tool call: its name, then its arguments in `pieces`. `id` None: one is made up."""

    name: str
    pieces: tuple[str, ...]
    every_s: float = 0.0
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """Send nothing for a while, as a model that thinks."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Send nothing and hold the connection, as a server that hangs."""

    seconds: float


@dataclass(frozen=True, slots=True)
class KeepAlive:
    """Send a sign of life `every_s` seconds and nothing else, for `for_s` seconds.

    `comment`: its words; None: the one that servers of the wire format send.
    """

    every_s: float
    for_s: float
    comment: str | None


@dataclass(frozen=True, slots=True)
class Raw:
    """Send these bytes as they are, `times` over, in parts of `chunk_bytes` (0: whole), `every_s` apart."""

    data: bytes = field(repr=False)
    times: int = 1
    chunk_bytes: int = 0
    every_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EndlessLine:
    """Send one line that never ends, as fast as it is read."""


@dataclass(frozen=True, slots=True)
class SendError:
    """Send an error object inside the stream, under an event name if there is one, and end the body in good order."""

    error: dict[str, object]
    event: str | None


@dataclass(frozen=True, slots=True)
class Finish:
    """Send the finish reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """Send what is still missing of a whole ending: finish reason, usage if it is due, end mark."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """End the body in good order, without an end mark."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection in the middle of the body."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Reset the connection in the middle of the body."""


Step = (
    Say | CallTool | Pause | Stall | KeepAlive | Raw | EndlessLine | SendError | Finish | Done | Truncate | Cut | Reset
)


@dataclass(frozen=True, slots=True)
class Page:
    """An answer that is no stream: an error status, or a page where a stream was due.

    `body` None: the error object of the wire format, with `message` and `code`.
    """

    status: int
    headers: dict[str, str]
    content_type: str
    body: bytes | None = field(repr=False)
    message: str = ""
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One answer. `page` stands for it if there is one, else `steps` are performed.

    `delay_s`: silence before the head of the answer. `cut_at_byte`: the connection is closed when that many bytes of
    the body are out. `usage`: sent with the ending; in the words of Chat Completions, and translated for other wire
    formats. An ending that no step has sent is added, unless a step ended the body in another way or sent it raw.
    """

    steps: tuple[Step, ...] = ()
    page: Page | None = None
    delay_s: float = 0.0
    cut_at_byte: int | None = None
    usage: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class Conversation:
    """The calls for every conversation whose first user message holds `match` (empty: any), taken in order."""

    match: str
    calls: tuple[Call, ...]
    after_last: AfterLast


@dataclass(frozen=True, slots=True)
class Script:
    """What the stand-in provider does. The first conversation that fits counts. `models` it knows (empty: any)."""

    conversations: tuple[Conversation, ...]
    models: tuple[str, ...] = ()

    def conversation_for(self, prompt: str) -> Conversation | None:
        """The conversation that begins with this user message."""
        return next((each for each in self.conversations if each.match in prompt), None)
