"""The body of a webhook: what a receiver learns of a turn that has ended.

What belongs here: the JSON form; the fields of `TurnEnd` are the keys of its `data`. What must not be known here: where
turns are stored, signatures, HTTP.

The body depends on the sealed turn alone, so every attempt sends the same bytes.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from channels.delivery.model import json_bytes


@dataclass(frozen=True, slots=True)
class TokensUsed:
    """Tokens of the turn's completed calls, as the provider reported them; null where it did not say."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    cached_input_tokens: int | None
    reasoning_tokens: int | None
    cache_write_input_tokens: int | None


@dataclass(frozen=True, slots=True)
class Resume:
    """What dead attempts cost: how many died, how many of them were resumed, and their estimated input tokens."""

    discarded_attempts: int
    discarded_estimated_input_tokens: int | None
    resumes: int


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why the turn did not complete: `code` for programs, `message` for a person."""

    category: str
    code: str
    message: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A sealed turn, as a receiver may know it. `text` is exactly the committed text."""

    turn: str
    session: str
    agent: str
    source: str
    outcome: str
    reason: str | None
    text: str
    usage: TokensUsed
    resume: Resume
    labels: dict[str, str]
    error: TurnError | None


def render(event_type: str, sealed_ms: int, end: TurnEnd) -> bytes:
    """The body, as UTF-8 JSON. `sealed_ms`: UTC milliseconds; written as RFC 3339 text.

    Half a surrogate pair, which UTF-8 cannot hold, is written as U+FFFD.
    """
    sealed = datetime.fromtimestamp(sealed_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return json_bytes({"type": event_type, "timestamp": sealed.replace("+00:00", "Z"), "data": end})
