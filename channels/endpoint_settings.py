"""What can be said of an endpoint, wherever it is made: settings, command or HTTP API.

What belongs here: the fields with their checks. What must not be known here: where definitions are kept, what stands
in for what is not said.
"""

from collections.abc import Callable
from typing import Annotated, Any, Literal, ParamSpec, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from channels.delivery.backoff import LONGEST_WAIT_S
from channels.endpoints import headers, patterns, subscription
from channels.endpoints.model import Order, SigningKey, Subscription
from channels.endpoints.signing_keys import MAX_KEYS, decode_secret
from channels.webhook.address import check_proxy, check_url
from worker.errors import ConfigurationError
from worker.fields import ExpandedPath, Headers, Section, amount, filled_from_file

P = ParamSpec("P")
T = TypeVar("T")

LONGEST_ATTEMPT_S = 300.0
TIMEOUT = "Longest duration of one attempt, from name to answer."
WAITS = "Wait after each failed attempt, varied by a fifth. There is one attempt more than waits."
RATE = "Most attempts that begin within a second; what comes faster waits for its slot."
BURST = "Attempts that may begin at once after a pause, where there is a rate."
DISABLE = "Without a success for so long, after 10 failures or more, an endpoint is disabled."


def _checked(check: Callable[P, T]) -> Callable[P, T]:
    """A check whose refusal is one of the field that it checks."""

    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return check(*args, **kwargs)
        except ConfigurationError as error:
            raise ValueError(str(error)) from None

    return checked


def _checked_proxy(url: SecretStr) -> SecretStr:
    check_proxy(url.get_secret_value())
    return url


