"""What the HTTP API takes and gives about deliveries and bulk replays.

What belongs here: requests and answers, field by field. What must not be known here: where anything comes from.
"""

from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr

from channels.delivery.model import Sent, State
from channels.delivery.replay import RATE_MOST, From, Progress
from channels.replays.starting import RATE

_MOST_TYPES = 50
_LATEST = 10**15 - 1


class EvidenceShown(BaseModel):
    """What an attempt showed. Times in ms, null where it never came to that.

    `reused`: the connection was open already. `body`: the start of the answer where that is UTF-8, else `body_base64`
    has it; `truncated`: it was longer.
    """

    model_config = ConfigDict(extra="forbid")

    status: int | None
    lookup_ms: int | None
    connect_ms: int | None
    tls_ms: int | None
    head_ms: int | None
    total_ms: int
    reused: bool
    content_type: str
    body: str | None
    body_base64: str | None
    truncated: bool


class AttemptShown(BaseModel):
    """An attempt. `sent`: whether the receiver got it. Of the first and the last ones there is `evidence`.

    An endpoint that cannot be reached is all that is told of what was blocked, refused or not found: `took_ms` is null.
    """

    model_config = ConfigDict(extra="forbid")

    number: int
    at_ms: int
    code: str
    message: str
    sent: Sent
    took_ms: int | None
    evidence: EvidenceShown | None


class DeliveryShown(BaseModel):
    """A delivery: one event for one endpoint. Times in UTC ms; null: not yet, or no more.

    `destination`: an endpoint's name, or a URL; of that scheme and host, unless the token has destinations:url.
    `attempts`: since it was made or last replayed. `due_ms`: when the next begins, or the lease of this one ends.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    event_id: str
    event_type: str
    turn: str
    destination: str
    state: State
    attempts: int
    code: str
    message: str
    created_ms: int
    due_ms: int | None
    ended_ms: int | None
    replayed_ms: int | None


class DeliveryDetail(DeliveryShown):
    """A delivery, and its attempts: the first and the last ones."""

    log: list[AttemptShown]


class DeliveryList(BaseModel):
    """Deliveries, the newest first, dead ones by their death.

    `next`: give it as `after` to get those behind them; null: there are none. A page may be short and not the last.
    """

    model_config = ConfigDict(extra="forbid")

    deliveries: list[DeliveryShown]
    next: str | None


class ReplayRequest(BaseModel):
    """Which deliveries are to be sent again, and how fast. What is left out chooses nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    states: list[From] = Field(default=["dead"], min_length=1, max_length=2, description="dead, held, or both.")
    endpoint: StrictStr | None = Field(default=None, min_length=1, max_length=2048, description="Its name, or a URL.")
    types: list[StrictStr] = Field(default=[], max_length=_MOST_TYPES, description="Of these event types.")
    turn: StrictStr | None = Field(default=None, min_length=1, max_length=200, description="Of this turn.")
    since_ms: StrictInt | None = Field(
        default=None, ge=1, le=_LATEST, description="Made since then, in UTC ms. Null: as far back as one may reach."
    )
    until_ms: StrictInt | None = Field(default=None, ge=1, le=_LATEST, description="Made before then. Null: until now.")
    rate_per_s: float = Field(default=RATE, gt=0, le=RATE_MOST, description="Deliveries a second.")


class ReplayShown(BaseModel):
    """A bulk replay, which goes on by itself. Times in UTC ms.

    `found`: deliveries that were to be replayed; of them `replayed` were, and `skipped` had changed meanwhile, are for
    an endpoint that is paused, or have nothing left to tell. `most`: it ends when it has found so many. `why`: it is
    paused, cancelled or done early.
    """

    model_config = ConfigDict(extra="forbid")

    id: str
    state: Progress
    why: str
    by: str
    states: list[From]
    endpoint: str | None
    types: list[str]
    turn: str | None
    since_ms: int
    until_ms: int
    rate_per_s: float
    most: int
    found: int
    replayed: int
    skipped: int
    created_ms: int
    ended_ms: int | None


class ReplayList(BaseModel):
    """Bulk replays, the newest first. One is forgotten 30 days after its end."""

    model_config = ConfigDict(extra="forbid")

    replays: list[ReplayShown]
