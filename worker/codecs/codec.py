"""What every wire format gives: an encoder of requests and a decoder of streams.

What belongs here: the contract. What must not be known here: any wire format.
Feed, drain, ask: `feed` and `close` never raise for a broken peer; they give a `Failed`.
"""

from dataclasses import dataclass
from typing import Protocol

from worker.codecs.events import StreamEvent, ToolCall
from worker.codecs.messages import Request


@dataclass(frozen=True, slots=True)
class EncodedRequest:
    """One HTTP request, less its host and its key: `path` is joined to the provider's base URL."""

    path: str
    body: bytes
    headers: dict[str, str]


class Decoder(Protocol):
    """Reads one attempt's stream. After a `Completed` or `Failed` it gives nothing more.

    What it gives depends on the bytes alone, not on how they are cut.
    """

    def feed(self, data: bytes) -> list[StreamEvent]:
        """Take the next bytes, cut anywhere; give what they complete, in order. Empty: they complete nothing yet."""
        ...

    def close(self, *, broken: bool = False) -> list[StreamEvent]:
        """The stream ended. Gives `Completed` if the terminal mark had been seen, else nothing terminal: a death.

        `broken`: it did not end in good order (a reset, a timeout, a malformed transfer). Then a mark that more of the
        answer followed is none.

        A body that turns out to be one whole JSON answer instead of a stream is given here too (profile `compat`).
        """
        ...

    @property
    def finishing(self) -> bool:
        """The terminal mark was seen and only trailing matter (usage) may follow: wait for it briefly, then `close`.

        False again when more of the answer comes: some servers send a mark that is none, and a true one later.
        """
        ...

    @property
    def finish_reason(self) -> str | None:
        """The provider's own word for how the answer finished, if it has come; kept when an error follows."""
        ...

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls as far as they have come. Only those of a `Completed` may run."""
        ...

    @property
    def raw_usage(self) -> dict[str, object] | None:
        """The last usage object that the provider sent, in its own words."""
        ...

    @property
    def raw_error(self) -> object:
        """The error that the provider sent inside the stream: mostly an object; None without one."""
        ...


class Codec(Protocol):
    """One wire format. `wire`: its name in the settings."""

    wire: str

    def authorization(self, key: str) -> dict[str, str]:
        """The headers that carry the provider's key."""
        ...

    def encode(self, request: Request) -> EncodedRequest:
        """The HTTP request that asks `request` as a stream."""
        ...

    def decoder(self) -> Decoder:
        """A decoder for the answer to one attempt."""
        ...
