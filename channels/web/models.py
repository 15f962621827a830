"""What the HTTP API takes and gives: the one source of its checks and of its OpenAPI document.

What belongs here: requests and answers, field by field. What must not be known here: where anything comes from.

Unknown fields are refused. Times are UTC milliseconds.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from worker.api import MAX_KEY_CHARACTERS, MAX_LABELS, MAX_PERSON_CHARACTERS, MAX_PROMPT_BYTES
from worker.output.approvals import APPROVE_ONCE, DENY
from worker.output.events import ErrorCategory, Outcome

MAX_IDEMPOTENCY_KEY = MAX_KEY_CHARACTERS
State = Literal["queued", "running", "parked", "sealed"]
OnBusy = Literal["queue", "reject", "interrupt"]

Person = Annotated[StrictStr, Field(min_length=1, max_length=MAX_PERSON_CHARACTERS)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SubmitRequest(_Model):
    """A message that is to become a turn."""

    prompt: StrictStr = Field(
        min_length=1, max_length=MAX_PROMPT_BYTES, description="The message; at most 1,000,000 bytes of UTF-8."
    )
    agent: StrictStr = Field(default="default", min_length=1, max_length=60, description="Who answers.")
    session: StrictStr | None = Field(
        default=None, description="Conversation that the message belongs to. Null: one of its own."
    )
    labels: dict[StrictStr, StrictStr] = Field(
        default={}, max_length=MAX_LABELS, description="Come back with the outcome."
    )
    destinations: list[StrictStr] = Field(
        default=[], max_length=32, description="Endpoints that get the outcome; URLs with the scope destinations:url."
    )
    requester: Person | None = Field(
        default=None, description="Who alone may decide what the turn asks. Null: anybody who may decide approvals."
    )
    on_busy: OnBusy | None = Field(
        default=None,
        description="Where a turn of the session goes on: wait, be refused, or cancel it. Null: turns.on_busy.",
    )


class HookAnswer(_Model):
    """What became of an event: the turn that it is now, or was already, or why it is passed over.

    `event_type` and `delivery_id`: as it tells them, at most 200 characters. `turn`: null where it was filtered.
    """

    status: Literal["accepted", "ignored"]
    reason: Literal["event_filtered", "duplicate_delivery"] | None = None
    route: str
    event_type: str | None
    delivery_id: str | None
    turn: str | None = None
    session: str | None = None


class TurnUrls(_Model):
    """Paths of this API."""

    turn: str
    events: str
    cancel: str


class SubmitAnswer(_Model):
    """The turn that a message became; `duplicate`: it was that already, by its Idempotency-Key."""

    turn: str
    session: str
    duplicate: bool
    urls: TurnUrls


class Tokens(_Model):
    """Tokens of the completed calls, as the provider reported them; null where it did not say."""

    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    cached_input_tokens: int | None
    reasoning_tokens: int | None
    cache_write_input_tokens: int | None


class Resume(_Model):
    """What dead attempts cost: how many died, how many of them were resumed, and their estimated input tokens."""

    discarded_attempts: int
    resumes: int
    discarded_estimated_input_tokens: int | None


class TurnError(_Model):
    """Why a turn did not complete: `code` for programs, `message` for a person."""

    category: ErrorCategory
    code: str
    message: str
    correlation_id: str | None


class TurnHead(_Model):
    """A turn without its text. `outcome`, `error` and `sealed_ms` are null while it goes on."""

    turn: str
    session: str
    agent: str
    source: str
    state: State
    outcome: Outcome | None
    reason: str | None
    error: TurnError | None
    requester: str | None
    labels: dict[str, str]
    destinations: list[str]
    usage: Tokens
    resume: Resume
    calls: int
    crashes: int
    created_ms: int
    sealed_ms: int | None
    urls: TurnUrls


class Turn(TurnHead):
    """A turn. `text`: of the calls that completed, and nothing else; final once `state` is sealed."""

    text: str


class NewerTurn(_Model):
    """A turn that a newer version of Lastword has written: ask a process of that version. `state`: or its outcome."""

    turn: str
    state: str


class TurnList(_Model):
    """Turns that have not ended, the oldest first, or that have, the latest first. `truncated`: there are more.

    `newer`: those that only a newer version of Lastword can tell more of.
    """

    turns: list[TurnHead]
    newer: list[NewerTurn]
    truncated: bool


class CancelAnswer(_Model):
    """What a cancel met.

    `state` cancelled: the turn has ended so; cancelling: it runs, and ends within a second; ended: it had ended before,
    with `outcome`, and nothing was changed.
    """

    turn: str
    state: Literal["cancelled", "cancelling", "ended"]
    outcome: Outcome | None


class Option(_Model):
    """One answer that may be given."""

    key: str
    label: str


class Approval(_Model):
    """A tool call that waits for a person. `arguments`: the JSON text that the model wrote, and what would run."""

    approval: str
    turn: str
    session: str
    agent: str
    tool: str
    arguments: str
    requester: str | None
    options: list[Option]
    asked_ms: int
    expires_ms: int


class ApprovalList(_Model):
    """What waits, the one that expires first before all others.

    `truncated`: there are more, also where these are fewer than were asked for. `next`: give it as `after` to get them.
    """

    approvals: list[Approval]
    truncated: bool
    next: str | None


class DecideRequest(_Model):
    """A person's answer: `option` is the key of one that the request offers, such as approve_once or deny."""

    option: StrictStr = Field(
        min_length=1, max_length=64, description="Key of the chosen option.", examples=[APPROVE_ONCE, DENY]
    )
    by: Person | None = Field(
        default=None,
        description="Who decides. Null: the name of the token. Another name needs the scope approvals:act_as.",
    )


class DecideAnswer(_Model):
    """The answer that counts."""

    approval: str
    turn: str
    option: str
    by: str


class Alive(_Model):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(_Model):
    """Whether requests should be sent here, and what speaks against it."""

    status: Literal["ready", "not_ready"]
    reasons: list[str]
