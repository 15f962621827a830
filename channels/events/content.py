"""What each event says: the `data` of its body, field by field, and the one source of the published schemas.

What belongs here: the types of events and the values that they tell. What must not be known here: who gets them, where
they are stored, the bytes.

Times named `..._ms` are UTC milliseconds of the store's clock. A later release may add fields; none changes
its meaning.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from worker.output.events import ErrorCategory

Turn = Annotated[str, Field(description="Id of the turn.")]
Session = Annotated[str, Field(description="Conversation that the turn belongs to.")]
Agent = Annotated[str, Field(description="Name of the agent that answers.")]
Source = Annotated[str, Field(description="Where the message came from.")]
Labels = Annotated[dict[str, str], Field(description="Labels of the turn, as they came with its message.")]
ApprovalId = Annotated[str, Field(description="Id of the request, by which it is decided.")]
Tool = Annotated[str, Field(description="Name of the tool that waits.")]
AskedMs = Annotated[int, Field(description="When it was asked.")]
ExpiresMs = Annotated[int, Field(description="After that nobody can approve it any more.")]


@dataclass(frozen=True, slots=True)
class TokensUsed:
    """Tokens of completed calls, as the provider reported them; null where it did not say."""

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

    category: ErrorCategory
    code: str
    message: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """A turn has ended."""

    turn: Turn
    session: Session
    agent: Agent
    source: Source
    outcome: Annotated[str, Field(description="How it ended: what follows the dot in the type.")]
    reason: Annotated[str | None, Field(description="Why it is incomplete, cancelled or skipped.")]
    text: Annotated[str, Field(description="Exactly the text of the calls that completed; may be empty.")]
    usage: TokensUsed
    resume: Resume
    labels: Labels
    error: Annotated[TurnError | None, Field(description="What failed; null where nothing did.")]


@dataclass(frozen=True, slots=True)
class CallCompleted:
    """One request to the model has completed; the turn may go on."""

    turn: Turn
    session: Session
    agent: Agent
    source: Source
    labels: Labels
    call: Annotated[int, Field(description="Number of the call in its turn, from 1.")]
    text: Annotated[str, Field(description="Exactly the text of this call; may be empty.")]
    finish_reason: Annotated[
        str | None,
        Field(description="Why the model stopped: stop, tool_calls, length, content_filter, refusal, or another word."),
    ]
    usage: Annotated[TokensUsed | None, Field(description="Tokens of this call; null where nothing was reported.")]


@dataclass(frozen=True, slots=True)
class Option:
    """One answer that may be given: `key` for programs, `label` for a person."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class ApprovalRequested:
    """A tool call waits for a person."""

    turn: Turn
    session: Session
    agent: Agent
    source: Source
    labels: Labels
    approval: ApprovalId
    call: Annotated[int, Field(description="Number of the call that asked for the tool, from 1.")]
    tool: Tool
    arguments: Annotated[str, Field(description="JSON text that the model wrote, and what would run.")]
    requester: Annotated[str | None, Field(description="Who alone may decide; null: anybody.")]
    options: Annotated[tuple[Option, ...], Field(description="The answers that may be given.")]
    asked_ms: AskedMs
    expires_ms: ExpiresMs


@dataclass(frozen=True, slots=True)
class ApprovalDecided:
    """A request has its answer, or its time is over."""

    turn: Turn
    session: Session
    agent: Agent
    source: Source
    labels: Labels
    approval: ApprovalId
    call: Annotated[int, Field(description="Number of the call that asked for the tool, from 1.")]
    tool: Tool
    option: Annotated[str, Field(description="Key of the answer; `expired` where nobody gave one.")]
    by: Annotated[str | None, Field(description="Who decided; null: nobody did.")]
    asked_ms: AskedMs
    expires_ms: ExpiresMs


@dataclass(frozen=True, slots=True)
class EndpointNotice:
    """How an endpoint fares. `delivery`, `event_type`, `turn` and `code` are of the delivery that showed it, or empty.

    The endpoint that it is about does not get it. Of one endpoint, delivery.failing and delivery.dead each come at most
    once an hour, however many deliveries fail or die.
    """

    endpoint: Annotated[str, Field(description="Name of the endpoint; of plain URLs of one host url- and a hash.")]
    delivery: Annotated[str, Field(description="Id of the delivery.")]
    event_type: Annotated[str, Field(description="What the delivery tells.")]
    turn: Annotated[str, Field(description="The turn that the delivery tells of.")]
    code: Annotated[str, Field(description="What went wrong; of a disabled endpoint why: gone, failing, or as said.")]
    failed: Annotated[int, Field(description="Attempts that have failed since the endpoint last took anything.")]
    failing_since_ms: Annotated[int | None, Field(description="The first of those; null: there is none.")]
    at_ms: Annotated[int, Field(description="When it was noticed.")]


@dataclass(frozen=True, slots=True)
class EndpointTest:
    """Somebody wants to see that an endpoint takes what is sent to it."""

    endpoint: Annotated[str, Field(description="Name of the endpoint.")]
    message: Annotated[str, Field(description="A sentence for whoever reads it.")]
    at_ms: Annotated[int, Field(description="When it was asked for.")]


Content = TurnEnd | CallCompleted | ApprovalRequested | ApprovalDecided | EndpointNotice | EndpointTest

OUTCOMES = ("completed", "incomplete", "failed", "cancelled", "skipped", "dead")
"""How a turn may end that is told of: one that was merged has another's answer."""

CALL_COMPLETED = "call.completed"
APPROVAL_REQUESTED = "approval.requested"
APPROVAL_DECIDED = "approval.decided"
APPROVAL_EXPIRED = "approval.expired"
ENDPOINT_TEST = "endpoint.test"
ENDPOINT_DISABLED = "delivery.endpoint_disabled"
ABOUT_DELIVERIES = "delivery."
"""What the types of events begin with that tell how deliveries fare: of their own deliveries there are none."""

CONTENTS: dict[str, type[Content]] = {
    **{f"turn.{outcome}": TurnEnd for outcome in OUTCOMES},
    CALL_COMPLETED: CallCompleted,
    APPROVAL_REQUESTED: ApprovalRequested,
    APPROVAL_DECIDED: ApprovalDecided,
    APPROVAL_EXPIRED: ApprovalDecided,
    "delivery.failing": EndpointNotice,
    "delivery.recovered": EndpointNotice,
    ENDPOINT_DISABLED: EndpointNotice,
    "delivery.dead": EndpointNotice,
    ENDPOINT_TEST: EndpointTest,
}
"""Every type of event, and what it says."""

LONG: dict[type[Content], str] = {TurnEnd: "text", CallCompleted: "text", ApprovalRequested: "arguments"}
"""What a body can leave out, to be fetched: prompts and answers are long, or nobody else's business."""


def is_of_endpoints(event_type: str) -> bool:
    """Whether an event brings its own content, and is not read from what is stored of a turn."""
    return not event_type.startswith(("turn.", "call.", "approval."))
