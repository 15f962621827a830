"""What can be set about deliveries, and what an endpoint is where its definition is silent.

What belongs here: the defaults, the checks between them and a definition, and a definition as the `Endpoint` that it
stands for. What must not be known here: where definitions are kept, Redis.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeVar

from pydantic import Field, model_validator

from channels.delivery.backoff import GIVE_UP_S, SCHEDULE_S, Backoff
from channels.delivery.lane import DISABLE_AFTER_S, Limits, Rules
from channels.delivery.replay import Bounds
from channels.endpoint_settings import (
    BURST,
    DISABLE,
    LONGEST_ATTEMPT_S,
    RATE,
    TIMEOUT,
    WAITS,
    Definition,
    Payload,
    ProxyUrl,
    Waits,
    WebhookSecret,
)
from channels.endpoints.model import Endpoint, Origin, SigningKey, Tls
from worker.fields import ExpandedPath, Section, amount, filled_from_file

T = TypeVar("T")


class DeliverySettings(Section):
    """How an outcome reaches its receiver, where an endpoint does not say otherwise."""

    secret: WebhookSecret = Field(
        default=None, description="Signing secret of receivers without one. Not set: generated once, in data_dir."
    )
    secret_file: ExpandedPath | None = Field(default=None, description="File that holds secret instead.")
    timeout_s: float = amount(15, 0.1, LONGEST_ATTEMPT_S, "seconds", TIMEOUT)
    retry_waits_s: Waits = Field(default=SCHEDULE_S, description=WAITS, json_schema_extra={"unit": "seconds"})
    give_up_s: float = amount(
        GIVE_UP_S,
        1,
        2592000,
        "seconds",
        "After the first attempt no other begins later than this. What has waited for so long for a receiver that "
        "takes nothing ends, too, attempted or not.",
    )
    concurrency: int = amount(100, 1, 500, "deliveries", "Deliveries that one process attempts at a time.")
    endpoint_concurrency: int = amount(
        10, 1, 500, "deliveries", "Most attempts under way at a time to one endpoint: at most half of concurrency."
    )
    rate_per_s: float | None = amount(None, 0.001, 10000, "deliveries per second", f"{RATE} Not set: no limit.")
    burst: int = amount(1, 1, 10000, "deliveries", BURST)
    payload_cap_bytes: int | None = amount(
        None,
        32 * 1024,
        64 * 1024 * 1024,
        "bytes",
        "Longest body with its text; a longer one has a URL to fetch that from instead. Not set: 262144 with "
        "web.public_url; 16777216 without, since there is no such URL then.",
    )
    payload: Payload = Field(default="full", description="full: the text, too. thin: ids and where to fetch it.")
    proxy: ProxyUrl | None = Field(default=None, description="URL of an HTTP proxy that receivers are reached by.")
    ca_file: ExpandedPath | None = Field(
        default=None, description="PEM file of authorities that receivers' certificates may be of, beside the usual."
    )
    disable_after_s: float = amount(DISABLE_AFTER_S, 1, 31536000, "seconds", DISABLE)
    replay_days: float = amount(14, 0.01, 31, "days", "So far back a bulk replay may reach.")
    replay_most: int = amount(100_000, 1, 10_000_000, "deliveries", "Most deliveries that one bulk replay replays.")

    @model_validator(mode="before")
    @classmethod
    def _read_secret(cls, values: object) -> object:
        return filled_from_file(values, "secret")

    @model_validator(mode="after")
    def _waits_end_in_time(self) -> Self:
        _check_waits(self.retry_waits_s, self.timeout_s, self.give_up_s)
        return self

    @model_validator(mode="after")
    def _one_endpoint_leaves_places(self) -> Self:
        if "endpoint_concurrency" in self.model_fields_set:
            _check_share("endpoint_concurrency", self.endpoint_concurrency, self)
        return self

    @property
    def share(self) -> int:
        """So many of its places a process gives to one endpoint at most: whoever hangs leaves some to others."""
        return max(1, self.concurrency // 2)

    @property
    def replay_bounds(self) -> Bounds:
        """What one bulk replay may be at most."""
        return Bounds(self.replay_days, self.replay_most)

    def rules(self) -> Rules:
        """What the deliveries to a plain URL are held to."""
        limits = Limits(
            concurrency=min(self.endpoint_concurrency, self.share),
            rate_per_s=self.rate_per_s,
            burst=self.burst,
            disable_after_s=self.disable_after_s,
            may_disable=False,
        )
        return Rules(limits, Backoff(self.retry_waits_s, give_up_s=self.give_up_s), self.timeout_s)


def _check_waits(waits: tuple[float, ...], timeout_s: float, give_up_s: float) -> None:
    """A schedule that is cut short would be another one than was asked for."""
    waits_s, attempts_s = Backoff(waits).span_s, len(waits) * timeout_s
    if waits_s + attempts_s > give_up_s:
        raise ValueError(
            f"retry_waits_s: {len(waits)} waits of {sum(waits):g} s in all, each up to a fifth longer ({waits_s:g}), + "
            f"{len(waits)} attempts of {timeout_s:g} s before them = {waits_s + attempts_s:g}, but a delivery is given "
            f"up after delivery.give_up_s ({give_up_s:g}); shorten retry_waits_s or raise delivery.give_up_s"
        )


def _check_share(name: str, concurrency: int, delivery: DeliverySettings) -> None:
    if concurrency > delivery.share:
        raise ValueError(
            f"{name}: {concurrency} is more than half of delivery.concurrency ({delivery.concurrency}), so that "
            f"endpoints that hang would leave others no place; set it to {delivery.share} at most, or "
            f"delivery.concurrency to {2 * concurrency} at least"
        )


def check_definition(definition: Definition, delivery: DeliverySettings) -> None:
    """Raise ValueError when a definition contradicts what stands in [delivery]."""
    waits, timeout_s = definition.retry_waits_s, definition.timeout_s
    _check_waits(_first(waits, delivery.retry_waits_s), _first(timeout_s, delivery.timeout_s), delivery.give_up_s)
    if definition.concurrency is not None:
        _check_share("concurrency", definition.concurrency, delivery)
    if definition.burst is not None and definition.rate_per_s is None and delivery.rate_per_s is None:
        raise ValueError("burst is set, but there is no rate; set rate_per_s, too")


def endpoint_of(  # noqa: PLR0913 - what an endpoint consists of
    name: str,
    definition: Definition,
    delivery: DeliverySettings,
    *,
    origin: Origin,
    keys: tuple[SigningKey, ...],
    headers: Mapping[str, str] | None = None,
    version: int = 0,
) -> Endpoint:
    """The endpoint that a definition stands for. `headers`: instead of those of the definition."""
    shared = delivery.rules()
    limits = Limits(
        concurrency=_first(definition.concurrency, shared.limits.concurrency),
        rate_per_s=_first(definition.rate_per_s, shared.limits.rate_per_s),
        burst=_first(definition.burst, shared.limits.burst),
        disable_after_s=_first(definition.disable_after_s, shared.limits.disable_after_s),
        may_disable=origin != "plain",
    )
    backoff = Backoff(
        _first(definition.retry_waits_s, shared.backoff.schedule_s),
        give_up_s=delivery.give_up_s,
        head_wait_s=definition.head_wait_s,
    )
    proxy = definition.proxy or delivery.proxy
    return Endpoint(
        name=name,
        url=definition.url,
        origin=origin,
        keys=keys,
        subscription=definition.subscription,
        headers=tuple((definition.plain_headers if headers is None else headers).items()),
        timeout_s=_first(definition.timeout_s, delivery.timeout_s),
        backoff=backoff,
        limits=limits,
        order=definition.order,
        full=(definition.payload or delivery.payload) == "full",
        proxy="" if proxy is None else proxy.get_secret_value(),
        tls=Tls(_path(definition.ca_file or delivery.ca_file), _path(definition.cert_file), _path(definition.key_file)),
        version=version,
    )


def _first(own: T | None, shared: T) -> T:
    return shared if own is None else own


def _path(path: Path | None) -> str:
    return "" if path is None else str(path)
