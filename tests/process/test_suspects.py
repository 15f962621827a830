"""A turn that takes down whatever process runs it, amid turns that do no harm, in processes that are restarted."""

import collections
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.scene import gone, lines_of, record_of, settings, suspected, text_of
from tests.support.stack import Stack, is_alive, stand_in
from tests.support.supervisor import supervised
from worker.output.events import ErrorOutput, TextDeltaOutput, TurnCompletedOutput

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<poison>"
calls = [ { steps = [ { text = "Wait. ", pieces = 3, every_s = 0.7 }, { tool = "poison" } ] } ]

[[conversations]]
match = "<innocent>"
calls = [
  { steps = [ { text = "Noted. " }, { tool = "note" } ] },
  { steps = [ { text = "The answer that stands.", pieces = 20, every_s = 0.2 } ] },
]

[[conversations]]
match = "<slow>"
calls = [ { steps = [ { text = "The answer that stands.", pieces = 23, every_s = 0.3 } ] } ]
"""
INNOCENTS = 20


@pytest.mark.requirement("survive:poison:dead")
@pytest.mark.requirement("survive:poison:neighbours")
@pytest.mark.requirement("survive:kill:told")
async def test_a_poison_turn_ends_as_dead_and_none_of_its_neighbours_is_blamed(tmp_path: Path, real_url: str) -> None:
    runs = tmp_path / "runs"
    runs.touch()
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url))
        innocents = [await stack.submit(f"<innocent> {number}") for number in range(INNOCENTS)]
        poison = await stack.submit("<poison>")
        async with supervised(stack, 2, {"TOOL_RUNS": str(runs)}) as processes:
            outputs = await stack.ended(poison, within_s=180)
            ends = [await stack.ended(turn, within_s=60) for turn in innocents]
            died = [process.returncode for process in processes if process.returncode is not None]
        records = [await record_of(stack, turn) for turn in innocents]
        dead = await record_of(stack, poison)
    error = next(output for output in outputs if isinstance(output, ErrorOutput))
    assert isinstance(outputs[-1], TurnCompletedOutput)
    assert (outputs[-1].outcome, error.code) == ("dead", "crash_cap")
    assert "took down its own process 4 times" in error.message
    assert (dead.crashes, dead.suspect_crashes) == (6, 4)
    assert [(record.outcome, record.suspect_crashes) for record in records] == [("completed", 0)] * INNOCENTS
    assert all(text_of(end).endswith("The answer that stands.") for end in ends)
    traces = [line.split() for line in runs.read_text(encoding="utf-8").splitlines()]
    notes = collections.Counter(trace[0] for trace in traces if trace[0] != "poison")
    assert notes
    assert set(notes.values()) == {1}
    assert len(traces) - len(notes) == 6
    assert died == [-signal.SIGKILL] * 2  # the other four processes ran nothing but the poison
    taken = [line for line in lines_of(processes, "turn_taken_over") if line["turn"] == poison]
    assert sorted((line["crashes"], line["suspect"], line["suspect_crashes"]) for line in taken) == [
        (1, False, 0),
        (2, True, 0),
        (3, True, 1),
        (4, True, 2),
        (5, True, 3),
        (6, True, 4),
    ]
    assert {line["tools_open"] for line in taken} == {1}
    assert len([line for line in lines_of(processes, "turn_suspected") if line["turn"] == poison]) >= 5


@pytest.mark.requirement("survive:suspect:parent-killed")
@pytest.mark.requirement("tuning:turns:suspect-after")
async def test_a_suspect_whose_parent_is_killed_goes_on_and_is_not_blamed(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "[turns]\nsuspect_after = 1"))
        turn, parent, pid = await suspected(stack)
        parent.kill()
        outputs = await stack.ended(turn)
        await gone(pid)
        record = await record_of(stack, turn)
        assert len(provider.transcript.exchanges) == 2
    assert text_of(outputs) == "The answer that stands."
    assert (record.outcome, record.crashes, record.suspect_crashes, record.suspect) == ("completed", 1, 0, True)


@pytest.mark.requirement("survive:suspect:drain")
async def test_a_suspect_is_handed_over_when_its_parent_shuts_down_and_nothing_is_left_behind(
    tmp_path: Path, real_url: str
) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "[turns]\nsuspect_after = 1"))
        turn, parent, pid = await suspected(stack)
        assert parent.end() == 0
        assert not is_alive(pid)
        third = stack.start("turns")
        outputs = await stack.ended(turn)
        record = await record_of(stack, turn)
        [resumed] = lines_of([third], "turn_resumed")
    assert text_of(outputs) == "The answer that stands."
    assert (record.outcome, record.crashes, record.suspect_crashes) == ("completed", 1, 0)
    assert (resumed["turn"], resumed["suspect"], resumed["crashes"]) == (turn, True, 1)


@pytest.mark.requirement("drain:signals:echo")
@pytest.mark.parametrize("child_first", [True, False])
async def test_a_suspect_that_a_supervisor_signals_with_its_parent_is_not_blamed(
    child_first: bool, tmp_path: Path, real_url: str
) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "[turns]\nsuspect_after = 1"))
        turn, parent, pid = await suspected(stack)
        for one in (pid, parent.pid) if child_first else (parent.pid, pid):
            os.kill(one, signal.SIGTERM)
        assert parent.exit_code() == 0
        await gone(pid)
        record = await record_of(stack, turn)
        assert not lines_of([parent], "process_cut_off")
        assert (record.state, record.crashes, record.suspect_crashes) == ("queued", 1, 0)
        stack.start("turns")
        assert text_of(await stack.ended(turn)) == "The answer that stands."


@pytest.mark.requirement("survive:suspect:redis-away")
def test_a_suspect_that_cannot_reach_redis_reports_no_fault_of_its_own(tmp_path: Path, unused_port: int) -> None:
    """With less patience than the 30 s of the product."""
    code = (
        "import sys, worker.wiring; worker.wiring._START_PATIENCE_S = 0.5\n"
        "from worker import suspect; sys.exit(suspect.main())"
    )
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LASTWORD_")},
        "LASTWORD_REDIS_URL": f"redis://127.0.0.1:{unused_port}/0",
        "LASTWORD_PROVIDERS__MAIN__BASE_URL": "http://127.0.0.1:9/v1",
        "LASTWORD_PROVIDERS__MAIN__MODEL": "stand-in",
        "PYTHONPATH": str(Path(__file__).parents[2]),
    }
    ended = subprocess.run(
        [sys.executable, "-c", code, "room/1"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert ended.returncode == 1
    assert [line["session"] for line in lines if line["event"] == "suspect_lost_redis"] == ["room/1"], ended.stderr
    assert not [line for line in lines if line["level"] == "error"]


@pytest.mark.requirement("survive:suspect:room")
@pytest.mark.requirement("tuning:processes:suspects")
async def test_suspects_wait_for_room_and_hold_up_nobody(tmp_path: Path, real_url: str) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(settings(provider.base_url, "[turns]\nsuspect_after = 1\n[processes]\nsuspects = 1"))
        first = stack.start("turns")
        turns = [await stack.submit(f"<slow> {number}", watch_s=60) for number in range(3)]
        for turn in turns:
            await stack.until(turn, lambda output: isinstance(output, TextDeltaOutput))
        first.kill()
        second = stack.start("turns", environment={"TOOL_RUNS": str(tmp_path / "runs")})
        await stack.logged(second, "suspect_process_started")
        other = await stack.submit("<innocent>")
        assert text_of(await stack.ended(other)) == "Noted. The answer that stands."
        for turn in turns:
            assert text_of(await stack.ended(turn, within_s=60)) == "The answer that stands."
        started = lines_of([second], "suspect_process_started")
        waited = [line for line in lines_of([second], "turn_suspected") if not line["has_room"]]
    assert len(started) == 3
    assert len(waited) >= 2
