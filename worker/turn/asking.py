"""Whom a call asks, and what.

What belongs here: the choice among the providers that a turn may ask, and the request to one. What must not be known
here: why the last one died, how it is asked.
"""

from collections.abc import Collection, Sequence

from worker.codecs.messages import Request
from worker.turn.start import ProviderTerms, TurnStart
from worker.turn.transcript import Transcript


def whom_to_ask(
    providers: Sequence[ProviderTerms], skipped: Collection[str], *, preferred: str = "", died: str = ""
) -> ProviderTerms:
    """The provider of the next attempt. `providers`: the agent's own first, then its fallbacks; never empty.

    After a death the turn goes on with the one behind the provider that `died`, since stalls of one provider come in
    storms; a new call begins with the `preferred` one, which answered last, else with the first. Providers that are
    `skipped` are left out, unless that leaves nobody.
    """
    names = [provider.name for provider in providers]
    first = 0
    if died in names:
        first = names.index(died) + 1
    elif preferred in names:
        first = names.index(preferred)
    ring = [providers[(first + step) % len(providers)] for step in range(len(providers))]
    return next((provider for provider in ring if provider.name not in skipped), ring[0])


def request_to(start: TurnStart, transcript: Transcript, provider: ProviderTerms) -> Request:
    """The next request of a turn to one provider."""
    return Request(
        model=provider.model,
        messages=transcript.messages(provider.name),
        instructions=start.instructions,
        tools=start.tools,
        max_tokens=start.max_tokens,
        temperature=start.temperature,
        extra_body=provider.extra_body,
    )