def _checked_secret(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None:
        _checked(decode_secret)("secret", secret.get_secret_value())
    return secret


def _checked_headers(given: dict[str, SecretStr]) -> dict[str, SecretStr]:
    _checked(headers.check_headers)("headers", {name: value.get_secret_value() for name, value in given.items()})
    return given


def _checked_labels(labels: dict[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        _checked(subscription.parse_match)(f"labels.{name[:80]}", value)
    return labels


def _listed(value: object) -> object:
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value  # as a strict reading takes it


WebhookUrl = Annotated[str, AfterValidator(lambda url: _checked(check_url)("url", url))]
ProxyUrl = Annotated[SecretStr, AfterValidator(_checked_proxy)]
WebhookSecret = Annotated[SecretStr | None, AfterValidator(_checked_secret)]
OneSecret = Annotated[SecretStr, AfterValidator(_checked_secret)]
Seconds = Annotated[float, Field(ge=0.05, le=LONGEST_WAIT_S)]
Waits = Annotated[tuple[Seconds, ...], Field(max_length=50)]
Pattern = Annotated[str, AfterValidator(lambda text: _checked(patterns.check_pattern)("events", text))]
Source = Annotated[
    str,
    Field(min_length=1, max_length=subscription.MAX_CHARACTERS),
    AfterValidator(lambda text: (_checked(subscription.parse_match)("source", text), text)[1]),
]
Sources = Annotated[
    tuple[Source, ...],
    BeforeValidator(_listed, json_schema_input_type=str | list[str]),
    Field(max_length=subscription.MAX_SOURCES),
]
Labels = Annotated[dict[str, str], AfterValidator(_checked_labels)]
RequestHeaders = Annotated[Headers, AfterValidator(_checked_headers)]
Payload = Literal["full", "thin"]


class EndpointFields(Section):
    """What may be said of an endpoint by everybody who may make one."""

    events: tuple[Pattern, ...] = Field(
        default=(),
        max_length=subscription.MAX_EVENTS,
        description="Types of the events that it gets without being named, as in turn.completed, turn.* or *; "
        "events of deliveries and endpoints are not in *, name delivery.* for those.",
    )
    source: Sources = Field(
        default=(), description="Only events of turns from one of these sources; with a star at the end: that begin so."
    )
    labels: Labels = Field(
        default={},
        max_length=subscription.MAX_LABELS,
        description="Only events of turns with all of these labels; a value may end with a star, as a source.",
    )
    headers: RequestHeaders = Field(default={}, description="Further request headers.")
    timeout_s: float | None = amount(None, 0.1, LONGEST_ATTEMPT_S, "seconds", f"{TIMEOUT} Not set: delivery.timeout_s.")
    retry_waits_s: Waits | None = Field(
        default=None, description=f"{WAITS} Not set: delivery.retry_waits_s.", json_schema_extra={"unit": "seconds"}
    )
    rate_per_s: float | None = amount(
        None, 0.001, 10000, "deliveries per second", f"{RATE} Not set: delivery.rate_per_s."
    )
    burst: int | None = amount(None, 1, 10000, "deliveries", f"{BURST} Not set: delivery.burst.")
    concurrency: int | None = amount(
        None, 1, 500, "deliveries", "Most attempts under way at a time. Not set: delivery.endpoint_concurrency."
    )
    order: Order = Field(
        default="none", description="What is delivered in order, one at a time: nothing, a session's, or everything."
    )
    head_wait_s: float | None = amount(
        None,
        1,
        2592000,
        "seconds",
        "Where there is an order: how long one keeps the next ones waiting, attempted or not, before it is dead. "
        "Not set: until it is given up.",
    )
    payload: Payload | None = Field(
        default=None, description="full: the text, too. thin: ids and where to fetch it. Not set: delivery.payload."
    )
    disable_after_s: float | None = amount(
        None, 1, 31536000, "seconds", f"{DISABLE} Not set: delivery.disable_after_s."
    )


class Definition(EndpointFields):
    """An endpoint without its name and secrets."""

    url: WebhookUrl = Field(
        repr=False, description="Where its webhooks are posted to.", json_schema_extra={"shown": "host"}
    )
    proxy: ProxyUrl | None = Field(
        default=None, description="URL of the HTTP proxy that it is reached by. Not set: delivery.proxy."
    )
    ca_file: ExpandedPath | None = Field(
        default=None,
        description="PEM file of authorities that its certificate may be of, beside the usual ones. Not set: "
        "delivery.ca_file.",
    )
    cert_file: ExpandedPath | None = Field(
        default=None, description="PEM file of the certificate that Lastword shows it."
    )
    key_file: ExpandedPath | None = Field(
        default=None, description="PEM file of the key of cert_file. Not set: it is in cert_file."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        _checked(subscription.parse)(self.events, self.source, self.labels)
        if self.head_wait_s is not None and self.order == "none":
            raise ValueError("head_wait_s is set, but nothing is in order; set order to session or endpoint")
        if self.key_file is not None and self.cert_file is None:
            raise ValueError("key_file is set, but cert_file is not; set it, too")
        return self

    @property
    def subscription(self) -> Subscription:
        """The events that it gets without being named."""
        return subscription.parse(self.events, self.source, self.labels)

    @property
    def plain_headers(self) -> dict[str, str]:
        """The headers with their values, which may be secrets."""
        return {name: value.get_secret_value() for name, value in self.headers.items()}


def config_of(definition: Definition) -> dict[str, Any]:
    """What was said of an endpoint, without its headers, as JSON has it. Raises `ConfigurationError`.

    It is stored as it is: a proxy with a password is refused.
    """
    told = definition.model_dump(
        mode="json", include=set(Definition.model_fields) - {"headers", "proxy"}, exclude_unset=True, exclude_none=True
    )
    if definition.proxy is not None:
        told["proxy"] = definition.proxy.get_secret_value()
        if "@" in told["proxy"]:
            raise ConfigurationError(
                "proxy: it names a user or a password, and would be stored as it is; set it in lastword.toml, as "
                "delivery.proxy or for an endpoint that stands there"
            )
    return told


class EndpointSettings(Definition):
    """A receiver of webhooks."""

    secret: WebhookSecret = Field(
        default=None,
        description="Signing secret: whsec_ (v1) or whsk_ (v1a) and base64. Not set: that of [delivery].",
    )
    secret_file: ExpandedPath | None = Field(default=None, description="File that holds secret instead.")
    previous_secrets: tuple[OneSecret, ...] = Field(
        default=(),
        max_length=MAX_KEYS - 1,
        description="Secrets that sign, too, until all receivers know the new one; the newest first. Then remove them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _read_secret(cls, values: object) -> object:
        return filled_from_file(values, "secret")

    @model_validator(mode="after")
    def _old_ones_follow_a_new_one(self) -> Self:
        if self.previous_secrets and self.secret is None:
            raise ValueError("previous_secrets is set, but secret is not; set the new one there")
        return self

    @property
    def own_keys(self) -> tuple[SigningKey, ...]:
        """The keys of its secrets, newest first; none: the common one signs."""
        own = [] if self.secret is None else [self.secret, *self.previous_secrets]
        return tuple(decode_secret("secret", one.get_secret_value()) for one in own)
