"""Each setting that says when and how a conversation is made shorter, by whole turns in this process.

The turn makes three calls. The second one reports 900 tokens; each of the two tools before it has left a long result.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import Site
from tests.support.whole_turns import WholeTurn, whole_turn
from worker.errors import ConfigurationError
from worker.output.events import CompactionOutput
from worker.turn.compaction import CLEARED

SCRIPT = f"""
[[conversations]]
match = "write the summary"
calls = [ {{ steps = [ {{ text = "Two places were looked for." }} ] }} ]

[[conversations]]
match = "Two places were looked for."
calls = [ {{ steps = [ {{ text = "An answer." }} ] }} ]

[[calls]]
steps = [ {{ tool = "clock", arguments = {{ timezone = "{"a" * 600}" }} }} ]
usage = {{ prompt_tokens = 100, completion_tokens = 5, total_tokens = 105 }}

[[calls]]
steps = [ {{ tool = "clock", arguments = {{ timezone = "{"b" * 600}" }} }} ]
usage = {{ prompt_tokens = 900, completion_tokens = 5, total_tokens = 905 }}

[[calls]]
steps = [ {{ text = "An answer." }} ]
"""
CLEARS_ALL = """
from worker.turn.compaction import Plan
from worker.turn.facts import Compacted


class ClearsAll:
    def plan(self, messages, turn_message_at, tokens, context_tokens, terms, forced):
        return Plan(Compacted(0, forced, kept_results=0, results_cleared=2))


strategy = ClearsAll()
"""


async def turn_of(url: str, folder: Path, context_tokens: int = 1000, **compaction: Any) -> WholeTurn:
    """The turn; all its other settings are what they are by default."""
    turn = await whole_turn(url, folder, SCRIPT, context_tokens=context_tokens, compaction=compaction)
    assert (turn.record.outcome, turn.text) == ("completed", "An answer.")
    return turn


def compactions(turn: WholeTurn) -> list[tuple[int, bool]]:
    """Of each compaction the results that it cleared, and whether it summed up."""
    return [
        (output.results_cleared, output.summarised)
        for output in turn.outputs
        if isinstance(output, CompactionOutput) and not output.forced
    ]


@pytest.mark.requirement("tuning:providers:context-tokens")
@pytest.mark.parametrize(("context_tokens", "expected"), [(1000, [(1, True)]), (2000, [])])
async def test_a_conversation_is_made_shorter_for_a_context_that_it_fills(
    context_tokens: int, expected: list[tuple[int, bool]], real_url: str, tmp_path: Path
) -> None:
    assert compactions(await turn_of(real_url, tmp_path, context_tokens)) == expected


@pytest.mark.requirement("tuning:compaction:threshold")
@pytest.mark.parametrize(("threshold", "context_tokens", "times"), [(0.95, 1000, 0), (0.4, 2000, 1)])
async def test_a_conversation_is_made_shorter_from_the_threshold_on(
    threshold: float, context_tokens: int, times: int, real_url: str, tmp_path: Path
) -> None:
    """By default from 750 of 1000 tokens on, and from 1500 of 2000."""
    turn = await turn_of(real_url, tmp_path, context_tokens, threshold=threshold)
    assert len(compactions(turn)) == times


@pytest.mark.requirement("tuning:compaction:keep-tool-results")
async def test_no_more_results_of_tools_are_kept_than_are_set(real_url: str, tmp_path: Path) -> None:
    """By default three are, so both; the last one is unread and stays in any case."""
    turn = await turn_of(real_url, tmp_path, keep_tool_results=0)
    assert compactions(turn) == [(1, False)]
    assert json.dumps(turn.asked[-1].request).count(CLEARED) == 1


@pytest.mark.requirement("tuning:compaction:summarise")
async def test_the_model_is_asked_for_no_summary_where_none_is_wanted(real_url: str, tmp_path: Path) -> None:
    """By default it is asked for one, as the results alone do not make enough room."""
    turn = await turn_of(real_url, tmp_path, summarise=False)
    assert (compactions(turn), len(turn.asked)) == ([], 3)


@pytest.mark.requirement("tuning:compaction:strategy")
async def test_a_conversation_stays_as_it_is_when_compaction_is_off(real_url: str, tmp_path: Path) -> None:
    turn = await turn_of(real_url, tmp_path, strategy="off")
    assert (compactions(turn), len(turn.asked)) == ([], 3)


@pytest.mark.requirement("tuning:compaction:strategy")
async def test_a_strategy_of_an_installed_package_decides_what_goes(
    real_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The default one would keep both results."""
    (tmp_path / "site").mkdir()
    site = Site(tmp_path / "site", monkeypatch)
    site.package("clears-all", CLEARS_ALL, "clears-all = strategy", group="lastword.compaction")
    turn = await turn_of(real_url, tmp_path, strategy="clears-all")
    assert compactions(turn) == [(2, False)]
    assert json.dumps(turn.asked[-1].request).count(CLEARED) == 2


@pytest.mark.requirement("tuning:compaction:strategy")
async def test_a_strategy_that_is_not_installed_stops_the_process_at_its_start_with_the_fix(
    real_url: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=r"compaction\.strategy = 'defualt'.*did you mean 'default'"):
        await whole_turn(real_url, tmp_path, SCRIPT, compaction={"strategy": "defualt"})


@pytest.mark.requirement("tuning:compaction:timeout-s")
async def test_a_summary_that_does_not_come_in_time_is_done_without(real_url: str, tmp_path: Path) -> None:
    """By default after three minutes."""
    hangs = SCRIPT.replace('steps = [ { text = "Two places were looked for." } ]', "steps = [ { stall = true } ]")
    assert hangs != SCRIPT
    limits = {"timeout_s": 1}
    turn = await whole_turn(real_url, tmp_path, hangs, context_tokens=1000, compaction=limits, stall_timeout_s=5)
    assert (turn.record.outcome, turn.text) == ("completed", "An answer.")
    assert [output.failure for output in turn.outputs if isinstance(output, CompactionOutput)] in ([], ["timeout"])
    assert "stall" in [each.ended for each in turn.asked]
