"""A tool that hangs the event loop of its process: turns beside it, wake-ups, and the process itself."""

import os
import signal
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from channels import exposition
from tests.process.scene import gone, lines_of, record_of, settings, suspected, text_of
from tests.support.stack import Process, Stack, eventually, is_alive, stand_in
from worker.engine.loop_watch import LOOP_HUNG
from worker.output.events import ErrorOutput, TextDeltaOutput, ToolCallOutput

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

SCRIPT = """
after_last = "last"

[[conversations]]
match = "<freeze>"
calls = [ { steps = [ { text = "Wait. " }, { tool = "freeze" } ] }, { steps = [ { text = "It went wrong." } ] } ]

[[conversations]]
match = "<slow>"
calls = [ { steps = [ { text = "The answer that stands.", pieces = 23, every_s = 0.3 } ] } ]

[[conversations]]
match = "<quick>"
calls = [ { steps = [ { text = "The answer that stands." } ] } ]
"""
HANGING_SUSPECT = SCRIPT.replace('"freeze"', '"freeze_again"')

SWEPT_AGAIN_MS = 120_000
"""After so long a process of `sweeps_once` wakes a session whose wake-up was lost again."""


def with_freeze(base_url: str, more: str = "") -> str:
    return settings(base_url, more).replace('"poison"', '"freeze", "freeze_again"')


async def has_ended(process: Process, within_s: float) -> int:
    async def look() -> int | None:
        return process.returncode

    code = await eventually(look, lambda seen: seen is not None, f"the end of {process.name}", within_s)
    assert code is not None
    return code


async def stuck(process: Process, times: int) -> None:
    """Return once the heartbeat has found the loop of its process stuck so often, or the process has ended."""

    async def look() -> bool:
        return process.returncode is not None or len(lines_of([process], "heartbeat_loop_is_stuck")) >= times

    await eventually(look, bool, "the next sign that the loop hangs")


async def frozen_by_now(processes: list[Process], runs: Path) -> Process:
    """The process in which `freeze` runs."""

    def pid() -> str:
        return runs.read_text(encoding="utf-8") if runs.exists() else ""

    async def look() -> list[Process]:
        return [process for process in processes if str(process.pid) == pid()]

    return (await eventually(look, bool, "a process whose loop hangs"))[0]


@pytest.mark.requirement("survive:hung:process")
async def test_a_process_whose_loop_hangs_swallows_no_wake_up_and_ends(tmp_path: Path, real_url: str) -> None:
    """Turns come before it is late, as it gets late, when its last look for work is still under way, and after."""
    runs = tmp_path / "runs"
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(with_freeze(provider.base_url))
        processes = [stack.start("turns", "sweeps_once", {"TOOL_RUNS": str(runs)}) for _ in range(2)]
        for process in processes:
            await stack.logged(process, "turns_process_started")
        frozen = await stack.submit("<freeze>", watch_s=120)
        hung = await frozen_by_now(processes, runs)
        turns: list[str] = []
        for number in range(8):
            turns += [await stack.submit(f"<quick> {number}.{each}", watch_s=120) for each in range(2)]
            await stuck(hung, times=number + 1)
        assert await has_ended(hung, 60) == LOOP_HUNG
        for turn in turns:
            assert text_of(await stack.ended(turn, within_s=60)) == "The answer that stands."
        assert text_of(await stack.ended(frozen, within_s=60)) == "Wait. It went wrong."
        record, *records = [await record_of(stack, turn) for turn in (frozen, *turns)]
        [cut_off] = lines_of([hung], "process_cut_off")
    took_ms = [(each.sealed_ms or 0) - each.created_ms for each in records]
    assert max(took_ms) < SWEPT_AGAIN_MS, took_ms
    assert (record.outcome, record.crashes) == ("completed", 1)
    assert cut_off["why"] == "loop_hangs"
    assert str(cut_off["place"]).endswith(" freeze")


