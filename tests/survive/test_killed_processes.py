"""Real processes that are killed at a verb of the store, one after the other, through one turn."""

import json
from pathlib import Path

import pytest

from tests.process.test_worker_killed import body_of, settings
from tests.support.receiver import Receiver
from tests.support.stack import Process, Stack, eventually, stand_in
from worker.output.events import TextStreamDiscardedOutput
from worker.store.outputs import all_outputs
from worker.store.records import TurnRecord, read_turn
from worker.turn.verdict import OUTCOME_UNKNOWN

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

SCRIPT = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "note", id = "t1" } ]

[[calls]]
steps = [ { text = "I will look. " }, { tool = "note", id = "t1" } ]

[[calls]]
steps = [ { text = "Once more. " }, { tool = "note", id = "t2", arguments = { } } ]

[[calls]]
steps = [ { text = "The answer that stands." } ]
"""
DEATHS = (
    "claim after 1",
    "open_call after 1",
    "commit before 1",  # the first request was answered, and nobody knows
    "commit after 1",  # the second one: from here on everybody does
    "tool_start after 1",  # the tool has not run, which nobody knows
    "record after 2",  # the second tool has run
    "seal before 1",
    "seal after 1",
)
WITHIN_S = 60.0


async def died(process: Process) -> None:
    """It has killed itself."""

    async def code() -> int | None:
        return process.returncode

    assert await eventually(code, lambda seen: seen is not None, f"the death of {process.name}", WITHIN_S) == -9


@pytest.mark.requirement("survive:kill:verb-by-verb")
async def test_a_turn_outlives_a_kill_at_one_verb_after_the_other(tmp_path: Path, real_url: str) -> None:
    runs = tmp_path / "runs"
    async with stand_in(SCRIPT, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url) + "\n[turns]\nsuspect_after = 20\n")
        stack.start("delivery")
        turn = await stack.submit("Take a note.", destinations=("receiver",))
        for death in DEATHS:
            await died(stack.start("turns", "dies_at_a_verb", {"TOOL_RUNS": str(runs), "DIES_AT": death}))
        data = body_of(await receiver.nth(1, within_s=WITHIN_S))
        record = await read_turn(stack.client, turn)
        outputs = await all_outputs(stack.client, turn)
        exchanges = list(provider.transcript.exchanges)
    assert isinstance(record, TurnRecord)
    assert (data["outcome"], data["text"]) == ("completed", "I will look. Once more. The answer that stands.")
    assert record.crashes == len(DEATHS) - 1
    assert runs.read_text(encoding="utf-8") == f"{turn}:2:0\n"
    assert [output.seq for output in outputs] == list(range(1, len(outputs) + 1))
    discards = [(each.call, each.attempt) for each in outputs if isinstance(each, TextStreamDiscardedOutput)]
    assert discards == [(1, 1), (1, 2)]
    assert len(exchanges) == 4
    assert OUTCOME_UNKNOWN.result in json.dumps(exchanges[2].request)
    assert len(receiver.requests) == 1


@pytest.mark.requirement("cases:t13:tool-result-not-recorded")
async def test_a_tool_whose_result_was_not_recorded_is_not_run_again_silently(tmp_path: Path, real_url: str) -> None:
    runs = tmp_path / "runs"
    script = """
[[calls]]
steps = [ { text = "I will look. " }, { tool = "note" } ]

[[calls]]
steps = [ { text = "Perhaps it is noted." } ]
"""
    async with stand_in(script, tmp_path) as provider, Receiver() as receiver, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, receiver.url))
        stack.start("delivery")
        turn = await stack.submit("Take a note.", destinations=("receiver",))
        await died(stack.start("turns", "dies_at_a_verb", {"TOOL_RUNS": str(runs), "DIES_AT": "record before 1"}))
        stack.start("turns", environment={"TOOL_RUNS": str(runs)})
        data = body_of(await receiver.nth(1, within_s=WITHIN_S))
        exchanges = list(provider.transcript.exchanges)
    assert (data["outcome"], data["text"]) == ("completed", "I will look. Perhaps it is noted.")
    assert runs.read_text(encoding="utf-8") == f"{turn}:1:0\n"
    assert len(exchanges) == 2
    assert OUTCOME_UNKNOWN.result in json.dumps(exchanges[1].request)
