"""Each setting of [turns], from the file through a real worker to what became of a turn.

Three workers: one is told to ask once more and to spend little, one never to ask again, one to end turns early.
What is expected cannot come of a default.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from channels.embedded import EmbeddedServer
from channels.rehearsal.server import StandIn
from channels.rehearsal.transcript import Exchange
from tests.support.stack import Stack, database, eventually, stand_in
from worker import ids
from worker.output.events import (
    CallCompletedOutput,
    ErrorOutput,
    Output,
    TextStreamDiscardedOutput,
    ToolResultOutput,
    TurnCompletedOutput,
)
from worker.store import keys, lease

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<cut>"
calls = [ { steps = [ { text = "Half an " }, { truncate = true } ] } ]

[[conversations]]
match = "<cut once>"
calls = [ { steps = [ { text = "Half an " }, { truncate = true } ] }, { steps = [ { text = "An answer." } ] } ]

[[conversations]]
match = "<tools>"
calls = [ { steps = [ { tool = "hang" } ] } ]

[[conversations]]
match = "<tool>"
calls = [ { steps = [ { tool = "hang" } ] }, { steps = [ { text = "An answer." } ] } ]

[[conversations]]
match = "<endless>"
calls = [ { steps = [ { text = "An answer that takes its time.", pieces = 30, every_s = 0.5 } ] } ]

[[calls]]
steps = [ { text = "An answer." } ]
"""
THRIFTY = """
[lease]
sweep_s = 0.1

[turns]
timeout_resume_retry_budget = 1
resume_backoff_s = 1.6
max_calls = 3
crash_cap = 1
tool_timeout_s = 0.2
history_turns = 1
keep_s = 900

[delivery]
retry_waits_s = []
give_up_s = 600

[agents.default]
tools = ["hang"]

[providers.main]
model = "stand-in"
"""
STRICT = """
[lease]
sweep_s = 0.1

[turns]
timeout_resume_retry_budget = 0

[providers.main]
model = "stand-in"
"""
HURRIED = """
[lease]
sweep_s = 0.1

[turns]
timeout_resume_retry_budget = 0
turn_deadline_s = 3

[providers.main]
model = "stand-in"
prefill_timeout_s = 3
first_token_timeout_s = 3
no_progress_timeout_s = 3
stall_timeout_s = 0
"""


@dataclass(frozen=True)
class Asked:
    """A worker and the provider that it asks. `vanished_from`: a turn that two owners took and left without a word."""

    stack: Stack
    provider: StandIn
    vanished_from: str = ""

    def exchanges(self, prompt: str) -> list[Exchange]:
        """What the provider was asked in the conversation that began with `prompt`, and what it answered."""
        return [each for each in self.provider.transcript.exchanges if each.prompt == prompt]

    async def ended(self, prompt: str, session: str | None = None) -> list[Output]:
        """All outputs of a turn that is submitted now, once it has ended."""
        return await self.stack.ended(await self.stack.submit(prompt, session=session))


async def vanish_from(stack: Stack, turn: str, session: str) -> None:
    """Own a turn as the process of a suspect does, and never be heard of again."""
    nonce = ids.new_nonce()

    async def claim() -> lease.Grant | None:
        return await lease.claim(stack.client, session, nonce, 0.05, stack.settings.partitions, suspect_after=0)

    grant = await eventually(claim, bool, f"the claim of {turn}")
    assert grant is not None
    assert grant.turn == turn


@pytest.fixture(scope="module")
async def thrifty(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer) -> AsyncIterator[Asked]:
    """Its first turn has lost two owners before the worker starts."""
    folder = tmp_path_factory.mktemp("thrifty")
    async with stand_in(SCRIPT, folder) as provider, Stack(folder, database(server, 2)) as stack:
        stack.configure(f'{THRIFTY}\nbase_url = "{provider.base_url}"\n')
        session = ids.new_session()
        vanished_from = await stack.submit("<vanished>", session=session)
        for _ in range(2):
            await vanish_from(stack, vanished_from, session)
        stack.start("turns")
        yield Asked(stack, provider, vanished_from)


@pytest.fixture(scope="module")
async def strict(tmp_path_factory: pytest.TempPathFactory, server: EmbeddedServer) -> AsyncIterator[Asked]:
    folder = tmp_path_factory.mktemp("strict")
    async with stand_in(SCRIPT, folder) as provider, Stack(folder, database(server, 3)) as stack:
        stack.configure(f'{STRICT}\nbase_url = "{provider.base_url}"\n')
        stack.start("turns")
        yield Asked(stack, provider)