async def killed_while_both_ran(stack: Stack, tmp_path: Path) -> tuple[str, str, Process]:
    """A turn that hangs its process and one that does no harm, both suspects now, and the process that has them."""
    environment = {"TOOL_RUNS": str(tmp_path / "runs")}
    first = stack.start("turns", environment=environment)
    innocent = await stack.submit("<slow>", watch_s=120)
    await stack.until(innocent, lambda output: isinstance(output, TextDeltaOutput))
    frozen = await stack.submit("<freeze>", watch_s=120)
    await stack.until(frozen, lambda output: isinstance(output, ToolCallOutput))
    first.kill()
    return frozen, innocent, stack.start("turns", environment=environment)


@pytest.mark.requirement("survive:hung:suspect")
@pytest.mark.requirement("metrics:suspects")
@pytest.mark.parametrize("suspects", [1, 2])
async def test_a_suspect_that_hangs_its_loop_ends_as_dead_and_keeps_no_room(
    tmp_path: Path, real_url: str, suspects: int
) -> None:
    more = f"[turns]\nsuspect_after = 1\ncrash_cap = 2\n[processes]\nsuspects = {suspects}\n[metrics]\nreport_s = 0.3"
    async with stand_in(HANGING_SUSPECT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(with_freeze(provider.base_url, more))
        frozen, innocent, second = await killed_while_both_ran(stack, tmp_path)
        outputs = await stack.ended(frozen, within_s=150)
        assert text_of(await stack.ended(innocent, within_s=90)) == "The answer that stands."
        dead, harmless = await record_of(stack, frozen), await record_of(stack, innocent)

        async def ended_suspects() -> int:
            return len(lines_of([second], "suspect_process_ended")) - len(lines_of([second], "suspect_process_started"))

        await eventually(ended_suspects, lambda difference: difference == 0, "the end of all suspects")

        async def counted() -> dict[str, float]:
            return sealed_in(await exposition.render(stack.client, stack.settings))

        figures = await eventually(counted, lambda seen: len(seen) == 2, "the ends of both turns in /metrics")
        pids = [int(str(line["pid"])) for line in lines_of([second], "suspect_process_started")]
        assert second.end() == 0
        told = [(line["turn"], line["has_room"], line["crashes"]) for line in lines_of([second], "turn_suspected")]
    error = next(output for output in outputs if isinstance(output, ErrorOutput))
    assert (dead.outcome, error.code) == ("dead", "crash_cap")
    assert (harmless.outcome, harmless.suspect_crashes) == ("completed", 0)
    assert figures == {"dead": 1, "completed": 1}
    assert not [pid for pid in pids if is_alive(pid)]
    assert len(told) == len(set(told))


def sealed_in(figures: bytes) -> dict[str, float]:
    """How many turns have ended, by outcome."""
    return {
        sample.labels["outcome"]: sample.value
        for family in text_string_to_metric_families(figures.decode())
        for sample in family.samples
        if sample.name == "lastword_turns_sealed_total"
    }


@pytest.mark.requirement("survive:hung:suspect-killed")
async def test_a_suspect_that_stands_still_is_killed_once_its_turn_is_a_suspect_again(
    tmp_path: Path, real_url: str
) -> None:
    async with stand_in(SCRIPT, tmp_path) as provider, Stack(tmp_path, real_url) as stack:
        stack.configure(with_freeze(provider.base_url, "[turns]\nsuspect_after = 1\n[processes]\nsuspects = 2"))
        turn, parent, pid = await suspected(stack)
        os.kill(pid, signal.SIGSTOP)
        outputs = await stack.ended(turn, within_s=60)
        await gone(pid)
        record = await record_of(stack, turn)
        [killed] = lines_of([parent], "suspect_process_killed")
        assert parent.end() == 0
    assert text_of(outputs) == "The answer that stands."
    assert (record.outcome, record.suspect_crashes) == ("completed", 1)
    assert killed["pid"] == pid
