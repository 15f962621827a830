"""What can be set about inbound routes.

What belongs here: the settings of a route as frozen values, their checks, and the route that they make. What must not
be known here: where settings come from, other sections.
"""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, SecretStr, StringConstraints, model_validator

from channels.hooks.payload import parse_pointer
from channels.hooks.route import OnBusy, Place, Route
from channels.hooks.template import LONGEST_NAME, MAX_TEMPLATE, Template, longest_session, parse_session, parse_template
from channels.hooks.verification import Encoding, Kind, Verification, key_of
from worker import ids
from worker.api import MAX_LABEL_CHARACTERS, MAX_LABELS, MAX_PROMPT_BYTES
from worker.errors import ConfigurationError
from worker.fields import ExpandedPath, Name, Section, amount, filled_from_file

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]
LabelName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.:/-]{1,64}$")]
LabelValue = Annotated[str, StringConstraints(max_length=MAX_LABEL_CHARACTERS)]
Short = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Where = Annotated[str, StringConstraints(min_length=1, max_length=2048)]

_PREFIX = re.compile(r"[\x21-\x7e]{0,100}")
_HEADERS: dict[Kind, str] = {
    "hmac": "X-Webhook-Signature",
    "hmac_timestamped": "X-Webhook-Signature",
    "secret": "X-Webhook-Secret",
    "standard": "webhook",
}
_TIMED: tuple[Kind, ...] = ("hmac_timestamped", "standard")
_ONLY: dict[str, tuple[Kind, ...]] = {
    "signature_prefix": ("hmac",),
    "encoding": ("hmac", "hmac_timestamped"),
    "tolerance_s": _TIMED,
}
"""Settings that mean something to these kinds alone."""


class HookSecret(Section):
    """One secret of a route."""

    value: SecretStr | None = Field(
        default=None,
        description="The secret as the sender has it: 16 bytes or more; of standard, whsec_ and base64 of 24 to 64.",
    )
    value_file: ExpandedPath | None = Field(default=None, description="File that holds value instead.")

    @model_validator(mode="before")
    @classmethod
    def _read_value(cls, values: object) -> object:
        return filled_from_file(values, "value")

    @model_validator(mode="after")
    def _is_set(self) -> Self:
        if self.value is None:
            raise ValueError("it holds nothing: set value or value_file")
        return self


