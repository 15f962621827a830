"""What can be set about turns: every field with unit, default, bounds and meaning, and the checks between them.

What belongs here: the worker's settings as frozen values. What must not be known here: where they come from (that is
`worker.sources`), the channels' settings, and who uses them: a setting is passed on as a part, never as the whole.

`WorkerSettings(...)` reads nothing but its arguments; `load_settings()` reads the sources.
"""

import os
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from worker.errors import ConfigurationError
from worker.fields import BaseUrl, ExpandedPath, Headers, Name, Section, ServerUrl, amount, filled_from_file
from worker.sources import load, nearest

DEFAULT_AGENT = "default"
DEFAULT_PROVIDER = "main"

ToolName = Literal["clock"]
"""The built-in tools. A test holds them equal to those of `worker.tools`."""


class ProviderSettings(Section):
    """A server that speaks to a model, and how long it may be silent."""

    wire: Literal["chat"] = Field(default="chat", description="Wire format: chat is OpenAI's Chat Completions.")
    base_url: BaseUrl = Field(description="Address before the wire format's path, usually ending in /v1.")
    api_key: SecretStr | None = Field(default=None, description="Key, sent as a bearer token. Not set: none is sent.")
    api_key_file: ExpandedPath | None = Field(default=None, description="File that holds api_key instead.")
    model: str | None = Field(default=None, min_length=1, description="Model of the agents that name none.")
    headers: Headers = Field(default={}, description="Further request headers.")
    connect_timeout_s: float = amount(10, 0.1, 300, "seconds", "Longest wait for a connection.")
    prefill_timeout_s: float = amount(
        1800, 0.1, 86400, "seconds", "Longest silence before an attempt's first content; keepalives break it."
    )
    first_token_timeout_s: float = amount(
        600, 0.1, 86400, "seconds", "Longest silence once content has come; keepalives break it."
    )
    no_progress_timeout_s: float = amount(
        1200, 0.1, 86400, "seconds", "Longest wait between two pieces of content, whatever keepalives come."
    )
    stall_timeout_s: float = amount(
        45, 0, 86400, "seconds", "Shorter wait between two pieces of content; not on the last attempt. 0: off."
    )
    finish_grace_s: float = amount(5, 0, 60, "seconds", "Longest wait for usage after the finish reason.")
    transport_retries: int = amount(
        3, 0, 20, "retries", "Retries of a request that got no stream: no connection, 408, 429, 5xx. 0: off."
    )
    transport_backoff_s: float = amount(1, 0.01, 60, "seconds", "Wait before the first such retry; it doubles.")
    transport_backoff_max_s: float = amount(30, 0.01, 3600, "seconds", "Longest such wait.")

    @model_validator(mode="before")
    @classmethod
    def _read_key(cls, values: object) -> object:
        return filled_from_file(values, "api_key")

    @model_validator(mode="after")
    def _waits_fit(self) -> Self:
        for shorter, longer, why in (
            ("first_token_timeout_s", "prefill_timeout_s", "a stream that has begun gets no more time than before it"),
            ("first_token_timeout_s", "no_progress_timeout_s", "else it never fires"),
            ("transport_backoff_s", "transport_backoff_max_s", "the first wait is the shortest"),
        ):
            low, high = getattr(self, shorter), getattr(self, longer)
            if low > high:
                raise ValueError(f"{shorter} ({low:g}) must not exceed {longer} ({high:g}): {why}")
        if self.stall_timeout_s >= self.no_progress_timeout_s:
            raise ValueError(
                f"stall_timeout_s ({self.stall_timeout_s:g}) must be below no_progress_timeout_s "
                f"({self.no_progress_timeout_s:g}), else it never fires; 0 turns it off"
            )
        return self

    @property
    def longest_silence_s(self) -> float:
        """How long one attempt may last without a single piece of content."""
        return max(self.prefill_timeout_s, self.no_progress_timeout_s)