@pytest.fixture
async def hurried(tmp_path: Path, server: EmbeddedServer) -> AsyncIterator[Asked]:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, database(server, 7)) as stack:
        stack.configure(f'{HURRIED}\nbase_url = "{provider.base_url}"\n')
        stack.start("turns")
        yield Asked(stack, provider)


def error_of(outputs: list[Output]) -> ErrorOutput:
    [error] = [output for output in outputs if isinstance(output, ErrorOutput)]
    return error


@pytest.mark.requirement("tuning:turns:timeout-resume-retry-budget")
async def test_with_a_budget_of_one_a_call_that_dies_is_asked_again_once(thrifty: Asked) -> None:
    outputs = await thrifty.ended("<cut>")
    assert len(thrifty.exchanges("<cut>")) == 2
    assert [output.attempt for output in outputs if isinstance(output, TextStreamDiscardedOutput)] == [1, 2]
    assert "timeout_resume_retry_budget = 1" in error_of(outputs).message


@pytest.mark.requirement("tuning:turns:timeout-resume-retry-budget")
async def test_with_a_budget_of_nought_a_call_that_dies_is_not_asked_again_and_still_discarded(strict: Asked) -> None:
    outputs = await strict.ended("<cut>")
    assert len(strict.exchanges("<cut>")) == 1
    assert [output.attempt for output in outputs if isinstance(output, TextStreamDiscardedOutput)] == [1]
    assert "timeout_resume_retry_budget = 0" in error_of(outputs).message


@pytest.mark.requirement("tuning:turns:resume-backoff-s")
async def test_a_resume_waits_for_its_backoff(thrifty: Asked) -> None:
    """At least 1.2 s here, and at most 0.625 s by default."""
    outputs = await thrifty.ended("<cut once>")
    waits_ms = [
        after.at_ms - before.at_ms
        for before, after in pairwise(outputs)
        if isinstance(before, TextStreamDiscardedOutput)
    ]
    assert len(waits_ms) == 1
    assert waits_ms[0] > 1000


@pytest.mark.requirement("tuning:turns:turn-deadline-s")
async def test_a_turn_ends_at_its_deadline_although_the_answer_still_flows(hurried: Asked) -> None:
    """The answer would be whole after 15 s."""
    outputs = await hurried.ended("<endless>")
    assert error_of(outputs).code == "turn_deadline"
    [exchange] = hurried.exchanges("<endless>")
    assert (await hurried.provider.transcript.wait_for_end(exchange.n)).ended == "client_left"


@pytest.mark.requirement("tuning:turns:max-calls")
async def test_a_turn_makes_no_more_calls_than_it_may(thrifty: Asked) -> None:
    outputs = await thrifty.ended("<tools>")
    assert error_of(outputs).code == "max_calls"
    assert len([output for output in outputs if isinstance(output, CallCompletedOutput)]) == 3
    assert len(thrifty.exchanges("<tools>")) == 3


@pytest.mark.requirement("tuning:turns:crash-cap")
async def test_a_turn_that_took_down_more_processes_than_it_may_is_dead(thrifty: Asked) -> None:
    outputs = await thrifty.stack.ended(thrifty.vanished_from)
    assert isinstance(outputs[-1], TurnCompletedOutput)
    assert (outputs[-1].outcome, error_of(outputs).code) == ("dead", "crash_cap")
    assert thrifty.exchanges("<vanished>") == []


@pytest.mark.requirement("tuning:turns:tool-timeout-s")
async def test_a_tool_that_hangs_is_given_up_after_its_time(thrifty: Asked) -> None:
    outputs = await thrifty.ended("<tool>")
    [result] = [output for output in outputs if isinstance(output, ToolResultOutput)]
    assert (result.failure, "0.2 s" in result.result) == ("timeout", True)
    assert isinstance(outputs[-1], TurnCompletedOutput)
    assert outputs[-1].outcome == "completed"


@pytest.mark.requirement("tuning:turns:history-turns")
async def test_the_model_is_shown_as_many_earlier_turns_as_it_may_remember(thrifty: Asked) -> None:
    session = ids.new_session()
    for prompt in ("<first>", "<second>", "<third>"):
        await thrifty.ended(prompt, session)
    # The stand-in knows a conversation by the first message that it is shown.
    assert [
        [message["content"] for message in exchange.request["messages"]] for exchange in thrifty.exchanges("<second>")
    ] == [["<second>", "An answer.", "<third>"]]


@pytest.mark.requirement("tuning:turns:keep-s")
async def test_a_sealed_turn_can_be_read_as_long_as_it_is_kept(thrifty: Asked) -> None:
    turn = await thrifty.stack.submit("<keep>")
    await thrifty.stack.ended(turn)
    assert 0 < await thrifty.stack.client.ttl(keys.turn_record(turn)) <= 900
