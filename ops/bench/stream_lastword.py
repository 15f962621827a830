"""Lastword as the stream benchmark runs it: one attempt folded into a buffer, or a whole turn without a store.

What belongs here: putting Lastword's own parts together. What must not be known here: what they are compared with.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from time import monotonic
from typing import Any, cast

from worker.codecs.events import Completed, TextDelta
from worker.codecs.messages import Request, UserMessage
from worker.codecs.wires import codec_of
from worker.engine.driver import TurnDriver
from worker.engine.health import ProviderHealth
from worker.engine.stream import Endpoint, attempt_events
from worker.guard import guard_operator
from worker.http import open_client
from worker.network_section import EgressSettings
from worker.output.buffer import CommitBuffer
from worker.store.health import HealthRules
from worker.store.lease import Grant
from worker.turn.events import Event, Heard
from worker.turn.facts import Committed, Progress
from worker.turn.machine import TurnMachine
from worker.turn.start import ProviderTerms, TurnLimits, TurnStart
from worker.turn.usage import UsageTotals
from worker.turn.watchdog import WatchdogLimits

Attempt = Callable[[str], AsyncIterator[list[Event]]]
"""Asks for the stream of that model."""


def attempt(wire: str, url: str) -> Attempt:
    """Attempts with the codec of the wire format."""
    client, codec = open_client(connect_timeout_s=10, guard=guard_operator(EgressSettings())), codec_of(wire)
    endpoint = Endpoint("bench", f"{url}/v1", "k", {}, connect_timeout_s=10, finish_grace_s=5)

    def ask(model: str) -> AsyncIterator[list[Event]]:
        request = Request(model, (UserMessage("Say something."),), max_tokens=9)
        return attempt_events(client, endpoint, codec, request, 1, 1)

    return ask


async def fold(batches: AsyncIterator[list[Event]]) -> str:
    """The text of a call that completed."""
    buffer = CommitBuffer()
    async for batch in batches:
        for event in batch:
            assert type(event) is Heard, event
            said = event.event
            if type(said) is TextDelta:
                buffer.stage(said.text)
            elif type(said) is Completed:
                buffer.commit()
    return buffer.committed


class _Store:
    """What a driver needs of an accumulator, of a turn that nobody watches."""

    watched = False

    def __init__(self) -> None:
        self.buffer = CommitBuffer()

    def stage_text(self, text: str) -> None:
        self.buffer.stage(text)

    async def open_call(self, *_: object, **__: object) -> None:
        """Nothing to record."""

    async def commit(self, fact: Committed, totals: UsageTotals, outputs: Sequence[object]) -> None:
        del totals, outputs
        self.buffer.commit(fact.text)

    async def seal(self, outcome: Any, *_: object) -> None:
        self.buffer.seal(outcome)


def turn(wire: str, ask: Attempt) -> Callable[[str], Awaitable[str]]:
    """Whole turns of one call each."""

    async def run(model: str) -> str:
        store = _Store()
        machine = TurnMachine(_start(wire, model), _limits(), monotonic() + 600, lambda: 0.5)
        health = ProviderHealth("bench", HealthRules(0, 60, 60), watching=False)
        driver = TurnDriver(
            _grant(),
            machine,
            cast("Any", store),
            lambda _provider, request, _call, _attempt: ask(request.model),
            cast("Any", None),  # no tools
            is_valid=lambda: True,
            health=health,
        )
        await driver.run()
        assert store.buffer.outcome == "completed", store.buffer.outcome
        return store.buffer.committed

    return run


def _start(wire: str, model: str) -> TurnStart:
    terms = ProviderTerms(
        name="bench",
        wire=wire,
        model=model,
        watchdog=WatchdogLimits(prefill_s=1800, inter_delta_s=600, progress_s=1200, stall_s=45, reasoning_s=1800),
        transport_retries=0,
        transport_backoff_s=1,
        transport_backoff_max_s=1,
    )
    return TurnStart(message="Say something.", providers=(terms,))


def _limits() -> TurnLimits:
    return TurnLimits(resume_budget=2, resume_backoff_s=0.5, max_calls=100, crash_cap=3, on_drain="fail")


def _grant() -> Grant:
    return Grant(
        turn="turn_00" + "0" * 20,
        session="bench",
        nonce="bench",
        epoch=1,
        op=0,
        message="Say something.",
        agent="default",
        source="bench",
        labels={},
        destinations=(),
        watched=False,
        marker=0,
        remaining_s=600,
        progress=Progress(),
        facts=(),
    )