class AgentSettings(Section):
    """Who answers: instructions, model and tools."""

    instructions: str | None = Field(default=None, description="What the model is told before every turn.")
    instructions_file: ExpandedPath | None = Field(default=None, description="File that holds instructions instead.")
    provider: Name = Field(DEFAULT_PROVIDER, description="Name of the [providers.NAME] to ask.")
    model: str | None = Field(default=None, min_length=1, description="Model. Not set: the provider's.")
    max_tokens: int | None = amount(
        None, 1, 10_000_000, "tokens", "Longest answer of one call. Not set: the server's own limit."
    )
    temperature: float | None = amount(None, 0, 5, "none", "Sampling temperature. Not set: the server's own.")
    extra_body: dict[str, object] = Field(default={}, description="Merged over the request's JSON body, key by key.")
    headers: Headers = Field(default={}, description="Further request headers, over those of the provider.")
    tools: tuple[ToolName, ...] = Field(default=(), description="Names of the tools that the model is offered.")

    @model_validator(mode="before")
    @classmethod
    def _read_instructions(cls, values: object) -> object:
        return filled_from_file(values, "instructions")


class TurnSettings(Section):
    """How long a turn may last and what it may spend."""

    timeout_resume_retry_budget: int = amount(
        2, 0, 10, "resumes", "How often a call whose stream died is asked again. 2: at most 3 attempts. 0: off."
    )
    resume_backoff_s: float = amount(0.5, 0, 60, "seconds", "Wait before a resume, varied by a quarter either way.")
    turn_deadline_s: float = amount(
        7200, 0.5, 604800, "seconds", "Longest life of a turn, once a process has taken it up."
    )
    max_calls: int = amount(100, 1, 10000, "calls", "Calls that a turn may make; resumes do not count.")
    crash_cap: int = amount(3, 1, 20, "crashes", "Processes that a turn may take down before it is given up as dead.")
    on_drain: Literal["handoff", "fail"] = Field(
        default="handoff",
        description="A turn in a process that shuts down: handoff gives it to another process, fail ends it at once.",
    )
    tool_timeout_s: float = amount(90, 0.1, 86400, "seconds", "Longest run of a tool.")
    history_turns: int = amount(20, 0, 1000, "turns", "Earlier turns of the session that the model is shown.")
    keep_s: float = amount(604800, 60, 31536000, "seconds", "How long a sealed turn can be read.")


class LeaseSettings(Section):
    """Who drives a turn, and when another process takes over."""

    ttl_s: float = amount(8, 0.4, 300, "seconds", "A turn whose process has been silent this long is taken over.")
    renew_s: float = amount(2, 0.1, 75, "seconds", "Time between two signs of life of a process.")
    sweep_s: float = amount(1, 0.1, 60, "seconds", "Time between two searches for turns that nobody drives.")

    @model_validator(mode="after")
    def _renewals_fit(self) -> Self:
        if self.renew_s * 4 > self.ttl_s:
            raise ValueError(
                f"ttl_s ({self.ttl_s:g}) must be at least 4 x renew_s (4 x {self.renew_s:g} = {4 * self.renew_s:g}), "
                "so that one lost sign of life takes no turn away; raise ttl_s or lower renew_s"
            )
        return self


class StagingSettings(Section):
    """How streaming text reaches live readers."""

    tick_s: float = amount(0.05, 0.005, 5, "seconds", "Time between two flushes of streaming text to its readers.")


class ProcessSettings(Section):
    """How much one process does."""

    turns_concurrency: int = amount(250, 1, 2000, "turns", "Turns that one process runs at a time.")


