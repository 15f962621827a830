"""What can be set about channels: where outcomes go, and how long their delivery is tried.

What belongs here: the channels' settings as frozen values, the checks between them, and the generated signing secret.
What must not be known here: where settings come from, and who uses them.
"""

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import SettingsConfigDict

from channels.delivery.lane import Rules
from channels.delivery_settings import DeliverySettings, check_definition, endpoint_of
from channels.endpoint_settings import Definition, EndpointSettings
from channels.endpoints.model import Endpoint, SigningKey
from channels.endpoints.record import check_name
from channels.endpoints.signing_keys import decode_secret, encode_secret, fresh_key
from channels.hooks.settings import HookSettings
from channels.kept_secrets import kept_secret
from channels.vault_section import VaultSettings
from channels.webhook.address import check_url
from channels.webhook.payload import Form, form_of
from worker.errors import ConfigurationError
from worker.fields import BaseUrl, Name, Section, amount
from worker.settings import WorkerSettings
from worker.sources import Loaded, load

SECRET_FILE = "webhook-secret"  # noqa: S105 - the name of a file

_FIRST_ATTEMPT_S = 60.0
"""From the end of a turn to the first attempt, where nothing is amiss; what waits longer may come too late."""


class WebSettings(Section):
    """The web process: submitting, asking, deciding and reading along over HTTP."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=255,
        description="Address that it listens on. It speaks plain HTTP: put what ends TLS in front of it.",
    )
    public_url: BaseUrl | None = Field(
        default=None,
        description="Where receivers of webhooks reach it, as in https://lastword.example.com. Not set: nowhere.",
    )
    port: int = amount(8420, 0, 65535, "port", "Port that it listens on. 0: any free one; the log says which.")
    body_bytes: int = amount(4 * 1024 * 1024, 1024, 64 * 1024 * 1024, "bytes", "Longest body of a request.")
    requests_per_minute: int = amount(600, 1, 1_000_000, "requests", "Most requests of one token within a minute.")
    failures_per_minute: int = amount(
        30, 1, 1_000_000, "requests", "Most requests without a valid token from one address within a minute."
    )
    readers: int = amount(1000, 1, 100_000, "readers", "Most live readers of one process.")
    readers_per_token: int = amount(100, 1, 100_000, "readers", "Most live readers of one token in one process.")
    held_bytes: int = amount(
        256 * 1024 * 1024,
        1024,
        64 * 1024 * 1024 * 1024,
        "bytes",
        "Most bytes that one process holds for live readers who have not taken them; who would hold more comes later.",
    )
    keepalive_s: float = amount(15, 0.1, 300, "seconds", "Longest silence towards a live reader; a comment breaks it.")
    write_timeout_s: float = amount(
        60, 0.1, 3600, "seconds", "Longest time in which somebody takes nothing of an answer; then he is cut off."
    )
    drain_s: float = amount(
        1, 0, 300, "seconds", "After SIGTERM it goes on answering so long, not ready, before it stops listening."
    )
    stop_s: float = amount(10, 0.1, 300, "seconds", "Longest time in which requests under way may end after that.")
    trusted_proxies: tuple[str, ...] = Field(
        default=(),
        description="Addresses or networks of proxies whose X-Forwarded-For names the client. None: it is not read.",
    )


class Settings(WorkerSettings):
    """All that Lastword can be told."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid")

    endpoints: dict[Name, EndpointSettings] = Field(default={}, description="Receivers of webhooks, by name.")
    delivery: DeliverySettings = Field(default=DeliverySettings(), description="Attempts and signatures.")
    web: WebSettings = Field(default=WebSettings(), description="The HTTP API.")
    hooks: dict[Name, HookSettings] = Field(default={}, description="Inbound routes, by name.")
    vault: VaultSettings = Field(default=VaultSettings(), description="Encryption of stored secrets.")

    renamed: ClassVar[Mapping[str, str]] = {"subscribers": "endpoints"}
    """What sections were called before, for who still writes it so."""

    @model_validator(mode="after")
    def _text_outlives_its_delivery(self) -> Self:
        give_up_s, keep_s = self.delivery.give_up_s, self.turns.keep_s
        timeout_s = self.longest_timeout_s
        longest = _FIRST_ATTEMPT_S + give_up_s + timeout_s
        if longest > keep_s:
            raise ValueError(
                f"turns.keep_s ({keep_s:g}) is shorter than the longest delivery: {_FIRST_ATTEMPT_S:g} until its first "
                f"attempt + delivery.give_up_s {give_up_s:g} + an attempt of {timeout_s:g} = {longest:g}; "
                "raise turns.keep_s or lower delivery.give_up_s"
            )
        return self

    @model_validator(mode="after")
    def _endpoints_fit(self) -> Self:
        for name, definition in self.endpoints.items():
            try:
                check_name(name)
                check_definition(definition, self.delivery)
                check_url("url", definition.url, self.egress.for_outsiders)
            except (ConfigurationError, ValueError) as error:
                raise ValueError(f"endpoints.{name}: {error}") from None
        return self

    @model_validator(mode="after")
    def _hooks_lead_somewhere(self) -> Self:
        for name, hook in self.hooks.items():
            try:
                if self.providers:
                    self.agent(hook.agent)
                for destination in hook.to:
                    if "://" in destination:
                        check_url("to", destination, self.egress.for_outsiders)
                    else:  # of the settings or of the store; `doctor` looks whether there is such an endpoint
                        check_name(destination)
            except ConfigurationError as error:
                raise ValueError(f"hooks.{name}: {error}") from None
        return self

    def endpoint(self, name: str) -> Endpoint | None:
        """The endpoint of that name, or None: it is not in the settings. Raises as `common_secret`."""
        definition = self.endpoints.get(name)
        if definition is None:
            return None
        keys = definition.own_keys or (decode_secret("secret", self.common_secret()),)
        return endpoint_of(name, definition, self.delivery, origin="file", keys=keys)

    def unsigned_endpoint(self, name: str) -> Endpoint:
        """The endpoint of that name, which is in the settings, without its keys."""
        return endpoint_of(name, self.endpoints[name], self.delivery, origin="file", keys=())

    def plain_endpoint(self, url: str) -> Endpoint:
        """What a URL that a turn names stands for. Raises as `check_url` and `common_secret`."""
        definition = Definition(url=check_url("destination", url, self.egress.for_outsiders))
        keys = (decode_secret("secret", self.common_secret()),)
        return endpoint_of(url, definition, self.delivery, origin="plain", keys=keys)

    def stored_endpoint(
        self,
        name: str,
        config: Mapping[str, Any],
        keys: tuple[SigningKey, ...],
        headers: Mapping[str, str],
        version: int,
    ) -> Endpoint:
        """An endpoint that was made by command or HTTP API. Raises `ConfigurationError` when it cannot be one here."""
        definition = self.stored_definition(name, config)
        return endpoint_of(name, definition, self.delivery, origin="store", keys=keys, headers=headers, version=version)

    def stored_definition(self, name: str, config: Mapping[str, Any]) -> Definition:
        """The definition of such an endpoint, without its headers. Raises `ConfigurationError` as that."""
        try:
            definition = Definition.model_validate(config)
            check_definition(definition, self.delivery)
        except ValidationError as error:
            faults = [".".join(map(str, one["loc"])) for one in error.errors(include_url=False, include_input=False)]
            why = ", ".join(filter(None, faults)) or "its fields contradict each other"
            fix = (
                "a newer version of Lastword made it, or it was damaged: set it again with `lastword endpoints update`"
            )
            raise ConfigurationError(f"endpoint {name} cannot be read here ({why}); {fix}") from None
        except ValueError as error:
            raise ConfigurationError(f"endpoint {name}: {error}") from None
        return definition

    @property
    def longest_timeout_s(self) -> float:
        """The longest that an attempt to what stands in the settings may last."""
        return max([self.delivery.timeout_s, *(one.timeout_s or 0 for one in self.endpoints.values())])

    def plain_rules(self) -> Rules:
        """What the deliveries to URLs that turns name are held to."""
        return self.delivery.rules()

    def payload_form(self) -> Form:
        """How bodies are made."""
        return form_of(self.web.public_url or "", self.delivery.payload_cap_bytes)

    def common_secret(self) -> str:
        """The secret of receivers without one, plain URLs among them: that of [delivery], else the generated one.

        Raises OSError with path and fix when it can be neither read nor made; ConfigurationError when it was damaged.
        """
        given = self.delivery.secret
        return _generated_secret(self.data_dir) if given is None else given.get_secret_value()


def load_settings() -> Settings:
    """Settings from all sources. Raises ConfigurationError."""
    return load(Settings).settings


def load_explained() -> Loaded[Settings]:
    """Settings and the place that each value came from. Raises ConfigurationError."""
    return load(Settings)


def schema() -> dict[str, Any]:
    """The JSON Schema of `lastword.toml`."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Settings.model_json_schema()}


def _generated_secret(folder: Path) -> str:
    """The secret in `folder`, made at the first call. Only its owner can read it."""
    path = folder / SECRET_FILE
    fix = "set delivery.secret, or correct data_dir or its rights"
    secret = kept_secret(path, lambda: encode_secret(fresh_key("v1", secrets.token_bytes)), "the signing secret", fix)
    decode_secret(str(path), secret)
    return secret
