"""What the HTTP API takes and gives about endpoints.

What belongs here: requests and answers, field by field. What must not be known here: where anything comes from.

A proxy, and files on the machine, are for who writes its settings: no request names one.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, StrictStr

from channels.delivery.lane import Standing
from channels.endpoint_settings import (
    EndpointFields,
    Labels,
    Pattern,
    Payload,
    RequestHeaders,
    Sources,
    WebhookSecret,
    WebhookUrl,
)
from channels.endpoints import subscription
from channels.endpoints.model import Order
from channels.endpoints.record import MAX_NAME
from channels.endpoints.signing_keys import MAX_OVERLAP_MS, OVERLAP_MS, Scheme

Version = int


class EndpointRequest(EndpointFields):
    """An endpoint that is to be made."""

    name: StrictStr = Field(
        min_length=1, max_length=MAX_NAME, description="Its name: a-z, 0-9, and single - or _ between them."
    )
    url: WebhookUrl = Field(description="Where its webhooks are posted to.")
    secret: WebhookSecret = Field(
        default=None, description="Its signing secret: whsec_ (v1) or whsk_ (v1a) and base64. Null: one is made."
    )
    scheme: Scheme = Field(default="v1", description="Of a secret that is made: v1 (HMAC-SHA256) or v1a (ed25519).")


def _told(name: str) -> str | None:
    return EndpointFields.model_fields[name].description


class EndpointPatch(EndpointFields):
    """What is to change. A field that is left out stays; null stands for what holds where nothing is said."""

    # A definition has no null for these; here it takes back what was said.
    events: tuple[Pattern, ...] | None = Field(  # type: ignore[assignment]
        default=None, max_length=subscription.MAX_EVENTS, description=_told("events")
    )
    source: Sources | None = Field(default=None, description=_told("source"))  # type: ignore[assignment]
    labels: Labels | None = Field(  # type: ignore[assignment]
        default=None, max_length=subscription.MAX_LABELS, description=_told("labels")
    )
    headers: RequestHeaders | None = Field(default=None, description=_told("headers"))  # type: ignore[assignment]
    order: Order | None = Field(default=None, description=_told("order"))  # type: ignore[assignment]
    url: WebhookUrl | None = Field(default=None, description="Where its webhooks are posted to. Null is refused.")
    version: Version | None = Field(default=None, description="Change only this version. Null: whichever there is.")


class RotateRequest(BaseModel):
    """A new key. `secret` null: one is made."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    overlap_s: float = Field(
        default=OVERLAP_MS / 1000, ge=0, le=MAX_OVERLAP_MS / 1000, description="How long the old keys sign, too."
    )
    secret: WebhookSecret = Field(default=None, description="The new signing secret. Null: one is made.")
    scheme: Scheme | None = Field(default=None, description="Of a secret that is made. Null: that of the newest key.")
    version: Version | None = Field(default=None, description="Change only this version. Null: whichever there is.")


class KeyShown(BaseModel):
    """A key that signs, without its secret. `until_ms`: from then on it signs no more; null: until it is replaced."""

    model_config = ConfigDict(extra="forbid")

    scheme: Scheme
    until_ms: int | None


class StandingShown(BaseModel):
    """Whether an endpoint is sent to, and how that goes. Times: UTC ms; null: not so.

    `why` and `since_ms` are of a pause or of disabling. `failed`: attempts since it last took anything, the first of
    them at `failing_since_ms`. `open_until_ms`: it failed too often, and nothing is sent before; from then on, it may
    be past, one attempt at a time until it takes one. `not_before_ms`: its receiver asked to be left alone until then.
    """

    model_config = ConfigDict(extra="forbid")

    state: Standing
    why: str
    since_ms: int | None
    failed: int
    failing_since_ms: int | None
    open_until_ms: int | None
    not_before_ms: int | None


class EndpointShown(BaseModel):
    """An endpoint, as it was defined: null is what holds where nothing is said.

    `origin` file: it stands in the settings, and only its standing changes over HTTP. `url`: scheme and host, since the
    rest may be a secret. `headers`: their names. `keys`: newest first; none: the common secret signs. `version`, and
    the times: null of one of the settings. `fault`: why it cannot be sent to as the server is set up, with the fix; its
    deliveries wait, and of its fields only those are told that can be read. Null: nothing is wrong with it.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    origin: Literal["file", "store"]
    version: Version | None
    url: str
    events: list[str]
    source: list[str]
    labels: dict[str, str]
    headers: list[str]
    timeout_s: float | None
    retry_waits_s: list[float] | None
    rate_per_s: float | None
    burst: int | None
    concurrency: int | None
    order: Order
    head_wait_s: float | None
    payload: Payload | None
    disable_after_s: float | None
    keys: list[KeyShown]
    standing: StandingShown
    created_ms: int | None
    updated_ms: int | None
    fault: str | None


class EndpointMade(BaseModel):
    """An endpoint and its newest secret, which is shown this once.

    `public_key`: of a v1a secret: what receivers verify with. `duplicate`: it was made before, by its Idempotency-Key;
    then `secret` is null where it was rotated since: rotate it to have a new one.
    """

    model_config = ConfigDict(extra="forbid")

    endpoint: EndpointShown
    secret: str | None
    public_key: str | None
    duplicate: bool


class EndpointList(BaseModel):
    """Endpoints by name. `next`: give it as `after` to get those behind them; null: there are none."""

    model_config = ConfigDict(extra="forbid")

    endpoints: list[EndpointShown]
    next: str | None


class EndpointDeleted(BaseModel):
    """It is no more; what waited for it is cancelled."""

    model_config = ConfigDict(extra="forbid")

    name: str


class TestSent(BaseModel):
    """A test event is on its way: a delivery like all others."""

    model_config = ConfigDict(extra="forbid")

    event: str
