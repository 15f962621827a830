"""What an endpoint is: where webhooks are posted to, which events it gets, and how.

What belongs here: the values. What must not be known here: where they come from, Redis, HTTP, the clock.
"""

from dataclasses import dataclass, field
from typing import Literal

from channels.delivery.backoff import Backoff
from channels.delivery.lane import Limits
from worker.errors import ConfigurationError

Origin = Literal["file", "store", "plain"]
"""file: of the settings. store: made by command or HTTP API, kept in Redis. plain: a URL that a turn named."""

Order = Literal["none", "session", "endpoint"]
"""What deliveries of an endpoint are in order with: nothing; those of the same session; all of them."""


class UnfitUrl(ConfigurationError):
    """Nothing may be posted to a URL. `code`: that of what is for it, as an attempt would have it."""

    def __init__(self, message: str, code: Literal["invalid_url", "blocked"]) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key that signs. `scheme` v1: HMAC-SHA256, `key` is the secret; v1a: ed25519, `key` is the 32-byte seed.

    `until_ms`: UTC milliseconds from which on it signs nothing more; None: until it is removed.
    """

    scheme: Literal["v1", "v1a"]
    key: bytes = field(repr=False)
    until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Match:
    """A text to be met exactly, or with `prefix` a beginning of it."""

    text: str
    prefix: bool = False

    def admits(self, value: str) -> bool:
        """Whether the value is met."""
        return value.startswith(self.text) if self.prefix else value == self.text


@dataclass(frozen=True, slots=True)
class Subscription:
    """The events that an endpoint gets without being named by a turn.

    `events`: types, or the beginning of some followed by `*` (`turn.*`, `*`); none: only what names it. `sources`: one
    of them must be met; empty: any source. `labels`: each must be there and met.
    """

    events: tuple[str, ...] = ()
    sources: tuple[Match, ...] = ()
    labels: tuple[tuple[str, Match], ...] = ()


@dataclass(frozen=True, slots=True)
class Tls:
    """What a connection to an endpoint needs beside the usual. Paths of PEM files; empty: none."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An endpoint. `name`: also the destination that a turn names; of a plain URL the URL itself.

    `keys`: newest first; each that still counts signs. `headers`: sent with each attempt. `timeout_s`: the hard total
    deadline of an attempt. `proxy`: URL of an HTTP proxy, or empty. `full`: the body holds the text; else only ids and
    the URL to fetch it from. `version`: grows with each change of a stored one.
    """

    name: str
    url: str = field(repr=False)
    origin: Origin
    keys: tuple[SigningKey, ...] = field(repr=False)
    subscription: Subscription = Subscription()
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout_s: float = 15.0
    backoff: Backoff = field(default_factory=Backoff)
    limits: Limits = field(default_factory=Limits)
    order: Order = "none"
    full: bool = True
    proxy: str = field(default="", repr=False)
    tls: Tls = Tls()
    version: int = 0
