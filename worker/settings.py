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
from worker.fields import ExpandedPath, Name, Section, ServerUrl, amount
from worker.network_section import EgressSettings
from worker.process_sections import LeaseSettings, ProcessSettings, StagingSettings
from worker.sections import (
    DEFAULT_PROVIDER,
    AgentSettings,
    ApprovalSettings,
    CompactionSettings,
    McpSettings,
    MetricsSettings,
    OfferedName,
    ProviderHealthSettings,
    ProviderSettings,
    ToolSettings,
    ring_of,
)
from worker.sources import load, nearest

DEFAULT_AGENT = "default"


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
    suspect_after: int = amount(
        2,
        1,
        20,
        "crashes",
        "Processes that vanished while they ran a turn, among others, before it must run in a process of its own. One "
        "kill of a full process costs nothing at 2, while at 1 each of its turns waits for such a process.",
    )
    crash_cap: int = amount(
        3, 1, 20, "crashes", "Processes of its own that a turn may take down before it is given up as dead."
    )
    on_drain: Literal["handoff", "fail"] = Field(
        default="handoff",
        description="A turn in a process that shuts down: handoff gives it to another process, fail ends it at once.",
    )
    on_busy: Literal["queue", "reject", "interrupt"] = Field(
        default="queue",
        description="A message for a session with a turn: queue waits behind it, reject is refused, interrupt ends it.",
    )
    tool_timeout_s: float = amount(
        90, 0.1, 86400, "seconds", "Longest silence of a tool that runs, and of an MCP server before."
    )
    tool_result_chars: int = amount(
        32_000, 200, 10_000_000, "characters", "Longest tool result; of a longer one the model is shown both ends."
    )
    empty_answer_nudges: int = amount(
        5, 0, 100, "nudges", "How often in a row an answer without text is asked for again, before any tool ran."
    )
    empty_answer_nudges_after_tools: int = amount(8, 0, 100, "nudges", "The same, once the turn has run a tool.")
    history_turns: int = amount(20, 0, 1000, "turns", "Earlier turns of the session that the model is shown.")
    keep_s: float = amount(604800, 60, 31536000, "seconds", "How long a sealed turn can be read.")


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
    tools: dict[OfferedName, ToolSettings] = Field(
        default={}, description="What is decided about single tools, by name."
    )
    mcp: dict[Name, McpSettings] = Field(default={}, description="MCP servers, by name.")
    provider_health: ProviderHealthSettings = Field(
        default=ProviderHealthSettings(), description="Leaving a provider alone that keeps dying."
    )
    approvals: ApprovalSettings = Field(default=ApprovalSettings(), description="Approvals of tool calls.")
    compaction: CompactionSettings = Field(default=CompactionSettings(), description="Making conversations shorter.")
    turns: TurnSettings = Field(default=TurnSettings(), description="Limits of a turn.")
    lease: LeaseSettings = Field(default=LeaseSettings(), description="Driving and taking over.")
    staging: StagingSettings = Field(default=StagingSettings(), description="Live readers.")
    egress: EgressSettings = Field(default=EgressSettings(), description="What may be dialled.")
    metrics: MetricsSettings = Field(default=MetricsSettings(), description="Seeing the processes.")
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
    def _agents_offer_what_is_set(self) -> Self:
        choices = {choice: name for name, agent in self.agents.items() for choice in agent.tools}
        servers = {choice.removeprefix("mcp:").partition("/")[0] for choice in choices if choice.startswith("mcp:")}
        for choice, agent in choices.items():
            server = choice.removeprefix("mcp:").partition("/")[0]
            if choice.startswith("mcp:") and server not in self.mcp:
                hint = nearest(server, list(self.mcp))
                raise ValueError(f"agents.{agent}.tools: there is no [mcp.{server}] for {choice!r}: add it; {hint}")
        for name, tool in self.tools.items():
            if choices and name not in choices and not name.startswith(tuple(f"{server}_" for server in servers)):
                hint = nearest(name, [choice for choice in choices if not choice.startswith("mcp:")])
                raise ValueError(
                    f"tools.{name} is set, but no agent offers that tool: correct the name, add it to "
                    f"agents.NAME.tools, or remove the section; {hint}"
                )
            if tool.timeout_s is not None and tool.timeout_s >= self.turns.turn_deadline_s:
                raise ValueError(
                    f"tools.{name}.timeout_s ({tool.timeout_s:g}) must be below turns.turn_deadline_s "
                    f"({self.turns.turn_deadline_s:g}), else it never fires"
                )
        return self

    @model_validator(mode="after")
    def _fallbacks_can_be_asked(self) -> Self:
        budget, health = self.turns.timeout_resume_retry_budget, self.provider_health
        for name, provider in self.providers.items():
            other = provider.fallback
            if other is None:
                continue
            if other == name:
                raise ValueError(f"providers.{name}.fallback is {name} itself: name another provider, or remove it")
            if other not in self.providers:
                hint = nearest(other, list(self.providers))
                raise ValueError(f"providers.{name}.fallback: there is no [providers.{other}]: add it; {hint}")
            if self.providers[other].model is None:
                raise ValueError(f"providers.{other}.model is not set, but it is the fallback of {name}: set it")
            if not budget and not health.deaths:
                raise ValueError(
                    f"providers.{name}.fallback ({other}) would never be asked: a call has 1 + "
                    f"turns.timeout_resume_retry_budget 0 = 1 attempt, and provider_health.deaths 0 skips nobody; "
                    "raise one of them, or remove fallback"
                )
            if health.deaths and health.skip_s < self.lease.renew_s:
                raise ValueError(
                    f"provider_health.skip_s ({health.skip_s:g}) must be at least lease.renew_s "
                    f"({self.lease.renew_s:g}), else a skip is over before the other processes hear of it; raise skip_s"
                )
        return self

    @model_validator(mode="after")
    def _threshold_is_of_something(self) -> Self:
        compaction = self.compaction
        if "threshold" not in compaction.model_fields_set or compaction.strategy == "off" or not self.providers:
            return self
        if all(provider.context_tokens is None for provider in self.providers.values()):
            raise ValueError(
                f"compaction.threshold ({compaction.threshold:g}) is a share of providers.NAME.context_tokens, which "
                "no provider has: set context_tokens, or remove threshold (compaction then waits for an overflow)"
            )
        return self

    @model_validator(mode="after")
    def _deadline_holds_the_worst_call(self) -> Self:
        budget, wait = self.turns.timeout_resume_retry_budget, self.turns.resume_backoff_s * 1.25
        for asked in self._longest_calls(1 + budget):
            silences = [self.providers[name].longest_silence_s for name in asked]
            worst = sum(silences) + budget * wait
            if self.turns.turn_deadline_s < worst:
                attempts = f"(1 + timeout_resume_retry_budget {budget})"
                one_by_one = " + ".join(f"{s:g} of {name}" for s, name in zip(silences, asked, strict=True))
                told = f"{attempts} x {silences[0]:g}" if len(set(asked)) == 1 else f"{attempts} attempts {one_by_one}"
                raise ValueError(
                    f"turns.turn_deadline_s ({self.turns.turn_deadline_s:g}) is shorter than the worst call of "
                    f"providers.{asked[0]}: {told} (larger of prefill_timeout_s, no_progress_timeout_s) + {budget} "
                    f"waits of {wait:g} = {worst:g}; raise turn_deadline_s or lower the others"
                )
        return self

    def _longest_calls(self, attempts: int) -> list[tuple[str, ...]]:
        """Whom the attempts of one call may ask, in order: each provider alone, while the others are skipped.

        Where none is ever skipped, the attempts go round; they begin with whoever answered last.
        """
        if self.provider_health.deaths:
            return [(name,) * attempts for name in self.providers]
        rings = [ring_of(agent.provider, self.providers) for agent in self.agents.values()]
        return [
            tuple(ring[(first + step) % len(ring)] for step in range(attempts))
            for ring in rings
            for first in range(len(ring))
        ]

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