class WorkerSettings(BaseSettings):
    """All that the worker can be told. It has never heard of the channels' sections and passes over them."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore")

    redis_url: ServerUrl | None = Field(
        default=None,
        repr=False,
        description="Redis or Valkey that holds all state. Not set: an embedded Valkey in data_dir.",
        json_schema_extra={"shown": "host"},
    )
    broker_url: ServerUrl | None = Field(
        default=None,
        repr=False,
        description="Where Celery passes its wake-ups. Not set: redis_url.",
        json_schema_extra={"shown": "host"},
    )
    data_dir: ExpandedPath = Field(
        default_factory=lambda: Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "lastword",
        description="Folder of the embedded server and of generated secrets. Not set: that of the user's data.",
    )
    partitions: int = amount(1, 1, 256, "partitions", "Parts of the state. Fixed by the first start on a Redis.")
    sentry_dsn: SecretStr | None = Field(
        default=None, description="Where reports of our own faults go. Not set: nowhere."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least level that is logged."
    )
    providers: dict[Name, ProviderSettings] = Field(default={}, description="The model servers, by name.")
    agents: dict[Name, AgentSettings] = Field(
        default={},
        description="The agents, by name. None set: `default`, which asks the provider `main` or the only one.",
    )
    turns: TurnSettings = Field(default=TurnSettings(), description="Limits of a turn.")
    lease: LeaseSettings = Field(default=LeaseSettings(), description="Driving and taking over.")
    staging: StagingSettings = Field(default=StagingSettings(), description="Live readers.")
    processes: ProcessSettings = Field(default=ProcessSettings(), description="Size of a process.")

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: Any, init_settings: Any, *_: Any, **__: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments alone: what is read, and from where, is the business of `worker.sources`."""
        del settings_cls
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _give_default_agent(cls, values: dict[str, Any]) -> dict[str, Any]:
        providers = list(values.get("providers") or ())
        if values.get("agents") or not providers:
            return values
        provider = providers[0] if len(providers) == 1 else DEFAULT_PROVIDER
        return {**values, "agents": {DEFAULT_AGENT: {"provider": provider}}}

    @model_validator(mode="after")
    def _agents_can_ask(self) -> Self:
        for name, agent in self.agents.items():
            provider = self.providers.get(agent.provider)
            if provider is None:
                hint = nearest(agent.provider, list(self.providers))
                raise ValueError(f"agents.{name}.provider: there is no [providers.{agent.provider}]: add it; {hint}")
            if agent.model is None and provider.model is None:
                raise ValueError(
                    f"agents.{name} has no model: set agents.{name}.model or providers.{agent.provider}.model"
                )
        return self

    @model_validator(mode="after")
    def _deadline_holds_the_worst_call(self) -> Self:
        budget, wait = self.turns.timeout_resume_retry_budget, self.turns.resume_backoff_s * 1.25
        for name, provider in self.providers.items():
            worst = (1 + budget) * provider.longest_silence_s + budget * wait
            if self.turns.turn_deadline_s < worst:
                raise ValueError(
                    f"turns.turn_deadline_s ({self.turns.turn_deadline_s:g}) is shorter than the worst call of "
                    f"providers.{name}: (1 + timeout_resume_retry_budget {budget}) x {provider.longest_silence_s:g} "
                    f"(larger of prefill_timeout_s, no_progress_timeout_s) + {budget} waits of {wait:g} = {worst:g}; "
                    "raise turn_deadline_s or lower the others"
                )
        return self

    def agent(self, name: str) -> AgentSettings:
        """The agent of that name. Raises ConfigurationError."""
        if name in self.agents:
            return self.agents[name]
        if not self.providers:
            raise ConfigurationError(
                "no provider is set: set LASTWORD_PROVIDERS__MAIN__BASE_URL and LASTWORD_PROVIDERS__MAIN__MODEL, or "
                "base_url and model of [providers.main] in lastword.toml"
            )
        raise ConfigurationError(f"agents.{name} is not set: add [agents.{name}]; {nearest(name, list(self.agents))}")

    def redis(self) -> str:
        """The URL of the Redis that holds all state. Raises ConfigurationError when it is not set."""
        if self.redis_url is None:
            raise ConfigurationError(
                "redis_url is not set: set LASTWORD_REDIS_URL, or start everything with `lastword up`"
            )
        return self.redis_url

    def broker(self) -> str:
        """The URL of Celery's broker: `broker_url`, else that of the Redis."""
        return self.broker_url or self.redis()

    def sentry(self) -> str | None:
        """Sentry's DSN, or None."""
        return None if self.sentry_dsn is None else self.sentry_dsn.get_secret_value()


def load_settings() -> WorkerSettings:
    """The worker's settings from all sources. Raises ConfigurationError."""
    return load(WorkerSettings).settings
