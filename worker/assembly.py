"""Settings become the parts of one turn's driver.

What belongs here: which setting becomes which value, and the HTTP clients, one a provider. What must not be known
here: who drives, when, on which connection to the store.
"""

from collections.abc import AsyncIterator, Mapping
from importlib.metadata import entry_points

import httpx

from worker.codecs.codec import Codec
from worker.codecs.limits import StreamLimits
from worker.codecs.messages import Message, Request
from worker.codecs.wires import codec_of
from worker.engine.driver import Attempt
from worker.engine.stream import Endpoint, attempt_events
from worker.engine.toolbox import Toolbox
from worker.errors import ConfigurationError
from worker.guard import Guard
from worker.http import open_client
from worker.sections import AgentSettings, ProviderSettings, ring_of
from worker.settings import WorkerSettings
from worker.sources import nearest
from worker.store.health import HealthRules
from worker.store.lease import Grant
from worker.tools.tool import Tool
from worker.turn.compaction import DEFAULT, Strategy
from worker.turn.events import Event
from worker.turn.start import CompactionTerms, ProviderTerms, TurnLimits, TurnStart
from worker.turn.watchdog import WatchdogLimits

STRATEGIES = "lastword.compaction"
"""The group of entry points under which strategies of compaction are found."""


class Providers:
    """The providers of a process, and the clients by which they are asked. `guard`: what may be dialled."""

    def __init__(self, settings: Mapping[str, ProviderSettings], guard: Guard) -> None:
        self._settings = settings
        self._guard = guard
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def close(self) -> None:
        """Close every client."""
        for client in self._clients.values():
            await client.aclose()

    def attempt(self, agent: AgentSettings) -> Attempt:
        """How an agent's requests are sent. Raises `ConfigurationError` where TLS cannot be set up."""
        asked = {name: self._asked(name, agent) for name in ring_of(agent.provider, self._settings)}

        def send(provider: str, request: Request, call: int, attempt: int) -> AsyncIterator[list[Event]]:
            client, endpoint, codec = asked[provider]
            return attempt_events(client, endpoint, codec, request, call, attempt)

        return send

    def _asked(self, name: str, agent: AgentSettings) -> tuple[httpx.AsyncClient, Endpoint, Codec]:
        provider = self._settings[name]
        headers = [*provider.headers.items(), *(agent.headers.items() if name == agent.provider else ())]
        endpoint = Endpoint(
            name=name,
            base_url=provider.base_url,
            api_key=provider.api_key.get_secret_value() if provider.api_key else None,
            # However the two are spelled, the agent's stands in place of the provider's.
            headers={header.lower(): value.get_secret_value() for header, value in headers},
            connect_timeout_s=provider.connect_timeout_s,
            finish_grace_s=provider.finish_grace_s,
        )
        limits = StreamLimits(**provider.limits.model_dump())
        return self._client(name, provider), endpoint, codec_of(provider.wire, limits, provider.profile)

    def _client(self, name: str, provider: ProviderSettings) -> httpx.AsyncClient:
        if name not in self._clients:
            try:
                self._clients[name] = open_client(connect_timeout_s=provider.connect_timeout_s, guard=self._guard)
            except OSError as error:  # certificates that cannot be read
                fix = "correct SSL_CERT_FILE and its like"
                raise ConfigurationError(f"providers.{name}: TLS cannot be set up ({error.strerror}); {fix}") from error
        return self._clients[name]


def toolbox(settings: WorkerSettings, tools: Mapping[str, Tool]) -> Toolbox:
    """The tools of a turn, ready to run."""
    turns = settings.turns
    return Toolbox(tools, turns.tool_timeout_s, turns.tool_result_chars, settings.approvals.expire_s)


def turn_start(
    grant: Grant,
    agent: AgentSettings,
    providers: Mapping[str, ProviderSettings],
    tools: Mapping[str, Tool],
    history: tuple[Message, ...],
) -> TurnStart:
    """What the machine of a granted turn begins with. `tools`: those that the agent offers, by name."""
    return TurnStart(
        message=grant.message,
        providers=tuple(_terms(name, agent, providers[name]) for name in ring_of(agent.provider, providers)),
        history=history,
        facts=grant.facts,
        progress=grant.progress,
        instructions=agent.instructions,
        tools=tuple(tool.spec for tool in tools.values()),
        retry_safe=frozenset(name for name, tool in tools.items() if tool.retry_safe),
        asks=frozenset(name for name, tool in tools.items() if tool.approval == "ask"),
        max_tokens=agent.max_tokens,
        temperature=agent.temperature,
        joins=grant.joins,
        carried=grant.carried,
    )


def _terms(name: str, agent: AgentSettings, provider: ProviderSettings) -> ProviderTerms:
    is_own = name == agent.provider  # a fallback has its own models, and may not know the agent's keys
    return ProviderTerms(
        name=name,
        wire=provider.wire,
        model=(agent.model if is_own else None) or provider.model or "",
        extra_body={  # a codec leaves out what is None; no settings file can say so
            **dict.fromkeys(provider.omit_body),
            **provider.extra_body,
            **(agent.extra_body if is_own else {}),
        },
        watchdog=WatchdogLimits(
            prefill_s=provider.prefill_timeout_s,
            inter_delta_s=provider.first_token_timeout_s,
            progress_s=provider.no_progress_timeout_s,
            stall_s=provider.stall_timeout_s,
            reasoning_s=provider.reasoning_timeout_s,
        ),
        transport_retries=provider.transport_retries,
        transport_backoff_s=provider.transport_backoff_s,
        transport_backoff_max_s=provider.transport_backoff_max_s,
        context_tokens=provider.context_tokens,
    )


def turn_limits(settings: WorkerSettings) -> TurnLimits:
    """What a turn may spend."""
    turns, compaction = settings.turns, settings.compaction
    terms = CompactionTerms(
        threshold=compaction.threshold,
        kept_results=compaction.keep_tool_results,
        summarises=compaction.summarise,
        timeout_s=compaction.timeout_s,
    )
    return TurnLimits(
        resume_budget=turns.timeout_resume_retry_budget,
        resume_backoff_s=turns.resume_backoff_s,
        max_calls=turns.max_calls,
        empty_nudges=turns.empty_answer_nudges,
        empty_nudges_after_tools=turns.empty_answer_nudges_after_tools,
        compaction=None if compaction.strategy == "off" else terms,
        crash_cap=turns.crash_cap,
        on_drain=turns.on_drain,
    )


def health_rules(settings: WorkerSettings) -> HealthRules:
    """When a provider is left alone."""
    health = settings.provider_health
    return HealthRules(health.deaths, health.window_s, health.skip_s)


def strategy(name: str) -> Strategy:
    """The strategy of compaction of that name. Raises `ConfigurationError` for one that cannot be had."""
    if name in ("default", "off"):
        return DEFAULT
    found = {each.name: each for each in entry_points(group=STRATEGIES)}
    if name not in found:
        hint = nearest(name, ["default", "off", *found])
        raise ConfigurationError(
            f"compaction.strategy = {name!r} is no strategy: install the package that has it as an entry point of "
            f"{STRATEGIES}, or choose another; {hint}"
        )
    try:
        loaded: Strategy = found[name].load()
    except Exception as error:
        raise ConfigurationError(
            f"compaction.strategy = {name!r} cannot be loaded from {found[name].value} ({type(error).__name__}): "
            "repair that package, or choose another strategy"
        ) from error
    if not callable(getattr(loaded, "plan", None)):
        raise ConfigurationError(
            f"compaction.strategy = {name!r}: {found[name].value} has no method plan; see Strategy"
        )
    return loaded
