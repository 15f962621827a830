"""Settings become the parts of one turn's driver.

What belongs here: which setting becomes which value, and the HTTP clients, one a provider. What must not be known
here: who drives, when, on which connection to the store.
"""

import httpx

from worker.codecs.messages import Message
from worker.codecs.openai_chat import ChatCodec
from worker.engine.driver import Attempt, Toolbox
from worker.engine.stream import Endpoint, attempt_events
from worker.errors import ConfigurationError
from worker.http import open_client
from worker.settings import AgentSettings, ProviderSettings, WorkerSettings
from worker.store.lease import Grant
from worker.tools import BUILT_IN
from worker.turn.start import TurnLimits, TurnStart
from worker.turn.watchdog import WatchdogLimits


class Providers:
    """The providers of a process, and the clients by which they are asked."""

    def __init__(self) -> None:
        self._clients: dict[str, httpx.AsyncClient] = {}

    async def close(self) -> None:
        """Close every client."""
        for client in self._clients.values():
            await client.aclose()

    def attempt(self, agent: AgentSettings, provider: ProviderSettings) -> Attempt:
        """How an agent's requests are sent. Raises `ConfigurationError` where TLS cannot be set up."""
        client = self._client(agent.provider, provider)
        endpoint = Endpoint(
            name=agent.provider,
            base_url=provider.base_url,
            api_key=provider.api_key.get_secret_value() if provider.api_key else None,
            headers={  # however the two are spelled, the agent's stands in place of the provider's
                header.lower(): value.get_secret_value()
                for header, value in (*provider.headers.items(), *agent.headers.items())
            },
            connect_timeout_s=provider.connect_timeout_s,
            finish_grace_s=provider.finish_grace_s,
        )
        codec = ChatCodec()
        return lambda request, call, attempt: attempt_events(client, endpoint, codec, request, call, attempt)

    def _client(self, name: str, provider: ProviderSettings) -> httpx.AsyncClient:
        if name not in self._clients:
            try:
                self._clients[name] = open_client(connect_timeout_s=provider.connect_timeout_s)
            except OSError as error:  # certificates that cannot be read
                fix = "correct SSL_CERT_FILE and its like"
                raise ConfigurationError(f"providers.{name}: TLS cannot be set up ({error.strerror}); {fix}") from error
        return self._clients[name]


def toolbox(settings: WorkerSettings, agent: AgentSettings) -> Toolbox:
    """The tools that an agent offers."""
    return Toolbox({name: BUILT_IN[name] for name in agent.tools}, settings.turns.tool_timeout_s)


def turn_start(
    grant: Grant, agent: AgentSettings, provider: ProviderSettings, history: tuple[Message, ...]
) -> TurnStart:
    """What the machine of a granted turn begins with."""
    tools = [BUILT_IN[name] for name in agent.tools]
    return TurnStart(
        message=grant.message,
        model=agent.model or provider.model or "",
        provider=agent.provider,
        history=history,
        facts=grant.facts,
        progress=grant.progress,
        instructions=agent.instructions,
        tools=tuple(tool.spec for tool in tools),
        retry_safe=frozenset(tool.spec.name for tool in tools if tool.retry_safe),
        max_tokens=agent.max_tokens,
        temperature=agent.temperature,
        extra_body=dict(agent.extra_body),
    )


def turn_limits(settings: WorkerSettings, provider: ProviderSettings) -> TurnLimits:
    """What a turn may spend with this provider."""
    turns = settings.turns
    return TurnLimits(
        watchdog=WatchdogLimits(
            prefill_s=provider.prefill_timeout_s,
            inter_delta_s=provider.first_token_timeout_s,
            progress_s=provider.no_progress_timeout_s,
            stall_s=provider.stall_timeout_s,
        ),
        resume_budget=turns.timeout_resume_retry_budget,
        resume_backoff_s=turns.resume_backoff_s,
        transport_retries=provider.transport_retries,
        transport_backoff_s=provider.transport_backoff_s,
        transport_backoff_max_s=provider.transport_backoff_max_s,
        max_calls=turns.max_calls,
        crash_cap=turns.crash_cap,
        on_drain=turns.on_drain,
    )
