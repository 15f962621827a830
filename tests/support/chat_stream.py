"""The bytes of chat streams, written by hand, and what the chat codec makes of them.

What belongs here: short names for chunks. What must not be known here: what a test expects.
"""

import json
from pathlib import Path

from worker.codecs.codec import Decoder
from worker.codecs.events import Completed, Failed, StreamEvent, TextDelta
from worker.codecs.limits import Profile
from worker.codecs.openai_chat import ChatCodec

STREAMS = {path.stem: path.read_bytes() for path in (Path(__file__).parents[1] / "codecs" / "streams").glob("*.sse")}
DONE = b"data: [DONE]\n\n"
PROFILES: tuple[Profile, ...] = ("strict", "compat")


def raw(body: object) -> bytes:
    """An event whose data is `body`."""
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def chunk(delta: object = None, finish: object = None, **rest: object) -> bytes:
    """A chunk with one choice."""
    return raw({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}], **rest})


def text(words: str) -> bytes:
    """A chunk of text."""
    return chunk({"content": words})


def thought(words: str) -> bytes:
    """A chunk of reasoning."""
    return chunk({"reasoning_content": words})


def tool(**entry: object) -> bytes:
    """A chunk with one entry of `tool_calls`."""
    return chunk({"tool_calls": [entry]})


def finish(reason: str = "stop") -> bytes:
    """A chunk with a finish reason alone."""
    return chunk({}, reason)


def read(data: bytes, decoder: Decoder | None = None) -> list[StreamEvent]:
    """All events of a stream."""
    decoder = decoder or ChatCodec().decoder()
    return decoder.feed(data) + decoder.close()


def failure(data: bytes, decoder: Decoder | None = None) -> Failed:
    """The failure that a stream ends in."""
    last = read(data, decoder)[-1]
    assert isinstance(last, Failed)
    return last


def completion(data: bytes, decoder: Decoder | None = None) -> Completed:
    """The completion that a stream ends in."""
    last = read(data, decoder)[-1]
    assert isinstance(last, Completed)
    return last


def text_of(events: list[StreamEvent]) -> str:
    """The text of an answer."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def is_terminal(event: StreamEvent) -> bool:
    """Whether nothing may follow."""
    return isinstance(event, Completed | Failed)
