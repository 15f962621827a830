"""What can be set about channels: where outcomes go, and how long their delivery is tried.

What belongs here: the channels' settings as frozen values, the checks between them, and the generated signing secret.
What must not be known here: where settings come from, and who uses them.
"""

import base64
import contextlib
import os
import secrets
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from channels.delivery.backoff import JITTER, RETRY_AFTER_CAP_S, SCHEDULE_S
from channels.webhook.address import check_url, shown
from channels.webhook.signature import MIN_BYTES, PREFIX, decode_secret
from worker.errors import ConfigurationError
from worker.fields import ExpandedPath, Headers, Name, Section, amount, filled_from_file
from worker.settings import WorkerSettings
from worker.sources import Loaded, load, nearest

_SECRET_FILE = "webhook-secret"  # noqa: S105 - the name of a file


def _checked_url(url: str) -> str:
    try:
        return check_url("url", url)
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def _checked_secret(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None:
        try:
            decode_secret("secret", secret.get_secret_value())
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
    return secret


WebhookUrl = Annotated[str, AfterValidator(_checked_url)]
WebhookSecret = Annotated[SecretStr | None, AfterValidator(_checked_secret)]
Seconds = Annotated[float, Field(ge=0.05, le=604800)]


class SubscriberSettings(Section):
    """A receiver of outcomes."""

    url: WebhookUrl = Field(
        repr=False, description="Where its webhooks are posted to.", json_schema_extra={"shown": "host"}
    )
    secret: WebhookSecret = Field(
        default=None, description="Signing secret: whsec_ and base64 of 24 to 64 bytes. Not set: that of [delivery]."
    )
    secret_file: ExpandedPath | None = Field(default=None, description="File that holds secret instead.")
    headers: Headers = Field(default={}, description="Further request headers.")

    @model_validator(mode="before")
    @classmethod
    def _read_secret(cls, values: object) -> object:
        return filled_from_file(values, "secret")

    @field_validator("headers")
    @classmethod
    def _leave_the_signature(cls, headers: dict[str, SecretStr]) -> dict[str, SecretStr]:
        for name in headers:
            if name.lower().startswith("webhook-"):
                raise ValueError(f"{name} is set by the signature; remove it")
        return headers


class DeliverySettings(Section):
    """How an outcome reaches its receiver."""

    secret: WebhookSecret = Field(
        default=None, description="Signing secret of receivers without one. Not set: generated once, in data_dir."
    )
    secret_file: ExpandedPath | None = Field(default=None, description="File that holds secret instead.")
    timeout_s: float = amount(15, 0.1, 300, "seconds", "Longest duration of one attempt, from name to answer.")
    retry_waits_s: tuple[Seconds, ...] = Field(
        default=SCHEDULE_S,
        max_length=50,
        description="Wait after each failed attempt, varied by a fifth. There is one attempt more than waits.",
        json_schema_extra={"unit": "seconds"},
    )
    concurrency: int = amount(20, 1, 500, "deliveries", "Deliveries that one process attempts at a time.")

    @model_validator(mode="before")
    @classmethod
    def _read_secret(cls, values: object) -> object:
        return filled_from_file(values, "secret")

    @property
    def longest_s(self) -> float:
        """The latest end of the last attempt, in seconds after the first began."""
        waits = sum(max(wait * (1 + JITTER), RETRY_AFTER_CAP_S) for wait in self.retry_waits_s)
        return waits + (len(self.retry_waits_s) + 1) * self.timeout_s


class WebSettings(Section):
    """The web process: submitting, asking, deciding and reading along over HTTP."""

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        max_length=255,
        description="Address that it listens on. It speaks plain HTTP: put what ends TLS in front of it.",
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

    subscribers: dict[Name, SubscriberSettings] = Field(default={}, description="The receivers, by name.")
    delivery: DeliverySettings = Field(default=DeliverySettings(), description="Attempts and signatures.")
    web: WebSettings = Field(default=WebSettings(), description="The HTTP API.")

    @model_validator(mode="after")
    def _text_outlives_its_delivery(self) -> Self:
        longest, waits = self.delivery.longest_s, len(self.delivery.retry_waits_s)
        if longest > self.turns.keep_s:
            raise ValueError(
                f"turns.keep_s ({self.turns.keep_s:g}) is shorter than the longest delivery: {waits} retry_waits_s, "
                f"each with a fifth more or the {RETRY_AFTER_CAP_S:g} that a receiver may ask for, + {waits + 1} "
                f"attempts of {self.delivery.timeout_s:g} = {longest:g}; "
                "raise turns.keep_s or shorten delivery.retry_waits_s"
            )
        return self

    def subscriber(self, destination: str) -> SubscriberSettings:
        """The receiver of that name, or the one at that URL. Raises ConfigurationError with the fix."""
        if "://" in destination:
            return SubscriberSettings(url=check_url("destination", destination))
        if destination not in self.subscribers:
            hint = nearest(destination, list(self.subscribers))
            raise ConfigurationError(
                f"destination {shown(destination)!r} is neither a URL nor a subscriber; add [subscribers.NAME] for it; "
                f"{hint}"
            )
        return self.subscribers[destination]

    def signing_secret(self, subscriber: SubscriberSettings) -> str:
        """The secret that signs what goes to `subscriber`: its own, else the common one. Raises as `common_secret`."""
        return self.common_secret() if subscriber.secret is None else subscriber.secret.get_secret_value()

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
    path = folder / _SECRET_FILE
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _make_secret(path)
        secret = path.read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise OSError(
            f"the signing secret {path} can be neither read nor made ({error.strerror}); set delivery.secret, or "
            "correct data_dir or its rights"
        ) from error
    decode_secret(str(path), secret)
    return secret


def _make_secret(path: Path) -> None:
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(PREFIX + base64.b64encode(secrets.token_bytes(MIN_BYTES)).decode() + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)  # the first of several processes wins, and no reader sees half a secret
    finally:
        fresh.unlink()