class HookSettings(Section):
    """A route for events of one sender: POST /hooks/NAME."""

    enabled: bool = Field(default=True, description="False: it is answered as if it were not there.")
    agent: Name = Field(default="default", description="Who answers.")
    verification: Kind = Field(
        description="How the sender proves himself: hmac (of the body), hmac_timestamped (t=,v1=), secret (in a "
        "header), standard (Standard Webhooks v1).",
    )
    secrets: dict[Name, HookSecret] = Field(
        min_length=1, max_length=10, description="The secrets, by name; each of them counts, so that one can follow."
    )
    header: HeaderName | None = Field(
        default=None,
        description="Header of signature or secret. Not set: X-Webhook-Signature, X-Webhook-Secret; of standard it is "
        "what the names of the three headers begin with: webhook.",
    )
    signature_prefix: str = Field(default="", description="Text before the signature of hmac, such as sha256=.")
    encoding: Encoding = Field(default="hex", description="Of the signature: hex (lower case) or base64.")
    tolerance_s: int = amount(300, 1, 3600, "seconds", "How old a signature may be, and how far ahead.")
    events: tuple[Short, ...] = Field(
        default=(), max_length=200, description="Types of events that are taken; none: all."
    )
    event_header: HeaderName = Field(default="X-Webhook-Event", description="Header that holds the type of the event.")
    event_pointer: str | None = Field(default=None, description="JSON pointer to the type in the payload instead.")
    delivery_header: HeaderName | None = Field(
        default=None,
        description="Header that holds the id of the delivery. Not set: X-Webhook-Delivery, of standard the signed id.",
    )
    delivery_pointer: str | None = Field(default=None, description="JSON pointer to the id in the payload instead.")
    prompt: str = Field(
        min_length=1,
        max_length=MAX_TEMPLATE,
        description="Template of the message: {/a/json/pointer}, {body}, {event}; {{ and }} are braces.",
    )
    prompt_bytes: int = amount(MAX_PROMPT_BYTES, 1, MAX_PROMPT_BYTES, "bytes", "Longest message; above, it is refused.")
    on_missing: Literal["word", "refuse"] = Field(
        default="word", description="A value that the event lacks: a word stands for it, or the event is refused."
    )
    missing_word: str = Field(default="(not given)", max_length=200, description="The word that stands for it.")
    session: str | None = Field(
        default=None,
        description="Template of the session, such as crm/{/customer/id}, with a / or : between two placeholders. Log "
        "lines name sessions, and so these values. Not set: a fresh one for each event.",
    )
    to: tuple[Where, ...] = Field(
        default=(), max_length=32, repr=False, description="Who gets the outcomes.", json_schema_extra={"shown": "host"}
    )
    labels: dict[LabelName, LabelValue] = Field(
        default={}, max_length=MAX_LABELS, description="Come back with the outcome."
    )
    labels_from: dict[LabelName, str] = Field(
        default={}, max_length=MAX_LABELS, description="Further ones: JSON pointers to their values in the payload."
    )
    label_characters: int = amount(
        MAX_LABEL_CHARACTERS, 1, MAX_LABEL_CHARACTERS, "characters", "What is kept of the value of such a label."
    )
    on_busy: OnBusy | None = Field(
        default=None, description="Where a turn of the session goes on. Not set: turns.on_busy."
    )
    body_bytes: int = amount(1_048_576, 1, 16_777_216, "bytes", "Longest body.")
    rate_per_minute: int = amount(30, 1, 100_000, "events", "Most events that are taken within any minute.")
    dedupe_s: int = amount(86400, 60, 2_592_000, "seconds", "How long a delivery id stands for one turn.")
    dedupe_body_s: int = amount(
        0, 0, 86400, "seconds", "How long a body stands for one turn, of deliveries without an id. 0: never."
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        for name, kinds in _ONLY.items():
            if name in self.model_fields_set and self.verification not in kinds:
                raise ValueError(
                    f"{name} means nothing where verification is {self.verification}: remove it, or set verification "
                    f"to {' or '.join(kinds)}"
                )
        if not _PREFIX.fullmatch(self.signature_prefix):
            raise ValueError("signature_prefix holds what no header keeps: use up to 100 printable ASCII characters")
        if both := sorted(self.labels.keys() & self.labels_from.keys()):
            raise ValueError(f"{both[0]} is in labels and in labels_from: remove one of them")
        if len(self.labels) + len(self.labels_from) > MAX_LABELS:
            raise ValueError(f"labels and labels_from are more than {MAX_LABELS}: remove some")
        try:
            self.route("NAME")
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        return self

    def route(self, name: str) -> Route:
        """The route of that name. Raises `ConfigurationError` with field and fix."""
        standard = self.verification == "standard"
        header = self.header or _HEADERS[self.verification]
        signed_id = f"{header}-id" if standard else "X-Webhook-Delivery"
        return Route(
            name=name,
            agent=self.agent,
            verification=self._verification(header),
            events=frozenset(self.events),
            event=_place("event_pointer", self.event_header, self.event_pointer),
            delivery=_place("delivery_pointer", self.delivery_header or signed_id, self.delivery_pointer),
            prompt=parse_template("prompt", self.prompt),
            missing=None if self.on_missing == "refuse" else self.missing_word,
            prompt_bytes=self.prompt_bytes,
            session=self._session(),
            destinations=self.to,
            labels=self.labels,
            labels_from={each: parse_pointer(f"labels_from.{each}", at) for each, at in self.labels_from.items()},
            label_characters=self.label_characters,
            on_busy=self.on_busy,
            body_bytes=self.body_bytes,
            rate_per_minute=self.rate_per_minute,
            dedupe_s=self.dedupe_s,
            dedupe_body_s=self.dedupe_body_s,
        )

    def _verification(self, header: str) -> Verification:
        keys = tuple(
            key_of(f"secrets.{name}", self.verification, secret.value.get_secret_value())
            for name, secret in self.secrets.items()
            if secret.value is not None
        )
        kind, tolerance_s = self.verification, self.tolerance_s
        return Verification(kind, keys, header, self.signature_prefix, self.encoding, tolerance_s)

    def _session(self) -> Template | None:
        if self.session is None:
            return None
        template = parse_session("session", self.session)
        longest = longest_session(template)
        if not ids.is_session(longest) or longest.startswith(ids.SOLO):
            raise ConfigurationError(
                f"session {self.session[:80]!r} makes no session id: use 1 to 200 printable characters without spaces "
                f"or any of *?[]\\ (each placeholder counts {LONGEST_NAME}), not beginning with {ids.SOLO}"
            )
        return template


def _place(field: str, header: str, pointer: str | None) -> Place:
    return Place(header, None if pointer is None else parse_pointer(field, pointer))


def routes_of(hooks: dict[Any, HookSettings]) -> dict[str, Route]:
    """The routes that are enabled, by name."""
    return {name: hook.route(name) for name, hook in hooks.items() if hook.enabled}
